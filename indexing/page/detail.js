// One chunk: its original highlighted in its window, what the indexes saw of it, and the document's other chunks.

import { ask } from "./service.js";
import { cut, generated, isolated, make, nodes, number, trail } from "./text.js";
import { below } from "./results.js";

const dialog = document.getElementById("detail");
const view = document.getElementById("view");
const tabs = [...dialog.querySelectorAll("[role=tab]")];
const PAGE = 50;
const STATUS = {
  fallback: "a guard refused what the model wrote; the header stands alone",
  failed: "the model gave no answer; the header stands alone",
  skipped: "nothing was to be generated",
};

let shown = null; // { id, chunk, window, name, words, snapshot, answer }

/** Open a chunk; `move(id, chunk)` is called when the reader goes on to another one. */
export async function open(id, chunk, words, snapshot, move) {
  shown = { id, chunk, window: 2, name: shown?.name ?? "place", words, snapshot, move };
  if (!dialog.open) {
    dialog.showModal();
    tabs.find((tab) => tab.dataset.view === shown.name).focus();
  }
  await load();
}

export function close() {
  if (dialog.open) dialog.close();
}

async function load() {
  const wanted = shown;
  view.setAttribute("aria-busy", "true");
  try {
    const answer = await ask("chunk", { id: wanted.id, index: wanted.chunk, window: wanted.window });
    if (wanted !== shown) return;
    shown.answer = answer;
    title(answer);
    await render();
  } catch (error) {
    complain(error);
  } finally {
    view.removeAttribute("aria-busy");
  }
}

function complain(error) {
  document.getElementById("detail-title").replaceChildren("This cannot be shown");
  document.getElementById("detail-where").replaceChildren();
  view.replaceChildren(make("p", { class: "problem", role: "alert" }, nodes(error.message)));
}

function title({ document: found, chunk }) {
  const name = found.title ?? found.id;
  document.getElementById("detail-title").replaceChildren(isolated(name));
  document.getElementById("detail-where").replaceChildren(
    trail(below(name, chunk.heading_path)),
    make("span", { class: "id" }, isolated(found.id)),
  );
}

async function render() {
  for (const tab of tabs) {
    const chosen = tab.dataset.view === shown.name;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    if (chosen) view.setAttribute("aria-labelledby", tab.id);
  }
  view.dataset.view = shown.name;
  view.scrollTop = 0;
  if (shown.name === "all") return renderAll();
  view.replaceChildren(...(shown.name === "place" ? place(shown.answer) : pair(shown.answer)));
  const mark = view.querySelector("mark");
  if (mark) centre(mark, view.querySelector(".page"));
}

/** Scroll so that a mark is in the middle, or its beginning is at the top if it is longer than that. */
function centre(mark, scroller) {
  const box = mark.getBoundingClientRect();
  const room = scroller.clientHeight - box.height;
  scroller.scrollTop += box.top - scroller.getBoundingClientRect().top - Math.max(24, room / 2);
}

function place({ document: found, chunk, window: around }) {
  const [before, hit, behind] = cut(around.text, chunk.start - around.start, chunk.end - around.start);
  const last = found.num_chunks - 1;
  return [
    found.stale === null ? null : make("p", { class: "problem" }, "The newest version of this document cannot be used: ", nodes(found.stale)),
    context(chunk),
    make(
      "div",
      { class: "bar" },
      make("span", {}, `Original, chunk ${number(chunk.chunk_index)} of ${number(found.num_chunks)}`, around.first < around.last ? ` in chunks ${number(around.first)} to ${number(around.last)}` : ""),
      make(
        "span",
        { class: "buttons" },
        button("Earlier", chunk.chunk_index > 0, () => go(chunk.chunk_index - 1)),
        button("Later", chunk.chunk_index < last, () => go(chunk.chunk_index + 1)),
        button("Less", shown.window > 0, () => widen(shown.window - 2)),
        button("More", shown.window < 50 && (around.first > 0 || around.last < last), () => widen(shown.window < 2 ? 2 : shown.window * 2)),
      ),
    ),
    make(
      "div",
      { class: "original page", dir: "auto", tabindex: "0", role: "group", "aria-label": "The original, with the hit marked" },
      nodes(before),
      make("mark", { "aria-label": "the hit" }, nodes(hit, shown.words)),
      nodes(behind),
    ),
  ].filter((node) => node !== null);
}

