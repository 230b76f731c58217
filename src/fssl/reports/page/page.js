"use strict";
// The page: state in, elements and charts out. Python works the numbers out, this selects, formats and draws them.
// Texts enter the document as text only, never as markup.

// An element; of which kind it is, index.html says.
/** @type {(id: string) => any} */
const $ = (id) => document.getElementById(id);
const root = document.documentElement;
const isLive = document.body.dataset.mode === "live";
const POLL = 2000; // milliseconds between questions to the server
const MOST = 24; // lines in one chart
const CROWD = 6; // lines whose values fit into one box over a small chart; of more, the nearest one's are shown
const CARDS = 6; // tasks with a card of words of their own; the rest is folded
const NOTES = 200; // notes that are listed
const FEW_ROUNDS = 10; // that each have a number on an axis
const FEW = 20; // classes, or clients, that can each have a name on an axis
const MOST_NAMES = 40; // classes with a name on an axis
const LONG_NAME = 14; // letters of a name on an axis
const NARROW = 640; // pixels up to which the charts stand below each other, as in page.css
const STROKES = {
  solid: "",
  dash: "5 3",
  dot: "1.5 2.5",
  dashdot: "5 2 1.5 2",
  longdash: "9 3",
  longdashdot: "9 3 1.5 3",
};
const DASHES = Object.keys(STROKES);
const SVG = "http://www.w3.org/2000/svg";

const state = {
  data: null,
  version: -1,
  runs: {}, // by folder
  curves: {}, // by the folder of a line's first run
  filters: {},
  task: null, // its title, or "all"
  confusion: { line: null, model: null }, // whose confusion matrix: the key of a line, and which of its models
  hidden: new Set(), // keys of lines
  sort: { column: "result", way: -1 },
};

// Elements and texts.

/** @type {(tag: string, attributes?: object, ...children: (Node | string | null)[]) => any} */
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

function svg(tag, attributes) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

const fixed = (value, digits = 2) => (value === null ? "–" : value.toFixed(digits));
const plus = ([mean, std], digits = 2) => fixed(mean, digits) + (std === null ? "" : ` ± ${fixed(std, digits)}`);
const count = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
const textOf = (value) => (value === null ? "–" : String(value));
const safe = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;"); // for Plotly, which reads some markup

