"""What a strategy that asks a language model consists of: the prompts about a document's chunks, and who judges the answers.

`generation.Generation` carries a recipe out: order, cache, second attempts, what was paid for. A recipe knows nothing of these.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from enrichment.engine import REPETITION_PENALTY
from enrichment.guards import Judgement
from enrichment.records import Chunk, Document, Heading, Span
from enrichment.scopes import Scope
from enrichment.tokens import Encoding


class Verdict(Protocol):
    """Makes of a model's output what a row keeps, or says why nothing is kept."""

    def __call__(self, output: str) -> Judgement:
        """Judge a whole output."""

    def enough(self, output: str) -> bool:
        """Whether a growing output holds all that will be kept of it."""


class Penalties(NamedTuple):
    """Repetition penalties of the first and the second attempt: over the tokens of prompt and output alike; 1 is none."""

    first: float
    second: float


# A refused output is most often a loop or a list without end: the second attempt presses harder against both.
IN_OWN_WORDS = Penalties(REPETITION_PENALTY, 1.3)


class Questions(Protocol):
    """The prompts about one document's chunks, each built when it is asked for."""

    document: Document
    longest_suffix: int
    """Tokens of a prompt behind what it shares with its scope's others, at most."""
    is_one: bool
    """Whether all chunks have the same prompt, which is then asked for the first of them alone."""
    penalties: Penalties

    def scopes(self, max_tokens: int) -> list[Scope]:
        """The document's chunks in runs whose prompts share a prefix and are no longer than `max_tokens`."""

    def shared_tokens(self, scope: Scope) -> int:
        """Tokens that a scope's prompts share: what the cache holds for all of them."""

    def prompt(self, scope: Scope, chunk: Chunk) -> np.ndarray:
        """The prompt of one of a scope's chunks: `(n,) int64`."""

    def read(self, scope: Scope, chunk: Chunk) -> Span:
        """The part of the document that a chunk's row says the model read."""

    def judge(self, chunk: Chunk) -> Verdict:
        """Who judges the answers about a chunk."""


AskOnce = Callable[[np.ndarray, Verdict], Awaitable[str | None]]
"""Ask about the document as a whole: prompt and judge -> what is kept of the answer, or None if nothing is. It is paid for
once like any other, and the document's tokens count it."""


@dataclass(frozen=True, slots=True)
class Given:
    """A document as it comes to a recipe; `encoding` is its text in the model's tokens, `max_tokens` a prompt's longest."""

    document: Document
    headings: Sequence[Heading]
    chunks: Sequence[Chunk]
    encoding: Encoding
    max_tokens: int


class Recipe(Protocol):
    """What is asked about a document's chunks."""

    fingerprint: str
    """Changes with every word that the model reads besides the document and its own chat format."""
    least_chunks: int
    """A document with fewer is skipped."""

    async def questions(self, given: Given, ask: AskOnce) -> Questions:
        """The prompts of a document's chunks."""
