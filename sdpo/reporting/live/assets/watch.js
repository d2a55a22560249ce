
"use strict";
const POLL_MS = 2000, FULL_NATS = 2; // an advantage of two nats has the full colour
const byId = id => document.getElementById(id);
const filters = byId("filters");
let state = null, shownMetrics = -1, shownGeneration = -1, following = null, chosen = null, query = 0, newest = -1;
let plain = null; // the open sample while its token log-probs are not in the log: they come with the update

const element = (tag, text = "", name = "") => {
  const node = document.createElement(tag);
  if (text !== "") node.textContent = text;
  if (name) node.className = name;
  return node;
};
const ask = async (path, values = {}) => {
  const answer = await fetch(path + "?" + new URLSearchParams(values));
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
};
const ago = seconds => seconds < 90 ? `${Math.round(seconds)} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min`
  : `${(seconds / 3600).toFixed(1)} h`;

// -- head and tabs --------------------------------------------------------------------------------------------------
function show(tab) {
  for (const name of ["curves", "samples"]) byId(name).hidden = name !== tab;
  for (const button of document.querySelectorAll("[data-tab]")) button.setAttribute("aria-selected", button.dataset.tab === tab);
  history.replaceState(null, "", "#" + tab);
  refresh();
}
for (const button of document.querySelectorAll("[data-tab]")) button.onclick = () => show(button.dataset.tab);

function head() {
  document.title = byId("title").textContent = state.title;
  byId("about").textContent = state.about;
  byId("status").textContent = state.status;
  byId("status").className = "status " + state.status;
  byId("tiles").innerHTML = state.tiles; // escaped where it is made; under the page's policy it can run nothing
  byId("count").textContent = state.samples.toLocaleString("en");
  const parts = state.age === null ? ["no metrics yet"] : [`metrics written ${ago(state.age)} ago`];
  if (state.indexed < 0.999 && state.samples) parts.push(`reading samples: ${Math.floor(100 * state.indexed)} %`);
  byId("note").textContent = parts.join(" · ");
  const select = filters.elements.status;
  if (select.options.length - 1 !== state.statuses.length) {
    const before = select.value;
    select.replaceChildren(new Option("any status", ""), ...state.statuses.map(s => new Option(s.replaceAll("_", " "), s)));
    select.value = before;
  }
}

// -- curves -----------------------------------------------------------------------------------------------------------
async function curves() {
  if (shownMetrics === state.metrics_version) return;
  shownMetrics = state.metrics_version;
  const parts = await ask("charts"), place = element("div");
  for (const [title, html] of Object.entries(parts)) {
    const part = element("div");
    part.innerHTML = html;
    place.append(element("h2", title), part);
  }
  if (!place.children.length) place.append(element("p", "No metrics yet.", "card empty"));
  byId("charts").replaceChildren(...place.childNodes);
  attachCharts(byId("charts"));
  await everyMetric();
}
async function everyMetric() {
  const text = byId("metric").value.trim();
  if (!text) { byId("metrics").replaceChildren(); byId("metric-count").textContent = ""; return; }
  const found = await ask("metrics", {text});
  byId("metrics").innerHTML = found.html;
  byId("metric-count").textContent = found.count > found.shown ? `${found.shown} of ${found.count} shown` : `${found.count} found`;
  attachCharts(byId("metrics"));
}
byId("metric").oninput = () => { everyMetric().catch(failed); };

// -- the list of samples ---------------------------------------------------------------------------------------------
function wanted() {
  const values = {};
  for (const field of filters.elements) {
    if (field.type === "checkbox" ? field.checked : field.value.trim()) values[field.name] = field.value;
  }
  return values;
}
async function list(before = null) {
  const mine = ++query;
  const found = await ask("samples", before === null ? wanted() : {...wanted(), before});
  if (mine !== query) return; // the filters have changed meanwhile
  if (before === null) byId("list").replaceChildren();
  byId("list").append(...found.items.map(item => row(item, found.generation)));
  shownGeneration = found.generation;
  following = found.following;
  newest = state ? state.samples : -1;
  byId("fresh").hidden = true;
  byId("more").hidden = following === null;
  const count = byId("list").children.length;
  byId("found").textContent = count ? (following === null ? ` ${count} found` : ` ${count} so far`) : (following === null ? "Nothing found." : " none yet");
  // A search that ran out of time goes on by itself.
  if (following !== null && wanted().text && count < 40 && found.items.length < 40) return list(following);
  if (chosen === null && count) await open(found.items[0]?.number, found.generation);
}
function row(item, generation) {
  const button = element("button", "", item.outcome), where = element("span", "", "where");
  where.append(element("span", `step ${item.step}`), element("span", item.phase.startsWith("val") ? "held-out" : "training"),
    element("span", `${item.uid} · ${item.index}`),
    element("b", item.reward === null ? "not graded" : `${+item.reward.toPrecision(3)}${item.tokens ? " ◐" : ""}`));
  button.append(where, element("span", item.question, "what"));
  button.dataset.number = item.number;
  button.onclick = () => { open(item.number, generation).catch(failed); };
  const line = element("li");
  line.append(button);
  return line;
}
let typing = 0;
filters.oninput = () => { clearTimeout(typing); typing = setTimeout(() => { chosen = null; list().catch(failed); }, 250); };
filters.onsubmit = event => event.preventDefault();
byId("more").onclick = () => { list(following).catch(failed); };
byId("newest").onclick = () => { list().catch(failed); };
document.addEventListener("keydown", event => {
  if (byId("samples").hidden || /INPUT|SELECT/.test(event.target.tagName) || !/^Arrow(Up|Down)$/.test(event.key)) return;
  const buttons = [...byId("list").querySelectorAll("button")];
  const at = buttons.findIndex(button => button.getAttribute("aria-current") === "true");
  const next = buttons[at + (event.key === "ArrowDown" ? 1 : -1)];
  if (next) { event.preventDefault(); next.focus(); next.click(); }
});

