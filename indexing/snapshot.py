"""A snapshot opened for search: files verified, indexes loaded, originals read by range. No Ray, no vLLM.

(storage, manifest) -> Snapshot. Every file is checked against the manifest's size and sha256 before it is used; a damaged one
is refused by name. The text that is returned is always original text; context is metadata beside it.
"""

import bisect
import functools
import hashlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa

from enrichment.embed import Embedder, EmbeddingOptions, open_embedder
from enrichment.errors import ConfigError, OperationError
from enrichment.records import Span
from indexing import dead, layout, manifest, tables
from indexing.dense import DenseIndex
from indexing.lexical import LexicalIndex
from indexing.local_files import LocalFiles
from indexing.manifest import Manifest, SegmentEntry
from indexing.passages import Passage, PassageHit
from indexing.search import Hit, Indexes, Mode
from indexing.storage import MissingObjectError, Storage, is_remote
from indexing.windows import Neighbour, Stretch, merge, widen, within_budget

_ROW_COLUMNS = [field.name for field in tables.ROWS if field.name != "text"]


class Snapshot:
    """One state of a corpus, open for reading. Any number of threads may use it."""

    def __init__(self, storage: Storage, found: Manifest, files: LocalFiles | None = None) -> None:
        self.storage = storage
        self.manifest = found
        self._dead = [dead.read(storage, segment, found.dead.get(segment.id)) for segment in found.segments]
        self._files = files or LocalFiles(storage)
        self._opening = threading.RLock()
        self._documents = [self._table(segment, layout.DOCUMENTS, tables.DOCUMENTS) for segment in found.segments]
        self._rows = [self._table(segment, layout.ROWS, tables.ROWS, _ROW_COLUMNS) for segment in found.segments]
        self._ids = [table["id"].to_pylist() for table in self._documents]

    def open_indexes(self, mode: Mode = "hybrid") -> Indexes:
        """What a search in a mode needs, opened once: a lexical search needs no embedder; else it loads beside the JVM."""
        opened = self.__dict__.keys()
        if "_indexes" in opened and (mode == "lexical" or "_embedder" in opened):
            return self._indexes
        with self._opening, ThreadPoolExecutor(1) as pool:
            opening = pool.submit(lambda: self._indexes)
            if mode != "lexical":
                _ = self._embedder
            return opening.result()

    def warm(self, mode: Mode) -> None:
        """Open what searches in a mode need and have one search touch it, so that the next one does not wait."""
        self.open_indexes(mode).search("warm", 1, mode)

    def close(self) -> None:
        """Release the indexes' files; later searches fail."""
        with self._opening:
            if "_indexes" in self.__dict__:
                self._indexes.lexical.close()

    @functools.cached_property
    def _indexes(self) -> Indexes:
        segments = self.manifest.segments
        schema = tables.vectors(self.manifest.dimension)
        return Indexes(
            [segment.id for segment in segments],
            self._open_dense(),
            self._open_lexical(),
            [self._table(segment, layout.VECTORS, schema, ["row"])["row"].to_numpy() for segment in segments],
            {s.id: np.flatnonzero(d.rows) for s, d in zip(segments, self._dead, strict=True) if d.rows.any()},
            lambda query: self._embedder.embed_queries([query]),
            self._row_order,
        )

    @functools.cached_property
    def _embedder(self) -> Embedder:
        options = EmbeddingOptions(**self.manifest.config["embedding"])
        embedder = _opened_embedder(options)
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
        """Search, widen every hit by `window` chunks, keep to `budget` code points of text, merge what touches."""
        hits = self.open_indexes(mode).search(query, k, mode)
        owners = [self._owner(hit) for hit in hits]
        numbers = {owner: number for number, owner in enumerate(dict.fromkeys(owners))}
        spans = []
        rows_of = functools.cache(self._neighbours)
        for hit, owner in zip(hits, owners, strict=True):
            rows = rows_of(*owner)
            index = hit.row - self._first_row(*owner)
            spans.append((numbers[owner], widen(rows, index, window, within_section)))
        kept = within_budget(spans, budget)
        hits, spans = [hits[place] for place in kept], [spans[place] for place in kept]
        places = {number: owner for owner, number in numbers.items()}
        return [self._passage(places[s.document], s, hits) for s in merge(spans)]

    def span_of(self, hit: Hit) -> tuple[str, int, int]:
        """A hit's document id and its chunk's span in code points."""
        rows = self._rows[hit.segment]
        return tuple(rows[name][hit.row].as_py() for name in ("document_id", "start", "end"))  # type: ignore[return-value]

    def document(self, document_id: str) -> dict[str, Any]:
        """A document's stored record; `stale` is why its newest version is not served, or null. Raises ConfigError for an
        id that the snapshot does not hold.
        """
        reasons = [entry["reason"] for entry in self.manifest.stale if entry["id"] == document_id]
        return self._document(*self._find(document_id)) | {"stale": next(iter(reasons), None)}

    def rows(self, document_id: str) -> list[dict[str, Any]]:
        """The stored rows of a document, in chunk order, without their texts."""
        segment, place = self._find(document_id)
        document = self._document(segment, place)
        found: list[dict[str, Any]] = self._rows[segment].slice(document["first_row"], document["num_rows"]).to_pylist()
        return found

    def texts(self) -> Iterator[str]:
        """The text of every live row, in order of segments and rows, from the stored rows."""
        for segment, dead_ones in zip(self.manifest.segments, self._dead, strict=True):
            texts = self._table(segment, layout.ROWS, tables.ROWS, ["text"])["text"]
            yield from texts.filter(pa.array(~dead_ones.rows)).to_pylist()

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
        self._files.named(self.manifest.segments[segment], layout.ORIGINALS)

    def _find(self, document_id: str) -> tuple[int, int]:
        for segment, ids in enumerate(self._ids):
            place = bisect.bisect_left(ids, document_id)
            while place < len(ids) and ids[place] == document_id:
                quarantined = self._documents[segment]["status"][place].as_py() == "quarantined"
                if not quarantined and not self._dead[segment].documents[place]:
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
            where = tuple(row["heading_path"]), row["start"], row["end"]
            inside.append(PassageHit(row["chunk_index"], hit.score, row["context"], *where, hit.dense, hit.lexical))
        return Passage(
            document["id"],
            document["title"],
            *stretch.span,
            self.original(document["id"], (start, end)),
            inside[0].score,
            tuple(inside),
        )

    def _open_dense(self) -> DenseIndex:
        paths = [(s.id, self._files.named(s, layout.DENSE)) for s in self.manifest.segments]
        return DenseIndex.open(paths, self.manifest.dimension, [s.num_vectors for s in self.manifest.segments])

    def _open_lexical(self) -> LexicalIndex:
        directories = [(s.id, self._files.below(s, layout.LEXICAL)) for s in self.manifest.segments]
        return LexicalIndex.open(directories, self.manifest.config["index"]["language"])

    def _table(self, segment: SegmentEntry, name: str, schema: pa.Schema, columns: list[str] | None = None) -> pa.Table:
        return tables.read(self._files.named(segment, name), schema, columns)


def _starts(documents: pa.Table) -> np.ndarray:
    """First rows for look-up by row: a document without rows starts where nothing is found, before its neighbour."""
    starts: np.ndarray = documents["first_row"].to_numpy()
    return starts


@functools.lru_cache(maxsize=1)
def _opened_embedder(options: EmbeddingOptions) -> Embedder:
    """The embedder of the snapshot that was opened last: the next night's is nearly always the same."""
    return open_embedder(options)


def open_snapshot(storage: Storage, sequence: int | None = None, files: LocalFiles | None = None) -> Snapshot:
    """Open the newest snapshot in a store, or the one with the given sequence number. Raises ConfigError if there is none."""
    try:
        found = manifest.require_latest(storage) if sequence is None else manifest.load(storage, sequence)
    except MissingObjectError as error:
        raise ConfigError(f"{storage.uri} holds no snapshot {sequence}; see what lies in {layout.MANIFESTS}") from error
    return Snapshot(storage, found, files)
