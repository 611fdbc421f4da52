"""A document summed up in two sentences: asked once for each document, from as much of its beginning as fits.

As the strategy `summary` it is the context of each of the document's chunks; rewriting strategies may show it to the model.
"""

import hashlib

import numpy as np

from enrichment.guards import Judge
from enrichment.materials import Materials
from enrichment.prompts import ChatTemplate
from enrichment.recipe import IN_OWN_WORDS, AskOnce, Given, Verdict
from enrichment.records import Chunk, Span
from enrichment.scopes import Scope
from enrichment.tokens import Tokenizer
from enrichment.whole_document import WholeDocument

_INSTRUCTIONS = (
    "Here is a document. Sum it up in at most two sentences: what kind of document it is, whose and from when, and what it"
    " is about. Name people, organisations and products.\n\n"
)
_REQUEST = "\n\n---\nSum up the document in two sentences."
_ANSWER = "This document"
FINGERPRINT = hashlib.sha256("\0".join((_INSTRUCTIONS, _REQUEST, _ANSWER)).encode()).hexdigest()[:16]


class Summary:
    """Asks for a summary, in the chat format of a model."""

    def __init__(self, tokenizer: Tokenizer, chat: ChatTemplate) -> None:
        self._about = WholeDocument(tokenizer, chat, _INSTRUCTIONS, _REQUEST, _ANSWER)

    def question(self, given: Given) -> tuple[np.ndarray, Verdict]:
        """The prompt, `(n,) int64`, and who judges the answer."""
        return self._about.prompt(given), Judge(given.document, (_INSTRUCTIONS, _REQUEST), _ANSWER)

    def read(self, given: Given) -> Span:
        """The part of the document that the model reads."""
        return self._about.read(given)


class SummaryOfAll:
    """The recipe of `summary`: one question about a document, whose answer is each chunk's context."""

    fingerprint = FINGERPRINT
    least_chunks = 2  # of one chunk it would say little that the chunk does not

    def __init__(self, summary: Summary) -> None:
        self._summary = summary

    async def questions(self, given: Given, ask: AskOnce) -> "OneQuestion":
        return OneQuestion(given, *self._summary.question(given), self._summary.read(given))


class OneQuestion:
    """The same prompt for all of a document's chunks."""

    longest_suffix = 0
    is_one = True
    penalties = IN_OWN_WORDS

    def __init__(self, given: Given, prompt: np.ndarray, judge: Verdict, read: Span) -> None:
        self.document = given.document
        self._chunks, self._prompt, self._judge, self._read = tuple(given.chunks), prompt, judge, read

    def scopes(self, max_tokens: int) -> list[Scope]:
        """One: the document."""
        return [Scope(Span(0, len(self.document.text)), self._chunks)]

    def shared_tokens(self, scope: Scope) -> int:
        """All of the prompt's."""
        return len(self._prompt)

    def prompt(self, scope: Scope, chunk: Chunk) -> np.ndarray:
        """The prompt, `(n,) int64`."""
        return self._prompt

    def read(self, scope: Scope, chunk: Chunk) -> Span:
        """As much of the document's beginning as fits."""
        return self._read

    def judge(self, chunk: Chunk) -> Verdict:
        """The prompt's."""
        return self._judge


def recipe(given: Materials) -> SummaryOfAll:
    """One call of the model for each document."""
    return SummaryOfAll(Summary(given.tokenizer, given.chat))
