"""Parquet with the columns `id`, `title`, `text`, `metadata`; others are ignored, `text` is required.

Metadata that Python pickled into a file's schema is never read: values come from the columns alone.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from enrichment.errors import DocumentError

COLUMNS = ("id", "title", "text", "metadata")


def rows(data: bytes) -> Iterator[tuple[int, int, int, dict[str, Any]]]:
    """Row group, row in it, row number from 1, and the record. Raises DocumentError if this is no such file."""
    file = _open(data)
    number = 0
    for group in range(file.num_row_groups):
        for row, fields in enumerate(_records(file, group)):
            number += 1
            yield group, row, number, fields


def read_group(data: bytes, group: int) -> list[dict[str, Any]]:
    """All records of a row group; none where the file has no such group. Raises DocumentError."""
    file = _open(data)
    return _records(file, group) if group < file.num_row_groups else []


def _records(file: Any, group: int) -> list[dict[str, Any]]:
    present = [name for name in COLUMNS if name in file.schema_arrow.names]
    with _refusing("the Parquet file is damaged"):
        records: list[dict[str, Any]] = file.read_row_group(group, columns=present).to_pylist(maps_as_pydicts="lossy")
    return records


def _open(data: bytes) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _refusing("this is not a Parquet file"):
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        names = file.schema_arrow.names
    if "text" not in names:
        raise DocumentError("no_text", f"the file has no column text but {', '.join(names)}")
    return file


@contextlib.contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Damage shows as any of these, text that is not UTF-8 as a ValueError."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DocumentError("unreadable", f"{what}: {error}") from error
