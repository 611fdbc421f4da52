"""Whether the files of a segment say the same: documents, originals, rows, vectors, FAISS ids and Lucene ids are one set.

A directory with the files of one segment, each as its manifest says -> what contradicts, a sentence each. That
files are as they were written proves nothing about what was written; this does. Spans are read back from the originals.
"""

import hashlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from enrichment.errors import OperationError
from indexing import dense_files, layout, lexical, tables
from indexing.dense_files import Trained
from indexing.manifest import SegmentEntry
from indexing.tables import as_matrix

_DOCUMENT = ["id", "text_sha256", "offset", "length", "first_row", "num_rows", "status"]
_ROW = ["document_id", "chunk_index", "start", "end", "byte_start", "byte_end", "text"]
_BATCH_ROWS = 1000  # that are Python objects at a time


def problems(
    directory: Path, segment: SegmentEntry, dimension: int, trained: Trained | None = None
) -> Iterator[tuple[str, str]]:
    """What contradicts: (file, sentence) pairs, at most one per document. `trained` is what its dense index was built with."""
    documents = tables.read(directory / layout.DOCUMENTS, tables.DOCUMENTS, _DOCUMENT)
    rows = tables.read(directory / layout.ROWS, tables.ROWS, _ROW)
    vectors = tables.read(directory / layout.VECTORS, tables.vectors(dimension))
    for name, listed, found in (
        (layout.DOCUMENTS, segment.num_documents, documents.num_rows),
        (layout.ROWS, segment.num_rows, rows.num_rows),
        (layout.VECTORS, segment.num_vectors, vectors.num_rows),
    ):
        if listed != found:
            yield name, f"holds {found} entries, the manifest says {listed}"
    yield from _documents(documents, rows, directory / layout.ORIGINALS)
    yield from _vectors(vectors, rows.num_rows, directory / layout.DENSE, dimension, trained)
    yield from _lexical(directory / layout.LEXICAL, segment.id, rows.num_rows)


def _documents(documents: pa.Table, rows: pa.Table, originals: Path) -> Iterator[tuple[str, str]]:
    """Every document's bytes, end to end, and every row's span of them."""
    waiting = _as_dicts(rows)
    position = row = 0
    with originals.open("rb") as file:
        for document in _as_dicts(documents):
            name = document["id"]
            if (document["offset"], document["first_row"]) != (position, row):
                yield layout.DOCUMENTS, f"the document {name} does not begin where the one before it ends"
                return
            position, row = position + document["length"], row + document["num_rows"]
            data = file.read(document["length"])
            of_document = list(islice(waiting, document["num_rows"]))
            if document["status"] != "quarantined" and hashlib.sha256(data).hexdigest() != document["text_sha256"]:
                yield layout.ORIGINALS, f"the text of the document {name} is not what its sha256 says"
            elif (problem := _rows(name, data, of_document, document["num_rows"])) is not None:
                yield layout.ROWS, problem
        if file.read(1) or next(waiting, None) is not None:
            yield layout.DOCUMENTS, f"has bytes or rows that no document owns, after byte {position} and row {row}"


def _rows(document_id: str, data: bytes, rows: list[dict[str, Any]], number: int) -> str | None:
    """What is wrong with a document's rows: they are its chunks 0, 1, 2, ... and their texts are spans of its original."""
    if [(row["document_id"], row["chunk_index"]) for row in rows] != [(document_id, n) for n in range(number)]:
        return f"the rows of the document {document_id} are not its chunks 0 to {number - 1}"
    text = data.decode()
    for row in rows:
        if data[row["byte_start"] : row["byte_end"]] != row["text"].encode() or (
            text[row["start"] : row["end"]] != row["text"]
        ):
            return f"chunk {row['chunk_index']} of the document {document_id} is not the span of its original"
    return None


def _vectors(
    vectors: pa.Table, num_rows: int, index: Path, dimension: int, trained: Trained | None
) -> Iterator[tuple[str, str]]:
    """Every row has the parts 0, 1, ... in order, and vector i of the index is line i of the table."""
    numbers, parts = vectors["row"].to_numpy(), vectors["part"].to_numpy()
    begins = np.flatnonzero(parts == 0)
    new_row = np.diff(numbers, prepend=-1) == 1
    if not np.array_equal(numbers[begins], np.arange(num_rows)):
        yield layout.VECTORS, f"its vectors are not those of the rows 0 to {num_rows - 1}"
    elif not np.array_equal(parts == 0, new_row) or not np.array_equal(parts, np.arange(len(parts)) - begins[numbers]):
        yield layout.VECTORS, "the parts of a row are not 0, 1, 2, ..."
    try:
        differing = dense_files.first_difference(index, as_matrix(vectors, dimension), trained)
    except OperationError as error:
        yield layout.DENSE, str(error)
        return
    if differing is not None:
        yield layout.DENSE, f"its vector {differing} is not line {differing} of {layout.VECTORS}"


def _lexical(directory: Path, segment_id: str, num_rows: int) -> Iterator[tuple[str, str]]:
    try:
        found, wrong = lexical.stored_rows(directory, segment_id)
    except OperationError as error:
        yield layout.LEXICAL, str(error)
        return
    if found != num_rows:
        yield layout.LEXICAL, f"has {found} rows, {layout.ROWS} has {num_rows}"
    if wrong is not None:
        yield layout.LEXICAL, f"its row {wrong} is stored under another id"


def _as_dicts(table: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
        yield from batch.to_pylist()