function duration(seconds) {
  if (seconds < 90) return `${seconds.toFixed(0)} s`;
  return seconds < 5400 ? `${(seconds / 60).toFixed(0)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

function say(text) {
  $("said").textContent = text;
}

// What the focused element stands for: drawing it anew must not lose the focus.
function focusedOn(kind) {
  const element = document.activeElement;
  return element instanceof HTMLElement ? element.dataset[kind] : undefined;
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copyByHand(text); // no permission, or an old browser
    button.focus();
  }
  const before = button.textContent;
  button.textContent = "Copied";
  say("Copied");
  setTimeout(() => (button.textContent = before), 1500);
}

function copyByHand(text) {
  const area = el("textarea", { class: "away" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

function copyButton(text, attributes = {}) {
  return el("button", { type: "button", onclick: (event) => copy(text, event.currentTarget), ...attributes }, "Copy");
}

// What is shown: lines of the table after filters, and the tasks they belong to.

const FILTERS = {
  dataset: { title: "Dataset", value: (line) => line.task.dataset },
  alpha: { title: "α", value: (line) => textOf(line.task.alpha) },
  labels: { title: "Labels per class", value: (line) => textOf(line.task.labels) },
  method: { title: "Method", value: (line) => line.method },
};

function lines() {
  return state.data.tasks.flatMap((task, index) =>
    task.groups.map((group) => ({ ...group, task, index, key: `${task.title}|${group.name}` }))
  );
}

function fits(line) {
  return Object.entries(state.filters).every(([key, wanted]) => !wanted || FILTERS[key].value(line) === wanted);
}

const shownLines = () => lines().filter(fits);
const shownTasks = (found) => [...new Set(found.map((line) => line.index))];
// The rounds whose mean is the result: fewer in a task whose runs are shorter.
const lastOf = (some) => {
  const found = [...new Set(some.map((line) => line.task.last))].sort((a, b) => a - b).join(" or ") || state.data.last;
  return `${found} ${String(found) === "1" ? "round" : "rounds"}`;
};
const isHidden = (line) => state.hidden.has(line.key);

// Of the tasks on show, by number. It is remembered by title: a new run may bring a task that comes before it.
const chosenTask = (tasks) => tasks.find((index) => state.data.tasks[index].title === state.task) ?? tasks[0];

// The lines of the chosen task, or of all.
function chosenLines() {
  const found = shownLines();
  const chosen = chosenTask(shownTasks(found));
  return state.task === "all" ? found : found.filter((line) => line.index === chosen);
}

// Across tasks a line's dash says which task it is of, and its title too.
function chartLines() {
  const chosen = chosenLines();
  const tasks = shownTasks(chosen);
  const isMixed = tasks.length > 1;
  return chosen.slice(0, MOST).map((line) => ({
    ...line,
    title: isMixed ? `${line.name} (${line.task.title})` : line.name,
    dash: isMixed ? DASHES[tasks.indexOf(line.index) % DASHES.length] : line.style.dash,
  }));
}

// Mean, standard deviation and number of seeds by round; nothing where no run of the line has the quantity.
const curveOf = (line, quantity) => state.curves[line.runs[0]]?.[quantity.key];

// A server that was started anew may not have sent all of them.
const runsOf = (line) => line.runs.filter((id) => state.runs[id]).map((id) => ({ id, ...state.runs[id] }));

// Charts.

const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
const isNarrow = () => matchMedia(`(max-width: ${NARROW}px)`).matches;

function layout({ xaxis, yaxis, ...rest }) {
  const axis = { gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--strong"), automargin: true };
  const hoverFont = { color: css("--ink"), size: 12 };
  return {
    margin: { l: 44, r: 12, t: 34, b: 40 },
    showlegend: false,
    uirevision: "keep",
    hovermode: "closest",
    hoverdistance: -1,
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // a finger scrolls, until the button says zoom
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: css("--quiet") },
    hoverlabel: { bgcolor: css("--card"), bordercolor: css("--strong"), font: hoverFont, namelength: -1 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--quiet"), activecolor: css("--accent") },
    xaxis: { ...axis, ...xaxis },
    yaxis: { ...axis, ...yaxis },
    ...rest,
  };
}

const CONFIG = {
  responsive: true,
  displaylogo: false,
  modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
  toImageButtonOptions: { format: "svg", filename: "fssl" },
};

// A chart is drawn when it comes near the window: a toggle then redraws what can be seen, not everything.
const waiting = new Map(); // functions that draw, by place
const nearby = new Set(); // places
const near = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) {
      nearby.delete(target);
      continue;
    }
    nearby.add(target);
    catchUp(target);
  }
}, { rootMargin: "400px" });

function catchUp(place) {
  const drawing = waiting.get(place);
  waiting.delete(place);
  drawing?.();
}

function draw(id, traces, extra, words) {
  const place = $(id);
  waiting.set(place, () => drawNow(place, traces, extra, words));
  if (nearby.has(place)) catchUp(place);
  else near.observe(place);
}

function drawNow(place, traces, extra, words) {
  const Plotly = globalThis["Plotly"]; // which the page unpacks
  if (!traces.length) {
    if (place.data) Plotly.purge(place);
    place.className = "plot empty";
    place.textContent = words;
    return;
  }
  if (!place.data) {
    place.className = "plot";
    place.textContent = "";
    place.setAttribute("role", "img");
  }
  place.setAttribute("aria-label", words);
  Plotly.react(place, traces, layout(extra), CONFIG);
}

// Curves by round.

const SHARES = { clipmin: -2, clipmax: 102 }; // room for a line at 0 or 100 %
const inPercent = (value) => Math.min(Math.max(value, 0), 100);
const isCrowded = (drawn) => drawn.filter((line) => !isHidden(line)).length > CROWD;

function seedsAt({ std, seeds }, index) {
  return std[index] === null ? count(seeds[index], "seed") : `± ${std[index].toPrecision(3)}, ${seeds[index]} seeds`;
}

// One standard deviation to either side of the mean, as far as a share can be.
function band(line, { mean, std }, quantity) {
  const known = [...mean.keys()].filter((index) => mean[index] !== null);
  const within = quantity.unit === "%" ? inPercent : Number;
  const edge = (side) => (index) => within(mean[index] + side * (std[index] ?? 0));
  const round = (index) => index + 1;
  return {
    x: [...known.map(round), ...known.toReversed().map(round)],
    y: [...known.map(edge(1)), ...known.toReversed().map(edge(-1))],
    fill: "toself",
    fillcolor: line.style.color + "22",
    line: { width: 0 },
    mode: "lines",
    hoverinfo: "skip",
    visible: !isHidden(line),
  };
}

function meanLine(line, curve, hovertemplate) {
  const { color, marker } = line.style;
  const hasOneRound = curve.mean.filter((value) => value !== null).length < 2; // which is no line yet
  return {
    x: curve.mean.map((_, index) => index + 1),
    y: curve.mean,
    name: safe(line.title),
    mode: hasOneRound ? "markers" : "lines",
    line: { color, dash: line.dash, width: 2 },
    marker: { color, symbol: marker, size: 9 },
    visible: !isHidden(line),
    customdata: curve.mean.map((_, index) => seedsAt(curve, index)),
    hovertemplate,
  };
}

function curveTraces(quantity, drawn) {
  const where = isCrowded(drawn) ? "round %{x}: " : ""; // else the box of all values says it once, above them
  const unit = quantity.unit ? ` ${quantity.unit}` : "";
  const hover = `${where}%{y:.${quantity.unit === "%" ? 2 : 4}~f}${unit} (%{customdata})`;
  const known = drawn.toReversed().map((line) => [line, curveOf(line, quantity)]).filter(([, curve]) => curve);
  const spread = known.filter(([, curve]) => curve.std.some((value) => value !== null));
  return [ // no band covers a line, and the leader's line is on top
    ...spread.map(([line, curve]) => band(line, curve, quantity)),
    ...known.map(([line, curve]) => meanLine(line, curve, hover)),
  ];
}

function roundTicks(quantity, drawn) {
  const most = Math.max(...drawn.map((line) => curveOf(line, quantity)?.mean.length ?? 0));
  return most <= FEW_ROUNDS ? { dtick: 1 } : {}; // there is no round 1.5
}

function drawCurves(id, quantity, drawn) {
  const shares = { ticksuffix: " %", autorangeoptions: SHARES };
  const extra = {
    hovermode: isCrowded(drawn) ? "closest" : "x unified",
    xaxis: { title: { text: "round" }, unifiedhovertitle: { text: "round %{x}" }, ...roundTicks(quantity, drawn) },
    yaxis: quantity.unit === "%" ? shares : { title: { text: quantity.unit } },
  };
  const words = `${quantity.title} by round: ${drawn.map((line) => line.title).join(", ")}`;
  draw(id, curveTraces(quantity, drawn), extra, words);
}

// The headline measure against what its rounds had cost, for lines whose runs recorded it.
const COSTS = { seconds: "seconds of computing", traffic: "GB sent" };

function drawCosts(quantity, drawn) {
  const known = drawn.filter((line) => curveOf(line, quantity));
  $("costs").hidden = !known.some((line) => line.spent.seconds.length || line.spent.traffic.length);
  for (const [what, title] of Object.entries(COSTS)) {
    const some = known.filter((line) => line.spent[what].length).toReversed();
    const hover = `%{y:.2f} after %{x:.4~g} ${title}`;
    const traces = some.map((line) => ({ ...meanLine(line, curveOf(line, quantity), hover), x: line.spent[what] }));
    const extra = { xaxis: { title: { text: title } }, yaxis: { ticksuffix: " %", autorangeoptions: SHARES } };
    const names = some.map((line) => line.title).join(", ");
    draw(
      `plot-by-${what}`,
      traces,
      extra,
      names ? `${quantity.title} by ${title}: ${names}` : "Not recorded by these runs.",
    );
  }
}

function drawDiagnostic(quantity, drawn) {
  const id = `plot-${quantity.key}`;
  if (!$(id)) {
    const caption = el("figcaption", {}, el("b", {}, quantity.title), el("span", {}, quantity.about));
    $("diagnostics").append(el("figure", { class: "card" }, caption, el("div", { class: "plot", id })));
  }
  const isKnown = drawn.some((line) => curveOf(line, quantity));
  $(id).parentElement.hidden = !isKnown;
  if (isKnown) drawCurves(id, quantity, drawn);
}

// Results by method.

function resultMarks(rows) {
  return {
    y: rows.map((line) => safe(line.title)),
    x: rows.map((line) => line.result[0]),
    mode: "markers",
    type: "scatter",
    marker: { size: 13, color: rows.map((line) => line.style.color), symbol: rows.map((line) => line.style.marker) },
    error_x: {
      type: "data",
      array: rows.map((line) => line.result[1] ?? 0),
      thickness: 1.5,
      width: 5,
      color: css("--quiet"),
    },
    text: rows.map((line) => `${plus(line.result)} %, ${count(line.seeds.length, "seed")}`),
    hovertemplate: "%{text}<extra></extra>",
  };
}

function seedMarks(rows) {
  const repeated = rows.filter((line) => line.runs.length > 1);
  const seeds = repeated.flatMap((line) => runsOf(line).map((run) => ({ ...run, name: safe(line.title) })));
  return {
    y: seeds.map((run) => run.name),
    x: seeds.map((run) => run.result),
    mode: "markers",
    type: "scatter",
    marker: { symbol: "circle-open", size: 7, color: css("--ink"), line: { width: 1.5 } },
    text: seeds.map((run) => `seed ${run.seed}: ${fixed(run.result)} %`),
    hovertemplate: "%{text}<extra></extra>",
  };
}

function drawRanking(drawn) {
  const rows = drawn.filter((line) => !isHidden(line)).toReversed();
  const height = Math.max(isNarrow() ? 240 : 380, 90 + 26 * rows.length);
  $("plot-ranking").style.height = `${height}px`;
  $("plot-main").style.height = isNarrow() ? "" : `${Math.min(height, 560)}px`; // its neighbour, where it has one
  const extra = {
    xaxis: { ticksuffix: " %", title: { text: `test ${state.data.measure}, last ${lastOf(rows)}` } },
    yaxis: { type: "category", ticklabelstandoff: 6 },
  };
  const results = rows.toReversed().map((line) => `${line.title} ${plus(line.result)} percent`);
  const traces = rows.length ? [resultMarks(rows), seedMarks(rows)] : [];
  draw("plot-ranking", traces, extra, `Result by method: ${results.join(", ")}`);
}

// Pseudo-labels by class.

const NO_PROBES =
  'No probes were recorded for these runs (records.probes = "all", and the probes folder, give this chart).';

const NO_TRUTH =
  "Nothing to show: the true classes of the unlabeled images are not known, so no pseudo-label can be checked.";

// Pseudo-labels are counted in every run; correct ones only where the truth is known.
const lacksTruth = (line) => curveOf(line, { key: "utilization" }) && !curveOf(line, { key: "pl_accuracy" });

// Names where a dataset has them, else numbers.
const classNames = (task, classes) => task.classes?.map(safe) ?? [...Array(classes).keys()].map(String);

// An axis of classes: long names are cut there, and whole where one points at a cell. Of many, every second is named.
const shortName = (name) => (name.length > LONG_NAME ? `${name.slice(0, LONG_NAME - 1)}…` : name);
const classAxis = (names, title) => {
  const step = Math.ceil(names.length / MOST_NAMES);
  const places = [...names.keys()].filter((place) => place % step === 0);
  return {
    title: { text: title, standoff: 12 },
    tickvals: places,
    ticktext: places.map((place) => shortName(names[place])),
    zeroline: false,
    showgrid: false,
  };
};

function classMap(rows) {
  const classes = Math.max(...rows.map((line) => line.right_by_class.length));
  return {
    type: "heatmap",
    z: rows.map((line) => line.right_by_class),
    y: rows.map((line) => safe(line.title)),
    x: classNames(rows[0].task, classes),
    customdata: rows.map((line) => line.labels_by_class),
    zmin: 0,
    zmax: 100,
    colorscale: "Cividis",
    xgap: 2,
    ygap: 2,
    colorbar: { thickness: 12, outlinewidth: 0, title: { text: "%" } },
    hoverongaps: false,
    hovertemplate: "%{y}, class %{x}: %{z:.1f} % of %{customdata:,} labels<extra></extra>",
    ...(classes <= FEW && !isNarrow() ? { texttemplate: "%{z:.0f}" } : {}),
  };
}

function drawClasses(drawn) {
  const rows = drawn.filter((line) => !isHidden(line) && line.right_by_class.length).toReversed();
  $("plot-classes").style.height = rows.length ? `${110 + 40 * rows.length}px` : "auto";
  const extra = {
    xaxis: { title: { text: "class that the pseudo-label names" }, type: "category" },
    yaxis: { type: "category", ticklabelstandoff: 6 },
  };
  const words = `Pseudo-label accuracy by class for ${rows.map((line) => safe(line.title)).join(", ")}`;
  const why = drawn.some(lacksTruth) ? NO_TRUTH : NO_PROBES;
  draw("plot-classes", rows.length ? [classMap(rows)] : [], extra, rows.length ? words : why);
}

// Confusion matrices: of the final models, added up over the seeds of a line.

const MODELS = { plain: "of the last round", ema: "smoothed (server.ema)", best: "best on the validation part" };
const WRONG = [213, 94, 0];
const RIGHT = [0, 114, 178];

// Cells have the color that the eye sees, mixed with the card's: Plotly picks black or white numbers by it alone.
function mixed(color, share) {
  const paper = css("--card").replace("#", "");
  const parts = paper.length === 3 ? [...paper].map((digit) => digit + digit) : paper.match(/../g) ?? [];
  const under = parts.map((part) => parseInt(part, 16));
  return `rgb(${color.map((part, i) => Math.round(share * part + (1 - share) * under[i])).join(",")})`;
}

const wrongColors = () => [[0, mixed(WRONG, 0)], [0.02, mixed(WRONG, 0.12)], [1, mixed(WRONG, 1)]];
const rightColors = () => [[0, mixed(RIGHT, 0.06)], [1, mixed(RIGHT, 1)]];

// The matrices of a line by model, where all its runs that have one agree on the classes.
function matricesOf(line) {
  const sums = {};
  for (const { models } of runsOf(line)) {
    for (const [name, { round, confusion }] of Object.entries(models)) {
      const known = sums[name] ??= { rounds: [], table: confusion.map((row) => row.map(() => 0)) };
      if (known.table.length !== confusion.length) continue;
      known.rounds.push(round);
      known.table = known.table.map((row, i) => row.map((number, j) => number + confusion[i][j]));
    }
  }
  return sums;
}

const total = (numbers) => numbers.reduce((one, other) => one + other, 0);
const share = (part, whole) => (whole ? 100 * part / whole : null);

// Plotly draws the first row at the bottom, so the axis is turned round.
function matrixMap(table, names, isDiagonal, colorscale) {
  const shares = table.map((row) => row.map((number) => share(number, total(row))));
  return {
    type: "heatmap",
    z: shares.map((row, i) => row.map((value, j) => ((i === j) === isDiagonal ? value : null))),
    customdata: table,
    hovertext: table.map((row, i) => row.map((_, j) => `true class ${names[i]}, predicted ${names[j]}`)),
    zmin: 0,
    zmax: 100,
    colorscale,
    showscale: false,
    xgap: names.length > FEW ? 0 : 2,
    ygap: names.length > FEW ? 0 : 2,
    hoverongaps: false,
    hovertemplate: "%{hovertext}: %{customdata:,} images, %{z:.1f} %<extra></extra>",
    text: shares.map((row) => row.map((value) => (value >= 0.5 ? value.toFixed(0) : ""))),
    ...(names.length <= FEW && !isNarrow() ? { texttemplate: "%{text}" } : {}),
  };
}

function classMarks(table, names) {
  const columns = table.map((_, j) => total(table.map((row) => row[j])));
  const right = table.map((row, i) => row[i]);
  const values = {
    precision: right.map((number, i) => share(number, columns[i])),
    recall: right.map((number, i) => share(number, total(table[i]))),
    F1: right.map((number, i) => share(2 * number, total(table[i]) + columns[i])),
  };
  const looks = {
    precision: ["triangle-right", "#009E73"],
    recall: ["triangle-left", "#0072B2"],
    F1: ["circle", "#D55E00"],
  };
  return Object.entries(values).map(([name, x]) => ({
    x,
    y: [...names.keys()],
    text: names,
    name,
    mode: "markers",
    type: "scatter",
    marker: { symbol: looks[name][0], color: looks[name][1], size: names.length > FEW ? 5 : 10 },
    hovertemplate: `class %{text}: ${name} %{x:.1f} %<extra></extra>`,
  }));
}

function fillSelect(select, options, value) {
  select.replaceChildren(...options.map(([key, text]) => el("option", { value: key }, text)));
  select.value = options.some(([key]) => key === value) ? value : options[0][0];
  return select.value;
}

function drawConfusion(drawn) {
  const known = drawn.map((line) => ({ line, models: matricesOf(line) })).filter((each) =>
    Object.keys(each.models).length
  );
  $("confusion").hidden = !known.length;
  if (!known.length) return;
  const chosen = fillSelect($("confusion-line"), known.map(({ line }) => [line.key, line.title]), state.confusion.line);
  const { line, models } = known.find((each) => each.line.key === chosen);
  const named = Object.keys(models).map((name) => [name, MODELS[name] ?? name]);
  const model = fillSelect($("confusion-model"), named, state.confusion.model);
  $("confusion-model-label").hidden = named.length < 2;
  const { table, rounds } = models[model];
  const names = classNames(line.task, table.length);
  $("confusion-about").textContent =
    `${line.title}, ${MODELS[model] ?? model}, round ${[...new Set(rounds)].join(", ")}; ` +
    `${count(total(table.flat()), "answer")} of ${count(rounds.length, "seed")}`;
  const height = `${Math.min(720, Math.max(300, 110 + 36 * names.length))}px`;
  $("plot-confusion").style.height = $("plot-byclass").style.height = height;
  const turned = { autorange: "reversed", ticklabelstandoff: 4 };
  const matrix = {
    xaxis: { ...classAxis(names, "predicted class"), tickangle: names.some((name) => name.length > 3) ? -45 : 0 },
    yaxis: { ...classAxis(names, "true class"), ...turned },
  };
  const maps = [matrixMap(table, names, false, wrongColors()), matrixMap(table, names, true, rightColors())];
  draw("plot-confusion", maps, matrix, `Confusion matrix of ${line.title}`);
  const extra = {
    showlegend: true,
    legend: { orientation: "h", y: 1.06, x: 0 },
    xaxis: { ticksuffix: " %", range: [-3, 103] },
    yaxis: { ...classAxis(names, ""), ...turned },
  };
  draw("plot-byclass", classMarks(table, names), extra, `Precision, recall and F1 of ${line.title} by class`);
}

// The model on each site's own images.

function siteMarks(line) {
  const { clients, accuracy, part } = line.sites;
  return {
    x: clients,
    y: accuracy,
    name: safe(line.title),
    mode: "markers",
    type: "scatter",
    marker: { size: 11, color: line.style.color, symbol: line.style.marker },
    text: clients.map((client) => siteName(line.task, client)),
    hovertemplate: `%{text}: %{y:.2f} % of its ${part} images`,
  };
}

const siteName = (task, client) => safe(task.partition?.names?.[client] ?? `client ${client}`);

function drawSites(drawn) {
  const known = drawn.filter((line) => line.sites);
  $("sites").hidden = !known.length;
  const rows = known.filter((line) => !isHidden(line));
  if (!rows.length) return;
  const worst = rows.map(({ title, sites, task }) => {
    const lowest = Math.min(...sites.accuracy);
    return `${title}: lowest ${fixed(lowest)} % (${siteName(task, sites.clients[sites.accuracy.indexOf(lowest)])})`;
  });
  $("sites-about").textContent = worst.join("; ");
  const { task } = rows[0];
  const clients = Math.max(...rows.flatMap((line) => line.sites.clients)) + 1;
  const extra = {
    xaxis: {
      title: { text: task.partition?.names ? "site" : "client" },
      zeroline: false,
      range: [-0.8, clients - 0.2],
      ...holderTicks(clients, clients, task.partition?.names),
    },
    yaxis: { ticksuffix: " %", autorangeoptions: SHARES },
  };
  draw("plot-sites", rows.map(siteMarks), extra, `Accuracy by site. ${worst.join("; ")}`);
}

// Who holds what.

const SERVER = "server";

function bubbles(cells, classes, color) {
  const numbers = cells.map((cell) => cell.number);
  const most = numbers.reduce((one, other) => Math.max(one, other)); // there may be too many for arguments
  const largest = classes > FEW ? 9 : 26; // pixels across
  return {
    x: cells.map((cell) => cell.place),
    y: cells.map((cell) => cell.label),
    mode: "markers",
    type: "scatter",
    marker: {
      size: numbers,
      sizemode: "area",
      sizeref: (2 * most) / largest ** 2,
      sizemin: 1.5,
      color,
      opacity: 0.75,
      line: { width: 0 },
    },
    customdata: numbers,
    text: cells.map((cell) => cell.holder),
    hovertemplate: "%{text}, class %{y}: %{customdata} images<extra></extra>",
  };
}

// The name or number of every client, or of every fifth of many, and the server's name after the last.
function holderTicks(clients, holders, names) {
  const step = clients > FEW ? 5 : 1;
  const places = [...Array(holders).keys()].filter((place) => place >= clients || place % step === 0);
  const text = (place) => shortName(names?.[place] ?? String(place));
  return { tickvals: places, ticktext: places.map((place) => (place < clients ? safe(text(place)) : SERVER)) };
}

function classTicks(task, classes) {
  if (task?.classes) return { tickvals: [...task.classes.keys()], ticktext: task.classes.map(safe) };
  return classes <= FEW ? { dtick: 1 } : {};
}

function holdersWords(kind, partition, cells) {
  if (cells.length) return `${kind} images by holder and class`;
  if (partition) return "The classes of these images are not known.";
  return "These run folders have no partition.json; runs of this version write it.";
}

function drawHolders(kind, color, task, server = []) {
  const clients = task?.partition?.[kind] ?? []; // numbers of images, by client and class
  const table = [...clients, ...server];
  const names = task?.partition?.names;
  const holder = (place) => (place < clients.length ? safe(names?.[place] ?? `client ${place}`) : SERVER);
  const cells = table.flatMap((row, place) =>
    row.map((number, label) => ({ place, label, number, holder: holder(place) }))
  );
  const held = cells.filter((cell) => cell.number > 0);
  const classes = table[0]?.length ?? 0;
  const extra = {
    xaxis: {
      title: { text: names ? "site" : "client" },
      zeroline: false,
      range: [-0.8, table.length - 0.2], // also those that hold nothing
      ...holderTicks(clients.length, table.length, names),
    },
    yaxis: {
      title: { text: "class" },
      zeroline: false,
      range: [-0.8, classes - 0.2],
      ...classTicks(task, classes),
    },
  };
  const traces = held.length ? [bubbles(held, classes, color)] : [];
  draw(`plot-${kind}`, traces, extra, holdersWords(kind, task?.partition, held));
}

function renderCharts() {
  const drawn = chartLines();
  const [headline, ...diagnostics] = state.data.quantities;
  drawRanking(drawn);
  $("main-title").textContent = headline.title;
  drawCurves("plot-main", headline, drawn);
  drawCosts(headline, drawn);
  for (const quantity of diagnostics) drawDiagnostic(quantity, drawn);
  drawConfusion(drawn);
  drawSites(drawn);
  drawClasses(drawn);
  const task = drawn[0]?.task;
  drawHolders("labeled", "#D55E00", task, task?.partition?.server ?? []);
  drawHolders("unlabeled", "#0072B2", task);
}

// The legend, and the choice of a task.

function swatch(line) {
  const picture = svg("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" });
  const stroke = { stroke: line.style.color, "stroke-width": 3, "stroke-dasharray": STROKES[line.dash] };
  picture.append(svg("path", { d: "M0 5H26", ...stroke }));
  return picture;
}

function toggleButton(line) {
  const toggle = () => {
    if (!state.hidden.delete(line.key)) state.hidden.add(line.key);
    renderSelection();
  };
  const attributes = { type: "button", "data-line": line.key, "aria-pressed": String(!isHidden(line)) };
  return el("button", { ...attributes, onclick: toggle }, swatch(line), line.title);
}

// With many methods, showing two of them should not take a click for each of the others.
function allOrNoneButton(drawn) {
  const hasHidden = drawn.some(isHidden);
  const toggle = () => {
    for (const { key } of drawn) hasHidden ? state.hidden.delete(key) : state.hidden.add(key);
    renderSelection();
  };
  const attributes = { type: "button", class: "all", "data-line": "", onclick: toggle };
  return el("button", attributes, hasHidden ? "Show all" : "Hide all");
}

function renderLegend() {
  const focused = focusedOn("line");
  const drawn = chartLines();
  const buttons = drawn.map(toggleButton);
  if (buttons.length > 2) buttons.push(allOrNoneButton(drawn));
  $("legend").replaceChildren(...buttons);
  buttons.find((button) => button.dataset.line === focused)?.focus();
}

function renderTaskChoice() {
  const found = shownLines();
  const tasks = shownTasks(found);
  const options = tasks.map((index) => el("option", { value: index }, state.data.tasks[index].title));
  const all = `all tasks at once (${Math.min(found.length, MOST)} of ${count(found.length, "line")})`;
  if (tasks.length > 1) options.push(el("option", { value: "all" }, all));
  $("task").replaceChildren(...options);
  $("task").value = state.task === "all" ? "all" : chosenTask(tasks) ?? "";
  $("task-label").hidden = tasks.length < 2;
  const chosen = chosenLines().length;
  const cut = ` Charts show the first ${MOST} of ${chosen} lines; filters choose others.`;
  $("cut").textContent = chosen > MOST ? cut : "";
}

// Words.

function renderTop() {
  const { facts, unfinished, hardware, made, fssl, title, tasks } = state.data;
  document.title = `${title} – fssl report`;
  const datasets = [...new Set(tasks.map((task) => task.dataset))].join(", ");
  $("subtitle").textContent = tasks.length
    ? `Federated semi-supervised learning: ${count(facts.methods, "method")} on ${datasets}.`
    : "Waiting for the first round of the first run.";
  const machine = hardware.length === 1 ? hardware[0].device ?? "" : count(hardware.length, "environment");
  const rows = [
    ["Runs", String(facts.runs), unfinished ? `${unfinished} unfinished` : "all finished"],
    ["Settings compared", String(lines().length), count(tasks.length, "task")],
    ["Seeds", facts.seeds.length > 4 ? String(facts.seeds.length) : facts.seeds.join(", "), ""],
    ["Rounds", facts.rounds.toLocaleString("en"), ""],
    ["Computing time", duration(facts.seconds), machine],
  ];
  const fact = ([name, value, more]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, value, " ", el("small", {}, more)));
  $("facts").replaceChildren(...rows.map(fact));
  $("made").textContent = `Made ${made} with fssl ${fssl} from the records of the runs alone. ` +
    `Results are means of the last ${lastOf(lines())} over the named seeds, never a best round.`;
}

function wordsCard({ title, words, groups, leader }) {
  const [first, ...more] = words;
  const best = groups[leader];
  return el(
    "article",
    { class: "card" },
    el("h3", {}, title),
    el("p", { class: "lead" }, el("b", {}, best.name), el("span", {}, `${plus(best.result)} %`)),
    el("p", { class: "first" }, first),
    el("p", { class: "more" }, more.join(" ")),
  );
}

function renderWords() {
  const box = $("words");
  const wasOpen = box.querySelector("details")?.open ?? true;
  const cards = state.data.tasks.map(wordsCard);
  const rest = cards.splice(CARDS);
  box.replaceChildren(...cards);
  if (!rest.length) return;
  const summary = el("summary", {}, count(rest.length, "more task"));
  box.append(el("details", { open: wasOpen }, summary, el("div", { class: "words" }, ...rest)));
}

function renderNotes() {
  const { notes, damaged } = state.data;
  const skipped = damaged ? `; ${count(damaged, "damaged line")} skipped` : "";
  const summary = el("summary", {}, `${count(notes.length, "note")} on the records${skipped}`);
  const list = el("ul", {}, ...notes.slice(0, NOTES).map((note) => el("li", {}, note)));
  const details = el("details", { class: "card warn", id: "damage" }, summary, list);
  $("notes").replaceChildren(...(notes.length ? [details] : []));
}

// The table.

const seedsText = ({ seeds }) => (seeds.length > 5 ? String(seeds.length) : seeds.join(" "));
const scaled = (value, unit) => fixed(value === null ? null : value / unit);
const roundsText = ({ rounds: [done, planned] }) => (done === planned ? String(done) : `${done} of ${planned}`);

/**
 * @typedef {object} Column
 * @property {string} key
 * @property {string} title
 * @property {(line: any) => any} value what it sorts by
 * @property {(line: any) => string} [text] what it shows, where that is another thing
 * @property {boolean} [isText] whether it holds words
 * @property {boolean} [isOptional] whether it is left out where no line has it
 */

/** @type {Column[]} */
const COLUMNS = [
  { key: "name", title: "Method", value: (line) => line.name, isText: true },
  { key: "result", title: "Result, %", value: (line) => line.result[0], text: (line) => plus(line.result) },
  { key: "dataset", title: "Dataset", value: (line) => line.task.dataset, isText: true },
  { key: "alpha", title: "α", value: (line) => line.task.alpha },
  { key: "labels", title: "Labels / class", value: (line) => line.task.labels },
  { key: "last", title: "Last round, %", value: (line) => line.last[0], text: (line) => plus(line.last, 1) },
  { key: "right", title: "Labels right, %", value: (line) => line.right[0], text: (line) => plus(line.right, 1) },
  { key: "used", title: "Labels used, %", value: (line) => line.used[0], text: (line) => plus(line.used, 1) },
  { key: "seconds", title: "s / round", value: (line) => line.seconds, text: (line) => fixed(line.seconds) },
  { key: "seeds", title: "Seeds", value: (line) => line.seeds.length, text: seedsText },
  { key: "rounds", title: "Rounds", value: (line) => line.rounds[0], text: roundsText },
  {
    key: "smoothed",
    title: "Smoothed, %",
    value: (line) => line.smoothed[0],
    text: (line) => plus(line.smoothed),
    isOptional: true,
  },
  { key: "total", title: "Seconds", value: (line) => line.total, text: (line) => fixed(line.total, 0) },
  {
    key: "sent",
    title: "MB / round",
    value: (line) => line.sent,
    text: (line) => scaled(line.sent, 1e6),
    isOptional: true,
  },
  {
    key: "memory",
    title: "GiB",
    value: (line) => line.memory,
    text: (line) => scaled(line.memory, 2 ** 30),
    isOptional: true,
  },
  { key: "place", title: "Place", value: (line) => line.place, isOptional: true },
];
const shownColumns = () => {
  const all = lines();
  return COLUMNS.filter(({ value, isOptional }) => !isOptional || all.some((line) => value(line) !== null));
};
const columnOf = (key) => COLUMNS.find((column) => column.key === key);

function sorted(rows) {
  const { column, way } = state.sort;
  const { value } = columnOf(column);
  return rows.toSorted((one, other) => {
    const [a, b] = [value(one), value(other)];
    if (a === null || b === null) return Number(a === null) - Number(b === null); // unknown last, whichever way
    return way * (typeof a === "string" ? a.localeCompare(b) : a - b);
  });
}

function sortBy(key) {
  const { column, way } = state.sort;
  const { title, isText } = columnOf(key);
  state.sort = { column: key, way: column === key ? -way : isText ? 1 : -1 };
  renderTable();
  say(`Sorted by ${title}`);
}

/** @type {(column: Column) => Element} */
function headCell({ key, title, isText }) {
  const { column, way } = state.sort;
  const order = way > 0 ? "ascending" : "descending";
  const button = el("button", { type: "button", "data-column": key, onclick: () => sortBy(key) }, title);
  const attributes = { scope: "col", class: isText ? "text" : null, "aria-sort": key === column ? order : "none" };
  return el("th", attributes, button);
}

function nameCell(line) {
  const color = el("i", { style: `background:${line.style.color}` });
  return el("th", { scope: "row" }, color, line.name, line.task.extra ? el("small", {}, line.task.extra) : null);
}

/** @type {(column: Column, line: object) => Element} */
function cell({ key, value, text, isText }, line) {
  const shown = text ? text(line) : textOf(value(line));
  return el("td", { class: key === "result" ? "main" : isText ? "text" : null }, shown);
}

function tableRow(columns, line) {
  const cells = columns.map((column) => (column.key === "name" ? nameCell(line) : cell(column, line)));
  const button = copyButton(line.command, { "aria-label": `Copy the command for ${line.name}` });
  return el("tr", { class: { 1: "best", 2: "second" }[line.rank] ?? null }, ...cells, el("td", {}, button));
}

function renderTable() {
  const focused = focusedOn("column");
  const table = $("results");
  const rows = sorted(shownLines());
  const columns = shownColumns();
  table.tHead.replaceChildren(el("tr", {}, ...columns.map(headCell), el("th", { scope: "col" }, "Run again")));
  table.tBodies[0].replaceChildren(...rows.map((line) => tableRow(columns, line)));
  table.tHead.querySelector(`[data-column="${focused}"]`)?.focus();
  $("caption").textContent = `${rows.length} of ${count(lines().length, "line")}. ` +
    `Result: test ${state.data.measure}, mean of the last ${lastOf(rows)} ± standard deviation over seeds; ` +
    "within a task, best bold, second underlined; methods too close to rank share a place. " +
    "Labels: pseudo-labels, over the same rounds.";
}

function filterSelect(key) {
  const choose = () => {
    state.filters[key] = $(`filter-${key}`).value;
    renderAll();
    say(`${shownLines().length} lines`);
  };
  const select = el("select", { id: `filter-${key}`, onchange: choose });
  $("filters").append(el("label", { class: "field" }, FILTERS[key].title, " ", select));
  return select;
}

function renderFilters() {
  const all = lines();
  for (const [key, { value }] of Object.entries(FILTERS)) {
    const select = $(`filter-${key}`) ?? filterSelect(key);
    const values = [...new Set(all.map(value))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    select.replaceChildren(
      el("option", { value: "" }, "all"),
      ...values.map((each) => el("option", { value: each }, each)),
    );
    select.value = values.includes(state.filters[key]) ? state.filters[key] : "";
    state.filters[key] = select.value;
  }
}

// Commands and settings, and where the runs were computed.

const codeLine = (text) => el("div", { class: "line" }, el("pre", { tabindex: 0 }, text), copyButton(text));

function runItem({ id, seed, result, rounds, planned, damaged, changed }) {
  const skipped = damaged ? `, ${count(damaged, "damaged line")}` : "";
  const asIs = changed ? ", an edited record, accepted" : "";
  return el("li", {}, `seed ${seed}: ${fixed(result)} %, ${rounds} of ${planned} rounds${skipped}${asIs} – ${id}`);
}

function fillDetails(details, line) {
  if (!details.open || details.childElementCount > 1) return;
  const made = line.recorded.length ? [el("h4", {}, "Made with"), ...line.recorded.map(codeLine)] : [];
  const settings = [el("h4", {}, "Settings, for a file of your own"), codeLine(line.settings)];
  const runs = [el("h4", {}, "Runs"), el("ul", {}, ...runsOf(line).map(runItem))];
  details.append(codeLine(line.command), ...made, ...settings, ...runs);
}

function againDetails(line, isOpen) {
  const summary = el("summary", {}, `${line.name} `, el("span", {}, line.task.title));
  const fill = () => fillDetails(details, line); // five hundred of these stay cheap if only the opened ones are built
  const details = el("details", { "data-line": line.key, ontoggle: fill, open: isOpen }, summary);
  fill();
  return details;
}

function renderAgain() {
  const open = new Set([...$("again").querySelectorAll("details[open]")].map((details) => details.dataset.line));
  $("again").replaceChildren(...shownLines().map((line) => againDetails(line, open.has(line.key))));
}

const MACHINE = {
  device: "Device",
  processor: "Processor",
  threads: "Threads",
  cuda: "CUDA",
  python: "Python",
  torch: "torch",
  numpy: "numpy",
  fssl: "fssl",
  revision: "Revision",
};

// Ten letters of a revision tell it; the sign of a changed working copy stays.
const shortRevision = (revision) => revision.slice(0, 10) + (revision.endsWith("+") ? "+" : "");

function machineRow(machine) {
  const revision = machine.revision && shortRevision(machine.revision);
  const shown = { ...machine, revision };
  const facts = Object.keys(MACHINE).map((name) => el("td", { class: "text" }, textOf(shown[name])));
  return el("tr", {}, ...facts, el("td", {}, String(machine.runs)), el("td", {}, duration(machine.seconds)));
}

function renderHardware() {
  const table = $("hardware");
  const heads = Object.values(MACHINE).map((title) => el("th", { scope: "col", class: "text" }, title));
  const counts = ["Runs", "Time"].map((title) => el("th", { scope: "col" }, title));
  table.tHead.replaceChildren(el("tr", {}, ...heads, ...counts));
  table.tBodies[0].replaceChildren(...state.data.hardware.map(machineRow));
}

// All of it.

function renderSelection() {
  renderLegend();
  renderTaskChoice();
  renderCharts();
}

function renderAll() {
  renderFilters();
  renderTable();
  renderSelection();
  renderAgain();
}

// The server sends what changed: the rest stays, and what no line shows any more goes.
function update(known, news, shown) {
  Object.assign(known, news);
  const kept = new Set(shown);
  for (const id of Object.keys(known)) if (!kept.has(id)) delete known[id];
}

function show(data) {
  const groups = data.tasks.flatMap((task) => task.groups);
  update(state.runs, data.runs, groups.flatMap((group) => group.runs));
  update(state.curves, data.curves, groups.map((group) => group.runs[0]));
  state.data = data;
  renderTop();
  renderWords();
  renderNotes();
  renderHardware();
  renderAll();
}

// Light and dark: as the system says, until the button says otherwise.

function setTheme(theme) {
  root.dataset.theme = theme;
  $("theme").setAttribute("aria-pressed", String(theme === "dark"));
  if (state.data) renderCharts();
}

const system = matchMedia("(prefers-color-scheme: dark)");
const followSystem = () => setTheme(system.matches ? "dark" : "light");
followSystem();
system.addEventListener("change", followSystem);
$("theme").addEventListener("click", () => {
  system.removeEventListener("change", followSystem);
  setTheme(root.dataset.theme === "dark" ? "light" : "dark");
});
$("print").addEventListener("click", () => print());
$("task").addEventListener("change", () => {
  const { value } = $("task");
  state.task = value === "all" ? "all" : state.data.tasks[value].title;
  renderSelection();
});
for (const part of ["line", "model"]) {
  $(`confusion-${part}`).addEventListener("change", () => {
    state.confusion[part] = $(`confusion-${part}`).value;
    drawConfusion(chartLines());
  });
}
$("filters").addEventListener("submit", (event) => event.preventDefault());

let themeOnScreen = null; // paper is light
addEventListener("beforeprint", () => {
  themeOnScreen = root.dataset.theme;
  setTheme("light");
  document.querySelectorAll(".plot").forEach(catchUp);
});
addEventListener("afterprint", () => setTheme(themeOnScreen));

// Data: from the page itself, or again and again from its server.

function unpack(id) {
  const letters = atob($(id).textContent);
  const bytes = Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
  $(id).remove();
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

async function poll() {
  const sign = $("live");
  try {
    const data = await (await fetch(`data?since=${state.version}`)).json();
    if (data.tasks) show(data);
    state.version = data.version;
    const { facts, unfinished } = state.data;
    sign.className = "live";
    sign.textContent = facts.runs && !unfinished ? "live: all runs are finished" : "live";
  } catch {
    sign.className = "live lost";
    sign.textContent = "no answer: the server has ended; these are its last numbers";
  }
  sign.hidden = false;
  setTimeout(poll, POLL);
}

async function start() {
  const script = el("script");
  script.textContent = await unpack("plotly");
  document.head.append(script);
  if (isLive) await poll();
  else show(JSON.parse(await unpack("data")));
  document.body.setAttribute("data-ready", "");
}

start();
