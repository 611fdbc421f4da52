"""A share of the documents that stands for all of them: by a hash of their ids, so it is the same ones every time."""

import hashlib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Sample:
    """A share from 0 to 1 of the documents, and those that are in it whatever their hash."""

    share: float = 1.0
    always: frozenset[str] = frozenset()

    def mask(self, ids: pa.ChunkedArray) -> np.ndarray:
        """Which documents are in it: `(n,) bool`."""
        if self.share >= 1:
            return np.ones(len(ids), np.bool_)
        names = ids.to_pylist()
        digits = [int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") for name in names]
        chosen: np.ndarray = np.array(digits, np.float64) < self.share * 2.0**64
        return chosen | np.array([name in self.always for name in names], np.bool_)

    def of(self, documents: pa.Table) -> pa.Table:
        """The documents that are in it, by their column `id`; the very table if all are."""
        return documents if self.share >= 1 else documents.filter(pa.array(self.mask(documents["id"])))


EVERYTHING = Sample()
