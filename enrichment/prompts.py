"""Prompts as token ids of strategies that show a chunk in its document: instructions, title, document; then what differs.

`causal`: the document up to and including the chunk, then the question about the passage just read. Nothing is repeated
and nothing behind the chunk is used, so each document token is computed once and text appended to a document leaves
earlier prompts as they were. `quote`: outline and whole scope, then the chunk quoted and the question.

The instructions stand in front, where they are computed once; behind the document only a short question differs per chunk.
The answer is begun for the model, which keeps small ones on the subject.

Only our own words are encoded as template; title, headings and document text never yield a control token. What a strategy
asks is its `Wording`; the layout is the same for all of them.
"""

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from enrichment.guards import Judge
from enrichment.recipe import IN_OWN_WORDS, AskOnce, Given, Verdict
from enrichment.records import Chunk, Document, Heading, Span
from enrichment.scopes import Scope, scopes
from enrichment.tokens import Encoding, Tokenizer

PromptKind = Literal["causal", "quote"]

VERSION = 1
_PLACEHOLDER = "\u2063situate\u2063"
_OUTLINE_HEADINGS = 60
_LONGEST_NAME = (
    300  # code points of a title, or of a heading path's end: enough to name anything, never the whole window
)


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A model's chat format around one user message, up to where its answer begins."""

    before: str
    after: str


PLAIN_CHAT = ChatTemplate("User: ", "\nAssistant: ")


def chat_template(directory: str) -> ChatTemplate:
    """The chat format of the model in a local directory; plain roles where it has none."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
    if not tokenizer.chat_template:
        return PLAIN_CHAT
    messages = [{"role": "user", "content": _PLACEHOLDER}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    before, _, after = text.partition(_PLACEHOLDER)
    return ChatTemplate(before, after)


@dataclass(frozen=True, slots=True)
class Wording:
    """Our own words: `instructions` in front of the document; behind it what leads to the chunk (`causal` or `quoted`), its
    heading and the `question`; then `answer`, the beginning that is written for the model.
    """

    instructions: str
    causal: str
    quoted: str
    question: str
    answer: str

    @property
    def own_words(self) -> tuple[str, ...]:
        """What the model may not answer with."""
        return self.instructions, self.causal, self.quoted, self.question

    def fingerprint(self, kind: PromptKind) -> str:
        """Changes with every word that the model reads besides the document and its own chat format."""
        words = (self.instructions, self.question, self.causal, self.quoted, self.answer)
        return hashlib.sha256("\0".join((str(VERSION), kind, *words)).encode()).hexdigest()[:16]


class Prompts:
    """Builds the prompts of a document's scopes with one tokenizer, chat format and wording: a recipe.

    `judging` makes the judge of a document's answers; without it they are contexts, by the guards.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat: ChatTemplate,
        kind: PromptKind,
        wording: Wording,
        judging: Callable[[Document], Verdict] | None = None,
        least_chunks: int = 2,  # of one chunk there is nothing to situate
    ) -> None:
        self.kind, self.least_chunks = kind, least_chunks
        self.fingerprint = wording.fingerprint(kind)
        self.judging = judging or (lambda document: Judge(document, wording.own_words, wording.answer))
        self._tokenizer = tokenizer
        self._before = tokenizer.encode_template(chat.before + wording.instructions)
        self._lead = tokenizer.encode_template(wording.causal if kind == "causal" else wording.quoted)
        self._stop = tokenizer.encode_template(".")
        self._after = [
            *tokenizer.encode_template("\n" + wording.question),
            *tokenizer.encode_template(chat.after + wording.answer),
        ]
        # Neighbours often stand under the same heading.
        self._under = functools.lru_cache(maxsize=256)(self._heading)

    def prefix(self, document: Document, headings: Sequence[Heading]) -> list[int]:
        """What stands before the document's text: the same for all of a document's chunks."""
        lines = name_lines(document)
        if self.kind == "quote" and headings:
            lines += [
                "Outline:",
                *(f"{'  ' * (h.level - 1)}- {h.title[:_LONGEST_NAME]}" for h in headings[:_OUTLINE_HEADINGS]),
            ]
        return [*self._before, *self._text("\n".join([*lines, "", ""]))]

    def suffix(self, document: Document, chunk: Chunk) -> list[int]:
        """What stands behind the document's text: it differs from chunk to chunk."""
        ids = [*self._lead, *self._under(chunk.heading_path), *self._stop]
        if self.kind == "quote":
            ids += self._text("\n\nThe passage:\n" + document.text[chunk.start : chunk.end].strip() + "\n\n")
        return [*ids, *self._after]

    async def questions(self, given: Given, ask: AskOnce) -> "DocumentPrompts":
        """The prompts of a document's chunks."""
        return self.of(given.document, given.headings, given.chunks, given.encoding)

    def of(
        self, document: Document, headings: Sequence[Heading], chunks: Sequence[Chunk], encoding: Encoding
    ) -> "DocumentPrompts":
        """The same without waiting."""
        return DocumentPrompts(self, document, headings, chunks, encoding)

    def build(
        self, document: Document, headings: Sequence[Heading], encoding: Encoding, scope: Scope
    ) -> list[np.ndarray]:
        """The prompts of one scope, in chunk order: `(n,) int64` each."""
        found = self.of(document, headings, scope.chunks, encoding)
        return [found.prompt(scope, chunk) for chunk in scope.chunks]

    def _heading(self, path: tuple[str, ...]) -> list[int]:
        return self._text(under_heading(path))

    def _text(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text).ids.tolist()
        return ids


