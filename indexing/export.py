"""A snapshot's live rows as plain records, for other search systems: one record per vector, in Parquet or in lines of JSON.

(store, manifest) -> tables of SCHEMA, segment by segment in the manifest's order, rows by (document id, chunk index), a row's
vectors by part. Built from Parquet alone, in memory bounded by a batch. Dead rows, and documents without rows, are left out.
What was read is counted and must be what the manifest says. A record's id is a UUID that anyone can compute again.
"""

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from enrichment.errors import OperationError
from enrichment.records import Status
from indexing import dead, layout, tables
from indexing.destination import Destination
from indexing.enriched_chunk import enriched_chunk
from indexing.local_files import LocalFiles
from indexing.manifest import Manifest, SegmentEntry
from indexing.storage import Storage

Format = Literal["parquet", "jsonl"]

NAMESPACE = uuid.UUID("c6f3b0a2-5f0e-5c53-9d0a-6f3f1d2f7a54")
"""Of the records' ids, which are `uuid5(NAMESPACE, JSON of [document id, chunk index, part])`."""

PART_BYTES = 1 << 30
"""A larger export becomes a folder of files of this size."""
_RECORDS_AT_ONCE = 4096  # 12 MB at 384 dimensions and 1.2 kB of text: one row group of the Parquet file


def _field(name: str, kind: pa.DataType, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable)


_ENRICHMENT = pa.struct(
    [
        _field("text", pa.string()),
        _field(
            "metadata",
            pa.struct([_field("original_text", pa.string()), _field("chunk_enrichment_status", pa.string())]),
        ),
    ]
)
SCHEMA = tables.with_kind(
    "export",
    [
        _field("id", pa.string()),
        _field("document_id", pa.string()),
        _field("chunk_index", pa.int32()),
        _field("part", pa.int16()),  # of the row's vectors; most rows have one
        _field("title", pa.string(), nullable=True),
        _field("date", pa.string(), nullable=True),
        _field("metadata", pa.string()),  # a JSON object of strings; an object in lines of JSON
        _field("heading_path", pa.list_(_field("element", pa.string()))),
        _field("header", pa.string(), nullable=True),
        _field(
            "generated_context", pa.string(), nullable=True
        ),  # model output: never to be shown as the document's words
        _field("text", pa.string()),  # the original's span
        _field("start", pa.int64()),  # code points of the document
        _field("end", pa.int64()),
        _field("byte_start", pa.int64()),
        _field("byte_end", pa.int64()),
        _field("status", pa.string()),
        _field("enrichment", _ENRICHMENT, nullable=True),  # of chunks that a rewriting strategy worked on
        _field("vector", pa.list_(_field("element", pa.float32()))),  # unit length
    ],
)
_OF_ROWS = ["chunk_index", "heading_path", "header", "text", "start", "end", "byte_start", "byte_end", "status"]
_OF_DOCUMENTS = ["title", "date", "metadata"]
_OF_ENRICHMENT = ["text", "rewrite", "strategy", "status"]


class Exported(NamedTuple):
    """What was written: `documents` that have chunks, `chunks` by status, one record per vector."""

    documents: int
    chunks: dict[str, int]
    records: int
    files: list[dict[str, Any]]


def record_id(document_id: str, chunk_index: int, part: int) -> str:
    """A record's id: the same in every export, and another one for every other (document id, chunk index, part)."""
    return str(uuid.uuid5(NAMESPACE, json.dumps([document_id, chunk_index, part])))


def write(
    storage: Storage,
    found: Manifest,
    destination: Destination,
    form: Format,
    progress: Callable[[int], None],
    part_bytes: int = PART_BYTES,
) -> Exported:
    """Write all records to the destination; `progress` hears how many chunks are done. Nothing is at the target before all
    is counted. Raises OperationError if a file is damaged or the counts are not the manifest's.
    """
    counted, files = _Counts(), LocalFiles(storage)
    schema = SCHEMA.with_metadata({**SCHEMA.metadata, b"situate.export": json.dumps(_origin(found)).encode()})
    for segment in found.segments:
        for table in _records(storage, found, segment, files):
            counted.add(table)
            destination.write(table.cast(schema), form, part_bytes)
            progress(counted.chunks.total())
    if not counted.records:
        destination.write(schema.empty_table(), form, part_bytes)
    counted.check(storage, found)
    facts = {"documents": counted.documents, "chunks": counted.as_dict(), "records": counted.records}
    written = destination.finish({"kind": "situate.export", "format": form, **_origin(found), **facts})
    return Exported(counted.documents, counted.as_dict(), counted.records, written)


def _origin(found: Manifest) -> dict[str, Any]:
    """What an export says of itself: queries must be embedded by the same model."""
    embedding = {"name": found.config["embedding"]["name"], "fingerprint": found.fingerprints["embedding"]}
    return {"snapshot": found.sequence, "dimension": found.dimension, "embedding": embedding}


