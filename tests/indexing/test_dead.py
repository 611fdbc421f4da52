"""The bitmaps: what they say, as bytes too, and that nothing else is taken for them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from enrichment.errors import OperationError
from indexing import dead, layout
from indexing.manifest import SegmentEntry
from indexing.storage import DirectoryStorage

SEGMENT = SegmentEntry("s", "", num_documents=3, num_rows=7, num_vectors=7, files=())
NONE = dead.none_of(SEGMENT)
# Documents of 5, 0 and 2 rows, as in docs/storage.md.
WARRANTY = dead.with_documents(NONE, np.array([2]), np.array([5]), np.array([2]))
NOTES = dead.with_documents(WARRANTY, np.array([1]), np.array([5]), np.array([0]))


def test_a_dead_document_is_dead_with_its_rows_or_without_any(tmp_path: Path) -> None:
    assert np.flatnonzero(WARRANTY.rows).tolist() == [5, 6] and np.flatnonzero(WARRANTY.documents).tolist() == [2]
    assert np.flatnonzero(NOTES.rows).tolist() == [5, 6] and np.flatnonzero(NOTES.documents).tolist() == [1, 2]
    assert not NONE.rows.any() and not NONE.documents.any(), "what was dead before is not changed in place"


@pytest.mark.parametrize(("given", "data"), [(WARRANTY, b"\x60\x04"), (NOTES, b"\x60\x06"), (NONE, b"\0\0")])
def test_bitmaps_are_stored_as_documented_and_come_back(tmp_path: Path, given: dead.Dead, data: bytes) -> None:
    storage = DirectoryStorage(tmp_path)
    entry = dead.write(storage, SEGMENT, given)
    assert storage.get(layout.dead("s", entry.sha256)) == data
    found = dead.read(storage, SEGMENT, entry)
    assert np.array_equal(found.rows, given.rows) and np.array_equal(found.documents, given.documents)
    assert not dead.read(storage, SEGMENT, None).documents.any()


def test_the_same_bits_are_not_written_again(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    entry = dead.write(storage, SEGMENT, NOTES)
    storage.delete(layout.dead("s", entry.sha256))
    assert dead.write(storage, SEGMENT, NOTES, entry) == entry
    assert not list(storage.list())


def test_what_is_not_as_listed_is_refused_by_name(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    entry = dead.write(storage, SEGMENT, NOTES)
    for wrong in (replace(entry, num_rows=1), replace(entry, num_documents=1)):
        with pytest.raises(OperationError, match="is not of segment s"):
            dead.read(storage, SEGMENT, wrong)
    with pytest.raises(OperationError, match="is not of segment"):
        dead.read(storage, replace(SEGMENT, num_documents=30), entry)
    storage.put(layout.dead("s", entry.sha256), b"\x60\x07")
    with pytest.raises(OperationError, match=f"{entry.sha256} differs from its manifest"):
        dead.read(storage, SEGMENT, entry)
