
const POLL_MS = 10000, WIDTH = 400, HEIGHT = 208, LEFT = 44, RIGHT = 12, TOP = 10, BOTTOM = 26;
const DASHES = ["", "7 3", "2 3", "9 3 2 3"];
const byId = id => document.getElementById(id), hidden = new Set();
const svgNode = (name, attributes, text) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  return node;
};
const element = (tag, text = "", name = "") => {
  const node = document.createElement(tag);
  node.textContent = text; node.className = name;
  return node;
};
async function api(name, payload = {}) {
  const answer = await fetch(`/api/${name}`, {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(payload)});
  const found = await answer.json();
  if (!answer.ok || found.error) throw new Error(found.error || `${name}: ${answer.status}`);
  return found.data;
}
const isNumber = value => typeof value === "number" && Number.isFinite(value);
const keyOf = run => run.id || run.name;

function linesOf(panel, runs) {
  const lines = [];
  for (const [place, run] of runs.entries()) {
    for (const [number, metric] of panel.metrics.entries()) {
      const points = run.rows.filter(row => isNumber(row[panel.x]) && isNumber(row[metric])).map(row => [row[panel.x], row[metric]]);
      points.sort((a, b) => a[0] - b[0]);
      const short = metric.replace(/^grade\/|_frac$/g, "");
      const name = runs.length > 1 ? (panel.metrics.length > 1 ? `${run.name}: ${short}` : run.name) : short;
      // With several runs the colour is the run's and the dashes are the metric's.
      if (points.length) lines.push({name, points, colour: (runs.length > 1 ? place : number) % 6, dash: runs.length > 1 ? DASHES[number % 4] : ""});
    }
  }
  return lines;
}
function stack(lines) { // the sums of the lines up to each one
  const sums = new Map();
  return lines.map(line => ({...line, points: line.points.map(([x, y]) => {
    sums.set(x, (sums.get(x) || 0) + y);
    return [x, sums.get(x)];
  })}));
}
function ticks(low, high) { // about four round numbers
  const rough = (high - low) / 4, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find(factor => power * factor >= rough * 0.999), found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}
function chart(panel, runs) {
  let lines = linesOf(panel, runs);
  if (panel.stacked && runs.length === 1) lines = stack(lines.filter(line => line.points.some(p => p[1] > 0)));
  if (!lines.length) return null;
  const xs = lines.flatMap(l => l.points.map(p => p[0])), ys = lines.flatMap(l => l.points.map(p => p[1]));
  let [x0, x1] = [Math.min(...xs), Math.max(...xs)], [y0, y1] = panel.share ? [0, 1] : [Math.min(0, ...ys), Math.max(...ys) * 1.05];
  if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
  if (y0 === y1) y1 = y0 + 1;
  const toX = v => LEFT + (v - x0) / (x1 - x0) * (WIDTH - RIGHT - LEFT), toY = v => HEIGHT - BOTTOM + (v - y0) / (y1 - y0) * (TOP - HEIGHT + BOTTOM);
  const svg = svgNode("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": panel.title});
  const text = v => Math.abs(v) >= 1e4 ? `${+(v / 1e3).toPrecision(3)}k` : String(+v.toPrecision(3));
  for (const y of ticks(y0, y1)) svg.append(svgNode("line", {class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: toY(y), y2: toY(y)}),
    svgNode("text", {x: LEFT - 7, y: toY(y) + 3.5, "text-anchor": "end"}, text(y)));
  for (const x of ticks(x0, x1)) svg.append(svgNode("text", {x: toX(x), y: HEIGHT - 8, "text-anchor": "middle"}, text(x)));
  for (const line of [...lines].reverse()) {
    const path = line.points.map(([x, y]) => `${toX(x).toFixed(1)} ${toY(Math.min(y, y1)).toFixed(1)}`).join("L");
    if (panel.stacked && runs.length === 1) {
      const [first, last] = [line.points[0][0], line.points.at(-1)[0]];
      svg.append(svgNode("path", {class: `area c${line.colour}`, d: `M${toX(first)} ${toY(y0)}L${path}L${toX(last)} ${toY(y0)}Z`}));
    } else svg.append(svgNode("path", {class: `line c${line.colour}`, d: "M" + path, "stroke-dasharray": line.dash}));
  }
  svg.dataset.chart = JSON.stringify({x: [x0, x1, LEFT, WIDTH - RIGHT], y: [y0, y1, HEIGHT - BOTTOM, TOP], name: panel.x_title,
    dots: true, lines: lines.map(l => [l.name, l.points, l.colour])});
  const figure = element("figure", "", "chart"), caption = document.createElement("figcaption"), legend = element("div", "", "legend");
  for (const line of lines) {
    const key = element("span", "", "key");
    key.append(element("i", "", `c${line.colour}`), line.name);
    legend.append(key);
  }
  caption.append(element("h3", panel.title), element("p", [panel.y_title, `by ${panel.x_title}`].filter(Boolean).join(", ")));
  if (lines.length > 1) caption.append(legend);
  figure.append(caption, svg);
  return figure;
}
async function draw() {
  const project = byId("project").value;
  if (!project) { byId("note").textContent = "Trackio has no project yet."; return; }
  byId("title").textContent = project;
  const [layout, runs] = await Promise.all([fetch("./panels.json").then(r => r.json()), api("get_runs_for_project", {project})]);
  const shown = runs.filter(run => !hidden.has(keyOf(run)));
  await Promise.all(shown.map(async run => { run.rows = await api("get_logs", {project, run: run.name, run_id: run.id, scalar_only: true}); }));
  byId("runs").replaceChildren(...runs.map(run => {
    const label = element("label"), box = document.createElement("input");
    box.type = "checkbox"; box.checked = !hidden.has(keyOf(run));
    box.onchange = () => { hidden[box.checked ? "delete" : "add"](keyOf(run)); draw().catch(failed); };
    label.append(box, ` ${run.name}`);
    return label;
  }));
  const place = document.createElement("div");
  for (const section of layout) {
    const figures = section.panels.map(panel => chart(panel, shown)).filter(Boolean);
    if (!figures.length) continue;
    const grid = element("div", "", "charts");
    grid.append(...figures);
    place.append(element("h2", section.title), grid);
  }
  byId("sections").replaceChildren(...place.childNodes);
  attachCharts(byId("sections"));
  byId("note").textContent = `${shown.length} of ${runs.length} runs`;
}
function failed(error) { byId("note").textContent = String(error.message); }
async function start() {
  const projects = await api("get_all_projects"), wanted = new URLSearchParams(location.search).get("project");
  byId("project").replaceChildren(...projects.map(name => new Option(name, name, false, name === wanted)));
  byId("project").onchange = () => draw().catch(failed);
  await draw();
  setInterval(() => draw().catch(failed), POLL_MS);
}
start().catch(failed);
