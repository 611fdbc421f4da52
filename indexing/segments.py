"""Documents with rows and vectors -> a segment: originals, rows, vectors, FAISS and Lucene of a set of whole documents.

The documents come as parts: what a run staged, or what lives in older segments (`compaction.py`). A segment is a pure function
of its documents, whatever the parts: sorted by (document id, source), rows by (document id, chunk index).
Documents, originals, rows, vectors, FAISS ids and Lucene ids are one set; a difference fails the build by name. All files
are built locally and checked before the first is uploaded.
"""

import hashlib
import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from enrichment.errors import ConfigError, OperationError
from enrichment.records import Status
from enrichment.strategies import UNGROUNDED
from indexing import analyzers, dense_files, dense_kind, disk, layout, lexical_build, tables, trained
from indexing.dense_files import Trained
from indexing.disk import file_sha256
from indexing.manifest import FileEntry, SegmentEntry, TrainedEntry, digest
from indexing.staging import STAGED_DOCUMENTS
from indexing.storage import Storage
from indexing.tables import as_matrix

TextField = Literal["context", "header", "body"]
_BATCH_ROWS = 1000  # that are Python objects at a time


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """The `index` section of the configuration.

    `dense` is auto, flat or a FAISS factory string (`dense_kind.py`); `memory_gb` bounds what the dense indexes of one snapshot
    take in serving, in 10^9 bytes; below `recall_floor` nothing is published.
    """

    dense: str = "auto"
    dense_text: tuple[TextField, ...] = ("header", "body")
    lexical_text: tuple[TextField, ...] = ("context", "header", "body")
    language: str = analyzers.AUTO
    rows_per_segment: int = 500_000
    memory_gb: float | None = None
    recall_floor: float = 0.9

    def __post_init__(self) -> None:
        for name in ("dense_text", "lexical_text"):
            fields = getattr(self, name)
            if not fields or len(set(fields)) != len(fields):
                raise ConfigError(
                    f"index.{name} must list each of context, header, body at most once, and one at least"
                )
        dense_kind.check(self.dense, self.memory_gb, self.recall_floor)
        if self.language != analyzers.AUTO:
            analyzers.check_language(self.language)
        if self.rows_per_segment < 1:
            raise ConfigError(f"index.rows_per_segment is {self.rows_per_segment}; it must be at least 1")


def text_fields(rows: pa.Table, names: Sequence[TextField]) -> Iterator[list[str]]:
    """What an index sees of each row: the named fields that it has, in order; body is the rewrite, else the text."""
    body = pc.coalesce(rows["rewrite"], rows["text"])
    columns = pa.table({"context": rows["context"], "header": rows["header"], "body": body})
    for batch in columns.to_batches(max_chunksize=_BATCH_ROWS):
        for row in batch.to_pylist():
            yield [row[name] for name in names if row[name]]


class Part(NamedTuple):
    """Documents with their texts (of STAGED_DOCUMENTS), their rows, and vectors by place among these rows."""

    documents: pa.Table
    rows: pa.Table
    vectors: pa.Table


Ids = tuple[str, str]
"""The first and the last document id of a segment."""
Refused = Collection[tuple[str, str, str]]
"""Staged quarantined documents, by (part, id, source), that are not to be kept: an earlier version of them serves."""


def build(
    storage: Storage,
    run_id: str,
    parts: Sequence[str],
    first_id: str,
    last_id: str,
    dimension: int,
    options: IndexOptions,
    refused: Refused = (),
    lists: TrainedEntry | None = None,
) -> SegmentEntry:
    """Build and upload the segment of the staged documents with ids in `[first_id, last_id]`, but for the refused ones."""
    with disk.temporary("situate-staged-") as work:
        kept = (_staged(storage, run_id, part, dimension, work / part, refused) for part in parts)
        return build_from(storage, kept, (first_id, last_id), dimension, options, lists)


