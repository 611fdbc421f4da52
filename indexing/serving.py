"""A snapshot opened for search: files verified, indexes loaded, originals read by range. No Ray, no vLLM.

`open(uri)` -> Snapshot. Every file is checked against the manifest's size and sha256 before it is used; a damaged one is
refused by name. The text that is returned is always original text; context is metadata beside it.
"""

import bisect
import builtins
import functools
import hashlib
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from enrichment import models
from enrichment.embed import Embedder, EmbeddingOptions, open_embedder
from enrichment.errors import ConfigError, OperationError
from enrichment.records import Span
from indexing import layout, manifest, tables
from indexing.dense import DenseIndex
from indexing.lexical import LexicalIndex
from indexing.manifest import FileEntry, Manifest, SegmentEntry
from indexing.search import Hit, Indexes, Mode
from indexing.segments import file_sha256
from indexing.storage import MissingObjectError, Storage, is_remote, open_storage
from indexing.windows import Neighbour, Stretch, merge, widen, within_budget

logger = logging.getLogger(__name__)

_ROW_COLUMNS = [field.name for field in tables.ROWS if field.name != "text"]


@dataclass(frozen=True, slots=True)
class PassageHit:
    """A hit inside a passage: its chunk, and what was generated for it."""

    chunk_index: int
    score: float
    context: str | None
    heading_path: tuple[str, ...]
    dense: float | None
    lexical: float | None


@dataclass(frozen=True, slots=True)
class Passage:
    """A contiguous span of one document's original; offsets are code points."""

    document_id: str
    title: str | None
    start: int
    end: int
    text: str
    score: float
    hits: tuple[PassageHit, ...]

    def as_dict(self) -> dict[str, Any]:
        """The stable JSON form."""
        return asdict(self)