// -- one sample --------------------------------------------------------------------------------------------------------
async function open(number, generation) {
  if (number === undefined) return;
  const found = await ask("sample", {number, generation});
  chosen = number;
  plain = found.tokens ? null : {number, generation, lines: state ? state.token_lines : 0};
  for (const button of byId("list").querySelectorAll("button")) button.setAttribute("aria-current", +button.dataset.number === number);
  byId("detail").replaceChildren(top_(found), body(found));
}
async function colour() {
  if (plain === null || plain.lines === state.token_lines) return;
  plain.lines = state.token_lines;
  const {number, generation} = plain, found = await ask("sample", {number, generation});
  if (found.tokens && chosen === number && shownGeneration === generation) await open(number, generation);
}
function top_(found) {
  const top = element("div", "", "top"), style = {solved: "good", failed: "bad", ungraded: "warn"}[found.outcome];
  const reward = found.reward === null ? "not graded" : `reward ${+found.reward.toPrecision(3)}`;
  const chips = [[reward, style], [(found.status || "").replaceAll("_", " "), ""], [`${found.response_tokens} tokens`, ""]];
  if (found.finish_reason === "length") chips.push(["cut at the length limit", "warn"]);
  for (const flag of found.flags || []) chips.push([flag, "warn"]);
  top.append(...chips.filter(([text]) => text).map(([text, kind]) => element("span", text, "chip " + kind)));
  top.append(element("span", `step ${found.step} · ${found.data_source} · ${found.uid}`, "label"));
  const group = element("span", "", "siblings");
  for (const sibling of found.siblings.length > 1 ? found.siblings : []) {
    const button = element("button", sibling.index, sibling.outcome);
    button.title = "response of the same group";
    button.setAttribute("aria-current", sibling.number === found.number);
    button.onclick = () => { open(sibling.number, found.generation).catch(failed); };
    group.append(button);
  }
  top.append(group);
  return top;
}
function body(found) {
  const body = element("div", "", "body"), left = element("div"), right = element("div");
  left.append(block("problem", found.problem), response(found));
  if (found.feedback) left.append(block("feedback", found.feedback));
  const sources = [];
  if (found.demonstration_index !== null && found.demonstration_index !== undefined) sources.push(`demonstration: response ${found.demonstration_index}`);
  if (found.used_feedback) sources.push("feedback");
  right.append(found.teacher_prompt === null || found.teacher_prompt === undefined
    ? block("teacher", "No teacher prompt: no demonstration and no feedback, or not a training sample.")
    : block("teacher's prompt", found.teacher_prompt, sources));
  body.append(left, right);
  return body;
}
function block(name, text, chips = []) {
  const part = element("div"), label = element("p", name, "label");
  label.append(...chips.map(chip => element("span", chip, "chip")));
  part.append(label, element("pre", text || "(empty)"));
  return part;
}
function response(found) {
  if (!found.tokens) return block("response", found.response);
  const part = element("div"), label = element("p", "response", "label"), scale = element("span", "", "scale");
  scale.append(element("span", "teacher: less likely"), element("i"), element("span", `more likely (± ${FULL_NATS} nats)`));
  label.append(scale);
  const text = element("pre", "", "tokens");
  for (const [piece, student, teacher] of found.tokens) {
    const advantage = teacher - student, node = element("span", piece, "token " + (advantage > 0 ? "more" : "less"));
    node.style.setProperty("--strength", `${Math.min(100, Math.round(100 * Math.abs(advantage) / FULL_NATS))}%`);
    node.title = `${JSON.stringify(piece)}  student ${Math.exp(student).toPrecision(3)}  teacher ${Math.exp(teacher).toPrecision(3)}  advantage ${advantage.toFixed(3)} nats`;
    text.append(node);
  }
  part.append(label, text);
  // tokens.jsonl holds the beginning of a long response only.
  const missing = found.response_tokens - found.tokens.length;
  if (missing > 0) {
    const note = `${missing.toLocaleString("en")} more tokens have no log-probs in the log; the whole response`;
    part.append(block(note, found.response));
  }
  return part;
}

// -- following ---------------------------------------------------------------------------------------------------------
async function refresh() {
  try {
    state = await ask("state");
    head();
    if (!byId("curves").hidden) await curves();
    else if (shownGeneration !== state.generation) { chosen = null; await list(); }
    else if (newest !== state.samples && !byId("list").children.length) await list();
    else byId("fresh").hidden = newest === state.samples;
    if (!byId("samples").hidden) await colour();
  } catch (error) { failed(error); }
}
function failed(error) {
  byId("note").textContent = error instanceof TypeError ? "the server does not answer; start sdpo.cli.watch again" : String(error.message);
}
show(location.hash === "#samples" ? "samples" : "curves");
setInterval(refresh, POLL_MS);
