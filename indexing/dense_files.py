"""The files of dense indexes: what is trained once per corpus, and each segment's index, written, read back and compared.

The flat kind is a scalar quantizer over float16: vector i is line i. It was chosen over the flat float32 index because
its scores are the same bits whatever the batch, the selector and the segment (with 1 query instead of 10, 80-90 % of
the flat index's scores differ in the last place, so ties and order would depend on the caller), its file is half as
large, and it is faster: 200,000 x 384, 2 threads: 15 ms against 33 ms for one query, 0.77 s against 1.11 s for 100.

Other kinds have lists: the trained file is the empty index with the lists' centroids and the code's parameters; a segment's
file is the same without the centroids (an empty flat index stands there), with its vectors: code of vector i under id i.
Scalar codes are of the vectors themselves, not of residuals: a score depends on the query and the vector alone, and float16
codes are the stored bits.

Invariants: a file is refused by name if it is not exactly what was expected; equal vectors are in one list, in whatever
segment they are. Not here: searching (`dense.py`), what to train on (`trained.py`).
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from enrichment.errors import OperationError
from indexing import disk
from indexing.dense_kind import Kind

Vectors = npt.NDArray[np.float16] | npt.NDArray[np.float32]
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

ADDED_AT_ONCE = 65_536
"""Vectors converted to float32 at a time: 100 MB at 384 dimensions."""
SEED = 1234
LEAST_IN_MEAN = 5
"""A centroid is the mean of so many vectors at least, of which no part is stored: one of fewer would give them away, also
after they are erased."""
LEAST_GAIN = 1e-3
"""K-means ends with the iteration by which what it optimises gets better by less than this part."""
NEAR = 1e-5
"""Two centroids whose scores differ by less are compared again in float64: float32 sums of a unit vector's products are wrong
by about 1e-7, and in another way for another size of batch, which would put equal vectors into different lists."""
_KINDS = {"SQfp16": "IndexIVFScalarQuantizer", "SQ8": "IndexIVFScalarQuantizer"}


@dataclass(frozen=True, slots=True)
class Trained:
    """What the segments of a corpus with lists share: the trained file and its kind."""

    path: Path
    kind: Kind


def faiss() -> Any:
    """FAISS, imported at first use; untyped, because its stubs know the C++ side only."""
    import faiss as library

    return library


def train(vectors: Vectors, kind: Kind, path: Path) -> float:
    """Write the trained file of a kind with lists, from a sample (n, d), n >= 1; the mean score of a sample vector with its
    list's centroid. The same sample in the same order gives the same lists, but for rounding.
    """
    library = faiss()
    dimension = vectors.shape[1]
    index = library.index_factory(dimension, str(kind), library.METRIC_INNER_PRODUCT)
    if kind.code in _KINDS:
        index.by_residual = False
    index.cp.seed = SEED
    index.cp.min_points_per_centroid = 1  # whether there are enough was asked before
    index.cp.early_stop_threshold = LEAST_GAIN
    index.cp.niter -= 1  # the last one is here
    sample = np.ascontiguousarray(vectors, np.float32)
    index.train_q1(len(sample), library.swig_ptr(sample), False, index.metric_type)
    score = _last_iteration(index.quantizer, sample)
    index.train(sample)  # the code's parameters: the centroids are there
    _write(index, path, with_centroids=True)
    read_trained(Trained(path, kind), dimension)
    return score


def _last_iteration(quantizer: Any, sample: Floats) -> float:
    """One more iteration of spherical k-means over the sample (n, d), of which the lists' sizes are known; the mean score of
    the vectors with their centroids before it. Lists of fewer than LEAST_IN_MEAN vectors borrow of the nearest larger one.
    """
    scores, own = quantizer.search(sample, 1)
    centroids: Floats = quantizer.reconstruct_n(0, quantizer.ntotal)
    members = np.split(
        np.argsort(own[:, 0], kind="stable"), np.cumsum(np.bincount(own[:, 0], minlength=len(centroids)))[:-1]
    )
    large = np.array([number for number, some in enumerate(members) if len(some) >= LEAST_IN_MEAN])
    for number in large:
        centroids[number] = _unit(sample[members[number]].sum(axis=0))
    for number in np.setdiff1d(np.arange(len(centroids)), large) if len(large) else ():
        nearest = large[np.argmax(centroids[large] @ centroids[number])]
        some = np.concatenate([members[number], members[nearest]])
        best = some[np.argsort(-(sample[some] @ centroids[number]), kind="stable")[:LEAST_IN_MEAN]]
        centroids[number] = _unit(sample[best].sum(axis=0))
    quantizer.reset()
    quantizer.add(centroids)
    return float(scores.mean())


def _unit(vectors: Floats) -> Floats:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-6), np.float32)


def read_trained(trained: Trained, dimension: int) -> Any:
    """Open a trained file, read whole; OperationError unless it is of its kind and trained. It owns its centroids."""
    index = _opened(trained.path, 0, mapped=False)
    _refuse(trained.path, _facts(index), {**_wanted(trained.kind, dimension, 0), "trained": True})
    if index.quantizer is None or index.quantizer.ntotal != trained.kind.lists:
        raise OperationError(
            f"The dense index {trained.path} does not have the centroids of {trained.kind.lists} lists."
        )
    return index


def build(vectors: Vectors, path: Path, trained: Trained | None = None) -> None:
    """Write the index of `vectors` (n, d), n >= 0, rounded to float16, flat or of the trained kind; then open it again.

    Raises OperationError if a value is no finite float16, or if the file cannot be written or read back.
    """
    library = faiss()
    num_vectors, dimension = vectors.shape
    if trained is None:
        index = library.IndexScalarQuantizer(dimension, library.ScalarQuantizer.QT_fp16, library.METRIC_INNER_PRODUCT)
        lists = None
    else:
        index = read_trained(trained, dimension)
        lists = Lists(index, trained.kind)
    # Once: new pages take longer than the work.
    room = np.empty((min(ADDED_AT_ONCE, num_vectors), dimension), np.float32)
    for first in range(0, num_vectors, ADDED_AT_ONCE):
        some = vectors[first : first + ADDED_AT_ONCE]
        rounded = room[: len(some)]
        with np.errstate(over="ignore", invalid="ignore"):  # found by the next line
            rounded[:] = some.astype(np.float16, copy=False)
            total = rounded.sum()  # of finite float16 no sum is too large, and of others none is finite
        if not np.isfinite(total):
            line = first + int(np.flatnonzero(~np.isfinite(rounded).all(axis=1))[0])
            raise OperationError(f"Vector {line} for {path} has a value that is no finite float16.")
        if lists is None:
            index.add(rounded)
        else:
            own = lists.of(rounded)
            index.add_core(len(rounded), library.swig_ptr(rounded), None, library.swig_ptr(own))
    _write(index, path)
    read(path, dimension, num_vectors, trained)


class Lists:
    """The lists of a trained index, and which of them a vector belongs to: the one whose centroid scores best."""

    def __init__(self, index: Any, kind: Kind) -> None:
        self._index, self._quantizer = index, index.quantizer
        self._centroids = None if kind.links else self._quantizer.reconstruct_n(0, kind.lists).astype(np.float64)

    def of(self, vectors: Floats) -> Ints:
        """The list of each vector (n, d). A graph finds the same one for the same vector whatever is asked beside it."""
        if self._centroids is None or len(self._centroids) == 1:
            found: Ints = self._quantizer.search(vectors, 1)[1]
            return np.ascontiguousarray(found[:, 0])
        scores, lists = self._quantizer.search(vectors, 2)
        own = np.ascontiguousarray(lists[:, 0])
        for row in np.flatnonzero(scores[:, 0] - scores[:, 1] < NEAR):
            own[row] = np.argmax(self._centroids @ vectors[row].astype(np.float64))
        return own


def _write(index: Any, path: Path, with_centroids: bool = False) -> None:
    library = faiss()
    quantizer = getattr(index, "quantizer", None)
    if quantizer is not None and not with_centroids:
        index.quantizer = library.IndexFlatIP(index.d)  # FAISS reads no product quantizer without any
    with disk.writing(path), path.open("wb") as file:  # Python reports a full disk when it flushes; FAISS does not
        library.write_index(index, library.PyCallbackIOWriter(file.write))
        file.flush()
        os.fsync(file.fileno())
    if quantizer is not None:
        index.quantizer = quantizer  # whose owner frees it


def read(path: Path, dimension: int, num_vectors: int, trained: Trained | None = None) -> Any:
    """Open a segment's index, memory-mapped, and refuse it unless it is flat, or of the trained kind, with these numbers.

    One with lists comes without their centroids: the trained file has them.
    """
    kind = trained.kind if trained else Kind()
    index = _opened(path, num_vectors * kind.code_bytes(dimension))
    _refuse(path, _facts(index), _wanted(kind, dimension, num_vectors))
    return index


def _opened(path: Path, least_bytes: int, mapped: bool = True) -> Any:
    library = faiss()
    try:
        num_bytes = path.stat().st_size
        index = library.read_index(str(path), library.IO_FLAG_MMAP_IFC if mapped else 0)
    except (OSError, RuntimeError) as error:
        raise OperationError(f"The dense index {path} cannot be read: {error}") from error
    if num_bytes < least_bytes:
        raise OperationError(f"The dense index {path} has {num_bytes} bytes, too few for its {index.ntotal} vectors.")
    return index


def _refuse(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name, value in wanted.items():
        if found.get(name) != value:
            raise OperationError(f"The dense index {path} has {name} {found.get(name)}, not {value} as expected.")


def _facts(index: Any) -> dict[str, Any]:
    facts = {"kind": type(index).__name__, "dimension": index.d, "vectors": index.ntotal, "metric": index.metric_type}
    if hasattr(index, "sq"):
        facts["quantizer"] = index.sq.qtype
    if hasattr(index, "nlist"):
        facts |= {"lists": index.nlist, "code bytes": index.code_size, "residuals": index.by_residual}
        facts["trained"] = index.is_trained
    return facts


def _wanted(kind: Kind, dimension: int, num_vectors: int) -> dict[str, Any]:
    library = faiss()
    types = {"SQfp16": library.ScalarQuantizer.QT_fp16, "SQ8": library.ScalarQuantizer.QT_8bit}
    wanted = {"kind": "IndexScalarQuantizer", "dimension": dimension, "vectors": num_vectors}
    wanted["metric"] = library.METRIC_INNER_PRODUCT
    if kind.code in types:
        wanted["quantizer"] = types[kind.code]
    if kind.lists:
        is_scalar = kind.code in types
        wanted["kind"] = "IndexIVFScalarQuantizer" if is_scalar else "IndexIVFPQ"
        wanted |= {"lists": kind.lists, "code bytes": kind.code_bytes(dimension), "residuals": not is_scalar}
    return wanted


def first_difference(path: Path, vectors: Vectors, trained: Trained | None = None) -> int | None:
    """The first of `vectors` (n, d) that an index does not hold under its line's number; None if it holds them all.

    Codes are compared as bits: a NaN equals itself, and 0 is not -0. Raises OperationError if the index is not what is
    expected.
    """
    num_vectors, dimension = vectors.shape
    index = read(path, dimension, num_vectors, trained)
    if trained is None:
        stored = faiss().vector_to_array(index.codes).reshape(num_vectors, -1)
        codes = np.ascontiguousarray(vectors, np.float16).view(np.uint8).reshape(num_vectors, -1)
    else:
        stored, own = _stored_codes(index)
        codes = _codes(read_trained(trained, dimension), vectors, own)
    different = np.flatnonzero((stored != codes).any(axis=1))
    return int(different[0]) if len(different) else None


def _stored_codes(index: Any) -> tuple[npt.NDArray[np.uint8], Ints]:
    """The codes (n, bytes) by id and the list of each; what no list has is in list -1, with a code of zeros."""
    library = faiss()
    codes = np.zeros((index.ntotal, index.code_size), np.uint8)
    own = np.full(index.ntotal, -1, np.int64)
    for number in range(index.nlist):
        size = index.invlists.list_size(number)
        if size:
            ids = library.rev_swig_ptr(index.invlists.get_ids(number), size)
            if ids.min() < 0 or ids.max() >= index.ntotal:
                raise OperationError(f"List {number} of a dense index has ids outside its {index.ntotal} vectors.")
            flat = library.rev_swig_ptr(index.invlists.get_codes(number), size * index.code_size)
            codes[ids], own[ids] = flat.reshape(size, -1), number
    return codes, own


def _codes(index: Any, vectors: Vectors, own: Ints) -> npt.NDArray[np.uint8]:
    """What the vectors are in these lists; for a vector of list -1 ones, which no vector of zeros is."""
    library = faiss()
    codes = np.full((len(vectors), index.code_size), 255, np.uint8)
    for first in range(0, len(vectors), ADDED_AT_ONCE):
        part = np.ascontiguousarray(vectors[first : first + ADDED_AT_ONCE], np.float32)
        lists = np.ascontiguousarray(own[first : first + ADDED_AT_ONCE])
        out = np.zeros((len(part), index.code_size), np.uint8)
        index.encode_vectors(len(part), library.swig_ptr(part), library.swig_ptr(lists), library.swig_ptr(out))
        codes[first : first + len(part)] = np.where(lists[:, None] < 0, 255, out)
    return codes