class Snapshot:
    """One state of a corpus, open for reading. Any number of threads may use it."""

    def __init__(self, storage: Storage, found: Manifest) -> None:
        self.storage = storage
        self.manifest = found
        if found.dead:
            raise OperationError(
                f"snapshot {found.sequence} of {storage.uri} has dead rows; upgrade situate to read it"
            )
        self._cache = models.cache_directory() / "corpora" / hashlib.sha256(storage.uri.encode()).hexdigest()[:24]
        self._documents = [self._table(segment, layout.DOCUMENTS, tables.DOCUMENTS) for segment in found.segments]
        self._rows = [self._table(segment, layout.ROWS, tables.ROWS, _ROW_COLUMNS) for segment in found.segments]
        self._ids = [table["id"].to_pylist() for table in self._documents]

    @functools.cached_property
    def indexes(self) -> Indexes:
        """The indexes, opened at the first search; the JVM and the embedder start side by side."""
        with ThreadPoolExecutor(1) as pool:
            lexical = pool.submit(self._open_lexical)
            embedder = self._embedder
            dense = self._open_dense()
            segments = self.manifest.segments
            vectors = [
                self._table(segment, layout.VECTORS, tables.vectors(self.manifest.dimension), ["row"])["row"].to_numpy()
                for segment in segments
            ]
            return Indexes(
                [segment.id for segment in segments],
                dense,
                lexical.result(),
                vectors,
                lambda query: embedder.embed_queries([query]),
                self._row_order,
            )

    @functools.cached_property
    def _embedder(self) -> Embedder:
        options = EmbeddingOptions(**self.manifest.config["embedding"])
        embedder = open_embedder(options)
        if embedder.fingerprint != self.manifest.fingerprints["embedding"]:
            raise OperationError(
                f"the embedder {options.name} here is not the one that snapshot {self.manifest.sequence} was built with;"
                " install the same model, or refresh the corpus"
            )
        return embedder

    def search(
        self,
        query: str,
        k: int = 10,
        mode: Mode = "hybrid",
        window: int = 0,
        within_section: bool = False,
        budget: int | None = None,
    ) -> list[Passage]:
        """Search, widen every hit by `window` chunks, merge what touches, keep to `budget` code points of text."""
        hits = self.indexes.search(query, k, mode)
        owners = [self._owner(hit) for hit in hits]
        numbers = {owner: number for number, owner in enumerate(dict.fromkeys(owners))}
        spans = []
        for hit, owner in zip(hits, owners, strict=True):
            rows = self._neighbours(*owner)
            index = hit.row - self._first_row(*owner)
            spans.append((numbers[owner], widen(rows, index, window, within_section)))
        places = {number: owner for owner, number in numbers.items()}
        return [self._passage(places[s.document], s, hits) for s in within_budget(merge(spans), budget)]

    def span_of(self, hit: Hit) -> tuple[str, int, int]:
        """A hit's document id and its chunk's span in code points."""
        rows = self._rows[hit.segment]
        return tuple(rows[name][hit.row].as_py() for name in ("document_id", "start", "end"))  # type: ignore[return-value]

    def document(self, document_id: str) -> dict[str, Any]:
        """A document's stored record. Raises ConfigError for an id that the snapshot does not hold."""
        return self._document(*self._find(document_id))

    def rows(self, document_id: str) -> list[dict[str, Any]]:
        """The stored rows of a document, in chunk order, without their texts."""
        segment, place = self._find(document_id)
        document = self._document(segment, place)
        found: list[dict[str, Any]] = self._rows[segment].slice(document["first_row"], document["num_rows"]).to_pylist()
        return found

    def texts(self) -> Iterator[str]:
        """The text of every row, in order of segments and rows, from the stored rows."""
        for segment in self.manifest.segments:
            yield from self._table(segment, layout.ROWS, tables.ROWS, ["text"])["text"].to_pylist()

    def original(self, document_id: str, span: tuple[int, int] | None = None) -> str:
        """A document's text, or the bytes `[start, end)` of it, by one ranged read, verified."""
        segment, place = self._find(document_id)
        document = self._document(segment, place)
        start, end = span or (0, document["length"])
        name = layout.segment(self.manifest.segments[segment].id, layout.ORIGINALS)
        if not is_remote(self.storage.uri):
            self._check_originals(segment)
            return self.storage.get_range(name, document["offset"] + start, end - start).decode()
        data = self.storage.get_range(name, document["offset"], document["length"])
        if hashlib.sha256(data).hexdigest() != document["text_sha256"]:
            raise OperationError(
                f"{self.storage.uri}/{name} does not hold the text of {document_id}: it is damaged; restore it or roll back"
            )
        return data[start:end].decode()

    @functools.cache  # noqa: B019 - a snapshot lives as long as its process or is dropped whole
    def _check_originals(self, segment: int) -> None:
        """Originals on a local disk are verified whole at their first use; remote ones are not fetched whole."""
        entry = self.manifest.segments[segment]
        self._file(entry, _entry(entry, layout.ORIGINALS))

    def _find(self, document_id: str) -> tuple[int, int]:
        for segment, ids in enumerate(self._ids):
            place = bisect.bisect_left(ids, document_id)
            while place < len(ids) and ids[place] == document_id:
                if self._documents[segment]["status"][place].as_py() != "quarantined":
                    return segment, place
                place += 1
        reasons = [entry["reason"] for entry in self.manifest.rejected if entry["id"] == document_id]
        if reasons:
            raise ConfigError(f"the document {document_id} was quarantined: {reasons[0]}")
        raise ConfigError(f"snapshot {self.manifest.sequence} of {self.storage.uri} holds no document {document_id}")

    def _document(self, segment: int, place: int) -> dict[str, Any]:
        record: dict[str, Any] = self._documents[segment].slice(place, 1).to_pylist()[0]
        return record

    def _owner(self, hit: Hit) -> tuple[int, int]:
        """The segment and the document's place in it."""
        first_rows = self._first_rows[hit.segment]
        # Documents without rows share a first row with the next one: the last of them owns the row.
        return hit.segment, int(np.searchsorted(first_rows, hit.row, side="right")) - 1

    @functools.cached_property
    def _first_rows(self) -> list[np.ndarray]:
        return [_starts(table) for table in self._documents]

    def _first_row(self, segment: int, place: int) -> int:
        return int(self._first_rows[segment][place])

    def _row_order(self, segment: int, row: int) -> tuple[str, int]:
        rows = self._rows[segment]
        return rows["document_id"][row].as_py(), rows["chunk_index"][row].as_py()

    def _neighbours(self, segment: int, place: int) -> list[Neighbour]:
        document = self._document(segment, place)
        rows = self._rows[segment].slice(document["first_row"], document["num_rows"])
        columns = (rows[name].to_pylist() for name in ("start", "end", "heading_path"))
        return [Neighbour(Span(start, end), tuple(path)) for start, end, path in zip(*columns, strict=True)]

    def _passage(self, owner: tuple[int, int], stretch: Stretch, hits: Sequence[Hit]) -> Passage:
        segment, place = owner
        document = self._document(segment, place)
        rows = self._rows[segment].slice(document["first_row"], document["num_rows"]).to_pylist()
        start = min(row["byte_start"] for row in rows if row["start"] == stretch.span.start)
        end = max(row["byte_end"] for row in rows if row["end"] == stretch.span.end)
        inside = []
        for hit in (hits[number] for number in stretch.hits):
            row = rows[hit.row - document["first_row"]]
            inside.append(
                PassageHit(
                    row["chunk_index"], hit.score, row["context"], tuple(row["heading_path"]), hit.dense, hit.lexical
                )
            )
        return Passage(
            document["id"],
            document["title"],
            *stretch.span,
            self.original(document["id"], (start, end)),
            inside[0].score,
            tuple(inside),
        )

    def _open_dense(self) -> DenseIndex:
        paths = [(s.id, self._file(s, _entry(s, layout.DENSE))) for s in self.manifest.segments]
        return DenseIndex.open(paths, self.manifest.dimension, [s.num_vectors for s in self.manifest.segments])

    def _open_lexical(self) -> LexicalIndex:
        directories = []
        for segment in self.manifest.segments:
            paths = [self._file(segment, f) for f in segment.files if f.name.startswith(layout.LEXICAL)]
            directories.append((segment.id, paths[0].parent))
        return LexicalIndex.open(directories, self.manifest.config["index"]["language"])

    def _table(
        self, segment: SegmentEntry, name: str, schema: pa.Schema, columns: builtins.list[str] | None = None
    ) -> pa.Table:
        return tables.read(self._file(segment, _entry(segment, name)), schema, columns)

    def _file(self, segment: SegmentEntry, entry: FileEntry) -> Path:
        """A verified local file. Raises OperationError naming what differs from the manifest."""
        name = layout.segment(segment.id, entry.name)
        cached = self._cache / name
        if cached.is_file() and _is_as_listed(cached, entry):
            return cached
        cached.unlink(missing_ok=True)  # damage of the copy is no damage of the store
        path = self.storage.fetch(name, cached)
        where = f"{self.storage.uri}/{name}"
        if not path.is_file():
            raise OperationError(f"{where} is missing; restore it or roll back to an earlier snapshot")
        if not _is_as_listed(path, entry):
            cached.unlink(missing_ok=True)
            raise OperationError(f"{where} differs from its manifest: it is damaged; restore it or roll back")
        return path


def open(uri: str, snapshot: int | None = None) -> Snapshot:
    """Open the newest snapshot of a corpus, or the one with the given sequence number. Raises ConfigError if there is none."""
    storage = open_storage(uri)
    try:
        found = manifest.require_latest(storage) if snapshot is None else manifest.load(storage, snapshot)
    except MissingObjectError as error:
        raise ConfigError(f"{uri} holds no snapshot {snapshot}; see what lies in {layout.MANIFESTS}") from error
    return Snapshot(storage, found)


def _is_as_listed(path: Path, entry: FileEntry) -> bool:
    return path.stat().st_size == entry.size_bytes and file_sha256(path) == entry.sha256


def _entry(segment: SegmentEntry, name: str) -> FileEntry:
    for entry in segment.files:
        if entry.name == name:
            return entry
    raise OperationError(f"segment {segment.id} has no {name} in its manifest: it is damaged")


def _starts(documents: pa.Table) -> np.ndarray:
    """First rows for look-up by row: a document without rows starts where nothing is found, before its neighbour."""
    starts: np.ndarray = documents["first_row"].to_numpy()
    return starts
