"""Which other chunks of its document a chunk is read with: those beside it, and those that are most like it.

Chunks are numbers from 0; the answer is sorted, without the chunk itself, and never leaves the document.
"""

from collections.abc import Sequence

import numpy as np


def neighbours(index: int, num_chunks: int, backward: int, forward: int) -> list[int]:
    """The `backward` chunks before one and the `forward` ones behind it, as far as there are any; the nearest first."""
    found = [*range(max(0, index - backward), index), *range(index + 1, min(num_chunks, index + forward + 1))]
    return sorted(found, key=lambda other: (abs(other - index), other))


def similar(cosines: np.ndarray, index: int, most: int, threshold: float) -> list[int]:
    """At most `most` chunks whose cosine with one is the threshold or more, the most similar first, then by number.

    `cosines` is `(n, n) float32`: similarities, of which the largest is the nearest, not distances.
    """
    others = [int(other) for other in np.flatnonzero(cosines[index] >= threshold) if other != index]
    return sorted(others, key=lambda other: (-cosines[index, other], other))[:most]


def cosines_of(vectors: np.ndarray, owners: Sequence[int], num_chunks: int) -> np.ndarray:
    """`(num_chunks, num_chunks) float32`: the best cosine of any parts of two chunks.

    `vectors` is `(m, d)`, unit length, in order of `owners`, the chunk of each; every chunk has one at least.
    """
    starts = np.searchsorted(np.asarray(owners), np.arange(num_chunks))
    of_parts = np.asarray(vectors, np.float32) @ np.asarray(vectors, np.float32).T
    cosines: np.ndarray = np.maximum.reduceat(np.maximum.reduceat(of_parts, starts, axis=0), starts, axis=1)
    return cosines


def ranked(*orders: Sequence[int]) -> list[int]:
    """The union of several orders, the most wanted first: by a chunk's best place in any of them, then by number."""
    best: dict[int, int] = {}
    for order in orders:
        for place, chunk in enumerate(order):
            best[chunk] = min(place, best.get(chunk, place))
    return sorted(best, key=lambda chunk: (best[chunk], chunk))
