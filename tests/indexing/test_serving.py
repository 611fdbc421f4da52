"""A corpus that serves: a newer snapshot is taken whole, a broken one refused, and no query is dropped meanwhile."""

import gc
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from enrichment.errors import ConfigError, OperationError
from indexing import layout, local_files, manifest, serving
from indexing.local_files import LocalFiles
from indexing.search import Mode
from indexing.snapshot import Snapshot
from indexing.storage import DirectoryStorage, Storage, open_storage

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))  # a folder of commands, no package

import generated  # noqa: E402

MODES: tuple[Mode, ...] = ("hybrid", "dense", "lexical")


@pytest.fixture(scope="session")
def two_nights(tmp_path_factory: pytest.TempPathFactory) -> DirectoryStorage:
    """200 chunks in one segment, then 50 more in another. Made once; do not write to it."""
    storage = DirectoryStorage(tmp_path_factory.mktemp("nights") / "corpus")
    generated.publish(storage, 200, 200)
    generated.publish(storage, 50, 50)
    return storage


@pytest.fixture
def evening(two_nights: DirectoryStorage, tmp_path: Path) -> DirectoryStorage:
    """A copy in which the second night is not published yet: its files lie there, its manifest does not."""
    root = tmp_path / "corpus"
    shutil.copytree(two_nights.root, root)
    (root / layout.manifest(2)).unlink()
    return DirectoryStorage(root)


def publish(two_nights: DirectoryStorage, storage: Storage) -> None:
    """The commit of the second night."""
    storage.put(layout.manifest(2), two_nights.get(layout.manifest(2)))


def to_s3(source: DirectoryStorage, uri: str, skip: str = "") -> Storage:
    """Copy a corpus to a bucket, without the names that begin with `skip`."""
    target = open_storage(uri)
    for entry in source.list():
        if not skip or not entry.name.startswith(skip):
            target.put_file(entry.name, source.root / entry.name)
    return target


def answers(corpus: serving.Corpus | Snapshot, queries: list[str]) -> list[list[tuple[str, int, float]]]:
    return [
        [(passage.document_id, passage.start, passage.score) for passage in corpus.search(query, 5, mode)]
        for query in queries
        for mode in MODES
    ]


def test_refresh_takes_a_newer_snapshot_and_says_so(evening: DirectoryStorage, two_nights: DirectoryStorage) -> None:
    corpus, queries = serving.open(str(evening.root)), generated.queries(5)
    old = answers(corpus, queries)
    assert corpus.refresh() is False and corpus.manifest.sequence == 1
    publish(two_nights, evening)
    assert answers(corpus, queries) == old  # until it is asked to refresh
    assert corpus.refresh() is True and corpus.manifest.sequence == 2
    assert corpus.refresh() is False
    new = answers(corpus, queries)
    assert new == answers(serving.open(str(two_nights.root)), queries) != old


def test_a_snapshot_opened_by_its_number_stays(evening: DirectoryStorage, two_nights: DirectoryStorage) -> None:
    corpus = serving.open(str(evening.root), 1)
    publish(two_nights, evening)
    assert corpus.refresh() is False and corpus.manifest.sequence == 1
    with pytest.raises(ConfigError, match="no snapshot 9"):
        serving.open(str(evening.root), 9)


NEW_FILES = (
    layout.DOCUMENTS,
    layout.ORIGINALS,
    layout.ROWS,
    layout.VECTORS,
    layout.DENSE,
    "lexical/segments_1",
    "lexical/_0.cfs",
)


def kinds_of(storage: DirectoryStorage, segment_id: str) -> list[str]:
    """Every file of a segment by its name in it."""
    return [entry.name.partition(segment_id + "/")[2] for entry in storage.list(layout.segment(segment_id, ""))]


