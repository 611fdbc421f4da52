"""Stored Parquet: what it says it is, checked by name; damage; and that nothing in it is ever run."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from enrichment import documents
from enrichment.errors import OperationError
from indexing import tables

VECTORS = tables.vectors(4)


def vectors(num_rows: int = 1000) -> pa.Table:
    values = [os.urandom(8) for _ in range(num_rows)]
    return pa.table([pa.array(range(num_rows), pa.int64()), pa.array([0] * num_rows, pa.int16()), values], VECTORS)


def relabelled(table: pa.Table, **metadata: str) -> bytes:
    names = {b"situate." + key.encode(): value.encode() for key, value in metadata.items()}
    return tables.to_bytes(table.replace_schema_metadata({**table.schema.metadata, **names}))


class Marker:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return open, (str(self.path), "w")


def with_pickles(table: pa.Table, marker: Path) -> pa.Table:
    """The table with a pickle wherever Parquet readers have been known to look for one."""
    pickled = pickle.dumps(Marker(marker))
    kept = table.schema.metadata or {}
    schema = table.schema.with_metadata({**kept, b"pandas": pickled, b"pyarrow": pickled, b"PANDAS_ATTRS": pickled})
    for number, field in enumerate(schema):
        extension = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": pickled}
        schema = schema.set(number, field.with_metadata(extension))
    return (
        table.cast(table.schema.remove_metadata()).cast(schema.remove_metadata()).replace_schema_metadata().cast(schema)
    )


@pytest.mark.parametrize("in_memory", [True, False])
def test_what_is_written_is_read_in_its_order(tmp_path: Path, in_memory: bool) -> None:
    table = vectors()
    if in_memory:
        source: Path | bytes = tables.to_bytes(table)
    else:
        source = tmp_path / "vectors.parquet"
        tables.write(table, source)
    assert tables.read(source, VECTORS).equals(table, check_metadata=True)
    assert tables.read(source, VECTORS, ["row"]).column_names == ["row"]


def test_every_kind_survives_its_file_without_rows() -> None:
    for kind in (tables.DOCUMENTS, tables.ROWS, tables.CONTEXTS, VECTORS, tables.ledger_vectors(4)):
        assert tables.read(tables.to_bytes(kind.empty_table()), kind).equals(kind.empty_table(), check_metadata=True)


def test_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(OperationError, match="holds vectors, not rows"):
        tables.read(tables.to_bytes(vectors()), tables.ROWS)
    path = tmp_path / "foreign.parquet"
    pq.write_table(pa.table({"row": [1]}), path)
    with pytest.raises(OperationError, match=r"foreign.parquet holds \?, not vectors"):
        tables.read(path, VECTORS)


def test_a_newer_version_is_refused_and_the_same_is_read() -> None:
    with pytest.raises(OperationError, match="newer version.*upgrade"):
        tables.read(relabelled(vectors(), version=str(tables.VERSION + 1)), VECTORS)
    assert tables.read(relabelled(vectors(), version=str(tables.VERSION)), VECTORS).num_rows == 1000
    with pytest.raises(OperationError, match="damaged"):
        tables.read(relabelled(vectors(), version="two"), VECTORS)


def test_other_columns_are_refused_by_name() -> None:
    table = vectors()
    missing, more = table.drop_columns("part"), table.append_column("extra", table["part"])
    other_type = table.set_column(0, "row", table["row"].cast(pa.int32()))
    for wrong in (missing, more, other_type, table.select(["part", "row", "vector"])):
        data = tables.to_bytes(wrong.replace_schema_metadata(table.schema.metadata))
        with pytest.raises(OperationError, match="other columns than vectors of version 1"):
            tables.read(data, VECTORS)
    with pytest.raises(OperationError, match="other columns"):
        tables.read(tables.to_bytes(table), tables.vectors(8))


def test_a_flipped_byte_in_a_page_is_caught() -> None:
    table = vectors(100)
    data = tables.to_bytes(table)
    place = data.index(table["vector"][50].as_py())
    flipped = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
    with pytest.raises(OperationError, match="a Parquet object is damaged"):
        tables.read(flipped, VECTORS)


def test_no_flipped_byte_ends_in_anything_but_a_refusal_or_the_same_table(tmp_path: Path) -> None:
    table = vectors(3)
    data = tables.to_bytes(table)
    refused = 0
    for place in range(len(data)):
        try:
            found = tables.read(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :], VECTORS)
        except OperationError:
            refused += 1
        else:
            assert found.equals(table), place
    assert refused > len(data) / 3


def test_a_truncated_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "short.parquet"
    data = tables.to_bytes(vectors())
    for length in (0, 3, 11, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(OperationError, match="short.parquet is damaged"):
            tables.read(path, VECTORS)


def test_a_pickle_in_a_stored_table_is_not_read(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    table = vectors(3)
    read = tables.read(tables.to_bytes(with_pickles(table, marker)), VECTORS)
    assert read.to_pydict() == table.to_pydict()
    assert not marker.exists()


def test_a_pickle_in_a_source_is_not_read(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    table = pa.table({"id": ["a"], "title": ["T"], "text": ["Some text."]})
    sink = pa.BufferOutputStream()
    pq.write_table(with_pickles(table, marker), sink)
    data = bytes(sink.getvalue())
    assert data.count(pickle.dumps(Marker(marker))) >= 3  # or the test tests nothing
    loaded = [documents.load(record, "x.parquet", "parquet") for record in documents.scan(data, "parquet")]
    assert [entry.document.text for entry in loaded] == ["Some text."]
    assert not marker.exists()
    pickle.loads(pickle.dumps(Marker(marker)))
    assert marker.exists()
