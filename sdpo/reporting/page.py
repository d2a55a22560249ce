"""The look of the report: style, hover script and frame of the page. Everything is inline; nothing is fetched."""

from __future__ import annotations

import base64
import hashlib
from html import escape

STYLE = """
:root { color-scheme: light dark; --bg: #f6f7f9; --card: #fff; --ink: #1a1d21; --soft: #5c6570; --rule: #e3e6ea;
  --inset: #f6f7f9; --good: #12805c; --bad: #b3382c; --warn: #8a6100; --good-bg: #e3f4ec; --bad-bg: #fbe9e7;
  --warn-bg: #fbf1d9; --c0: #2a6fdb; --c1: #d9622b; --c2: #16926b; --c3: #8455c9; --c4: #b07d09; --c5: #c2407a; }
@media (prefers-color-scheme: dark) { :root { --bg: #111418; --card: #191d23; --ink: #e6e9ed; --soft: #98a2ae;
  --rule: #2b3139; --inset: #12161b; --good: #5cd0a3; --bad: #ff8f80; --warn: #e5bd57; --good-bg: #15332a;
  --bad-bg: #3c1f1c; --warn-bg: #352c15; --c0: #6fa8ff; --c1: #ff9a66; --c2: #4fcaa2; --c3: #b798ff; --c4: #e2b64d;
  --c5: #ff86b8; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 1220px; margin: 0 auto; padding: 36px 24px 64px; }
header .eyebrow { margin: 0; color: var(--soft); font-size: 13px; }
h1 { margin: 2px 0 4px; font-size: 27px; line-height: 1.25; letter-spacing: -.01em; }
h2 { margin: 44px 0 4px; font-size: 19px; letter-spacing: -.005em; }
h2 + p { margin: 0 0 14px; color: var(--soft); max-width: 76ch; }
h3 { margin: 0; font-size: 14.5px; } h3.head { padding: 14px 14px 6px; }
.status { display: inline-block; padding: 1px 9px; border-radius: 99px; font-size: 12.5px; font-weight: 600;
  background: var(--inset); border: 1px solid var(--rule); color: var(--soft); vertical-align: 3px;
  margin-left: 8px; }
.status.finished { background: var(--good-bg); color: var(--good); border-color: transparent; }
.status.failed, .status.interrupted,
.status.running { background: var(--warn-bg); color: var(--warn); border-color: transparent; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(158px, 1fr)); gap: 12px; margin: 22px 0 0; }
.tile, .chart, .card { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
.tile { padding: 13px 16px; }
.tile span { display: block; color: var(--soft); font-size: 12.5px; }
.tile b { display: block; font-size: 23px; font-weight: 620; letter-spacing: -.01em;
  font-variant-numeric: tabular-nums; }
.tile small { color: var(--soft); font-size: 12.5px; }
.tile.warning { grid-column: 1 / -1; background: var(--warn-bg); color: var(--warn); border-color: transparent;
  overflow-wrap: anywhere; } .tile.warning span { color: inherit; font-weight: 600; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(350px, 100%), 1fr)); gap: 14px; }
.chart { margin: 0; padding: 14px 14px 6px; position: relative; display: flex; flex-direction: column;
  justify-content: space-between; }
figcaption { margin-bottom: 6px; }
.chart p { margin: 1px 0 0; color: var(--soft); font-size: 12.5px; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 4px 0 0; font-size: 12.5px; color: var(--soft); }
.key i { display: inline-block; width: 11px; height: 3px; border-radius: 2px; margin-right: 6px;
  vertical-align: 3px; background: currentColor; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font-size: 11px; fill: var(--soft); font-variant-numeric: tabular-nums; }
.grid { stroke: var(--rule); stroke-width: 1; } .axis { stroke: var(--soft); stroke-width: 1; opacity: .55; }
.line { fill: none; stroke: currentColor; stroke-width: 1.9; stroke-linejoin: round; stroke-linecap: round; }
.dot { fill: currentColor; stroke: var(--card); stroke-width: 1.2; } .fill { fill: currentColor; }
.cursor { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 3 3; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); }
.c4 { color: var(--c4); } .c5 { color: var(--c5); }
.tip { position: absolute; z-index: 2; pointer-events: none; background: var(--card); border: 1px solid var(--rule);
  border-radius: 8px; padding: 6px 10px; font-size: 12.5px; box-shadow: 0 4px 14px #0002; white-space: nowrap; }
.tip b { font-variant-numeric: tabular-nums; margin-left: 8px; float: right; } .tip div { clear: both; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
td, th { text-align: left; padding: 6px 14px; border-top: 1px solid var(--rule); vertical-align: top; }
tr:first-child > * { border-top: 0; } th { color: var(--soft); font-weight: 500; white-space: nowrap; width: 1%; }
table.plain th { width: auto; white-space: normal; }
td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere; } table.plain td + td { overflow-wrap: normal; }
.split { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 14px;
  align-items: start; }
.card { overflow: hidden; } .stack { display: grid; gap: 10px; }
details.card > summary { cursor: pointer; padding: 10px 16px; list-style: none; display: flex; gap: 10px;
  align-items: center; }
details.card > summary::-webkit-details-marker { display: none; }
details.card > summary::before { content: "\\25B8"; color: var(--soft); }
  details.card[open] > summary::before { content: "\\25BE"; }
summary .what { flex: 1; min-width: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
summary .id { color: var(--soft); font-size: 12.5px; white-space: nowrap; font-variant-numeric: tabular-nums; }
.body { border-top: 1px solid var(--rule); padding: 12px 16px 16px; display: grid; gap: 14px;
  grid-template-columns: repeat(auto-fit, minmax(min(400px, 100%), 1fr)); align-items: start; }
.body > div { display: grid; gap: 10px; min-width: 0; } .wide { grid-column: 1 / -1; }
.label { font-size: 12.5px; color: var(--soft); margin: 0 0 3px; display: flex; gap: 6px; align-items: center;
  flex-wrap: wrap; }
pre { margin: 0; padding: 9px 12px; background: var(--inset); border-radius: 7px;
  font: 12.5px/1.5 ui-monospace, SFMono-Regular,
  Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  unicode-bidi: isolate;
  max-height: 460px; overflow: auto; }
.chip { font-size: 12px; line-height: 1; padding: 4px 8px; border-radius: 99px; background: var(--inset);
  color: var(--soft); white-space: nowrap; }
.chip.good { background: var(--good-bg); color: var(--good); } .chip.bad { background: var(--bad-bg);
  color: var(--bad); }
.chip.warn { background: var(--warn-bg); color: var(--warn); }
.empty { padding: 18px; color: var(--soft); } footer { margin-top: 44px; color: var(--soft); font-size: 12.5px; }
h4 { margin: 20px 0 8px; font-size: 13.5px; color: var(--soft); font-weight: 600; }
@media print { details.card .body { display: grid; } .tip { display: none; } }
"""