@pytest.mark.parametrize("asked", [(), ("lexical",), ("hybrid",)], ids=["nothing", "lexical", "hybrid"])
@pytest.mark.parametrize("remote", [False, True], ids=["directory", "s3"])
def test_a_broken_newer_snapshot_is_refused_by_name_and_the_old_one_answers(
    evening: DirectoryStorage,
    two_nights: DirectoryStorage,
    s3_bucket: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    remote: bool,
    asked: tuple[Mode, ...],
) -> None:
    """A bit flipped in each file of the new segment and in the manifest, whatever was asked before."""
    monkeypatch.setenv("SITUATE_CACHE", str(tmp_path / "cache"))
    store: Storage = to_s3(evening, s3_bucket()) if remote else evening
    corpus, query = serving.open(store.uri), generated.queries(1)[0]
    old = [corpus.search(query, 5, mode) for mode in asked]
    publish(two_nights, store)
    new = manifest.load(store, 2).segments[-1].id
    names = [layout.segment(new, name) for name in kinds_of(two_nights, new)]
    assert len(names) > 10
    if remote:
        names.remove(layout.segment(new, layout.ORIGINALS))  # the next test
    for name in (*names, layout.manifest(2)):
        data = store.get(name)
        broken = bytearray(data)
        broken[len(data) // 2] ^= 1
        store.put(name, bytes(broken))
        with pytest.raises(OperationError, match=name.replace("/", ".")):
            corpus.refresh()
        assert corpus.manifest.sequence == 1
        assert [corpus.search(query, 5, mode) for mode in asked] == old
        store.put(name, data)
    assert corpus.refresh() is True


def test_a_broken_original_on_s3_is_refused_when_it_is_read(
    two_nights: DirectoryStorage, s3_bucket: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Remote originals are not fetched whole, so each document is verified by itself."""
    monkeypatch.setenv("SITUATE_CACHE", str(tmp_path / "cache"))
    store = to_s3(two_nights, s3_bucket())
    name = layout.segment(manifest.load(store, 2).segments[-1].id, layout.ORIGINALS)
    data = bytearray(store.get(name))
    data[100] ^= 1
    store.put(name, bytes(data))
    corpus = serving.open(store.uri)
    with pytest.raises(
        OperationError, match="originals.bin does not hold the text of night-0002/document-000000000.md"
    ):
        corpus.original("night-0002/document-000000000.md")
    assert corpus.original("night-0002/document-000000010.md") and corpus.original("night-0001/document-000000000.md")


def test_a_missing_file_of_a_newer_snapshot_is_refused_by_name(
    evening: DirectoryStorage, two_nights: DirectoryStorage
) -> None:
    corpus = serving.open(str(evening.root))
    publish(two_nights, evening)
    name = layout.segment(manifest.load(evening, 2).segments[-1].id, layout.DENSE)
    evening.delete(name)
    with pytest.raises(OperationError, match=f"{name} is missing"):
        corpus.refresh()
    assert corpus.search("a", 1, "dense")


class Askers:
    """Threads that search all the while: every answer that came, and every failure."""

    def __init__(self, corpus: serving.Corpus, queries: list[str], threads: int, per_second: float) -> None:
        self.corpus, self.queries = corpus, queries
        self.seen: list[tuple[int, Any]] = []
        self.failures: list[BaseException] = []
        self._over = threading.Event()
        self._pause = threads / per_second
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(threads)]

    def __enter__(self) -> "Askers":
        self.started = time.monotonic()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self.seconds = time.monotonic() - self.started

    def _ask(self, offset: int) -> None:
        due = time.monotonic()
        for number in itertools.count(offset):
            if self._over.is_set():
                return
            query, mode = self.queries[number % len(self.queries)], MODES[number % 3]
            try:
                found = self.corpus.search(query, 5, mode)
            except BaseException as error:  # noqa: BLE001 - the count of these is what is tested
                self.failures.append(error)
            else:
                said = tuple((p.document_id, p.start, p.text, p.score) for p in found)
                self.seen.append((number % (3 * len(self.queries)), said))
            due = max(due + self._pause, time.monotonic() - 1)
            time.sleep(max(0.0, due - time.monotonic()))


def test_a_swap_under_load_drops_no_query_and_mixes_no_answer(
    evening: DirectoryStorage, two_nights: DirectoryStorage
) -> None:
    """Four threads, more than 50 queries a second: every answer is the old snapshot's or the new one's, and none fails."""
    corpus, queries = serving.open(str(evening.root)), generated.queries(20)
    whole = {}
    for night, opened in ((1, serving.open(str(evening.root), 1)), (2, serving.open(str(two_nights.root), 2))):
        for number in range(3 * len(queries)):
            found = opened.search(queries[number % len(queries)], 5, MODES[number % 3])
            whole[night, number] = tuple((p.document_id, p.start, p.text, p.score) for p in found)
    with Askers(corpus, queries, threads=4, per_second=100) as askers:
        wait_for(lambda: len(askers.seen) > 50)
        publish(two_nights, evening)
        assert corpus.refresh() is True
        swapped = len(askers.seen)
        wait_for(lambda: len(askers.seen) > swapped + 100)
    assert not askers.failures
    assert len(askers.seen) / askers.seconds >= 50
    sorts = [{night for night in (1, 2) if whole[night, number] == said} for number, said in askers.seen]
    assert all(sorts)  # each is whole: of one night, or the same in both
    assert {2} not in sorts[:50] and {1} in sorts and {2} in sorts
    assert sorts[swapped:].count({1}) <= 4, "each thread was asking at most one question of the old one"


def wait_for(what: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "nothing happened"
        time.sleep(0.01)


def test_what_is_replaced_is_closed_after_its_last_user_and_forgotten(
    evening: DirectoryStorage, two_nights: DirectoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    monkeypatch.setattr(Snapshot, "close", close_and_note(closed))
    corpus = serving.open(str(evening.root))
    first = corpus.search("a", 1)
    corpus.original("night-0001/document-000000000.md")
    publish(two_nights, evening)
    with corpus.using() as outer:
        with corpus.using() as inner:
            assert corpus.refresh() is True
            assert inner is outer and inner.manifest.sequence == 1
        assert closed == [] and inner.search("a", 1) == first
    assert closed == [1]
    gone = weakref.ref(outer)
    del inner, outer
    gc.collect()
    assert gone() is None  # nothing keeps a snapshot that is not served: it holds files and memory
    corpus.close()
    assert closed == [1, 2]
    with pytest.raises(OperationError, match="was closed; open it again"):
        corpus.search("a", 1)


def close_and_note(closed: list[int]) -> Callable[[Snapshot], None]:
    close = Snapshot.close

    def noted(snapshot: Snapshot) -> None:
        closed.append(snapshot.manifest.sequence)
        close(snapshot)

    return noted


def test_a_snapshot_nobody_used_is_closed_too(evening: DirectoryStorage, two_nights: DirectoryStorage) -> None:
    corpus = serving.open(str(evening.root))
    gone = weakref.ref(corpus._current)
    publish(two_nights, evening)
    corpus.refresh()
    gc.collect()
    assert gone() is None


def test_a_refused_snapshot_leaves_no_files_open(evening: DirectoryStorage, two_nights: DirectoryStorage) -> None:
    corpus = serving.open(str(evening.root))
    corpus.search("a", 1)
    publish(two_nights, evening)
    name = layout.segment(manifest.load(evening, 2).segments[-1].id, layout.DENSE)
    evening.put(name, evening.get(name)[::-1])
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(OperationError):
            corpus.refresh()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


CHILD = """
import json, sys
from indexing import serving
sys.stdin.readline()
corpus = serving.open(sys.argv[1])
found = [corpus.search(sys.argv[2], 5, mode) for mode in ("hybrid", "dense", "lexical")]
print(json.dumps([passage.document_id for passages in found for passage in passages]))
"""


def test_processes_that_open_the_same_remote_corpus_at_once_all_succeed(
    two_nights: DirectoryStorage, s3_bucket: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One cache, cold, three times over: nobody takes away the file that another has just verified."""
    uri, query = s3_bucket(), generated.queries(1)[0]
    to_s3(two_nights, uri)
    wanted = [p.document_id for mode in MODES for p in serving.open(str(two_nights.root)).search(query, 5, mode)]
    for attempt in range(3):
        environment = {**os.environ, "SITUATE_CACHE": str(tmp_path / f"cache-{attempt}")}
        command = [sys.executable, "-c", CHILD, uri, query]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        children = [subprocess.Popen(command, env=environment, **pipes) for _ in range(2)]  # type: ignore[call-overload]
        for child in children:
            child.stdin.write("\n")
            child.stdin.flush()
        for child in children:
            output, errors = child.communicate(timeout=120)
            assert child.returncode == 0, errors
            assert json.loads(output) == wanted
        assert not list((tmp_path / f"cache-{attempt}").rglob("fetching/*"))


def test_a_file_in_use_is_never_taken_away(
    two_nights: DirectoryStorage, s3_bucket: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interleaving that the processes meet rarely: another one finds no copy, and this one finishes its own first."""
    monkeypatch.setenv("SITUATE_CACHE", str(tmp_path / "cache"))
    store = to_s3(two_nights, s3_bucket())
    segment = manifest.load(store, 2).segments[0]
    mine, theirs = LocalFiles(store), LocalFiles(store)
    held, replace = theirs._storage.fetch, os.replace
    paths: list[Path] = []
    opened: list[int] = []

    def fetch(name: str, path: Path) -> Path:
        paths.append(mine.named(segment, layout.DENSE))
        opened.append(paths[0].stat().st_ino)
        return held(name, path)

    def replaced(fetched: Path, cached: Path) -> None:
        if opened:
            assert cached.stat().st_ino == opened[0]
        replace(fetched, cached)

    monkeypatch.setattr(os, "replace", replaced)
    theirs._storage = type("Slow", (), {"fetch": staticmethod(fetch), "uri": store.uri})()
    assert theirs.named(segment, layout.DENSE) == paths[0] and paths[0].is_file()


def test_a_half_fetched_file_is_no_commit_of_lucenes_and_is_swept_up(
    two_nights: DirectoryStorage, s3_bucket: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SITUATE_CACHE", str(tmp_path / "cache"))
    store = to_s3(two_nights, s3_bucket())
    segment = manifest.load(store, 2).segments[0]
    fetched: list[Path] = []
    fetch = store.fetch
    monkeypatch.setattr(store, "fetch", lambda name, path: fetched.append(path) or fetch(name, path))
    folder = LocalFiles(store).below(segment, layout.LEXICAL)
    assert all(path.parent.name == "fetching" for path in fetched)
    old, young = fetched[0].with_name("old"), fetched[0].with_name("young")
    for path in (old, young):
        path.touch()
    os.utime(old, (time.time() - 2 * 86_400,) * 2)
    LocalFiles(store).named(segment, layout.DENSE)
    assert not old.exists() and young.exists() and (folder / "segments_1").is_file()


def test_the_second_night_fetches_only_its_new_files(
    evening: DirectoryStorage,
    two_nights: DirectoryStorage,
    s3_bucket: Callable[[], str],
    s3_faults: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SITUATE_CACHE", str(tmp_path / "cache"))
    store = to_s3(evening, s3_bucket())
    corpus = serving.open(store.uri)
    query = generated.queries(1)[0]
    corpus.search(query, 5)
    publish(two_nights, store)
    second = manifest.load(store, 2)
    s3_faults.reset()
    corpus.refresh()
    corpus.search(query, 5)
    read = [path for method, path, _ in s3_faults.requests if method == "GET" and "/segments/" in path]
    old, new = (segment.id for segment in second.segments)
    wanted = {name for name in kinds_of(two_nights, new) if name != layout.ORIGINALS}
    whole = [path.partition(new + "/")[2] for path in read if layout.ORIGINALS not in path]
    assert sorted(whole) == sorted(wanted)  # each once
    assert not [path for path in read if old in path and layout.ORIGINALS not in path]
    s3_faults.reset()
    serving.open(store.uri).search(query, 5)  # warm: another process's open of the same snapshot
    read = [path for method, path, _ in s3_faults.requests if method == "GET" and "/segments/" in path]
    assert all(layout.ORIGINALS in path for path in read)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the files that were hashed, in order."""
    names: list[str] = []
    hash_of = local_files.file_sha256

    def noted(path: Path) -> str:
        names.append(path.name)
        return hash_of(path)

    monkeypatch.setattr(local_files, "file_sha256", noted)
    yield names


def test_a_verified_file_is_hashed_again_only_when_it_changed(
    evening: DirectoryStorage, two_nights: DirectoryStorage, hashed: list[str]
) -> None:
    corpus = serving.open(str(evening.root))
    corpus.search("a", 1)
    first = manifest.load(evening, 1).segments[0].id
    assert sorted(hashed) == sorted(Path(name).name for name in kinds_of(evening, first))
    hashed.clear()
    publish(two_nights, evening)
    corpus.refresh()
    second = manifest.load(evening, 2).segments[1].id
    assert sorted(hashed) == sorted(Path(name).name for name in kinds_of(evening, second))
    hashed.clear()
    path = evening.root / layout.segment(first, layout.ORIGINALS)
    os.utime(path)  # touched
    assert corpus.original("night-0001/document-000000000.md") and hashed == [layout.ORIGINALS]
    path.write_bytes(path.read_bytes().replace(b"a", b"b", 1))  # changed in place
    with pytest.raises(OperationError, match="originals.bin differs from its manifest"):
        corpus.original("night-0001/document-000000000.md")


def test_what_was_refused_is_not_remembered_as_good(evening: DirectoryStorage, hashed: list[str]) -> None:
    segment = manifest.load(evening, 1).segments[0]
    path, files = evening.root / layout.segment(segment.id, layout.DENSE), LocalFiles(evening)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    for _ in range(2):
        with pytest.raises(OperationError, match="differs"):
            files.named(segment, layout.DENSE)
    path.write_bytes(data)
    assert files.named(segment, layout.DENSE) == path
    assert hashlib.sha256(data).hexdigest() == next(f.sha256 for f in segment.files if f.name == layout.DENSE)


def test_an_open_snapshot_holds_no_rows_in_memory(tmp_path: Path, no_lexical: None) -> None:
    """Three segments' rows take less than 60 bytes each more memory than one's; held as Arrow tables they take 606."""
    sizes = (20_000, 60_000)
    small, large = (resident_after_open(tmp_path / str(chunks), chunks) for chunks in sizes)
    assert large - small < 60 * (sizes[1] - sizes[0])


def resident_after_open(root: Path, chunks: int) -> int:
    """Anonymous memory in bytes held by a process that has opened a snapshot of so many chunks and read a document's rows.

    What is freed and not yet given back, 10 MB more or less from run to run in pools of each thread's own, is given back
    first: one pool, of the C library, which can.
    """
    store = DirectoryStorage(root)
    generated.publish(store, chunks, 20_000, embed=False)
    code = (
        "import sys, re, ctypes; from indexing import serving\n"
        "corpus = serving.open(sys.argv[1])\n"
        "rows = corpus.rows('night-0001/document-000000500.md')\n"
        "assert len(rows) == 10 and rows[3]['context'] and corpus.original('night-0001/document-000000500.md')\n"
        "ctypes.CDLL(None).malloc_trim(0)\n"
        "print(re.search(r'RssAnon:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    )
    command = [sys.executable, "-c", code, str(root)]
    pools = os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
    return 1024 * int(subprocess.run(command, capture_output=True, text=True, check=True, env=pools).stdout)
