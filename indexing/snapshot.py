"""A snapshot opened for search: files verified, indexes loaded, originals read by range. No Ray, no vLLM.

(storage, manifest) -> Snapshot. Every file is checked against the manifest's size and sha256 before it is used; a damaged one
is refused by name. The text that is returned is always original text; context is metadata beside it.
"""

import bisect
import functools
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from enrichment import models
from enrichment.embed import Embedder, EmbeddingOptions, embedder_fingerprint, open_embedder, open_tokenizer
from enrichment.errors import ConfigError, OperationError
from enrichment.records import Span
from enrichment.rerank import RerankOptions, open_reranker
from enrichment.tokens import Tokenizer
from indexing import dead, layout, manifest, tables
from indexing.assembly import around, assembled
from indexing.dense import DenseIndex
from indexing.documents import Documents
from indexing.expansion import RUN_LENGTH, RUN_PENALTY, Expand, Expansion, WindowBy
from indexing.filters import NO_FILTER, Filter, Mask
from indexing.fusion import Fusion, options_of
from indexing.lexical import LexicalIndex
from indexing.local_files import LocalFiles
from indexing.manifest import Manifest, SegmentEntry
from indexing.mapping import mapped
from indexing.originals import Originals, Slice
from indexing.passages import ChunkSpan, Passage
from indexing.search import FUSION_DEPTH, Hit, Indexes, Mode
from indexing.storage import Storage
from indexing.windows import check_chunk

_ROW_COLUMNS = [field.name for field in tables.ROWS if field.name != "text"]


