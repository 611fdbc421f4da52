"""Sets of strings, and of runs of strings, that cost 8 bytes a member: millions of words of one document.

Members are 64-bit hashes in a sorted array. Two of a million words collide with odds of 1 to 10^7, and nobody can prepare it:
Python seeds its hash per process. So hashes never leave the process, and what depends on them is repeatable but for that.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no bit is lost; 2^64 divided by the golden ratio


class HashSet:
    """A set that is built once and asked for many members at a time."""

    def __init__(self, members: Hashes) -> None:
        self._sorted = np.unique(members)

    def has(self, members: Hashes) -> NDArray[np.bool_]:
        """For each one, whether it is in the set: `(n,) uint64` -> `(n,) bool`."""
        if not len(self._sorted):
            return np.zeros(len(members), dtype=np.bool_)
        at = np.minimum(np.searchsorted(self._sorted, members), len(self._sorted) - 1)
        return np.asarray(self._sorted[at] == members, dtype=np.bool_)


def hashes_of(strings: Iterable[str]) -> Hashes:
    """`(n,) uint64`, in order; the strings themselves are not kept."""
    return np.fromiter(map(hash, strings), dtype=np.int64).view(np.uint64)


def runs_of(hashes: Hashes, length: int) -> Hashes:
    """One hash per run of `length` neighbours, in order: a polynomial, so that the order inside a run counts."""
    num_runs = max(0, len(hashes) - length + 1)
    total = np.zeros(num_runs, dtype=np.uint64)
    for start in range(length):
        total *= _FACTOR  # wraps around at 2^64, as it should
        total += hashes[start : start + num_runs]
    return total
