"""Prompts as token ids: instructions, title, document; then what differs per chunk.

`causal`: the document up to and including the chunk, then the question about the passage just read. Nothing is repeated
and nothing behind the chunk is used, so each document token is computed once and text appended to a document leaves
earlier prompts as they were. `quote`: outline and whole scope, then the chunk quoted and the question.

The instructions ask for four things: which document (and when), where in it, about what in words that stand alone, and what
every reference in the passage refers to. They stand in front, where they are computed once; behind the document only a
short question differs per chunk. The answer is begun for the model, which keeps small ones on the subject.

Only our own words are encoded as template; title, headings and document text never yield a control token.
"""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from enrichment.records import Chunk, Document, Heading, Span
from enrichment.tokens import Encoding, Tokenizer

PromptKind = Literal["causal", "quote"]

VERSION = 1
ANSWER_PREFIX = "This passage"
_PLACEHOLDER = "\u2063situate\u2063"
_INSTRUCTIONS = (
    "Here is a document. It is followed by a request to situate one passage of it: say in at most two sentences which"
    " document this is and, if it is dated, when; where in it the passage stands; what the passage is about, in words that can"
    ' be understood without reading it; and what every "this", "it", "the product" or "clause 4" in it refers to. Use names'
    " instead of pronouns.\n\n"
)
_CAUSAL = "\n\n---\nSituate the passage that you have just read last"
_QUOTED = "\n\n---\nSituate one passage of the document"
_QUESTION = "What is it about, and what do its pronouns refer to?"
OWN_WORDS = (_INSTRUCTIONS, _CAUSAL, _QUOTED, _QUESTION)  # what the model may not answer with
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


def fingerprint(kind: PromptKind) -> str:
    """Changes with every word that the model reads besides the document and its own chat format."""
    words = (_INSTRUCTIONS, _QUESTION, _CAUSAL, _QUOTED, ANSWER_PREFIX)
    return hashlib.sha256("\0".join((str(VERSION), kind, *words)).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Scope:
    """The contiguous part of a document that is the prefix for a run of chunks."""

    span: Span
    chunks: tuple[Chunk, ...]


class Prompts:
    """Builds the prompts of a document's scopes with one tokenizer and chat format."""

    def __init__(self, tokenizer: Tokenizer, chat: ChatTemplate, kind: PromptKind) -> None:
        self.kind = kind
        self._tokenizer = tokenizer
        self._before = tokenizer.encode_template(chat.before + _INSTRUCTIONS)
        self._lead = tokenizer.encode_template(_CAUSAL if kind == "causal" else _QUOTED)
        self._stop = tokenizer.encode_template(".")
        self._after = [
            *tokenizer.encode_template("\n" + _QUESTION),
            *tokenizer.encode_template(chat.after + ANSWER_PREFIX),
        ]
        # Neighbours often stand under the same heading.
        self._under = functools.lru_cache(maxsize=256)(self._heading)

    def prefix(self, document: Document, headings: Sequence[Heading]) -> list[int]:
        """What stands before the document's text: the same for all of a document's chunks."""
        lines = [f"Title: {document.title[:_LONGEST_NAME]}"] if document.title else []
        lines += [f"Date: {document.date[:_LONGEST_NAME]}"] if document.date else []
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

    def of(
        self, document: Document, headings: Sequence[Heading], chunks: Sequence[Chunk], encoding: Encoding
    ) -> "DocumentPrompts":
        """The prompts of a document's chunks, each to be built when it is asked for."""
        return DocumentPrompts(self, document, headings, chunks, encoding)

    def build(
        self, document: Document, headings: Sequence[Heading], encoding: Encoding, scope: Scope
    ) -> list[np.ndarray]:
        """The prompts of one scope, in chunk order: `(n,) int64` each."""
        found = self.of(document, headings, scope.chunks, encoding)
        return [found.prompt(scope, chunk) for chunk in scope.chunks]

    def _heading(self, path: tuple[str, ...]) -> list[int]:
        return self._text(f', under the heading "{" > ".join(path)[-_LONGEST_NAME:]}"') if path else []

    def _text(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text).ids.tolist()
        return ids


class DocumentPrompts:
    """One document's prompts. `longest_suffix` and `around` (the prefix and the longest suffix) are in tokens."""

    def __init__(
        self,
        prompts: Prompts,
        document: Document,
        headings: Sequence[Heading],
        chunks: Sequence[Chunk],
        encoding: Encoding,
    ) -> None:
        self.document = document
        self._encoding = encoding
        self._whole_scope = prompts.kind == "quote"
        self._prefix = np.array(prompts.prefix(document, headings), dtype=np.int64)
        self._suffixes = {chunk.index: np.array(prompts.suffix(document, chunk), dtype=np.int64) for chunk in chunks}
        self.longest_suffix = max(map(len, self._suffixes.values()))
        self.around = len(self._prefix) + self.longest_suffix

    def shared_tokens(self, scope: Scope) -> int:
        """Tokens of the longest prefix that a scope's prompts share: what the cache holds for all of them."""
        return len(self._prefix) + self._end(scope.span) - self._start(scope)

    def prompt(self, scope: Scope, chunk: Chunk) -> np.ndarray:
        """The prompt of one of a scope's chunks: `(n,) int64`."""
        end = self._end(scope.span if self._whole_scope else Span(chunk.start, chunk.end))
        return np.concatenate([self._prefix, self._encoding.ids[self._start(scope) : end], self._suffixes[chunk.index]])

    def _start(self, scope: Scope) -> int:
        # A word's token often starts with the space before it, which belongs to the chunk before.
        return int(np.searchsorted(self._encoding.offsets.ends, scope.span.start, side="right"))

    def _end(self, span: Span) -> int:
        return _end_token(self.document.text, self._encoding, span)


def _end_token(text: str, encoding: Encoding, span: Span) -> int:
    """The token behind the last one of a span; no token before it depends on the text behind the span.

    Left out: a token that reaches over the end, and white space at the end, which is cut by what follows it.
    """
    end = span.start + len(text[span.start : span.end].rstrip())
    inside = np.searchsorted(encoding.offsets.ends, span.end, side="right")
    return int(min(inside, np.searchsorted(encoding.offsets.starts, end)))
