"""Parquet with the columns `id`, `title`, `text`, `metadata`; others are ignored, `text` is required.

Metadata that Python pickled into a file's schema is never read: values come from the columns alone.
"""

from collections.abc import Iterator
from typing import Any

from enrichment.errors import DocumentError

COLUMNS = ("id", "title", "text", "metadata")


def rows(data: bytes) -> Iterator[tuple[int, int, int, dict[str, Any]]]:
    """Row group, row in it, row number from 1, and the record. Raises DocumentError if this is no such file."""
    file = _open(data)
    number = 0
    for group in range(file.num_row_groups):
        for row, fields in enumerate(read_group(file, group)):
            number += 1
            yield group, row, number, fields


def read_group(file: Any, group: int) -> list[dict[str, Any]]:
    """All records of a row group."""
    present = [name for name in COLUMNS if name in file.schema_arrow.names]
    records: list[dict[str, Any]] = file.read_row_group(group, columns=present).to_pylist()
    return records


def _open(data: bytes) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(data))
    except pa.ArrowInvalid as error:
        raise DocumentError("unreadable", f"this is not a Parquet file: {error}") from error
    if "text" not in file.schema_arrow.names:
        raise DocumentError("no_text", f"the file has no column text but {', '.join(file.schema_arrow.names)}")
    return file
