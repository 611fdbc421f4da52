"""What serving costs: `python benchmarks/serving.py [--chunks 20000 --per-segment 10000 --night 1000 --queries 200]`.

Generated documents (see `generated.py`), the fake embedder of 64 dimensions, real FAISS, Lucene and Parquet. Measured: import
and open in processes of their own, from a directory and from an S3 server on this machine (its part of the time is included),
with an empty cache and again; bytes that the second night fetches; searches by mode; a swap under a steady load of queries.
Memory: `anonymous` is what a process holds for itself, `mapped` what it has touched of files, which the system may drop.
"""

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import generated

from indexing import layout, manifest, serving
from indexing.storage import DirectoryStorage, Storage, open_storage

MODES = ("lexical", "dense", "hybrid")
RATE, THREADS = 50.0, 4
_CHILD = """
import json, re, sys, time
before = time.perf_counter()
from indexing import serving
imported = time.perf_counter() - before
def memory():
    status = open("/proc/self/status").read()
    return {name: int(re.search(name + r":\\s+(\\d+)", status)[1]) / 1024 for name in ("RssAnon", "RssFile")}
found = {"import_s": imported, "imported": memory()}
before = time.perf_counter()
corpus = serving.open(sys.argv[1])
found |= {"open_s": time.perf_counter() - before, "opened": memory()}
before = time.perf_counter()
corpus.search(sys.argv[2], 10)
found |= {"first_s": time.perf_counter() - before}
for query in sys.argv[3:]:
    corpus.search(query, 10)
print(json.dumps(found | {"served": memory()}))
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Make two nights, measure, print."""
    options = _options().parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, _s3_server() as endpoint:
        root = Path(folder)
        store, later = DirectoryStorage(root / "corpus"), root / "second-night.json"
        started = time.monotonic()
        generated.publish(store, options.chunks, options.per_segment)
        generated.publish(store, options.night, options.per_segment)
        (store.root / layout.manifest(2)).rename(later)
        print(
            f"{options.chunks:,} chunks and a night of {options.night:,} made in {time.monotonic() - started:.0f} s\n"
        )
        remote = open_storage(_bucket(endpoint))
        for entry in store.list():
            remote.put_file(entry.name, store.root / entry.name)
        _opening(store, remote, root)
        _second_night(remote, later, root)
        _searching(store, options.queries)
        _swapping(store, later, options.seconds)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=20_000)
    parser.add_argument("--per-segment", type=int, default=10_000)
    parser.add_argument("--night", type=int, default=1_000, help="chunks that the second night adds")
    parser.add_argument("--queries", type=int, default=200, help="of each mode")
    parser.add_argument("--seconds", type=float, default=10.0, help="of load, with the swap in its middle")
    return parser


