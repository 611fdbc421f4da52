"""Which documents of a segment are dead, and with them which rows: bitmaps that a manifest lists beside the segment.

A segment never changes; what dies in it is marked outside. The object `dead/<segment id>/<sha256>` holds one bit per row,
then, from the next whole byte on, one bit per document (its place in documents.parquet); least significant bit first, 1 is
dead. The second part is for documents without rows: an empty or a quarantined one can be dead too. A dead document's rows
are exactly the dead rows.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from enrichment.errors import OperationError
from indexing import layout
from indexing.manifest import DeadEntry, SegmentEntry
from indexing.storage import Storage

Bits = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Dead:
    """`documents` `(num_documents,) bool` and `rows` `(num_rows,) bool` of one segment."""

    documents: Bits
    rows: Bits


def none_of(segment: SegmentEntry) -> Dead:
    """Everything alive."""
    return Dead(np.zeros(segment.num_documents, np.bool_), np.zeros(segment.num_rows, np.bool_))


def with_places(before: Dead, documents: pa.Table, places: Iterable[int]) -> Dead:
    """`before`, and the documents at `places` with their rows; `documents` has the columns first_row and num_rows."""
    dead = before.documents.copy()
    dead[list(places)] = True
    rows = before.rows.copy()
    firsts, numbers = documents["first_row"].to_numpy(), documents["num_rows"].to_numpy()
    for first, number in zip(firsts[dead], numbers[dead], strict=True):
        rows[first : first + number] = True
    return Dead(dead, rows)


def write(storage: Storage, segment: SegmentEntry, dead: Dead) -> DeadEntry:
    """Store the bitmaps; the same bits are the same object."""
    data = _packed(dead.rows) + _packed(dead.documents)
    sha256 = hashlib.sha256(data).hexdigest()
    storage.put(layout.dead(segment.id, sha256), data)
    return DeadEntry(sha256, len(data), int(dead.documents.sum()), int(dead.rows.sum()))


def read(storage: Storage, segment: SegmentEntry, entry: DeadEntry | None) -> Dead:
    """The bitmaps that a manifest lists for a segment; all alive if it lists none. Raises OperationError for damage."""
    if entry is None:
        return none_of(segment)
    name = layout.dead(segment.id, entry.sha256)
    data = storage.get(name)
    if len(data) != entry.size_bytes or hashlib.sha256(data).hexdigest() != entry.sha256:
        raise OperationError(f"{storage.uri}/{name} differs from its manifest: it is damaged; restore it or roll back")
    bits = np.frombuffer(data, np.uint8)
    cut = -(-segment.num_rows // 8)
    rows, documents = _unpacked(bits[:cut], segment.num_rows), _unpacked(bits[cut:], segment.num_documents)
    if (int(documents.sum()), int(rows.sum())) != (entry.num_documents, entry.num_rows):
        raise OperationError(f"{storage.uri}/{name} is not of segment {segment.id}: publish again or roll back")
    return Dead(documents, rows)


def _packed(bits: Bits) -> bytes:
    return np.packbits(bits, bitorder="little").tobytes()


def _unpacked(packed: npt.NDArray[np.uint8], count: int) -> Bits:
    if len(packed) * 8 < count:
        return np.zeros(0, np.bool_)
    return np.unpackbits(packed, count=count, bitorder="little").astype(np.bool_)
