// Text of documents and models as nodes. Nothing here, or in any other file, makes markup of a string: strings become text nodes,
// and what would act on its surroundings or be unseen (control characters, direction marks) is shown by its number.

const UNSEEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]|\r(?!\n)|[\u{e0000}-\u{e007f}]/gu;

/** An element with attributes and children; strings among these become text. */
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Nodes for a text, its unseen characters visible, and the parts that match `words` emphasised. */
export function nodes(text, words = null) {
  const found = [];
  let from = 0;
  for (const match of text.matchAll(UNSEEN)) {
    found.push(...emphasised(text.slice(from, match.index), words), unseen(match[0]));
    from = match.index + match[0].length;
  }
  found.push(...emphasised(text.slice(from), words));
  return found;
}

/** A text that cannot change the direction of what is around it. */
export function isolated(text, words = null) {
  return make("bdi", {}, nodes(text, words));
}

function unseen(character) {
  const code = character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
  return make("span", { class: "code", title: "a character that is not seen" }, `U+${code}`);
}

function emphasised(text, words) {
  if (!text) return [];
  if (!words) return [text];
  const found = [];
  let from = 0;
  for (const match of text.matchAll(words)) {
    found.push(text.slice(from, match.index), make("b", {}, match[0]));
    from = match.index + match[0].length;
  }
  found.push(text.slice(from));
  return found.filter((part) => part !== "");
}

/** A pattern for the query's words where they begin in a text, or null; short ones are in every text and say nothing. */
export function wordsOf(query) {
  const words = [...new Set(query.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [])];
  const telling = words.filter((word) => word.length > 3 || /[^a-z]/.test(word)).slice(0, 40);
  if (!telling.length) return null;
  return new RegExp(`(?<![\\p{L}\\p{N}])(?:${telling.join("|")})`, "giu");
}

/** A text cut at two places given in code points, as the service counts. */
export function cut(text, first, second) {
  const points = Array.from(text);
  return [points.slice(0, first), points.slice(first, second), points.slice(second)].map((part) => part.join(""));
}

/** Where something stands: headings from the outermost in. */
export function trail(path) {
  return make("span", { class: "trail" }, path.map((heading) => make("span", {}, isolated(heading))));
}

/** What a model wrote, marked as such; nothing where there is none. */
export function generated(context) {
  if (context === null) return null;
  return make(
    "aside",
    { class: "generated", "aria-label": "Generated context" },
    make("span", { class: "tag", title: "written by a language model; it can be wrong" }, "generated"),
    make("p", {}, isolated(context)),
  );
}

export function number(value) {
  return value.toLocaleString("en");
}

export function ago(iso) {
  const minutes = (Date.now() - Date.parse(iso)) / 60000;
  if (minutes < 1.5) return "just now";
  if (minutes < 90) return `${Math.round(minutes)} minutes ago`;
  if (minutes < 36 * 60) return `${Math.round(minutes / 60)} hours ago`;
  return `${Math.round(minutes / 1440)} days ago`;
}