class DocumentPrompts:
    """One document's prompts. `longest_suffix` and `around` (the prefix and the longest suffix) are in tokens."""

    is_one = False
    penalties = IN_OWN_WORDS

    def __init__(
        self,
        prompts: Prompts,
        document: Document,
        headings: Sequence[Heading],
        chunks: Sequence[Chunk],
        encoding: Encoding,
    ) -> None:
        self.document = document
        self._headings, self._chunks = headings, chunks
        self._encoding = encoding
        self._judge = prompts.judging(document)
        self._whole_scope = prompts.kind == "quote"
        self._prefix = np.array(prompts.prefix(document, headings), dtype=np.int64)
        self._suffixes = {chunk.index: np.array(prompts.suffix(document, chunk), dtype=np.int64) for chunk in chunks}
        self.longest_suffix = max(map(len, self._suffixes.values()))
        self.around = len(self._prefix) + self.longest_suffix

    def scopes(self, max_tokens: int) -> list[Scope]:
        """The document's chunks in scopes of which no prompt is longer, unless a chunk alone is too long for it."""
        room = max(1, max_tokens - self.around)
        return scopes(self.document, self._headings, self._chunks, self._encoding.offsets, room)

    def judge(self, chunk: Chunk) -> Verdict:
        """The document's: it knows all of its text."""
        return self._judge

    def read(self, scope: Scope, chunk: Chunk) -> Span:
        """The scope, also where the prompt ends with the chunk."""
        return scope.span

    def shared_tokens(self, scope: Scope) -> int:
        """Tokens of the longest prefix that a scope's prompts share: what the cache holds for all of them."""
        return len(self._prefix) + self._end(scope.span) - self._start(scope)

    def prompt(self, scope: Scope, chunk: Chunk) -> np.ndarray:
        """The prompt of one of a scope's chunks: `(n,) int64`."""
        end = self._end(scope.span if self._whole_scope else Span(chunk.start, chunk.end))
        return np.concatenate([self._prefix, self._encoding.ids[self._start(scope) : end], self._suffixes[chunk.index]])

    def _start(self, scope: Scope) -> int:
        return first_token(self._encoding, scope.span.start)

    def _end(self, span: Span) -> int:
        return end_token(self.document.text, self._encoding, span)


def name_lines(document: Document) -> list[str]:
    """Title and date, a line each, as far as they are known."""
    lines = [f"Title: {document.title[:_LONGEST_NAME]}"] if document.title else []
    return [*lines, f"Date: {document.date[:_LONGEST_NAME]}"] if document.date else lines


def under_heading(path: Sequence[str]) -> str:
    """The end of a sentence that leads to a chunk."""
    return f', under the heading "{" > ".join(path)[-_LONGEST_NAME:]}"' if path else ""


def first_token(encoding: Encoding, start: int) -> int:
    """The first token of a span: a word's often starts with the space before it, which belongs to what stands before."""
    return int(np.searchsorted(encoding.offsets.ends, start, side="right"))


def end_token(text: str, encoding: Encoding, span: Span) -> int:
    """The token behind the last one of a span; no token before it depends on the text behind the span.

    Left out: a token that reaches over the end, and white space at the end, which is cut by what follows it.
    """
    end = span.start + len(text[span.start : span.end].rstrip())
    inside = np.searchsorted(encoding.offsets.ends, span.end, side="right")
    return int(min(inside, np.searchsorted(encoding.offsets.starts, end)))
