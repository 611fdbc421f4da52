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
        digits = [int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") for name in ids.to_pylist()]
        chosen: np.ndarray = np.array(digits, np.float64) < self.share * 2.0**64
        return chosen | np.array([name in self.always for name in ids.to_pylist()], np.bool_)


EVERYTHING = Sample()
