"""Strategies: what is made for a document's chunks. One document in, one context (or rewrite) per chunk out, in chunk order.

`none` and `header` generate nothing. The others ask a language model about every chunk, by a recipe: `recipes.py` has the
table of these, `generation.py` carries one out.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from enrichment.errors import ConfigError
from enrichment.prompts import PromptKind
from enrichment.records import Chunk, Context, Document, Heading, Span, Status
from enrichment.tokens import Encoding

FREE = ("none", "header")
"""Strategies that ask no model."""
NEIGHBORHOOD, SEMANTIC = "neighborhood", "semantic"
REWRITES = (NEIGHBORHOOD, SEMANTIC)
"""Strategies whose answers stand for the chunks."""
Ungrounded = Literal["keep", "retry", "refuse"]
UNGROUNDED = "ungrounded"  # the reason on such a row
_CONTEXT_TOKENS = 96  # of an answer: two sentences
_REWRITE_TOKENS = 512  # what a chunk of 200 tokens says, said at length
_MOST_CHUNKS = 100
_FIELD = re.compile(r"[a-z][a-z0-9_]{0,39}")  # a key of metadata, and a word for the model
_OF_ANSWERS = ("strategy", "max_output_tokens", "reuse", "ungrounded")


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """The `context` section of the configuration.

    `strategy` is a name, or rewriting ones joined by `+` (a list in YAML). `prompt` is how a chunk is shown in its document, by
    all but rewriting ones; these have the options from `forward_chunks` on.
    """

    strategy: str = "situate"
    prompt: PromptKind = "causal"
    max_output_tokens: int = None  # type: ignore[assignment]  # an int once __post_init__ has run
    reuse: Literal["exact", "chunk"] = "exact"
    """`chunk` also takes the older version's context of a chunk whose own text and headings are unchanged: it was written
    with another text before it, which is mostly as good and costs nothing."""
    ungrounded: Ungrounded = "keep"
    """What becomes of an output with a name or a number that the document lacks: `keep` only counts it, `retry` asks once
    more and takes what comes, `refuse` asks once more and then falls back."""
    only: Literal["always", "needed"] = "always"
    """`needed` asks about those chunks alone that the rules of `needs.py` find wanting."""
    boilerplate: int | None = None
    """A chunk whose text stands in more documents than this is not asked about; None asks about all."""
    forward_chunks: int = 3
    backward_chunks: int = 3
    semantic_neighbors: int = 10
    semantic_similarity_threshold: float = 0.7
    """The least cosine of two chunks that are alike."""
    summary: bool = False
    """Whether a summary of the document, written once, stands before the chunks."""
    extract: tuple[str, ...] = ()
    """Fields that the model copies out of a document into its metadata, for filters: `[date, parties]`."""

    def __post_init__(self) -> None:
        if self.max_output_tokens is None:
            object.__setattr__(self, "max_output_tokens", _REWRITE_TOKENS if self.rewrites else _CONTEXT_TOKENS)
        if not 16 <= self.max_output_tokens <= 1024:
            raise ConfigError(f"context.max_output_tokens is {self.max_output_tokens}; it must be from 16 to 1024")
        if self.boilerplate is not None and self.boilerplate < 1:
            raise ConfigError(f"context.boilerplate is {self.boilerplate}; it must be at least 1 document, or null")
        for name, least in (("forward_chunks", 0), ("backward_chunks", 0), ("semantic_neighbors", 1)):
            if not least <= getattr(self, name) <= _MOST_CHUNKS:
                raise ConfigError(
                    f"context.{name} is {getattr(self, name)}; it must be from {least} to {_MOST_CHUNKS} chunks"
                )
        if not -1 <= self.semantic_similarity_threshold <= 1:
            raise ConfigError(
                f"context.semantic_similarity_threshold is {self.semantic_similarity_threshold}; it is a cosine, from -1 to 1"
            )
        if len(set(self.extract)) < len(self.extract) or not all(map(_FIELD.fullmatch, self.extract)):
            raise ConfigError(
                f"context.extract is {', '.join(self.extract)}; name each field once, in small letters, digits and _"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The strategies that are joined."""
        return _names(self.strategy)

    @property
    def asks_model(self) -> bool:
        """Whether a language model writes something."""
        return self.strategy not in FREE

    @property
    def rewrites(self) -> bool:
        """Whether what it writes stands for the chunks."""
        return is_rewriting(self.strategy)

    def content(self) -> dict[str, Any]:
        """The settings that a row depends on."""
        if not self.asks_model:
            return {"strategy": self.strategy}
        names = [*_OF_ANSWERS, *(["summary"] if self.rewrites else ["prompt"])]
        names += ["extract"] if self.extract else []
        names += ["only"] if self.only != "always" else []
        names += ["boilerplate"] if self.boilerplate else []
        names += ["forward_chunks", "backward_chunks"] if NEIGHBORHOOD in self.names else []
        names += ["semantic_neighbors", "semantic_similarity_threshold"] if SEMANTIC in self.names else []
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a document's generation read and wrote, in tokens.

    `ideal` counts what the request before did not read already: each prefix token once, and what differs per chunk;
    `block_rounding` is what a cache of whole blocks must compute again; `retries` is what second attempts computed. With
    a cache that forgets nothing, computed = ideal + block_rounding + retries.
    """

    prompt: int = 0
    cached: int = 0
    ideal: int = 0
    block_rounding: int = 0
    retries: int = 0
    output: int = 0

    @property
    def computed(self) -> int:
        """Prompt tokens that were not served from the cache."""
        return self.prompt - self.cached

    def plus(self, other: "Tokens") -> "Tokens":
        """The sum, field by field."""
        return Tokens(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Outcome:
    """A document's contexts, one per chunk; which of them the model wrote just now; what that took."""

    contexts: tuple[Context, ...]
    generated: tuple[bool, ...]
    tokens: Tokens
    besides: tuple[Context, ...] = ()
    """What was paid for before of questions about the document as a whole."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """What the model copied out of the document."""


class Strategy(Protocol):
    """Makes a document's contexts."""

    async def contexts(
        self, document: Document, headings: Sequence[Heading], chunks: Sequence[Chunk], encoding: Encoding | None
    ) -> Outcome:
        """One context per chunk, in chunk order; `encoding` is the document's text in the model's tokens."""


class Free:
    """`none` and `header`: nothing is generated."""

    async def contexts(
        self, document: Document, headings: Sequence[Heading], chunks: Sequence[Chunk], encoding: Encoding | None
    ) -> Outcome:
        return skipped(document, chunks, "strategy")


def is_rewriting(strategy: str) -> bool:
    """Whether what a strategy writes stands for the chunks; several are joined by `+`."""
    return _names(strategy)[0] in REWRITES


def _names(strategy: str) -> tuple[str, ...]:
    return tuple(strategy.split("+"))


def skipped(document: Document, chunks: Sequence[Chunk], reason: str) -> Outcome:
    """The outcome of a document about which nothing is asked."""
    whole = Span(0, len(document.text))
    context = Context(None, Status.SKIPPED, reason, whole)
    return Outcome((context,) * len(chunks), (False,) * len(chunks), Tokens())
