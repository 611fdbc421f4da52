// Hits as cards, in one list or in three beside each other. The service merges hits that touch into passages; a reader wants them
// one by one, each marked in what stands around it.

import { cut, generated, isolated, make, nodes, number, trail } from "./text.js";

export const MODES = ["hybrid", "dense", "lexical"];
const NAMES = { hybrid: "Hybrid", dense: "Dense", lexical: "Lexical" };
const ABOUT = { hybrid: "both rankings fused", dense: "by meaning", lexical: "by words" };
const AROUND = 320; // code points shown on each side of a hit

/** The hits of an answer in order of rank, each with its passage. */
export function ranked(answer) {
  const hits = answer.passages.flatMap((passage) => passage.hits.map((hit) => ({ ...hit, passage, id: passage.document_id })));
  return hits.sort((a, b) => b.score - a.score || (a.id === b.id ? a.chunk_index - b.chunk_index : a.id < b.id ? -1 : 1));
}

/** One mode's hits. `address(id, chunk)` is where a hit can be opened. */
export function list(hits, mode, words, address) {
  if (!hits.length) return nothing(mode);
  return make("ol", { class: "cards" }, hits.map((hit, place) => card(hit, place, words, address, scores(hit, mode))));
}

/** The three modes' hits beside each other, each with its place in the other two. */
export function columns(answers, words, address) {
  const places = answers.map((hits) => new Map(hits.map((hit, place) => [keyOf(hit), place + 1])));
  const found = answers.map((hits, column) => {
    const others = MODES.map((mode, other) => [mode, places[other]]).filter((_, other) => other !== column);
    const cards = hits.map((hit, place) => card(hit, place, words, address, elsewhere(hit, others)));
    return make(
      "section",
      { class: "column", "aria-label": NAMES[MODES[column]] },
      make("h2", {}, NAMES[MODES[column]], make("small", {}, ABOUT[MODES[column]])),
      cards.length ? make("ol", { class: "cards" }, cards) : nothing(MODES[column]),
    );
  });
  return make("div", { class: "columns" }, found);
}

function nothing(mode) {
  const why = mode === "lexical" ? "No chunk shares a word with this." : "Nothing was found.";
  return make("p", { class: "nothing" }, why);
}

function card(hit, place, words, address, ranks) {
  const title = hit.passage.title ?? hit.id;
  const link = make("a", { class: "hit", href: address(hit.id, hit.chunk_index), "data-id": hit.id, "data-chunk": hit.chunk_index }, isolated(title));
  return make(
    "li",
    { class: "card", "data-key": keyOf(hit) },
    make("span", { class: "place", "aria-hidden": "true" }, String(place + 1)),
    make("h3", {}, link),
    make("p", { class: "where" }, trail(below(title, hit.heading_path)), make("span", { class: "id" }, isolated(hit.id), ` · ${number(hit.chunk_index)}`)),
    make("blockquote", { class: "original", dir: "auto" }, around(hit, words)),
    generated(hit.context),
    make("footer", {}, ranks),
  );
}

/** The hit's original, marked if its passage shows more than it. */
function around({ passage, start, end }, words) {
  const parts = cut(passage.text, start - passage.start, end - passage.start);
  const [before, text, behind] = parts.map((part) => part.replace(/\n\s*\n/g, "\n")); // blank lines say little on a card
  if (passage.hits.length > 1 || (!before && !behind)) return nodes(text.trim(), words);
  const head = Array.from(before.trimStart());
  const tail = Array.from(behind.trimEnd());
  return [
    make("span", { class: "near" }, head.length > AROUND ? "… " : "", nodes(head.slice(-AROUND).join(""))),
    make("mark", {}, nodes(text, words)),
    make("span", { class: "near" }, nodes(tail.slice(0, AROUND).join("")), tail.length > AROUND ? " …" : ""),
  ];
}

/** The heading path without the title that stands above it. */
export function below(title, path) {
  return path[0] === title ? path.slice(1) : path;
}

function scores(hit, mode) {
  const shown = mode === "hybrid" ? { fused: hit.score, dense: hit.dense, lexical: hit.lexical } : { [mode]: hit.score };
  return Object.entries(shown).map(([name, score]) => {
    const value = score === null ? "–" : score.toFixed(name === "fused" ? 4 : name === "dense" ? 3 : 2);
    const about = score === null ? "not among the best of this index" : `${name} score ${score}`;
    return make("span", { class: score === null ? "score none" : "score", title: about }, make("i", {}, name), value);
  });
}

function elsewhere(hit, others) {
  return others.map(([mode, places]) => {
    const rank = places.get(keyOf(hit));
    const about = rank ? `number ${rank} of the ${mode} hits` : `not among the ${mode} hits here`;
    return make("span", { class: rank ? "score" : "score none", title: about }, make("i", {}, mode), rank ? `#${rank}` : "–");
  });
}

function keyOf(hit) {
  return `${hit.chunk_index} ${hit.id}`;
}