def _opening(store: Storage, remote: Storage, root: Path) -> None:
    print(
        "| opened from | import s | open s | first search s | MB anonymous: imported | opened | after 100 | MB mapped |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, uri, cache in (
        ("directory, first time", store.uri, "of-directory"),
        ("directory, again", store.uri, "of-directory"),
        ("S3, empty cache", remote.uri, "of-s3"),
        ("S3, again", remote.uri, "of-s3"),
    ):
        command = [sys.executable, "-c", _CHILD, uri, *generated.queries(100)]
        environment = {**os.environ, "SITUATE_CACHE": str(root / cache), "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        cells = [f"{found[key]:.2f}" for key in ("import_s", "open_s", "first_s")]
        cells += [f"{found[key]['RssAnon']:.0f}" for key in ("imported", "opened", "served")]
        print(f"| {name} | {' | '.join(cells)} | {found['served']['RssFile']:.0f} |", flush=True)


class _Counting:
    """A store that counts the bytes that it hands out."""

    def __init__(self, storage: Storage) -> None:
        self._storage, self.uri, self.read = storage, storage.uri, 0

    def fetch(self, name: str, path: Path) -> Path:
        found = self._storage.fetch(name, path)
        self.read += found.stat().st_size
        return found

    def get(self, name: str) -> bytes:
        return self._counted(self._storage.get(name))

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        return self._counted(self._storage.get_range(name, offset, length))

    def _counted(self, data: bytes) -> bytes:
        self.read += len(data)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


def _second_night(remote: Storage, later: Path, root: Path) -> None:
    """What a serving process reads to follow: the new segment, but for its originals, and the manifest."""
    os.environ["SITUATE_CACHE"] = str(root / "of-night")
    counting: Any = _Counting(remote)
    corpus = serving.Corpus(counting)
    corpus.search("a question", 10)
    first, counting.read = counting.read, 0
    remote.put(layout.manifest(2), later.read_bytes())
    started = time.perf_counter()
    corpus.refresh()
    took = time.perf_counter() - started
    files = manifest.load(remote, 2).segments[-1].files
    new = sum(file.size_bytes for file in files if file.name != layout.ORIGINALS) + later.stat().st_size
    print(
        f"\nfirst night from S3: {first:,} bytes read; the second: {counting.read:,} in {took:.2f} s, of {new:,} that are new"
    )
    corpus.close()


def _searching(store: Storage, count: int) -> None:
    corpus = serving.open(store.uri)
    print("\n| mode | p50 ms | p95 ms |\n|---|---|---|")
    for mode in MODES:
        took = []
        for query in generated.queries(count + 20):
            started = time.perf_counter()
            corpus.search(query, 10, mode)
            took.append(1e3 * (time.perf_counter() - started))
        print(f"| {mode} | {statistics.median(took[20:]):.1f} | {_p95(took[20:]):.1f} |", flush=True)
    corpus.close()


def _swapping(store: DirectoryStorage, later: Path, seconds: float) -> None:
    """Queries at a steady rate from several threads; in the middle the second night is published and taken."""
    corpus, queries = serving.open(store.uri), generated.queries(100)
    for mode in MODES:
        corpus.search(queries[0], 10, mode)
    took: list[tuple[float, float]] = []
    failed: list[str] = []
    over = threading.Event()

    def ask(offset: int) -> None:
        due = time.monotonic() + offset / RATE
        for number in itertools.count(offset, THREADS):
            time.sleep(max(0.0, due - time.monotonic()))
            if over.is_set():
                return
            started = time.monotonic()
            try:
                corpus.search(queries[number % len(queries)], 10, MODES[number % 3])
                took.append((started, time.monotonic() - due))  # waiting for its turn included
            except Exception as error:  # noqa: BLE001 - counted
                failed.append(repr(error))
            due += THREADS / RATE

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    time.sleep(seconds / 2)
    (store.root / layout.manifest(2)).write_bytes(later.read_bytes())
    began = time.monotonic()
    assert corpus.refresh()
    ended = time.monotonic()
    time.sleep(seconds / 2)
    over.set()
    for thread in threads:
        thread.join()
    during = [1e3 * took_s for started, took_s in took if began <= started <= ended]
    besides = [1e3 * took_s for started, took_s in took if not began <= started <= ended]
    print(
        f"\nswap at {RATE:.0f} queries/s from {THREADS} threads: {len(took):,} answered, {len(failed)} failed; it took"
        f" {ended - began:.2f} s, in which {len(during)} queries had"
        f" p95 {_p95(during):.0f} ms; the others {_p95(besides):.0f} ms"
    )
    for reason in sorted(set(failed)):
        print(f"failed: {reason}")


def _p95(took: Sequence[float]) -> float:
    return statistics.quantiles(took, n=20)[-1] if len(took) > 1 else float("nan")


@contextlib.contextmanager
def _s3_server() -> Iterator[str]:
    """An S3 server in this process, and the environment that leads to it."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ.update({**endpoint, "AWS_ACCESS_KEY_ID": "dummy", "AWS_SECRET_ACCESS_KEY": "dummy"})
    try:
        yield endpoint["AWS_ENDPOINT_URL"]
    finally:
        server.stop()


def _bucket(endpoint: str) -> str:
    import urllib.request

    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/serving", method="PUT")).close()
    return "s3://serving/corpus"


if __name__ == "__main__":
    main()
