"""The records that travel: document, heading, chunk, context.

All are frozen; a step adds a new record and never edits one. Offsets are code points into `Document.text` unless
a name says `byte`. The Arrow schemas of what is stored are in `indexing/tables.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, NewType

DocumentId = NewType("DocumentId", str)


class Span(NamedTuple):
    """A half-open range of code points."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Document:
    """One source text with its identity."""

    id: DocumentId
    text: str
    title: str | None = None
    date: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    body_start: int = 0
    """Where the text begins that headings may come from: behind the front matter."""


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading line: where it starts, how deep it is (1 is the top), what it says."""

    start: int
    level: int
    title: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """A span of a document's text, numbered from 0 inside the document."""

    index: int
    start: int
    end: int
    byte_start: int
    byte_end: int
    heading_path: tuple[str, ...] = ()


class Status(StrEnum):
    """How a chunk's context came out. Disjoint; the four sum to the chunks."""

    OK = "ok"
    FALLBACK = "fallback"  # a guard refused the output
    FAILED = "failed"  # no output
    SKIPPED = "skipped"  # by rule or strategy


@dataclass(frozen=True, slots=True)
class Context:
    """What enrichment adds to a chunk, or says in its place. `text` is null unless `status` is ok; token counts sum over
    the attempts.
    """

    text: str | None
    status: Status
    reason: str | None = None
    scope: Span = Span(0, 0)
    key: bytes | None = None
    output: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Enriched:
    """One source record after enrichment: a document with its chunks and contexts, or why there is none.

    `chunks` and `contexts` are parallel; with `rewrites` the contexts stand for the chunks. `reason` is null unless the
    document is empty or quarantined.
    `generated` counts the contexts that the model wrote in this run.
    """

    document: Document
    source: str
    source_sha256: str
    replaced: int = 0
    reason: str | None = None
    chunks: tuple[Chunk, ...] = ()
    contexts: tuple[Context, ...] = ()
    strategy: str = "none"
    rewrites: bool = False
    prompt_fingerprint: str | None = None
    model_fingerprint: str | None = None
    generated: int = 0
    tries: int = 1
    """Nights in which this version of the document was worked on, this one included."""
    tokens: Mapping[str, int] = field(default_factory=dict)
