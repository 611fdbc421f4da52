"""The Arrow schemas of what is stored, and the only reader and writer of Parquet.

Every file names its kind and version in its schema metadata and carries page checksums. A newer version is refused, an
unknown or missing column raises. Row order is part of the contract and is written as given.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from enrichment.errors import OperationError

VERSION = 1
_KIND, _VERSION = b"situate.kind", b"situate.version"


def with_kind(kind: str, fields: list[pa.Field]) -> pa.Schema:
    """A schema that says what its files are."""
    return pa.schema(fields, metadata={_KIND: kind.encode(), _VERSION: str(VERSION).encode()})


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
    ],
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
    is_vectors = "vector" in table.schema.names
    pq.write_table(
        table,
        path,
        compression="none" if is_vectors else "zstd",
        use_dictionary=not is_vectors,
        write_page_checksum=True,
        write_statistics=not is_vectors,
    )


def to_bytes(table: pa.Table) -> bytes:
    """The same file as `write` makes, in memory."""
    sink = pa.BufferOutputStream()
    write(table, sink)
    return bytes(sink.getvalue())


def read(source: Path | bytes, kind: pa.Schema, columns: list[str] | None = None, name: str | None = None) -> pa.Table:
    """Read a table and check that it is of `kind`. Raises OperationError for another kind, version or column set."""
    name = name or (str(source) if isinstance(source, Path) else "a Parquet object")
    try:
        file = pq.ParquetFile(
            source if isinstance(source, Path) else pa.BufferReader(source), page_checksum_verification=True
        )
        found = file.schema_arrow
        _check_kind(found, kind, name)
        table = file.read(columns=columns)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise OperationError(f"{name} is damaged: {error}") from error
    return table


def _check_kind(found: pa.Schema, kind: pa.Schema, name: str) -> None:
    metadata = found.metadata or {}
    if metadata.get(_KIND) != kind.metadata[_KIND]:
        said = metadata.get(_KIND, b"?").decode(errors="replace")
        raise OperationError(f"{name} holds {said}, not {kind.metadata[_KIND].decode()}")
    if int(metadata.get(_VERSION, b"0")) > VERSION:
        raise OperationError(f"{name} is of a newer version than this program reads; upgrade situate")
    if not found.equals(kind):
        raise OperationError(f"{name} has other columns than {kind.metadata[_KIND].decode()} of version {VERSION}")
