"""What the HTTP service answers: records of one snapshot, each a frozen dataclass that `/openapi.json` describes.

Offsets are code points into a document's original. Text is original text, read by range; `context` is what a model wrote.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from indexing import windows
from indexing.enriched_chunk import EnrichedChunk, enriched_chunk
from indexing.expansion import Expansion
from indexing.fusion import Fusion
from indexing.manifest import Manifest
from indexing.passages import Passage
from indexing.serving import Corpus
from indexing.snapshot import Snapshot

FAKE = "fake"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why there is no answer: one sentence."""

    error: str


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """The same as `situate search --json` prints; `fusion` is null unless both indexes were asked."""

    snapshot: int
    fusion: Fusion | None
    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class DocumentRecord:
    """A document without its text. `stale` says why its newest version is not served, or is null."""

    id: str
    title: str | None
    date: str | None
    metadata: Mapping[str, str]
    source: str
    status: str
    reason: str | None
    stale: str | None
    num_chunks: int
    num_bytes: int
    replaced: int


@dataclass(frozen=True, slots=True)
class DocumentAnswer:
    """A document; `text` is its original if that was asked for."""

    snapshot: int
    document: DocumentRecord
    text: str | None


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """A chunk before and after: `original` is what the document says; `header`, `context` and `text` are what the indexes
    may see of it, `text` being its rewrite if a strategy made one, else the original. `enrichment` is the view of a rewritten
    chunk that R2R gives, or null.
    """

    chunk_index: int
    start: int
    end: int
    heading_path: tuple[str, ...]
    original: str
    text: str
    header: str | None
    context: str | None
    status: str
    reason: str | None
    strategy: str
    enrichment: EnrichedChunk | None


@dataclass(frozen=True, slots=True)
class WindowRecord:
    """A chunk with what is around it; whole in it are chunks `first` to `last`."""

    start: int
    end: int
    first: int
    last: int
    text: str


@dataclass(frozen=True, slots=True)
class ChunkAnswer:
    """One chunk in its window."""

    snapshot: int
    document: DocumentRecord
    chunk: ChunkRecord
    window: WindowRecord


@dataclass(frozen=True, slots=True)
class ChunksAnswer:
    """Chunks of a document, in order; `document.num_chunks` is how many it has in all."""

    snapshot: int
    document: DocumentRecord
    chunks: tuple[ChunkRecord, ...]


@dataclass(frozen=True, slots=True)
class SnapshotAnswer:
    """The snapshot that answers. `fake` names what was made with a fake model; `held` is set while a rollback holds."""

    snapshot: int
    corpus: str
    created_at: str
    held: int | None
    counts: Mapping[str, Mapping[str, int]]
    fingerprints: Mapping[str, str]
    fake: tuple[str, ...]
    stale: int
    rejected: int
    segments: int
    strategy: str
    dense_text: tuple[str, ...]
    lexical_text: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HealthAnswer:
    """`ready`, or `stuck` while every thread is held by a question that took too long."""

    status: str


def document(corpus: Corpus, document_id: str, with_text: bool) -> DocumentAnswer:
    """Raises ConfigError for an id that the snapshot does not hold; so do the next two."""
    with corpus.using() as snapshot:
        text = snapshot.original(document_id) if with_text else None
        return DocumentAnswer(snapshot.manifest.sequence, _document(snapshot, document_id), text)


def chunk(corpus: Corpus, document_id: str, index: int, how: Expansion) -> ChunkAnswer:
    """Raises ConfigError for a chunk that the document does not have, too."""
    with corpus.using() as snapshot:
        span, text = snapshot.window(document_id, index, how)
        found, rows = _document(snapshot, document_id), snapshot.rows(document_id)
        numbers = [row["chunk_index"] for row in windows.inside(rows, span)]
        record = WindowRecord(span.start, span.end, min(numbers), max(numbers), text)
        return ChunkAnswer(snapshot.manifest.sequence, found, _chunks(snapshot, document_id, [rows[index]])[0], record)


def chunks(corpus: Corpus, document_id: str, first: int, count: int) -> ChunksAnswer:
    """At most `count` chunks from number `first` on."""
    with corpus.using() as snapshot:
        found = _document(snapshot, document_id)
        records = _chunks(snapshot, document_id, snapshot.rows(document_id)[first : first + count])
        return ChunksAnswer(snapshot.manifest.sequence, found, records)


def snapshot(corpus: Corpus) -> SnapshotAnswer:
    """From the manifest alone."""
    found = corpus.manifest
    index = found.config["index"]
    return SnapshotAnswer(
        snapshot=found.sequence,
        corpus=corpus.storage.uri.rstrip("/").rpartition("/")[2],
        created_at=found.created_at,
        held=found.held,
        counts={name: {key: n for key, n in of.items() if isinstance(n, int)} for name, of in found.counts.items()},
        fingerprints=found.fingerprints,
        fake=_fake(found),
        stale=len(found.stale),
        rejected=len(found.rejected),
        segments=len(found.segments),
        strategy=found.config["context"]["strategy"],
        dense_text=tuple(index["dense_text"]),
        lexical_text=tuple(index["lexical_text"]),
    )


def _fake(found: Manifest) -> tuple[str, ...]:
    """Which of the two models was a fake one; a model that the strategy does not ask does not count."""
    used = {
        "embedding": found.config["embedding"],
        "model": found.config["model"] if "model" in found.fingerprints else None,
    }
    return tuple(name for name, options in used.items() if options and options["name"] == FAKE)


def _document(snapshot: Snapshot, document_id: str) -> DocumentRecord:
    record = snapshot.document(document_id)
    same = ("id", "title", "date", "source", "status", "reason", "stale", "replaced")
    return DocumentRecord(
        **{name: record[name] for name in same},
        metadata=json.loads(record["metadata"]),
        num_chunks=record["num_rows"],
        num_bytes=record["length"],
    )


def _chunks(snapshot: Snapshot, document_id: str, rows: Sequence[Mapping[str, Any]]) -> tuple[ChunkRecord, ...]:
    """Rows with their originals, which are fetched by one ranged read."""
    if not rows:
        return ()
    base, end = windows.bytes_of(rows)
    originals = snapshot.original(document_id, (base, end)).encode()
    records = []
    for row in rows:
        original = originals[row["byte_start"] - base : row["byte_end"] - base].decode()
        same = ("chunk_index", "start", "end", "header", "context", "status", "reason", "strategy")
        text = original if row["rewrite"] is None else row["rewrite"]
        records.append(
            ChunkRecord(
                **{name: row[name] for name in same},
                heading_path=tuple(row["heading_path"]),
                original=original,
                text=text,
                enrichment=enriched_chunk(row, original),
            )
        )
    return tuple(records)