function context(chunk) {
  return generated(chunk.context) ?? make("p", { class: "without" }, make("span", { class: "tag" }, chunk.status), ` ${STATUS[chunk.status] ?? "there is no context"}${chunk.reason ? ": " : "."}`, chunk.reason ? isolated(chunk.reason) : "");
}

function pair({ chunk }) {
  const after = [
    ["The dense index saw", shown.snapshot.dense_text],
    ["The lexical index saw", shown.snapshot.lexical_text],
  ].map(([name, fields]) => make("section", {}, make("h3", {}, name), make("div", { class: "seen" }, fields.map((field) => piece(field, chunk)))));
  return [
    make(
      "div",
      { class: "pair" },
      make("section", {}, make("h3", {}, "The document says"), make("div", { class: "original", dir: "auto" }, nodes(chunk.original, shown.words))),
      make("div", { class: "after" }, after),
    ),
  ];
}

function piece(field, chunk) {
  const text = field === "body" ? chunk.text : chunk[field];
  if (text === null) return null;
  const name = field === "body" && chunk.text !== chunk.original ? "rewrite" : field;
  const model = field === "context" || name === "rewrite";
  return make(
    "div",
    { class: model ? "piece model" : "piece" },
    make("span", { class: "tag", title: model ? "written by a language model; it can be wrong" : null }, model ? `${name}, generated` : name),
    make("p", { dir: "auto" }, isolated(text)),
  );
}

async function renderAll() {
  const from = Math.floor(shown.chunk / PAGE) * PAGE;
  const list = make("ol", { class: "chunks" });
  view.replaceChildren(list);
  await append(list, from, from > 0);
  list.querySelector("[aria-current]")?.scrollIntoView({ block: "center" });
}

async function append(list, from, withStart = false) {
  const wanted = shown;
  const answer = await ask("chunks", { id: wanted.id, first: from, count: PAGE });
  if (wanted !== shown || wanted.name !== "all") return;
  if (withStart) list.before(button(`Chunks before ${number(from)}`, true, () => go(from - PAGE)));
  list.append(...answer.chunks.map(row));
  const next = from + answer.chunks.length;
  if (next < answer.document.num_chunks) {
    const more = button(`${number(answer.document.num_chunks - next)} more`, true, async () => {
      more.remove();
      await append(list, next).catch(complain);
    });
    list.after(more);
  }
}

function row(chunk) {
  const current = chunk.chunk_index === shown.chunk;
  return make(
    "li",
    { "aria-current": current ? "true" : null },
    make("div", { class: "bar" }, make("span", {}, button(number(chunk.chunk_index), true, () => go(chunk.chunk_index, "place")), trail(chunk.heading_path)), make("span", { class: `status ${chunk.status}` }, chunk.status)),
    make("div", { class: "original", dir: "auto" }, nodes(chunk.original.trim())),
    context(chunk),
  );
}

function button(text, enabled, action) {
  const made = make("button", { type: "button", class: "small", disabled: !enabled }, text);
  made.addEventListener("click", action);
  return made;
}

function go(chunk, name = shown.name) {
  shown.name = name;
  shown.move(shown.id, chunk);
}

function widen(window) {
  shown = { ...shown, window: Math.min(50, Math.max(0, window)) };
  load();
}

function choose(tab) {
  shown.name = tab.dataset.view;
  tab.focus();
  if (shown.answer) render().catch(complain);
}

for (const tab of tabs) tab.addEventListener("click", () => choose(tab));
dialog.querySelector("[role=tablist]").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  choose(tabs[(tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length]);
});