CHART_SCRIPT = """
function attachCharts(root) { for (const svg of root.querySelectorAll("svg[data-chart]")) {
  const chart = JSON.parse(svg.dataset.chart), [x0, x1, px0, px1] = chart.x, [y0, y1, py0, py1] = chart.y;
  const toX = v => px0 + (v - x0) / (x1 - x0) * (px1 - px0), toY = v => py0 + (v - y0) / (y1 - y0) * (py1 - py0);
  const all = [...new Set(chart.lines.flatMap(line => line[1].map(p => p[0])))];
  const layer = document.createElementNS("http://www.w3.org/2000/svg", "g"), tip = document.createElement("div");
  svg.append(layer); tip.className = "tip"; tip.hidden = true; svg.parentNode.append(tip);
  const add = (name, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    layer.append(node);
  };
  const text = v => Math.abs(v) >= 1000 ? v.toLocaleString("en") : String(+v.toPrecision(4));
  const seconds = v => v < 60 ? v.toFixed(1) + " s" : Math.floor(v / 60) + " min " + Math.round(v % 60) + " s";
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
    const at = (event.clientX - box.left) / scale;
    const x = all.reduce((best, v) => Math.abs(toX(v) - at) < Math.abs(toX(best) - at) ? v : best);
    layer.replaceChildren(); tip.replaceChildren(); tip.hidden = false;
    add("line", {class: "cursor", x1: toX(x), x2: toX(x), y1: py1, y2: py0});
    const head = document.createElement("div");
    head.textContent = chart.name === "step" ? "step " + text(Math.round(x)) : seconds(x);
    tip.append(head);
    for (const [name, points, colour] of chart.lines) {
      const point = points.find(p => p[0] === x);
      if (!point) continue;
      if (chart.dots) add("circle", {class: "dot c" + colour, cx: toX(x), cy: toY(point[1]), r: 4});
      const [row, value, label] = ["div", "b", "span"].map(tag => document.createElement(tag));
      label.className = "c" + colour; label.textContent = name; value.textContent = text(point[1]);
      row.append(value, label); tip.append(row);
    }
    const left = svg.offsetLeft + toX(x) * scale, width = tip.offsetWidth, room = svg.parentNode.clientWidth;
    const base = box.left - svg.parentNode.getBoundingClientRect().left + toX(x) * scale;
    tip.style.left = (base + 14 + width > room ? base - 14 - width : base + 14) + "px";
    tip.style.top = box.top - svg.parentNode.getBoundingClientRect().top + 6 + "px";
  });
  svg.addEventListener("pointerleave", () => { layer.replaceChildren(); tip.hidden = true; });
} }
"""
SCRIPT = CHART_SCRIPT + "attachCharts(document);\n"

# Text from models ends up on this page: should an escape ever be missed, the policy still runs no other script.
_SCRIPT_HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_SCRIPT_HASH}'; img-src data:"


# Signs that HTML forbids, and those that turn the direction of what follows.
_UNSEEN = [c for c in range(0x20) if chr(c) not in "\t\n\r"] + [*range(0x7F, 0xA0)]
_TURNING = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_ESCAPES = {c: f"\\x{c:02x}" for c in _UNSEEN} | {c: f"\\u{c:04x}" for c in _TURNING}


def visible(text: str) -> str:
    r"""Control signs as escapes that a person can read.

    >>> visible(chr(27) + "[2J") == r"\x1b[2J"
    True
    """
    return text.translate(_ESCAPES)


def page(title: str, body: str) -> str:
    """A whole HTML document. `body` is HTML, `title` text; control signs in either are made visible."""
    title, body = visible(title), visible(body)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )
