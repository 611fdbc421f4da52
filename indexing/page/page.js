// The page: what is asked and opened is in the address, so that a search can be shared and the back button works.

import { ask } from "./service.js";
import { ago, isolated, make, nodes, number, wordsOf } from "./text.js";
import * as detail from "./detail.js";
import { MODES, columns, list, ranked } from "./results.js";

const form = document.getElementById("ask");
const field = document.getElementById("q");
const results = document.getElementById("results");
const said = document.getElementById("said");
const dialog = document.getElementById("detail");

const DEFAULTS = { mode: "hybrid", k: "10", window: "0", within: "" };
let snapshot = null;
let searched = null; // the search whose results are shown, as an address
let running = null;
let opener = null; // the link of the hit that is open
let moveOn = false; // whether the focus goes to the first hit once it is there

/** What the address asks for. */
function state() {
  const given = new URLSearchParams(location.search);
  return { ...DEFAULTS, ...Object.fromEntries(given), q: given.get("q") ?? "" };
}

function address(fields) {
  const kept = Object.entries(fields).filter(([key, value]) => value !== "" && value !== DEFAULTS[key]);
  const query = new URLSearchParams(kept.map(([key, value]) => [key, String(value)])).toString();
  return query ? `?${query}` : "./";
}

/** The address of the search alone. */
function searchAddress({ doc, chunk, ...search }) {
  return address(search);
}

function hitAddress(id, chunk) {
  return address({ ...state(), doc: id, chunk });
}

function go(to) {
  history.pushState(null, "", to);
  follow();
}

/** Make the page what the address says. */
async function follow() {
  const wanted = state();
  field.value = wanted.q;
  for (const radio of form.elements.mode) radio.checked = radio.value === wanted.mode;
  for (const name of ["k", "window"]) form.elements[name].value = wanted[name];
  form.elements.within.checked = wanted.within === "section";
  document.title = wanted.q ? `${wanted.q} - situate` : "situate";
  if (searchAddress(wanted) !== searched) await search(wanted);
  if (wanted.doc !== undefined && /^\d{1,9}$/.test(wanted.chunk ?? "")) {
    const links = [...results.querySelectorAll("a.hit")];
    if (!opener?.isConnected) opener = links.find(({ dataset }) => dataset.id === wanted.doc && dataset.chunk === wanted.chunk);
    await ready;
    await detail.open(wanted.doc, Number(wanted.chunk), wordsOf(wanted.q), snapshot, (id, chunk) => go(hitAddress(id, chunk)));
  } else {
    detail.close();
  }
}

async function search(wanted) {
  searched = searchAddress(wanted);
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  if (!wanted.q.trim()) return start();
  document.body.classList.remove("fresh");
  results.setAttribute("aria-busy", "true");
  const began = performance.now();
  const modes = wanted.mode === "compare" ? MODES : [MODES.includes(wanted.mode) ? wanted.mode : "hybrid"];
  const { q, k, window: around, within } = wanted;
  try {
    const answers = await Promise.all(modes.map((mode) => ask("search", { q, mode, k, window: around, within }, signal)));
    const hits = answers.map(ranked);
    const words = wordsOf(q);
    results.replaceChildren(hits.length > 1 ? columns(hits, words, hitAddress) : list(hits[0], modes[0], words, hitAddress));
    said.replaceChildren(sentence(hits, performance.now() - began));
  } catch (error) {
    if (error.name === "AbortError") return;
    searched = null; // the same search may be tried again
    results.replaceChildren(make("p", { class: "problem", role: "alert" }, nodes(error.message)));
    said.replaceChildren();
  }
  results.removeAttribute("aria-busy");
  if (moveOn) results.querySelector("a.hit")?.focus({ preventScroll: true });
  moveOn = false;
}

function sentence(lists, milliseconds) {
  const seconds = milliseconds < 1000 ? `${Math.round(milliseconds)} ms` : `${(milliseconds / 1000).toFixed(1)} s`;
  const counts = [...new Set(lists.map((hits) => hits.length))];
  const noun = counts.length === 1 && counts[0] === 1 ? "hit" : "hits";
  if (counts.length > 1) return `${lists.map((hits) => number(hits.length)).join(", ")} hits in ${seconds}`;
  return `${number(counts[0])} ${noun}${lists.length > 1 ? " each" : ""} in ${seconds}`;
}

/** The page before anything was asked: what is here to search. */
async function start() {
  document.body.classList.add("fresh");
  said.replaceChildren();
  results.removeAttribute("aria-busy");
  results.replaceChildren();
  await ready;
  if (!snapshot || !document.body.classList.contains("fresh")) return;
  const { chunks, documents } = snapshot.counts;
  const shares = ["ok", "fallback", "failed", "skipped"].filter((name) => chunks[name]);
  const meter = make("div", { class: "meter", "aria-hidden": "true" }, shares.map((name) => {
    const part = make("i", { class: name });
    part.style.flexGrow = chunks[name];
    return part;
  }));
  const names = { ok: "with a context", fallback: "context refused", failed: "without an answer", skipped: "without, by rule" };
  results.replaceChildren(
    make(
      "div",
      { class: "summary" },
      make("p", {}, make("strong", {}, number(documents.total)), ` ${documents.total === 1 ? "document" : "documents"} in `, make("strong", {}, number(chunks.total)), ` ${chunks.total === 1 ? "chunk" : "chunks"}`),
      meter,
      make("ul", {}, shares.map((name) => make("li", { class: name }, `${number(chunks[name])} ${names[name]}`))),
    ),
  );
}

async function describe() {
  const place = document.getElementById("snapshot");
  try {
    snapshot = await ask("snapshot");
  } catch (error) {
    place.replaceChildren(make("span", { class: "pill warn" }, nodes(error.message)));
    return;
  }
  const parts = [
    make("span", { class: "corpus" }, isolated(snapshot.corpus)),
    make("span", { class: "pill", title: `published ${snapshot.created_at}` }, `snapshot ${number(snapshot.snapshot)}, ${ago(snapshot.created_at)}`),
  ];
  if (snapshot.fake.length) {
    const which = snapshot.fake.map((name) => (name === "model" ? "contexts" : "vectors")).join(" and ");
    parts.push(make("span", { class: "pill warn", title: "made for a test or a dry run: not to be believed" }, `fake ${which}`));
  }
  if (snapshot.held !== null) parts.push(make("span", { class: "pill warn" }, `rolled back to ${number(snapshot.held)}`));
  if (snapshot.stale) parts.push(make("span", { class: "pill warn", title: "their newest versions cannot be used" }, `${number(snapshot.stale)} stale`));
  if (snapshot.rejected) parts.push(make("span", { class: "pill warn", title: "documents that could not be used" }, `${number(snapshot.rejected)} rejected`));
  place.replaceChildren(...parts);
}

function askAgain() {
  const given = new FormData(form);
  const fields = { q: (given.get("q") ?? "").trim(), within: "" };
  for (const name of ["mode", "k", "window", "within"]) fields[name] = given.get(name) ?? "";
  const to = address(fields);
  if (to !== address(state()) || searched === null) go(to);
  else results.querySelector("a.hit")?.focus({ preventScroll: true });
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  moveOn = true;
  askAgain();
});
form.addEventListener("change", (event) => {
  if (event.target !== field && field.value.trim()) askAgain();
});

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-id]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  opener = link;
  go(hitAddress(link.dataset.id, link.dataset.chunk));
});

document.getElementById("detail-close").addEventListener("click", leave);
dialog.addEventListener("cancel", (event) => {
  event.preventDefault();
  leave();
});
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) leave(); // the backdrop
});
dialog.addEventListener("close", () => {
  if (state().doc !== undefined) history.replaceState(null, "", searchAddress(state())); // Esc twice asks nobody
  if (opener?.isConnected) opener.focus();
});

function leave() {
  go(searchAddress(state()));
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (document.querySelector("dialog[open]")) {
    if (dialog.open && (event.key === "j" || event.key === "k")) step(event.key === "j" ? 1 : -1);
    return;
  }
  const typing = event.target.closest("input[type=search], input[type=password], select");
  if (event.key === "/" && !typing) {
    event.preventDefault();
    field.focus();
    field.select();
  } else if (event.key === "Escape" && typing) {
    event.target.blur();
  } else if (event.key === "ArrowDown" && event.target === field) {
    move(event, 1, 0);
  } else if (!typing && !event.target.closest("input")) {
    const steps = { ArrowDown: [1, 0], j: [1, 0], ArrowUp: [-1, 0], k: [-1, 0], ArrowRight: [0, 1], l: [0, 1], ArrowLeft: [0, -1], h: [0, -1] };
    if (steps[event.key]) move(event, ...steps[event.key]);
  }
});

/** Move the focus among the hits: down a list, across the columns. */
function move(event, down, across) {
  const lists = [...results.querySelectorAll("ol.cards")].map((of) => [...of.querySelectorAll("a.hit")]);
  if (!lists.length) return;
  let column = lists.findIndex((links) => links.includes(document.activeElement));
  let row = column < 0 ? -1 : lists[column].indexOf(document.activeElement);
  if (across && lists.length < 2) return;
  event.preventDefault();
  if (column < 0) [column, row] = [0, down < 0 ? 1 : -1];
  column = Math.min(lists.length - 1, Math.max(0, column + across));
  row = Math.min(lists[column].length - 1, Math.max(0, row + down));
  const link = lists[column][row];
  link.focus({ preventScroll: true });
  link.closest("li").scrollIntoView({ block: "nearest", inline: "nearest" });
}

/** From the open hit to the next one of its list, or the one before. */
function step(by) {
  const links = opener?.isConnected ? [...opener.closest("ol.cards, body").querySelectorAll("a.hit")] : [];
  const link = links[links.indexOf(opener) + by];
  if (!link) return;
  opener = link;
  go(hitAddress(link.dataset.id, link.dataset.chunk));
}

/** The same chunk in the other columns is seen when one of them is looked at. */
for (const [name, on] of [["focusin", true], ["focusout", false], ["mouseover", true], ["mouseout", false]]) {
  results.addEventListener(name, (event) => {
    const card = event.target.closest?.(".columns .card");
    if (!card) return;
    for (const other of results.querySelectorAll(".columns .card")) {
      other.classList.toggle("same", on && other.dataset.key === card.dataset.key);
    }
  });
}

addEventListener("popstate", follow);
const ready = describe();
if (!state().q) field.focus();
follow();