def build_from(
    storage: Storage,
    parts: Iterable[Part],
    ids: Ids,
    dimension: int,
    options: IndexOptions,
    lists: TrainedEntry | None = None,
) -> SegmentEntry:
    """Build and upload the segment of the documents of any parts with ids in `[ids[0], ids[1]]`; its dense index is flat, or
    has the trained `lists`.
    """
    with disk.temporary("situate-segment-") as target, disk.temporary("situate-trained-") as beside:
        shared = trained.fetched(storage, lists, beside) if lists else None
        documents, rows, vectors = _gather(parts, ids)
        documents = _place(documents, rows, target / layout.ORIGINALS)
        tables.write(documents, target / layout.DOCUMENTS)
        tables.write(rows, target / layout.ROWS)
        tables.write(vectors, target / layout.VECTORS)
        files_digested = [layout.DOCUMENTS, layout.ORIGINALS, layout.VECTORS]
        content_digest = digest(
            *(file_sha256(target / name).encode() for name in files_digested),
            # What the prefix cache happened to hold is no part of what a row is.
            hashlib.sha256(tables.to_bytes(rows.drop_columns(["cached_tokens"]))).hexdigest().encode(),
        )
        # The nonce keeps two runs that build the same segment at once from mixing their Lucene files.
        segment_id = f"{content_digest[:24]}-{secrets.token_hex(4)}"
        _index(rows, vectors, dimension, segment_id, target, options, shared)
        counts = {
            layout.DOCUMENTS: documents.num_rows,
            layout.ROWS: rows.num_rows,
            layout.VECTORS: vectors.num_rows,
            layout.DENSE: vectors.num_rows,
        }
        files = _upload(storage, segment_id, target, counts)
    return SegmentEntry(
        segment_id,
        content_digest,
        documents.num_rows,
        rows.num_rows,
        vectors.num_rows,
        tuple(files),
        lists.id if lists else None,
    )


def _index(
    rows: pa.Table,
    vectors: pa.Table,
    dimension: int,
    segment_id: str,
    target: Path,
    options: IndexOptions,
    shared: Trained | None,
) -> None:
    """Build both indexes and see that each holds all rows, as vectors and as texts."""
    matrix = as_matrix(vectors, dimension)
    dense_files.build(matrix, target / layout.DENSE, shared)
    (target / layout.LEXICAL).mkdir()
    texts = ("\n".join(fields) for fields in text_fields(rows, options.lexical_text))
    num_texts = lexical_build.build(texts, segment_id, target / layout.LEXICAL, options.language)
    for what, wanted, found, name in (
        ("vectors", vectors.num_rows, len(matrix), "dense"),
        ("rows", rows.num_rows, num_texts, "lexical"),
    ):
        if wanted != found:
            raise OperationError(f"segment {segment_id} has {wanted} {what} but {found} in its {name} index")


def _staged(storage: Storage, run_id: str, part: str, dimension: int, work: Path, refused: Refused) -> Part:
    kinds = {
        layout.DOCUMENTS: STAGED_DOCUMENTS,
        layout.ROWS: tables.ROWS,
        layout.VECTORS: tables.vectors(dimension),
    }
    documents, rows, vectors = (
        tables.read(storage.fetch(layout.staged(run_id, part, name), work / name), kind) for name, kind in kinds.items()
    )
    if refused:
        names = zip(documents["id"].to_pylist(), documents["source"].to_pylist(), strict=True)
        documents = documents.filter(pa.array([(part, *name) not in refused for name in names], pa.bool_()))
    return Part(documents, rows, vectors)


def _gather(parts: Iterable[Part], ids: Ids) -> Part:
    """Keep the documents of this segment, and order all three tables."""
    documents, rows, vectors, base = [], [], [], 0
    for part in parts:
        documents.append(part.documents.filter(_between(part.documents["id"], ids)))
        vectors.append(_shifted(part.vectors, _between(part.rows["document_id"], ids), base))
        rows.append(part.rows)
        base += part.rows.num_rows
    ordered = pa.concat_tables(documents).sort_by([("id", "ascending"), ("source", "ascending")])
    return Part(ordered, *_ordered(pa.concat_tables(rows), pa.concat_tables(vectors), ids))


def _between(names: pa.ChunkedArray, ids: Ids) -> pa.ChunkedArray:
    return pc.and_(pc.greater_equal(names, ids[0]), pc.less_equal(names, ids[1]))


def _shifted(vectors: pa.Table, inside: pa.ChunkedArray, base: int) -> pa.Table:
    """A part's vectors of rows inside the segment, numbered by the row's place in all parts together."""
    numbers = vectors["row"].to_numpy()
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(inside):
        raise OperationError(f"a staged part has {len(inside)} rows but vectors for row {numbers.max()}")
    kept = vectors.filter(inside.take(vectors["row"]))
    return kept.set_column(0, vectors.schema.field("row"), pc.add(kept["row"], base))


