"use strict";
// Tables of the leaderboard: a click on a column's name sorts by it, a second one the other way round.

const NUMBER = /^[\d.]+/;

/** @type {(cell: HTMLElement) => string | number | null} */
function worth(cell) {
  const text = (cell.textContent ?? "").trim();
  const number = NUMBER.exec(text);
  if (text === "–" || text === "") return null;
  return number ? Number(number[0]) : text;
}

/** @type {(a: string | number | null, b: string | number | null, way: number) => number} */
function order(a, b, way) {
  if (a === null || b === null) return Number(a === null) - Number(b === null); // unknown last, whichever way
  return way * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
}

/** @type {(table: HTMLTableElement, column: number, head: HTMLElement) => void} */
function sortBy(table, column, head) {
  const isRising = head.getAttribute("aria-sort") !== "ascending";
  for (const other of table.tHead?.rows[0].cells ?? []) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", isRising ? "ascending" : "descending");
  const body = table.tBodies[0];
  const value = (row) => worth(row.cells[column]);
  body.append(...[...body.rows].sort((one, other) => order(value(one), value(other), isRising ? 1 : -1)));
}

/** @type {(table: HTMLTableElement) => void} */
function makeSortable(table) {
  const heads = [...table.tHead?.rows[0].cells ?? []];
  if (heads[0]?.textContent !== "place") return;
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.title = "Sort";
    button.append(...head.childNodes);
    button.style.cssText = "all: unset; cursor: pointer; outline: revert";
    button.addEventListener("click", () => sortBy(table, column, head));
    head.setAttribute("aria-sort", column ? "none" : "ascending");
    head.append(button);
  });
}

document.querySelectorAll("table").forEach(makeSortable);
