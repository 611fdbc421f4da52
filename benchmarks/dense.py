"""The dense index at size: `python benchmarks/dense.py --vectors 1000000 --dimension 384`.

Generated vectors in clusters, topic after topic, so that segments are skewed. Prints the kind that auto chooses; the time to
build it against plain FAISS with the same parameters and the same sample; its size, memory and time to load, with the file in
no cache and in the cache; p50 and p95 of searches for one query at a time; recall@10 against exact search; the same in
several segments, which must find the same vectors; and what segments with lists of their own find instead. Conditions:
this machine, float16 vectors in memory, files in --folder, queries are vectors of the corpus with noise.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from indexing import dense_files, dense_kind, recall, trained
from indexing.dense import DenseHit, DenseIndex
from indexing.dense_files import Trained
from indexing.dense_kind import Kind

K = 10
NOISE = 1.0  # length of what is added to a topic's unit vector: a vector has a score of about 0.7 with it
CHUNK = 65_536
MOST_INDEPENDENT = 100_000  # vectors for the comparison with lists of a segment's own, which trains once per segment


class Files(NamedTuple):
    """An index in segments: their files and numbers of vectors."""

    paths: list[Path]
    counts: list[int]

    def open(self, dimension: int, lists: Trained | None, nprobe: int) -> DenseIndex:
        named = [(str(number), path) for number, path in enumerate(self.paths)]
        return DenseIndex.open(named, dimension, self.counts, lists, nprobe)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vectors", type=int, default=100_000)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--topics", type=int, default=2000)
    parser.add_argument("--segments", type=int, default=7)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--kind", default="auto", help="auto, flat or a FAISS factory string")
    parser.add_argument("--iterations", type=int, help="of k-means by FAISS alone; default its own limit")
    parser.add_argument("--memory-gb", type=float)
    parser.add_argument("--folder", type=Path, help="for the files; default a temporary one")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.load:
        load(json.loads(options.load))
        return
    with tempfile.TemporaryDirectory(prefix="situate-dense-", dir=options.folder) as folder:
        report(options, Path(folder))


def report(options: argparse.Namespace, folder: Path) -> None:
    """All measurements, a line each."""
    vectors, queries = generate(options)
    budget = options.memory_gb * 1e9 if options.memory_gb else None
    asked = dense_kind.parse(options.kind)
    kind = dense_kind.choose(asked, len(vectors), options.dimension, budget, None)
    say("index", f"{kind} over {len(vectors):,} x {options.dimension} in {options.topics:,} topics")
    whole = Files([folder / "whole"], [len(vectors)])
    lists = build_both(vectors, kind, folder, whole.paths[0], options.iterations)
    say("bytes", f"{whole.paths[0].stat().st_size:,} and {shared_bytes(lists):,} shared")
    nprobe = measure(vectors, whole.paths[0], lists)
    exact = exact_scores(vectors, queries)
    load_apart(options, whole, lists, nprobe)
    index = whole.open(options.dimension, lists, nprobe)
    answers, seconds = ask(index, queries)
    say("recall@10 of the queries", f"{share_of_exact(vectors, queries, answers, exact):.3f}")
    say("search, 1 segment", times(seconds))
    cuts = [len(vectors) * n // options.segments for n in range(options.segments + 1)]
    parts = Files([folder / f"part-{n}" for n in range(options.segments)], np.diff(cuts).tolist())
    for path, first, last in zip(parts.paths, cuts, cuts[1:], strict=False):
        dense_files.build(vectors[first:last], path, lists)
    compare_segments(options, index, parts.open(options.dimension, lists, nprobe), queries, cuts)
    if lists is not None:
        compare_independent(options, vectors, queries, folder)


def generate(options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Float16 vectors, topic after topic, and float32 queries near some of them; unit length."""
    random = np.random.default_rng(dense_files.SEED)
    centres = unit(random.standard_normal((options.topics, options.dimension), dtype=np.float32))
    topics = np.sort(random.integers(0, options.topics, options.vectors))
    vectors = np.empty((options.vectors, options.dimension), np.float16)
    for first in range(0, options.vectors, CHUNK):
        own = centres[topics[first : first + CHUNK]]
        vectors[first : first + CHUNK] = unit(own + noise(random, own.shape, NOISE))
    chosen = vectors[random.integers(0, options.vectors, options.queries)].astype(np.float32)
    return vectors, unit(chosen + noise(random, chosen.shape, NOISE / 2))


def noise(random: np.random.Generator, shape: tuple[int, ...], length: float) -> np.ndarray:
    return random.standard_normal(shape, dtype=np.float32) * np.float32(length / np.sqrt(shape[1]))


def unit(vectors: np.ndarray) -> np.ndarray:
    lengths: np.ndarray = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / lengths, np.float32)