class Snapshot:
    """One state of a corpus, open for reading. Any number of threads may use it."""

    def __init__(self, storage: Storage, found: Manifest, files: LocalFiles | None = None) -> None:
        self.storage = storage
        self.manifest = found
        self._dead = [dead.read(storage, segment, found.dead.get(segment.id)) for segment in found.segments]
        self._files = files or LocalFiles(storage)
        self._opening = threading.RLock()
        self._documents = [self._mapped(segment, layout.DOCUMENTS, tables.DOCUMENTS) for segment in found.segments]
        self._rows = [self._mapped(segment, layout.ROWS, tables.ROWS, _ROW_COLUMNS) for segment in found.segments]
        self._originals = Originals(storage, found.segments, self._documents, self._files)
        self._stored = Documents(self._documents, self._rows, self._originals)
        self._options = options_of(found.config)

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
            lambda queries: self._embedder.embed_queries(queries),
            self._row_order,
            self._admitted,
            self._options.fused_by,
        )

    def _admitted(self, filters: Filter) -> list[Mask]:
        """The rows that a filter lets through, by segment."""
        tables_of_segments = zip(self._documents, self._rows, strict=True)
        return [filters.rows(documents, rows.num_rows) for documents, rows in tables_of_segments]

    @functools.cached_property
    def _embedder(self) -> Embedder:
        embedder = _opened_embedder(self._embedding)
        self._check_embedder(embedder.fingerprint)
        return embedder

    @functools.cached_property
    def _tokenizer(self) -> Tokenizer:
        """The embedder's, without its weights."""
        options = self._embedding
        directory = None if options.name == models.FAKE else models.resolve(options.name, options.revision)
        self._check_embedder(embedder_fingerprint(options, directory or Path()))
        return open_tokenizer(options, directory)

    @property
    def _embedding(self) -> EmbeddingOptions:
        return EmbeddingOptions(**self.manifest.config["embedding"])

    def _check_embedder(self, fingerprint: str) -> None:
        if fingerprint != self.manifest.fingerprints["embedding"]:
            raise OperationError(
                f"the embedder {self._embedding.name} here is not the one that snapshot {self.manifest.sequence} was"
                " built with; install the same model, or refresh the corpus"
            )

    def search(self, query: str, k: int = 10, mode: Mode = "hybrid", **how: Any) -> list[Passage]:
        """The passages of one query; see `search_many` for the parameters."""
        return self.search_many([query], k, mode, **how)[0]

    def search_many(
        self,
        queries: Sequence[str],
        k: int = 10,
        mode: Mode = "hybrid",
        window: int = 0,
        within_section: bool = False,
        budget: int | None = None,
        filters: Filter = NO_FILTER,
        fusion: Fusion | None = None,
        rerank: RerankOptions | None = None,
        window_by: WindowBy = "chunks",
        expand: Expand = "window",
        run_penalty: float = RUN_PENALTY,
        run_length: int = RUN_LENGTH,
    ) -> list[list[Passage]]:
        """For each query: search what passes `filters`, rerank, expand the k hits, keep to `budget` code points of text, merge
        what touches. `fusion` overrides what the configuration says; reranked hits come first, by their new scores.

        A hit becomes its window of `window` chunks, characters or tokens on each side, its parent section, or the run that it
        is in: see `Expansion`, which raises ConfigError for what does not go together.
        """
        how = Expansion(expand, window, window_by, within_section, run_penalty, run_length)
        depth = max(k, rerank.depth if rerank else 0, FUSION_DEPTH if expand == "run" else 0)
        found = self.open_indexes(mode).search_many(queries, depth, mode, filters, fusion)
        if rerank:
            found = [self._reranked(query, hits, rerank) for query, hits in zip(queries, found, strict=True)]
        return [self.passages(hits, k, how, budget) for hits in found]

    def passages(self, ranking: Sequence[Hit], k: int, how: Expansion, budget: int | None = None) -> list[Passage]:
        """The k first hits of a ranking expanded, in at most `budget` code points; runs also look at the hits behind them."""
        return assembled(self._stored, ranking, k, how, budget, lambda: self._tokenizer)

    def _reranked(self, query: str, hits: Sequence[Hit], options: RerankOptions) -> list[Hit]:
        """The first `depth` hits in order of the cross-encoder's scores, ties in the order they had; the others behind them."""
        best = hits[: options.depth]
        records = [self._stored.row(hit) for hit in best]
        slices = [
            Slice(*self._stored.owner(hit), row["byte_start"], row["byte_end"])
            for hit, row in zip(best, records, strict=True)
        ]
        texts = self._originals.read(slices)
        passages = [f"{row['header'] or ''}\n{text}".strip() for row, text in zip(records, texts, strict=True)]
        scores = open_reranker(options.name).scores(query, passages)
        order = sorted(range(len(best)), key=lambda place: -scores[place])
        return [*(replace(best[place], rerank=scores[place]) for place in order), *hits[options.depth :]]

    def span_of(self, hit: Hit) -> ChunkSpan:
        """The chunk of a hit, whatever segment it is in."""
        rows = self._rows[hit.segment]
        return ChunkSpan(*(rows[name][hit.row].as_py() for name in ChunkSpan._fields))

    def document(self, document_id: str) -> dict[str, Any]:
        """A document's stored record; `stale` is why its newest version is not served, or null. Raises ConfigError for an
        id that the snapshot does not hold.
        """
        reasons = [entry["reason"] for entry in self.manifest.stale if entry["id"] == document_id]
        return self._stored.record(self._find(document_id)) | {"stale": next(iter(reasons), None)}

    def rows(self, document_id: str) -> list[dict[str, Any]]:
        """The stored rows of a document, in chunk order, without their texts."""
        found: list[dict[str, Any]] = self._stored.rows_of(self._find(document_id)).to_pylist()
        return found

    def live_rows(self, columns: Sequence[str]) -> pa.Table:
        """Columns of every live row, `text` not among them, in order of segments and rows."""
        tables_of_segments = zip(self._rows, self._dead, strict=True)
        return pa.concat_tables(rows.select(columns).filter(pa.array(~dead.rows)) for rows, dead in tables_of_segments)

    def texts(self) -> Iterator[str]:
        """The text of every live row, in order of segments and rows, from the stored rows."""
        for segment, dead_ones in zip(self.manifest.segments, self._dead, strict=True):
            texts = self._table(segment, layout.ROWS, tables.ROWS, ["text"])["text"]
            yield from texts.filter(pa.array(~dead_ones.rows)).to_pylist()

    def original(self, document_id: str, span: tuple[int, int] | None = None) -> str:
        """A document's text, or the bytes `[start, end)` of it, by one ranged read, verified."""
        owner = self._find(document_id)
        start, end = span or (0, self._stored.record(owner)["length"])
        return self._originals.read([Slice(*owner, start, end)])[0]

    def window(self, document_id: str, index: int, how: Expansion) -> tuple[Span, str]:
        """A document's chunk by number, as much more on each side as `how` says, and the text of it all. Raises ConfigError
        for a document or a chunk that is not there.
        """
        owner = self._find(document_id)
        check_chunk(document_id, self._stored.record(owner)["num_rows"], index)
        return around(self._stored, owner, index, how, lambda: self._tokenizer)

    def _find(self, document_id: str) -> tuple[int, int]:
        for segment, documents in enumerate(self._documents):
            ids = documents["id"]
            place = bisect.bisect_left(range(len(ids)), document_id, key=lambda place: ids[place].as_py())
            while place < len(ids) and ids[place].as_py() == document_id:
                quarantined = self._documents[segment]["status"][place].as_py() == "quarantined"
                if not quarantined and not self._dead[segment].documents[place]:
                    return segment, place
                place += 1
        reasons = [entry["reason"] for entry in self.manifest.rejected if entry["id"] == document_id]
        if reasons:
            raise ConfigError(f"the document {document_id} was quarantined: {reasons[0]}")
        raise ConfigError(f"snapshot {self.manifest.sequence} of {self.storage.uri} holds no document {document_id}")

    def _row_order(self, segment: int, row: int) -> tuple[str, int]:
        rows = self._rows[segment]
        return rows["document_id"][row].as_py(), rows["chunk_index"][row].as_py()

    def _open_dense(self) -> DenseIndex:
        shared, segments = self.manifest.dense, self.manifest.segments
        manifest.check_lists(self.manifest)
        paths = [(s.id, self._files.named(s, layout.DENSE)) for s in segments]
        trained = self._files.trained(shared.trained) if shared.trained else None
        counts = [s.num_vectors for s in segments]
        return DenseIndex.open(paths, self.manifest.dimension, counts, trained, shared.nprobe or 1)

    def _open_lexical(self) -> LexicalIndex:
        directories = [(s.id, self._files.below(s, layout.LEXICAL)) for s in self.manifest.segments]
        language = self.manifest.config["index"]["language"]
        asked = self._options
        return LexicalIndex.open(directories, language, asked.bm25_k1, asked.bm25_b, asked.stopwords)

    def _table(self, segment: SegmentEntry, name: str, schema: pa.Schema, columns: list[str] | None = None) -> pa.Table:
        return tables.read(self._files.named(segment, name), schema, columns)

    def _mapped(
        self, segment: SegmentEntry, name: str, schema: pa.Schema, columns: list[str] | None = None
    ) -> pa.Table:
        names = columns or schema.names
        batches = tables.batches(self._files.named(segment, name), schema, names)
        return mapped(batches, pa.schema([schema.field(column) for column in names]))


@functools.lru_cache(maxsize=1)
def _opened_embedder(options: EmbeddingOptions) -> Embedder:
    """The embedder of the snapshot that was opened last: the next night's is nearly always the same."""
    return open_embedder(options)


def open_snapshot(storage: Storage, sequence: int | None = None, files: LocalFiles | None = None) -> Snapshot:
    """Open the newest snapshot in a store, or the one with the given sequence number. Raises ConfigError if there is none."""
    return Snapshot(storage, manifest.find(storage, sequence), files)
