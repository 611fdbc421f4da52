"""The documents of a snapshot's segments by their places: records, rows and originals, mapped or read by range.

(segment, place in it) -> what is stored of that document. Which documents are alive is not known here.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from indexing.originals import Originals
from indexing.search import Hit

Owner = tuple[int, int]
"""A segment's place in the snapshot and a document's place in the segment."""


@dataclass(frozen=True)
class Documents:
    """`documents[s]` and `rows[s]` are the tables of segment `s`, the rows without their texts."""

    documents: Sequence[pa.Table]
    rows: Sequence[pa.Table]
    originals: Originals

    def owner(self, hit: Hit) -> Owner:
        """The document that a hit is a chunk of."""
        first_rows = self._first_rows[hit.segment]
        # Documents without rows share a first row with the next one: the last of them owns the row.
        return hit.segment, int(np.searchsorted(first_rows, hit.row, side="right")) - 1

    def chunk_index(self, owner: Owner, hit: Hit) -> int:
        """The number of a hit's chunk in its document."""
        segment, place = owner
        return hit.row - int(self._first_rows[segment][place])

    def record(self, owner: Owner) -> dict[str, Any]:
        """A document's stored record."""
        segment, place = owner
        record: dict[str, Any] = self.documents[segment].slice(place, 1).to_pylist()[0]
        return record

    def rows_of(self, owner: Owner) -> pa.Table:
        """A document's rows, in chunk order."""
        record = self.record(owner)
        return self.rows[owner[0]].slice(record["first_row"], record["num_rows"])

    def row(self, hit: Hit) -> dict[str, Any]:
        """The row that a hit is."""
        row: dict[str, Any] = self.rows[hit.segment].slice(hit.row, 1).to_pylist()[0]
        return row

    @functools.cached_property
    def _first_rows(self) -> list[np.ndarray]:
        return [documents["first_row"].to_numpy() for documents in self.documents]
