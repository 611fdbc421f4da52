"""What is trained once for a corpus and shared by the dense indexes of all its segments: on what, how it is stored and fetched.

The vectors to train on are chosen and ordered by a hash of their bits, and equal ones count once; so the sample is a function
of the set of vectors, whatever the segments, the parts and their order. A trained file holds means of many vectors, which
are no one's: it is not rewritten when a document is erased.
"""

import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from enrichment.errors import ConfigError, OperationError
from indexing import dense_files, dense_kind, disk, layout
from indexing.dense_files import Trained
from indexing.dense_kind import Kind
from indexing.manifest import TrainedEntry
from indexing.storage import Storage

Stored = npt.NDArray[np.float16]
QUERIES = 200
"""Vectors to measure recall with: 2,000 neighbours, so a recall of 0.95 is known to about 0.005."""
_HASHED_AT_ONCE = 8192


class Sample(NamedTuple):
    """Different vectors, (n, d) float16: to train on, and to ask with, which are none of those while there are enough."""

    vectors: Stored
    queries: Stored


def sample(matrices: Iterable[Stored], total: int, size: int) -> Sample:
    """About `size` of the `total` vectors in the matrices, and up to QUERIES others, in the order of their hashes."""
    limit = np.uint64(min(1.0, (size + QUERIES) / max(1, total)) * (2**64 - 2**12))
    hashes, kept = [np.empty(0, np.uint64)], []
    for matrix in matrices:
        found = _hashes(matrix)
        chosen = found <= limit if total > size + QUERIES else np.ones(len(found), np.bool_)
        hashes.append(found[chosen])
        kept.append(matrix[chosen])
    _, places = np.unique(np.concatenate(hashes), return_index=True)
    vectors = np.concatenate(kept)[places] if kept else np.empty((0, 0), np.float16)
    num_queries = min(QUERIES, len(vectors) // 10)
    return Sample(vectors[num_queries:], vectors[:num_queries]) if num_queries else Sample(vectors, vectors)


def _hashes(matrix: Stored) -> npt.NDArray[np.uint64]:
    """A hash of each vector's bits: a sum of its values, each times an odd number of its own, mixed (as splitmix64 does)."""
    factors = np.random.default_rng(dense_files.SEED).integers(0, 2**63, matrix.shape[1], np.uint64) * np.uint64(2)
    factors += np.uint64(1)
    bits = np.ascontiguousarray(matrix).view(np.uint16)
    parts = [
        bits[first : first + _HASHED_AT_ONCE].astype(np.uint64) @ factors
        for first in range(0, len(bits), _HASHED_AT_ONCE)
    ]
    mixed = np.concatenate([np.empty(0, np.uint64), *parts])
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)), np.uint64)


def train(storage: Storage, vectors: Stored, kind: Kind, corpus_vectors: int) -> TrainedEntry:
    """Train a kind with lists and store the file. Raises ConfigError if too few of the vectors are different."""
    if len(vectors) < dense_files.LEAST_IN_MEAN * kind.lists:
        raise ConfigError(
            f"the dense indexes cannot be {kind}: only {len(vectors):,} different vectors are there to train on; set"
            " index.dense to flat, or to fewer lists"
        )
    with disk.temporary("situate-train-") as work:
        path = work / "trained.faiss"
        score = dense_files.train(vectors, kind, path)
        sha256 = disk.file_sha256(path)
        # The nonce keeps a gc, which goes by age, from removing what a run has just written under a name that lay there.
        trained_id = f"{sha256[:24]}-{secrets.token_hex(4)}"
        storage.put_file(layout.trained(trained_id), path)
        size_bytes = path.stat().st_size
    return TrainedEntry(trained_id, str(kind), size_bytes, sha256, len(vectors), corpus_vectors, round(score, 4))


def fetched(storage: Storage, entry: TrainedEntry, directory: Path) -> Trained:
    """The trained file on this machine, checked against its entry. Raises OperationError naming it if it is another one."""
    name = layout.trained(entry.id)
    path = storage.fetch(name, directory / "trained.faiss")
    if not path.is_file():
        raise OperationError(f"{storage.uri}/{name} is missing; restore it or roll back to an earlier snapshot")
    if path.stat().st_size != entry.size_bytes or disk.file_sha256(path) != entry.sha256:
        raise OperationError(f"{storage.uri}/{name} differs from its manifest: it is damaged; restore it or roll back")
    return opened(entry, path)


def opened(entry: TrainedEntry, path: Path) -> Trained:
    """A checked file with its kind. Raises OperationError for one that this program does not know."""
    kind = dense_kind.parse(entry.kind)
    if kind is None or not kind.lists:
        raise OperationError(
            f"the trained file {entry.id} is {entry.kind}, which has no lists: its manifest is damaged"
        )
    return Trained(path, kind)