def build_both(vectors: np.ndarray, kind: Kind, folder: Path, path: Path, iterations: int | None) -> Trained | None:
    """Build ours and plain FAISS's, and say what each took; both write a file."""
    lists, sample, parts = None, None, {}
    began = time.perf_counter()
    if kind.lists:
        found = trained.sample([vectors], len(vectors), dense_kind.TRAINED_PER_LIST * kind.lists)
        sample, parts["sample"] = found.vectors, time.perf_counter() - began
        lists = Trained(folder / "trained", kind)
        dense_files.train(sample, kind, lists.path)
        parts["train"] = time.perf_counter() - began - parts["sample"]
    added = time.perf_counter()
    dense_files.build(vectors, path, lists)
    parts["add"] = time.perf_counter() - added
    ours = time.perf_counter() - began
    raw = build_raw(vectors, kind, sample, folder / "raw", iterations)
    say("build", f"{ours:.1f} s ({spelt(parts)})")
    say("build, plain FAISS", f"{sum(raw.values()):.1f} s ({spelt(raw)}); ratio {ours / sum(raw.values()):.2f}")
    (folder / "raw").unlink()
    return lists


def build_raw(
    vectors: np.ndarray, kind: Kind, sample: np.ndarray | None, path: Path, iterations: int | None
) -> dict[str, float]:
    """The same parameters by FAISS alone: seconds by part. It does 10 iterations of k-means unless nothing changes before."""
    import faiss

    parts, began = {}, time.perf_counter()
    index = faiss.index_factory(vectors.shape[1], str(kind), faiss.METRIC_INNER_PRODUCT)
    if sample is not None:
        if not kind.code.startswith("PQ"):
            index.by_residual = False
        index.cp.niter = iterations or index.cp.niter
        index.train(sample.astype(np.float32))
        parts["train"] = time.perf_counter() - began
    added = time.perf_counter()
    for first in range(0, len(vectors), CHUNK):
        index.add(vectors[first : first + CHUNK].astype(np.float32))
    faiss.write_index(index, str(path))
    with path.open("rb") as file:
        os.fsync(file.fileno())  # ours does
    return {**parts, "add": time.perf_counter() - added}


def spelt(parts: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.1f}" for name, seconds in parts.items())


def shared_bytes(lists: Trained | None) -> int:
    return lists.path.stat().st_size if lists else 0


def measure(vectors: np.ndarray, path: Path, lists: Trained | None) -> int:
    """What the manifest would say: the lists to look at and the recall with them."""
    if lists is None:
        return 1
    sample = trained.sample([vectors], len(vectors), trained.QUERIES)
    began = time.perf_counter()
    recalls = recall.merged([recall.measure_file(path, vectors, lists, sample.queries)])
    nprobe, found = recall.pick(recalls, 0.0)
    seconds = time.perf_counter() - began
    say("recall@10 in the manifest", f"{found:.3f} with {nprobe} lists, measured in {seconds:.1f} s")
    say("recall@10 by lists", ", ".join(f"{number}: {value:.3f}" for number, value in recalls.items()))
    return nprobe


