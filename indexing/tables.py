"""The Arrow schemas of what is stored, and the only reader and writer of Parquet.

Every file names its kind and version in its schema metadata and carries page checksums. A newer version is refused, an
older one is read with defaults for what it lacks, an unknown or missing column raises. Row order is part of the contract and
is written as given.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from enrichment.errors import OperationError
from indexing import disk

VERSION = 1
_KIND, _VERSION = b"situate.kind", b"situate.version"
_BATCH_ROWS = 65_536
# Columns of a later version than the first, by kind: what stands there for a file that is older.
_ADDED: Mapping[bytes, Mapping[str, Any]] = {
    b"documents": {
        "tries": 1,
        "chunks_ok": 0,
        "chunks_fallback": 0,
        "chunks_failed": 0,
        "chunks_skipped": 0,
        "ungrounded": 0,
        "reasons": [],
    }
}


def with_kind(kind: str, fields: list[pa.Field], version: int = VERSION) -> pa.Schema:
    """A schema that says what its files are."""
    return pa.schema(fields, metadata={_KIND: kind.encode(), _VERSION: str(version).encode()})


def _field(name: str, kind: pa.DataType, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable)


DOCUMENTS = with_kind(
    "documents",
    [
        _field("id", pa.string()),
        _field("title", pa.string(), nullable=True),
        _field("date", pa.string(), nullable=True),
        _field("metadata", pa.string()),  # a JSON object of strings
        _field("source", pa.string()),  # file, and record where the file holds several
        _field("source_sha256", pa.string()),
        _field("text_sha256", pa.string(), nullable=True),
        _field("offset", pa.int64()),  # bytes into originals.bin
        _field("length", pa.int64()),
        _field("first_row", pa.int64()),
        _field("num_rows", pa.int32()),
        _field("status", pa.string()),  # indexed | empty | quarantined
        _field("reason", pa.string(), nullable=True),
        _field("replaced", pa.int32()),  # code points that decoding replaced by U+FFFD
        _field("tries", pa.int32()),  # nights in which this version was worked on
        _field("chunks_ok", pa.int32()),  # its rows by status, so that a night need not open rows.parquet to count
        _field("chunks_fallback", pa.int32()),
        _field("chunks_failed", pa.int32()),
        _field("chunks_skipped", pa.int32()),
        _field("ungrounded", pa.int32()),
        _field("reasons", pa.list_(pa.field("element", pa.string(), nullable=False))),  # of fallback and failed rows
    ],
    version=2,
)

ROWS = with_kind(
    "rows",
    [
        _field("document_id", pa.string()),
        _field("chunk_index", pa.int32()),
        _field("start", pa.int64()),  # code points
        _field("end", pa.int64()),
        _field("byte_start", pa.int64()),  # bytes into the document's original
        _field("byte_end", pa.int64()),
        _field("heading_path", pa.list_(pa.field("element", pa.string(), nullable=False))),
        _field("text", pa.string()),
        _field("header", pa.string(), nullable=True),
        _field("context", pa.string(), nullable=True),
        _field("rewrite", pa.string(), nullable=True),
        _field("status", pa.string()),
        _field("reason", pa.string(), nullable=True),
        _field("strategy", pa.string()),
        _field("scope_start", pa.int64()),
        _field("scope_end", pa.int64()),
        _field("prompt_fingerprint", pa.string(), nullable=True),
        _field("model_fingerprint", pa.string(), nullable=True),
        _field("context_key", pa.binary(), nullable=True),
        _field("prompt_tokens", pa.int32()),
        _field("cached_tokens", pa.int32()),
        _field("output_tokens", pa.int32()),
        _field("attempts", pa.int32()),
    ],
)

CONTEXTS = with_kind(
    "contexts",
    [
        _field("key", pa.binary()),
        _field("document_id", pa.string()),  # for erasure; look-ups go by key
        _field("text", pa.string(), nullable=True),
        _field("status", pa.string()),
        _field("reason", pa.string(), nullable=True),
        _field("output", pa.string(), nullable=True),  # as generated, so that better guards need no new generation
        _field("prompt_tokens", pa.int32()),
        _field("cached_tokens", pa.int32()),
        _field("output_tokens", pa.int32()),
        _field("attempts", pa.int32()),
    ],
)


def vectors(dimension: int) -> pa.Schema:
    """One row per vector: the row it belongs to, its part, `dimension` float16 values as bytes."""
    return with_kind(
        "vectors", [_field("row", pa.int64()), _field("part", pa.int16()), _field("vector", pa.binary(2 * dimension))]
    )


def ledger_vectors(dimension: int) -> pa.Schema:
    """Paid vectors by key."""
    return with_kind(
        "ledger vectors",
        [_field("key", pa.binary()), _field("document_id", pa.string()), _field("vector", pa.binary(2 * dimension))],
    )


def write(table: pa.Table, path: Path) -> None:
    """Write a table of a stored kind; vectors stay uncompressed, for speed of reading (see docs/storage.md)."""
    with disk.writing(path):
        _write(table, path)


def to_bytes(table: pa.Table) -> bytes:
    """The same file as `write` makes, in memory."""
    sink = pa.BufferOutputStream()
    _write(table, sink)
    return bytes(sink.getvalue())


def _write(table: pa.Table, sink: Any) -> None:
    is_vectors = "vector" in table.schema.names
    pq.write_table(
        table,
        sink,
        compression="none" if is_vectors else "zstd",
        use_dictionary=not is_vectors,
        write_page_checksum=True,
        write_statistics=not is_vectors,
    )


def read(source: Path | bytes, kind: pa.Schema, columns: list[str] | None = None, name: str | None = None) -> pa.Table:
    """Read a table and check that it is of `kind`. Raises OperationError for another kind, version or column set."""
    wanted = columns or kind.names
    with _named(source, name) as where:
        file, lacking = _open(source, kind, where)
        table = file.read(columns=[column for column in wanted if column not in lacking])
        for column in lacking.keys() & set(wanted):
            values = pa.array([lacking[column]] * table.num_rows, kind.field(column).type)
            table = table.append_column(kind.field(column), values)
    return table.select(wanted) if lacking else table


def read_documents(data: bytes, kind: pa.Schema, ids: pa.Array, name: str) -> pa.Table:
    """The rows of the documents `ids` alone; where there are none, no other column is decoded.

    In this thread: files are small, and whoever reads many has threads of its own.
    """
    with _named(data, name) as where:
        file, lacking = _open(data, kind, where)
        assert not lacking, "of no kind that has documents' ids was there an older version"
        wanted = pc.is_in(file.read(["document_id"], use_threads=False)["document_id"], ids)
        return file.read(use_threads=False).filter(wanted) if pc.any(wanted).as_py() else kind.empty_table()


def batches(source: Path, kind: pa.Schema, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """The same in pieces, for tables of which little is kept."""
    with _named(source, None) as where:
        file, lacking = _open(source, kind, where)
        for batch in file.iter_batches(_BATCH_ROWS, columns=[column for column in columns if column not in lacking]):
            for column in lacking.keys() & set(columns):
                values = pa.array([lacking[column]] * batch.num_rows, kind.field(column).type)
                batch = batch.append_column(kind.field(column), values)
            yield batch.select(columns)


@contextmanager
def _named(source: Path | bytes, name: str | None) -> Iterator[str]:
    where = name or (str(source) if isinstance(source, Path) else "a Parquet object")
    try:
        yield where
    except (pa.ArrowException, OSError, ValueError) as error:
        raise OperationError(f"{where} is damaged: {error}") from error


def _open(source: Path | bytes, kind: pa.Schema, name: str) -> tuple[pq.ParquetFile, Mapping[str, Any]]:
    """The file, and the columns that it is too old to have, with what stands for them."""
    file = pq.ParquetFile(
        source if isinstance(source, Path) else pa.BufferReader(source), page_checksum_verification=True
    )
    return file, _check_kind(file.schema_arrow, kind, name)


def _check_kind(found: pa.Schema, kind: pa.Schema, name: str) -> Mapping[str, Any]:
    metadata = found.metadata or {}
    kind_name, newest = kind.metadata[_KIND], int(kind.metadata[_VERSION])
    if metadata.get(_KIND) != kind_name:
        said = metadata.get(_KIND, b"?").decode(errors="replace")
        raise OperationError(f"{name} holds {said}, not {kind_name.decode()}")
    version = int(metadata.get(_VERSION, b"0"))
    if version > newest:
        raise OperationError(f"{name} is of a newer version than this program reads; upgrade situate")
    lacking = _ADDED.get(kind_name, {}) if version < newest else {}
    if not found.equals(pa.schema([field for field in kind if field.name not in lacking])):
        raise OperationError(f"{name} has other columns than {kind_name.decode()} of version {version}")
    return lacking


def as_matrix(vectors: pa.Table, dimension: int) -> np.ndarray:
    """The vectors of a table, `(n, dimension) float16`, in its order."""
    column = vectors["vector"].combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    data = b"".join(column.to_pylist()) if column.offset else column.buffers()[1]
    count = len(column) * dimension
    flat = np.frombuffer(data, dtype=np.float16, count=count) if count else np.zeros(0, dtype=np.float16)
    return flat.reshape(-1, dimension)