def _ordered(rows: pa.Table, vectors: pa.Table, ids: Ids) -> tuple[pa.Table, pa.Table]:
    """Rows by (document id, chunk index), vectors by (row, part), renumbered to the rows' new places."""
    order = pc.sort_indices(rows, sort_keys=[("document_id", "ascending"), ("chunk_index", "ascending")])
    names = rows["document_id"].take(order)
    inside = _between(names, ids)
    order = order.filter(inside.combine_chunks() if isinstance(inside, pa.ChunkedArray) else inside)
    places = np.full(rows.num_rows, -1, dtype=np.int64)
    places[order.to_numpy()] = np.arange(len(order))
    renumbered = pa.array(places[vectors["row"].to_numpy()])
    moved = vectors.set_column(0, vectors.schema.field("row"), renumbered)
    moved = moved.sort_by([("row", "ascending"), ("part", "ascending")])
    covered, starts, counts = np.unique(moved["row"].to_numpy(), return_index=True, return_counts=True)
    if len(covered) != len(order) or (len(covered) and covered[0] < 0):
        raise OperationError(
            f"the segment of documents {ids[0]} to {ids[1]} has {len(order)} rows but vectors for {len(covered)}"
        )
    if not np.array_equal(moved["part"].to_numpy(), _counted_up(starts, counts)):
        raise OperationError(f"the segment of documents {ids[0]} to {ids[1]} has a vector twice or lacks one of a row")
    return rows.take(order), moved


def _counted_up(starts: Sequence[int] | np.ndarray, counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """0, 1, 2, ... anew for each of the groups that begin at `starts`."""
    numbers: np.ndarray = np.arange(int(np.sum(counts))) - np.repeat(np.asarray(starts, np.int64), counts)
    return numbers


def _place(documents: pa.Table, rows: pa.Table, originals: Path) -> pa.Table:
    """Write the originals and give every document its bytes and its rows."""
    counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(rows["document_id"]).to_pylist()}
    offsets, lengths, firsts, numbers = [], [], [], []
    offset = row = 0
    with disk.writing(originals), originals.open("wb") as file:
        batches = documents.select(["id", "text", "status"]).to_batches(max_chunksize=_BATCH_ROWS)
        for document in chain.from_iterable(batch.to_pylist() for batch in batches):
            data = document["text"].encode() if document["status"] != "quarantined" else b""
            # A quarantined duplicate shares its id with an indexed document and owns none of its rows.
            number = counts.pop(document["id"], 0) if document["status"] == "indexed" else 0
            if document["status"] == "indexed" and not number:
                raise OperationError(f"the indexed document {document['id']} has no rows or comes twice")
            offsets.append(offset)
            lengths.append(len(data))
            firsts.append(row)
            numbers.append(number)
            offset += file.write(data)
            row += number
    if counts or row != rows.num_rows:
        raise OperationError(f"rows without an indexed document: {', '.join(sorted(counts)[:3])}")
    if not np.array_equal(rows["chunk_index"].to_numpy(), _counted_up(firsts, numbers)):
        raise OperationError(
            "the rows of a document are not exactly its chunks 0, 1, 2, ...: one is missing or comes twice"
        )
    built = {"offset": offsets, "length": lengths, "first_row": firsts, "num_rows": numbers}
    built |= _counted(rows, firsts, numbers)
    columns = [
        pa.array(built[field.name], field.type) if field.name in built else documents[field.name]
        for field in tables.DOCUMENTS
    ]
    return pa.table(columns, schema=tables.DOCUMENTS)


def _counted(rows: pa.Table, firsts: Sequence[int], numbers: Sequence[int]) -> dict[str, list[Any]]:
    """Per document what its rows came to: by status, ungrounded contexts, and the reasons of those without one."""
    owners = np.repeat(np.arange(len(firsts)), numbers)
    statuses = np.array(rows["status"].to_pylist(), dtype=object)
    found = {
        f"chunks_{status}": np.bincount(owners[statuses == status], minlength=len(firsts)).tolist() for status in Status
    }
    ungrounded = pc.and_(pc.equal(rows["status"], "ok"), pc.starts_with(pc.fill_null(rows["reason"], ""), UNGROUNDED))
    found["ungrounded"] = np.bincount(owners[ungrounded.to_numpy()], minlength=len(firsts)).tolist()
    reasons: list[list[str]] = [[] for _ in firsts]
    lost = np.flatnonzero((statuses == Status.FALLBACK) | (statuses == Status.FAILED))
    for owner, reason in zip(owners[lost], rows["reason"].take(pa.array(lost)).to_pylist(), strict=True):
        reasons[owner].append((reason or "").partition(":")[0])
    return {**found, "reasons": reasons}


def _upload(storage: Storage, segment_id: str, directory: Path, counts: dict[str, int]) -> list[FileEntry]:
    files = []
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            name = path.relative_to(directory).as_posix()
            entry = FileEntry(name, path.stat().st_size, file_sha256(path), counts.get(name))
            storage.put_file(layout.segment(segment_id, name), path)
            files.append(entry)
    return files
