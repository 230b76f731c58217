"use strict";
// The page: state in, elements and charts out. Texts enter the document as text only, never as markup.

const $ = (id) => document.getElementById(id);
const isLive = document.body.dataset.mode === "live";
const POLL = 2000; // milliseconds between questions to the server
const MOST = 24; // lines in one chart
const CROWD = 6; // lines whose values fit into one box over a small chart; of more, the nearest one's are shown
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const STROKES = { solid: "", dash: "5 3", dot: "1.5 2.5", dashdot: "5 2 1.5 2", longdash: "9 3", longdashdot: "9 3 1.5 3" };
const FILTERS = { dataset: "Dataset", alpha: "α", labels: "Labels per class", method: "Method" };

const state = {
  data: null, version: -1, runs: {}, curves: {}, filters: {}, task: null, hidden: new Set(), sort: ["result", -1],
};

// Elements and texts.

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

const fixed = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const plus = ([mean, std], digits = 2) => fixed(mean, digits) + (std === null ? "" : ` ± ${fixed(std, digits)}`);
const count = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
const text = (value) => (value === null ? "–" : String(value));
const safe = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;"); // for Plotly, which reads some markup

function duration(seconds) {
  if (seconds < 90) return `${seconds.toFixed(0)} s`;
  return seconds < 5400 ? `${(seconds / 60).toFixed(0)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

function say(text) {
  $("said").textContent = text;
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // no permission, or an old browser
    const area = el("textarea", { class: "away" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  const before = button.textContent;
  button.textContent = "Copied";
  say("Copied");
  setTimeout(() => (button.textContent = before), 1500);
}

// What is shown: lines of the table after filters, and the tasks they belong to.

function lines() {
  return state.data.tasks.flatMap((task, index) => task.groups.map((group) => ({ ...group, task, index })));
}

function fits(line) {
  const own = { dataset: line.task.dataset, alpha: text(line.task.alpha), labels: text(line.task.labels), method: line.method };
  return Object.entries(state.filters).every(([key, wanted]) => !wanted || own[key] === wanted);
}

const shownLines = () => lines().filter(fits);

// Of the tasks on show, by number. It is remembered by title: a new run may bring a task that comes before it.
const chosenTask = (tasks) => tasks.find((index) => state.data.tasks[index].title === state.task) ?? tasks[0];

function chartLines() {
  const found = shownLines();
  const tasks = [...new Set(found.map((line) => line.index))];
  const all = state.task === "all";
  const chosen = chosenTask(tasks);
  const drawn = found.filter((line) => all || line.index === chosen).slice(0, MOST);
  return drawn.map((line) => ({
    ...line,
    title: all && tasks.length > 1 ? `${line.name} (${line.task.title})` : line.name,
    dash: all && tasks.length > 1 ? DASHES[tasks.indexOf(line.index) % DASHES.length] : line.style.dash,
    key: `${line.task.title}|${line.name}`,
  }));
}

// Mean, standard deviation and number of seeds by round; nothing where no run of the line has the quantity.
const curveOf = (line, quantity) => state.curves[line.runs[0]]?.[quantity.key];

const seedsAt = (curve, i) =>
  curve.std[i] === null ? count(curve.seeds[i], "seed") : `± ${curve.std[i].toPrecision(3)}, ${curve.seeds[i]} seeds`;

// Charts.

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function layout(extra = {}) {
  const axis = { gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--strong"), automargin: true };
  const { xaxis, yaxis, ...rest } = extra;
  return {
    margin: { l: 44, r: 12, t: 34, b: 40 }, showlegend: false, uirevision: "keep", hovermode: "closest", hoverdistance: -1,
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // a finger scrolls, until the button says zoom
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: css("--quiet") },
    hoverlabel: { bgcolor: css("--card"), bordercolor: css("--strong"), font: { color: css("--ink"), size: 12 }, namelength: -1 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--quiet"), activecolor: css("--accent") },
    xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis }, ...rest,
  };
}

const CONFIG = {
  responsive: true, displaylogo: false, modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
  toImageButtonOptions: { format: "svg", filename: "fssl" },
};

// A chart is drawn when it comes near the window: a toggle then redraws what can be seen, not everything.
const near = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    target.isNear = isIntersecting;
    if (isIntersecting) catchUp(target);
  }
}, { rootMargin: "400px" });

function catchUp(place) {
  const waiting = place.waiting;
  place.waiting = null;
  waiting?.();
}

function draw(id, traces, extra, words) {
  const place = $(id);
  place.waiting = () => drawNow(place, traces, extra, words);
  if (place.isNear) catchUp(place);
  else near.observe(place);
}

function drawNow(place, traces, extra, words) {
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

const isCrowded = (drawn) => drawn.filter((line) => !state.hidden.has(line.key)).length > CROWD;

function curves(quantity, drawn) {
  const where = isCrowded(drawn) ? "round %{x}: " : ""; // else the box of all values says it once, above them
  const bands = [], means = []; // no band covers a line, and the leader's line is on top
  for (const line of drawn.toReversed()) {
    const curve = curveOf(line, quantity);
    if (!curve) continue;
    const { mean, std } = curve;
    const x = mean.map((_, i) => i + 1);
    const known = x.filter((round) => mean[round - 1] !== null);
    const visible = !state.hidden.has(line.key);
    const edge = (side) => (round) => mean[round - 1] + side * (std[round - 1] ?? 0);
    if (std.some((each) => each !== null)) bands.push({
      x: [...known, ...known.toReversed()], y: [...known.map(edge(1)), ...known.toReversed().map(edge(-1))],
      fill: "toself", fillcolor: line.style.color + "22", line: { width: 0 }, mode: "lines", hoverinfo: "skip", visible,
    });
    const unit = quantity.unit ? ` ${quantity.unit}` : "";
    means.push({
      x, y: mean, name: safe(line.title), mode: known.length > 1 ? "lines" : "markers", line: { color: line.style.color, dash: line.dash, width: 2 }, visible,
      marker: { color: line.style.color, symbol: line.style.marker, size: 9 }, // where there is only one round yet
      customdata: mean.map((_, i) => seedsAt(curve, i)), hovertemplate: `${where}%{y:.${quantity.unit === "%" ? 2 : 4}~f}${unit} (%{customdata})`,
    });
  }
  return [...bands, ...means];
}

const SHARES = { clipmin: -2, clipmax: 102 }; // a band may leave what a share can be, an axis need not

function drawCurves(id, quantity, drawn) {
  const words = `${quantity.title} by round: ${drawn.map((line) => line.title).join(", ")}`;
  draw(id, curves(quantity, drawn), { hovermode: isCrowded(drawn) ? "closest" : "x unified", xaxis: { title: { text: "round" }, unifiedhovertitle: { text: "round %{x}" } }, yaxis: quantity.unit === "%" ? { ticksuffix: " %", autorangeoptions: SHARES } : { title: { text: quantity.unit } } }, words);
}

function drawRanking(drawn) {
  const rows = drawn.filter((line) => !state.hidden.has(line.key)).toReversed();
  const names = rows.map((line) => safe(line.title));
  const means = {
    y: names, x: rows.map((line) => line.result[0]), mode: "markers", type: "scatter",
    marker: { size: 13, color: rows.map((line) => line.style.color), symbol: rows.map((line) => line.style.marker) },
    error_x: { type: "data", array: rows.map((line) => line.result[1] ?? 0), thickness: 1.5, width: 5, color: css("--quiet") },
    text: rows.map((line) => `${plus(line.result)} %, ${count(line.seeds.length, "seed")}`), hovertemplate: "%{text}<extra></extra>",
  };
  const seeds = rows.filter((line) => line.runs.length > 1).flatMap((line) => line.runs.filter((id) => state.runs[id]).map((id) => [safe(line.title), state.runs[id]]));
  const each = {
    y: seeds.map(([name]) => name), x: seeds.map(([, run]) => run.result), mode: "markers", type: "scatter",
    marker: { symbol: "circle-open", size: 7, color: css("--ink"), line: { width: 1.5 } },
    text: seeds.map(([, run]) => `seed ${run.seed}: ${fixed(run.result)} %`), hovertemplate: "%{text}<extra></extra>",
  };
  const isNarrow = matchMedia("(max-width: 640px)").matches; // where the charts stand below each other
  const height = Math.max(isNarrow ? 240 : 380, 90 + 26 * rows.length);
  $("plot-ranking").style.height = `${height}px`;
  $("plot-accuracy").style.height = isNarrow ? "" : `${Math.min(height, 560)}px`;
  const words = `Result by method: ${rows.toReversed().map((line) => `${line.title} ${plus(line.result)} percent`).join(", ")}`;
  draw("plot-ranking", rows.length ? [means, each] : [], { xaxis: { ticksuffix: " %", title: { text: `test accuracy, last ${state.data.last} rounds` } }, yaxis: { type: "category", ticklabelstandoff: 6 } }, words);
}

// Names where a dataset has them, else numbers.
const classNames = (task, classes) => task?.classes?.map(safe) ?? [...Array(classes).keys()].map(String);

function drawClasses(drawn) {
  const rows = drawn.filter((line) => !state.hidden.has(line.key) && line.right_by_class.length).toReversed();
  const classes = Math.max(0, ...rows.map((line) => line.right_by_class.length));
  const names = rows.map((line) => safe(line.title));
  const trace = {
    type: "heatmap", z: rows.map((line) => line.right_by_class), y: names, x: classNames(rows[0]?.task, classes),
    customdata: rows.map((line) => line.labels_by_class), zmin: 0, zmax: 100, colorscale: "Cividis", xgap: 2, ygap: 2,
    colorbar: { thickness: 12, outlinewidth: 0, title: { text: "%" } }, hoverongaps: false,
    hovertemplate: "%{y}, class %{x}: %{z:.1f} % of %{customdata:,} labels<extra></extra>",
    ...(classes <= 20 && innerWidth > 640 ? { texttemplate: "%{z:.0f}" } : {}),
  };
  $("plot-classes").style.height = rows.length ? `${110 + 40 * rows.length}px` : "auto";
  draw("plot-classes", rows.length ? [trace] : [], { xaxis: { title: { text: "class that the pseudo-label names" }, type: "category" }, yaxis: { type: "category", ticklabelstandoff: 6 } },
    rows.length ? `Pseudo-label accuracy by class for ${names.join(", ")}` : "No probes were recorded for these runs (records.probes = \"all\", and the probes folder, give this chart).");
}

function drawBubbles(drawn) {
  const task = drawn[0]?.task, partition = task?.partition;
  for (const kind of ["labeled", "unlabeled"]) {
    const cells = (partition?.[kind] ?? []).flatMap((row, client) => row.map((n, label) => [client, label, n]).filter(([, , n]) => n > 0));
    const most = cells.reduce((top, [, , n]) => Math.max(top, n), 1);
    const classes = partition?.[kind]?.[0].length ?? 0;
    const ticks = task?.classes ? { tickvals: task.classes.map((_, i) => i), ticktext: task.classes.map(safe) } : classes <= 20 ? { dtick: 1 } : {};
    const trace = {
      x: cells.map(([client]) => client), y: cells.map(([, label]) => label), mode: "markers", type: "scatter",
      marker: { size: cells.map(([, , n]) => n), sizemode: "area", sizeref: (2 * most) / (classes > 20 ? 9 : 26) ** 2, sizemin: 1.5, color: kind === "labeled" ? "#D55E00" : "#0072B2", opacity: 0.75, line: { width: 0 } },
      customdata: cells.map(([, , n]) => n), hovertemplate: "client %{x}, class %{y}: %{customdata} images<extra></extra>",
    };
    draw(`plot-${kind}`, cells.length ? [trace] : [], { xaxis: { title: { text: "client" }, dtick: partition?.[kind]?.length > 20 ? 5 : 1, zeroline: false }, yaxis: { title: { text: "class" }, zeroline: false, range: [-0.8, classes - 0.2], ...ticks } },
      cells.length ? `${kind} images by client and class` : partition ? "Nobody knows the classes of these images." : "These run folders have no partition.json; runs of this version write it.");
  }
}

function renderCharts() {
  const drawn = chartLines();
  drawRanking(drawn);
  drawCurves("plot-accuracy", state.data.quantities[0], drawn);
  for (const quantity of state.data.quantities.slice(1)) {
    const id = `plot-${quantity.key}`;
    const has = drawn.some((line) => curveOf(line, quantity));
    if (!$(id)) {
      const caption = el("figcaption", {}, el("b", {}, quantity.title), el("span", {}, quantity.about));
      $("diagnostics").append(el("figure", { class: "card" }, caption, el("div", { class: "plot", id })));
    }
    $(id).parentElement.hidden = !has;
    if (has) drawCurves(id, quantity, drawn);
  }
  drawClasses(drawn);
  drawBubbles(drawn);
}

function swatch(line) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 26 10");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  for (const [name, value] of Object.entries({ d: "M0 5H26", stroke: line.style.color, "stroke-width": 3, "stroke-dasharray": STROKES[line.dash] })) path.setAttribute(name, value);
  svg.append(path);
  return svg;
}

// With many methods, showing two of them should not take a click for each of the others.
function allOrNone() {
  const keys = chartLines().map((line) => line.key), hasHidden = keys.some((key) => state.hidden.has(key));
  return el("button", {
    type: "button", class: "all", "data-line": "", onclick: () => {
      keys.forEach((key) => (hasHidden ? state.hidden.delete(key) : state.hidden.add(key)));
      renderLegend();
      renderCharts();
    },
  }, hasHidden ? "Show all" : "Hide all");
}

function renderLegend() {
  const focused = document.activeElement?.dataset?.line;
  const buttons = chartLines().map((line) => el("button", {
    type: "button", "data-line": line.key, "aria-pressed": String(!state.hidden.has(line.key)),
    onclick: () => {
      if (!state.hidden.delete(line.key)) state.hidden.add(line.key);
      renderLegend();
      renderCharts();
    },
  }, swatch(line), line.title));
  if (buttons.length > 2) buttons.push(allOrNone());
  $("legend").replaceChildren(...buttons);
  buttons.find((button) => focused !== undefined && button.dataset.line === focused)?.focus();
  const found = shownLines(), tasks = [...new Set(found.map((line) => line.index))];
  const options = tasks.map((index) => el("option", { value: index }, state.data.tasks[index].title));
  if (tasks.length > 1) options.push(el("option", { value: "all" }, `all tasks at once (${Math.min(found.length, MOST)} of ${count(found.length, "line")})`));
  $("task").replaceChildren(...options);
  $("task").value = state.task === "all" ? "all" : chosenTask(tasks) ?? "";
  $("task-label").hidden = tasks.length < 2;
  const inTask = found.filter((line) => state.task === "all" || line.index === Number($("task").value)).length;
  $("cut").textContent = inTask > MOST ? ` Charts show the first ${MOST} of ${inTask} lines; filters choose others.` : "";
}

// Words, table and the rest.

function renderTop() {
  const { facts, made, fssl, title, tasks } = state.data;
  document.title = `${title} – fssl report`;
  $("subtitle").textContent = tasks.length ? `Federated semi-supervised learning: ${count(facts.methods, "method")} on ${[...new Set(tasks.map((task) => task.dataset))].join(", ")}.` : "Waiting for the first round of the first run.";
  const { unfinished } = state.data;
  const rows = [
    ["Runs", String(facts.runs), unfinished ? `${unfinished} unfinished` : "all finished"],
    ["Settings compared", String(lines().length), count(tasks.length, "task")],
    ["Seeds", facts.seeds.length > 4 ? String(facts.seeds.length) : facts.seeds.join(", "), ""],
    ["Rounds", facts.rounds.toLocaleString("en"), ""],
    ["Computing time", duration(facts.seconds), state.data.hardware.length === 1 ? state.data.hardware[0].device ?? "" : count(state.data.hardware.length, "environment")],
  ];
  $("facts").replaceChildren(...rows.map(([name, value, more]) => el("div", {}, el("dt", {}, name), el("dd", {}, value, " ", el("small", {}, more)))));
  $("made").textContent = `Made ${made} with fssl ${fssl} from the records of the runs alone. Results are means of the last ${state.data.last} rounds over the named seeds, never a best round.`;
}

function renderWords() {
  const cards = state.data.tasks.map(({ title, words, groups, leader }) => {
    const [first, ...more] = words, best = groups[leader];
    const lead = el("p", { class: "lead" }, el("b", {}, best.name), el("span", {}, `${plus(best.result)} %`));
    return el("article", { class: "card" }, el("h3", {}, title), lead, el("p", { class: "first" }, first), el("p", { class: "more" }, more.join(" ")));
  });
  const rest = cards.splice(6);
  const box = $("words"), wasOpen = box.querySelector("details")?.open;
  box.replaceChildren(...cards);
  if (rest.length) box.append(el("details", { open: wasOpen }, el("summary", {}, `${rest.length} more tasks`), el("div", { class: "words" }, ...rest)));
  const { notes, damaged } = state.data;
  const title = `${count(notes.length, "note")} on the records` + (damaged ? `; ${count(damaged, "damaged line")} skipped` : "");
  const list = el("ul", {}, ...notes.slice(0, 200).map((note) => el("li", {}, note)));
  $("notes").replaceChildren(...(notes.length ? [el("details", { class: "card warn", id: "damage" }, el("summary", {}, title), list)] : []));
}

const COLUMNS = [
  ["name", "Method", (line) => line.name, null],
  ["result", "Accuracy, %", (line) => line.result[0], (line) => plus(line.result)],
  ["dataset", "Dataset", (line) => line.task.dataset, null],
  ["alpha", "α", (line) => line.task.alpha, (line) => text(line.task.alpha)],
  ["labels", "Labels / class", (line) => line.task.labels, (line) => text(line.task.labels)],
  ["last", "Last round, %", (line) => line.last[0], (line) => plus(line.last, 1)],
  ["right", "Labels right, %", (line) => line.right[0], (line) => plus(line.right, 1)],
  ["used", "Labels used, %", (line) => line.used[0], (line) => plus(line.used, 1)],
  ["seconds", "s / round", (line) => line.seconds, (line) => fixed(line.seconds)],
  ["seeds", "Seeds", (line) => line.seeds.length, (line) => line.seeds.length > 5 ? String(line.seeds.length) : line.seeds.join(" ")],
  ["rounds", "Rounds", (line) => line.rounds[0], (line) => line.rounds[0] === line.rounds[1] ? String(line.rounds[0]) : `${line.rounds[0]} of ${line.rounds[1]}`],
];
const TEXT = new Set(["name", "dataset"]);

function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null); // unknown values last, whichever way
  return typeof a === "string" ? a.localeCompare(b) : a - b;
}

function sorted(rows) {
  const [key, way] = state.sort;
  const value = COLUMNS.find(([name]) => name === key)[2];
  return rows.map((row, i) => [row, i]).sort(([a, i], [b, j]) => {
    const [x, y] = [value(a), value(b)];
    return (x === null || y === null ? compare(x, y) : way * compare(x, y)) || i - j;
  }).map(([row]) => row);
}

function renderTable() {
  const [key, way] = state.sort;
  const focused = document.activeElement?.dataset?.column;
  const heads = COLUMNS.map(([name, title]) => el("th", {
    scope: "col", class: TEXT.has(name) ? "text" : null, "aria-sort": name === key ? (way > 0 ? "ascending" : "descending") : "none",
  }, el("button", { type: "button", "data-column": name, onclick: () => sortBy(name) }, title)));
  const table = $("results");
  table.tHead.replaceChildren(el("tr", {}, ...heads, el("th", { scope: "col" }, "Run again")));
  const rows = sorted(shownLines());
  table.tBodies[0].replaceChildren(...rows.map(row));
  table.tHead.querySelector(`[data-column="${focused}"]`)?.focus();
  $("caption").textContent = `${rows.length} of ${count(lines().length, "line")}. Accuracy: mean of the last ${state.data.last} rounds ± standard deviation over seeds; within a task, best bold, second underlined. Labels: pseudo-labels, over the same rounds.`;
}

function row(line) {
  const cells = COLUMNS.map(([name, , value, text]) => {
    const shown = text ? text(line) : String(value(line));
    if (name === "name") return el("th", { scope: "row" }, el("i", { style: `background:${line.style.color}` }), shown, line.task.extra ? el("small", {}, line.task.extra) : null);
    return el("td", { class: name === "result" ? "main" : TEXT.has(name) ? "text" : null }, shown);
  });
  const button = el("button", { type: "button", "aria-label": `Copy the command for ${line.name}`, onclick: (event) => copy(line.command, event.currentTarget) }, "Copy");
  return el("tr", { class: { 1: "best", 2: "second" }[line.rank] ?? null }, ...cells, el("td", {}, button));
}

function sortBy(name) {
  const [key, way] = state.sort;
  state.sort = [name, key === name ? -way : TEXT.has(name) ? 1 : -1];
  renderTable();
  say(`Sorted by ${COLUMNS.find(([column]) => column === name)[1]}`);
}

function renderFilters() {
  const values = { dataset: new Set(), alpha: new Set(), labels: new Set(), method: new Set() };
  for (const line of lines()) {
    values.dataset.add(line.task.dataset);
    values.alpha.add(text(line.task.alpha));
    values.labels.add(text(line.task.labels));
    values.method.add(line.method);
  }
  for (const [key, title] of Object.entries(FILTERS)) {
    let select = $(`filter-${key}`);
    if (!select) {
      select = el("select", { id: `filter-${key}`, onchange: () => { state.filters[key] = select.value; renderAll(); say(`${shownLines().length} lines`); } });
      $("filters").append(el("label", { class: "field" }, title, " ", select));
    }
    const options = [...values[key]].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    select.replaceChildren(el("option", { value: "" }, "all"), ...options.map((value) => el("option", { value }, value)));
    select.value = values[key].has(state.filters[key]) ? state.filters[key] : "";
    state.filters[key] = select.value;
  }
}

function codeLine(text) {
  return el("div", { class: "line" }, el("pre", { tabindex: 0 }, text), el("button", { type: "button", onclick: (event) => copy(text, event.currentTarget) }, "Copy"));
}

function renderAgain() {
  const open = new Set([...$("again").querySelectorAll("details[open]")].map((each) => each.dataset.line));
  $("again").replaceChildren(...shownLines().map((line) => {
    const key = `${line.task.title}|${line.name}`;
    const details = el("details", { "data-line": key }, el("summary", {}, `${line.name} `, el("span", {}, line.task.title)));
    const fill = () => { // five hundred of these stay cheap if only the opened ones are built
      if (!details.open || details.childElementCount > 1) return;
      details.append(codeLine(line.command));
      if (line.recorded.length) details.append(el("h4", {}, "Made with"), ...line.recorded.map(codeLine));
      details.append(el("h4", {}, "Settings, for a file of your own"), codeLine(line.settings), el("h4", {}, "Runs"), el("ul", {}, ...line.runs.filter((id) => state.runs[id]).map((id) => {
        const run = state.runs[id];
        return el("li", {}, `seed ${run.seed}: ${fixed(run.result)} %, ${run.rounds} of ${run.planned} rounds${run.damaged ? `, ${count(run.damaged, "damaged line")}` : ""} – ${id}`);
      })));
    };
    details.addEventListener("toggle", fill);
    details.open = open.has(key);
    fill();
    return details;
  }));
}

function renderHardware() {
  const columns = { device: "Device", processor: "Processor", threads: "Threads", cuda: "CUDA", python: "Python", torch: "torch", numpy: "numpy", fssl: "fssl", revision: "Revision" };
  const table = $("hardware");
  table.tHead.replaceChildren(el("tr", {}, ...Object.values(columns).map((title) => el("th", { scope: "col", class: "text" }, title)), el("th", { scope: "col" }, "Runs"), el("th", { scope: "col" }, "Time")));
  const short = (name, value) => (name === "revision" && value ? value.slice(0, 10) + (value.endsWith("+") ? "+" : "") : value ?? "–");
  table.tBodies[0].replaceChildren(...state.data.hardware.map((machine) => el("tr", {}, ...Object.keys(columns).map((name) => el("td", { class: "text" }, short(name, machine[name]))), el("td", {}, String(machine.runs)), el("td", {}, duration(machine.seconds)))));
}

function renderAll() {
  renderFilters();
  renderTable();
  renderLegend();
  renderCharts();
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
  renderHardware();
  renderAll();
}

// Light and dark: as the system says, until the button says otherwise.

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").setAttribute("aria-pressed", String(theme === "dark"));
  if (state.data) renderCharts();
}

const system = matchMedia("(prefers-color-scheme: dark)");
const followSystem = () => setTheme(system.matches ? "dark" : "light");
followSystem();
system.addEventListener("change", followSystem);
$("theme").addEventListener("click", () => {
  system.removeEventListener("change", followSystem);
  setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
});
$("print").addEventListener("click", () => print());
$("task").addEventListener("change", () => {
  state.task = $("task").value === "all" ? "all" : state.data.tasks[$("task").value].title;
  renderLegend();
  renderCharts();
});
$("filters").addEventListener("submit", (event) => event.preventDefault());
let before = null; // paper is light
addEventListener("beforeprint", () => {
  before = document.documentElement.dataset.theme;
  setTheme("light");
  document.querySelectorAll(".plot").forEach(catchUp);
});
addEventListener("afterprint", () => setTheme(before));

// Data: from the page itself, or again and again from its server.

async function unpack(id) {
  const letters = atob($(id).textContent);
  const bytes = Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

async function poll() {
  const sign = $("live");
  try {
    const data = await (await fetch(`data?since=${state.version}`)).json();
    if (data.tasks) show(data);
    state.version = data.version;
    sign.className = "live";
    sign.textContent = state.data.facts.runs && !state.data.unfinished ? "live: all runs are finished" : "live";
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
  $("plotly").remove();
  if (isLive) return poll();
  const data = JSON.parse(await unpack("data"));
  $("data").remove();
  show(data);
}

start().then(() => document.body.setAttribute("data-ready", ""));