class _Counts:
    """What was exported so far; documents and their chunks come in order, segment by segment."""

    def __init__(self) -> None:
        self.chunks: Counter[str] = Counter()
        self.documents = self.records = 0

    def add(self, table: pa.Table) -> None:
        first = table.filter(pc.equal(table["part"], 0))
        self.chunks.update(first["status"].to_pylist())
        self.documents += pc.sum(pc.equal(first["chunk_index"], 0)).as_py() or 0
        self.records += table.num_rows

    def as_dict(self) -> dict[str, int]:
        return {"total": self.chunks.total(), **{status.value: self.chunks[status] for status in Status}}

    def check(self, storage: Storage, found: Manifest) -> None:
        """Raise OperationError unless this is what the manifest counts."""
        wanted = {"documents": found.counts["documents"]["indexed"], **found.counts["chunks"]}
        for name, number in {"documents": self.documents, **self.as_dict()}.items():
            if number != wanted[name]:
                raise OperationError(
                    f"snapshot {found.sequence} of {storage.uri} counts {wanted[name]} ({name}), but {number} were read: "
                    "nothing was exported; run `situate verify`"
                )


def _records(storage: Storage, found: Manifest, segment: SegmentEntry, files: LocalFiles) -> Iterator[pa.Table]:
    """The live records of a segment."""
    columns = ["id", "first_row", "num_rows", *_OF_DOCUMENTS]
    documents = tables.read(files.named(segment, layout.DOCUMENTS), tables.DOCUMENTS, columns)
    documents = documents.filter(pc.greater(documents["num_rows"], 0))
    first_rows = documents["first_row"].to_numpy()
    alive = ~dead.read(storage, segment, found.dead.get(segment.id)).rows
    schema = tables.vectors(found.dimension)
    vectors = _Vectors(tables.batches(files.named(segment, layout.VECTORS), schema, schema.names), schema)
    base = 0
    wanted = ["document_id", "context", "rewrite", "strategy", *_OF_ROWS]
    for batch in tables.batches(files.named(segment, layout.ROWS), tables.ROWS, wanted):
        for place in range(0, batch.num_rows, _RECORDS_AT_ONCE):
            rows = pa.Table.from_batches([batch.slice(place, _RECORDS_AT_ONCE)])
            of_rows = vectors.before(base + rows.num_rows)
            numbers = of_rows["row"].to_numpy() - base
            missing = np.flatnonzero(np.bincount(numbers, minlength=rows.num_rows) == 0)
            if len(missing):
                raise OperationError(f"segment {segment.id} has no vector for row {base + missing[0]}: it is damaged")
            kept = alive[base + numbers]
            owners = np.searchsorted(first_rows, base + numbers[kept], side="right") - 1
            yield _table(documents.take(owners), rows.take(numbers[kept]), of_rows.filter(pa.array(kept)))
            base += rows.num_rows
    if base != segment.num_rows:
        raise OperationError(f"segment {segment.id} has {base} rows, its manifest says {segment.num_rows}")


def _table(documents: pa.Table, rows: pa.Table, vectors: pa.Table) -> pa.Table:
    """Three tables of the same records, side by side."""
    names = [column.to_pylist() for column in (rows["document_id"], rows["chunk_index"], vectors["part"])]
    matrix = np.frombuffer(b"".join(vectors["vector"].to_pylist()), np.float16).astype(np.float32)
    offsets = np.arange(len(names[0]) + 1, dtype=np.int32) * (len(matrix) // max(1, len(names[0])))
    built = {
        "id": pa.array([record_id(*name) for name in zip(*names, strict=True)], pa.string()),
        "document_id": rows["document_id"],
        "part": vectors["part"],
        "generated_context": rows["context"],
        "enrichment": _enrichment(rows),
        "vector": pa.ListArray.from_arrays(pa.array(offsets), pa.array(matrix), SCHEMA.field("vector").type),
    }
    built |= {name: rows[name] for name in _OF_ROWS} | {name: documents[name] for name in _OF_DOCUMENTS}
    return pa.table([built[name] for name in SCHEMA.names], schema=SCHEMA)


def _enrichment(rows: pa.Table) -> pa.Array:
    views = [enriched_chunk(row, row["text"]) for row in rows.select(_OF_ENRICHMENT).to_pylist()]
    return pa.array([asdict(view) if view else None for view in views], _ENRICHMENT)


class _Vectors:
    """A segment's vectors, read forward as far as is asked for."""

    def __init__(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
        self._batches = batches
        self._left = schema.empty_table()

    def before(self, row: int) -> pa.Table:
        """The vectors of rows before `row` that were not asked for yet."""
        while not self._left.num_rows or self._left["row"][-1].as_py() < row:
            batch = next(self._batches, None)
            if batch is None:
                break
            self._left = pa.concat_tables([self._left, pa.Table.from_batches([batch], self._left.schema)])
        cut = int(np.searchsorted(self._left["row"].to_numpy(), row))
        found, self._left = self._left.slice(0, cut), self._left.slice(cut)
        return found