def exact_scores(vectors: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """The tenth best exact score of each query."""
    best = np.full((len(queries), K), -np.inf, np.float32)
    for first in range(0, len(vectors), CHUNK):
        scores = queries @ vectors[first : first + CHUNK].astype(np.float32).T
        best = np.partition(np.concatenate([best, scores], axis=1), -K, axis=1)[:, -K:]
    tenth: np.ndarray = best.min(axis=1)
    return tenth


def share_of_exact(vectors: np.ndarray, queries: np.ndarray, answers: list[list[DenseHit]], tenth: np.ndarray) -> float:
    """The share of hits whose exact score is as good as the tenth."""
    good = [
        np.sum(vectors[[hit.vector for hit in hits[:K]]].astype(np.float32) @ query >= last - 1e-6) / K
        for hits, query, last in zip(answers, queries, tenth, strict=True)
    ]
    return float(np.mean(good))


def ask(index: DenseIndex, queries: np.ndarray) -> tuple[list[list[DenseHit]], list[float]]:
    """One query at a time, the first of them twice: answers and seconds."""
    answers, seconds = [], []
    index.search(queries[:1], K)
    for query in queries:
        began = time.perf_counter()
        answers += index.search(query[None], K)
        seconds.append(time.perf_counter() - began)
    return answers, seconds


def times(seconds: Sequence[float]) -> str:
    p50, p95 = np.percentile(seconds, [50, 95]) * 1000
    return f"p50 {p50:.2f} ms, p95 {p95:.2f} ms"


def compare_segments(
    options: argparse.Namespace, whole: DenseIndex, parts: DenseIndex, queries: np.ndarray, cuts: list[int]
) -> None:
    """Rounds of both, one after the other, so that whatever else the machine does meets both."""
    taken: dict[str, list[float]] = {"whole": [], "parts": []}
    same = []
    for _ in range(5):
        answers, seconds = ask(whole, queries)
        taken["whole"] += seconds
        others, seconds = ask(parts, queries)
        taken["parts"] += seconds
        same = [placed(a, cuts) == placed(b, cuts) for a, b in zip(answers, others, strict=True)]
    ratio = np.median(taken["parts"]) / np.median(taken["whole"])
    say(f"search, {options.segments} segments", f"{times(taken['parts'])}; p50 ratio {ratio:.2f}")
    say("same vectors and scores", f"{sum(same)} of {len(same)} queries")


def placed(hits: list[DenseHit], cuts: list[int]) -> set[tuple[int, float]]:
    return {(cuts[int(hit.segment_id)] + hit.vector, hit.score) for hit in hits}


def compare_independent(options: argparse.Namespace, vectors: np.ndarray, queries: np.ndarray, folder: Path) -> None:
    """Every segment with lists of its own, merged by score: how many of the ten are those of one index."""
    step = -(-len(vectors) // MOST_INDEPENDENT)
    some = np.ascontiguousarray(vectors[::step])
    cuts = [len(some) * n // options.segments for n in range(options.segments + 1)]
    kind = Kind(max(1, len(some) // (options.segments * 2 * dense_kind.TRAINED_PER_LIST)))
    nprobe = max(1, kind.lists // 16)

    def answered(first: int, last: int, name: str) -> list[list[tuple[float, int]]]:
        lists, path = Trained(folder / f"trained-{name}", kind), folder / name
        size = dense_kind.TRAINED_PER_LIST * kind.lists
        dense_files.train(trained.sample([some[first:last]], last - first, size).vectors, kind, lists.path)
        dense_files.build(some[first:last], path, lists)
        index = Files([path], [last - first]).open(options.dimension, lists, nprobe)
        return [[(hit.score, first + hit.vector) for hit in hits] for hits in index.search(queries, K)]

    one = answered(0, len(some), "one")
    own = [answered(a, b, f"own-{a}") for a, b in zip(cuts, cuts[1:], strict=False)]
    shares = []
    for number, hits in enumerate(one):
        merged = sorted((hit for part in own for hit in part[number]), reverse=True)[:K]
        shares.append(len({hit[1] for hit in merged} & {hit[1] for hit in hits[:K]}) / K)
    exactly = sum(share == 1 for share in shares)
    say(
        "lists of each segment's own",
        f"{np.mean(shares):.1%} of the ten shared with one index, all ten for {exactly} of {len(shares)} queries"
        f" ({kind}, {nprobe} lists, {len(some):,} vectors)",
    )


def load_apart(options: argparse.Namespace, files: Files, lists: Trained | None, nprobe: int) -> None:
    """Open the index in a new process and search once: first with its files in no cache, then with them in it."""
    given = {
        "paths": [str(path) for path in files.paths],
        "counts": files.counts,
        "dimension": options.dimension,
        "trained": [str(lists.path), str(lists.kind)] if lists else None,
        "nprobe": nprobe,
    }
    for state in ("cold", "warm"):
        for path in (*files.paths, *([lists.path] if lists else [])):
            if state == "cold":
                forget(path)
        command = [sys.executable, __file__, "--load", json.dumps(given)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        say(f"load, {state}", ", ".join(f"{name} {value}" for name, value in found.items()))


def forget(path: Path) -> None:
    """Have the system drop a file from its cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def load(given: dict[str, Any]) -> None:
    """In a process of its own: open, search, say what it took."""
    before = dict(memory())
    lists = None
    if given["trained"]:
        kind = dense_kind.parse(given["trained"][1])
        assert kind is not None
        lists = Trained(Path(given["trained"][0]), kind)
    dense_files.faiss()
    began = time.perf_counter()
    index = Files([Path(path) for path in given["paths"]], given["counts"]).open(
        given["dimension"], lists, given["nprobe"]
    )
    opened = time.perf_counter()
    queries = unit(np.random.default_rng(1).standard_normal((100, given["dimension"]), dtype=np.float32))
    index.search(queries[:1], K)
    first = time.perf_counter()
    index.search(queries, K)
    found = {"open": f"{opened - began:.3f} s", "first search": f"{first - opened:.3f} s"}
    found |= {name: f"+{(value - before[name]) / 1e6:.0f} MB" for name, value in memory()}
    print(json.dumps(found))


def memory() -> Iterator[tuple[str, int]]:
    """This process's own memory, and what it has of files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("RssAnon", "RssFile"):
            yield {"RssAnon": "memory", "RssFile": "mapped"}[name], int(value.split()[0]) * 1024


def say(what: str, found: str) -> None:
    print(f"{what:28} {found}", flush=True)


if __name__ == "__main__":
    main()
