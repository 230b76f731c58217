"""The page's script without a browser: Deno runs it with a small document, and charts are recorded, not drawn."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from fssl.reports.page import write

SCRIPT = Path(write.__file__).with_name("page.js")
DENO = Path(sys.executable).with_name("deno")
DOCUMENT = """
class Element {
  constructor() { this.children = []; this.style = {}; this.dataset = {}; this.options = []; this.textContent = ""; }
  append(...more) { this.children.push(...more); }
  replaceChildren(...all) { this.children = all; }
  setAttribute(name, value) { this[name] = value; }
  addEventListener() {}
  focus() {}
  querySelector() { return null; }
  querySelectorAll() { return []; }
  get parentElement() { return new Element(); }
  get tHead() { return this.head ??= new Element(); }
  get tBodies() { return this.bodies ??= [new Element()]; }
  get words() { return this.textContent + this.children.map((c) => typeof c === "string" ? c : c.words).join(" "); }
}
globalThis.HTMLElement = Element;
const places = {};
globalThis.document = {
  documentElement: new Element(),
  body: new Element(),
  activeElement: null,
  createElement: () => new Element(),
  createElementNS: () => new Element(),
  getElementById: (id) => places[id] ??= new Element(),
};
globalThis.getComputedStyle = () => ({ getPropertyValue: () => "#fff" });
globalThis.matchMedia = () => ({ matches: false, addEventListener() {} });
globalThis.IntersectionObserver = class { observe() {} };
globalThis.addEventListener = () => {};
const drawn = {};
"""
RECORDED = """
draw = (id, traces, extra, words) => (drawn[id] = { traces, extra, words });
show(DATA);
console.log(JSON.stringify({ drawn, words: Object.fromEntries(PLACES.map((id) => [id, $(id).words])),
  hidden: Object.fromEntries(PLACES.map((id) => [id, Boolean($(id).hidden)])) }));
"""


def shown(data: dict[str, Any], *places: str) -> dict[str, Any]:
    """Return the charts of a page with this content by their place, and the text of some places."""
    script = SCRIPT.read_text().removesuffix("start();\n")
    ended = RECORDED.replace("DATA", json.dumps(data)).replace("PLACES", json.dumps(places))
    ran = subprocess.run([DENO, "run", "-"], input=DOCUMENT + script + ended, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found
