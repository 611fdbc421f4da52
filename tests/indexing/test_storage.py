"""One set of tests over a directory and over S3 (moto's server on loopback); then what only a directory promises."""

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from enrichment.errors import ConfigError, OperationError
from indexing.storage import DirectoryStorage, MissingObjectError, Storage, open_storage

ODD_NAMES = [
    "a b/c+d.txt",
    "percent%20/%2e%2e",
    "hash#question?&amp;=.bin",
    "quotes'\"<x>.xml",
    "\u00e9/\u4e2d\u6587/\U0001f600",
    "new\nline",
    "back\\slash",
    "tilde~(1)[2]{3}",
    "...",
]


@pytest.fixture
def directory(tmp_path: Path) -> DirectoryStorage:
    return DirectoryStorage(tmp_path / "store")


def test_what_is_put_is_got_whole_and_replaced_whole(storage: Storage) -> None:
    for data in (b"first, and longer", b"second", b"", bytes(range(256))):
        storage.put("a/b/c.bin", data)
        assert storage.get("a/b/c.bin") == data
    assert [entry.size_bytes for entry in storage.list()] == [256]


def test_a_range_is_exactly_the_bytes_asked_for(storage: Storage) -> None:
    storage.put("range", bytes(range(100)))
    assert storage.get_range("range", 0, 100) == bytes(range(100))
    assert storage.get_range("range", 7, 3) == bytes([7, 8, 9])
    assert storage.get_range("range", 99, 1) == bytes([99])
    assert storage.get_range("range", 40, 0) == b""


@pytest.mark.parametrize(("offset", "length"), [(95, 6), (0, 101), (100, 1), (500, 10)])
def test_a_range_beyond_the_end_is_refused_by_name(storage: Storage, offset: int, length: int) -> None:
    storage.put("some/range", bytes(100))
    with pytest.raises(OperationError, match="some/range"):
        storage.get_range("some/range", offset, length)


def test_a_missing_object_is_named(storage: Storage) -> None:
    with pytest.raises(MissingObjectError, match="not/there does not exist"):
        storage.get("not/there")
    with pytest.raises(MissingObjectError, match="not/there does not exist"):
        storage.get_range("not/there", 0, 1)
    assert list(storage.list("not/")) == []
    storage.delete("not/there")


def test_a_listing_is_sorted_by_name_and_cut_at_the_prefix(storage: Storage) -> None:
    names = ["b/10", "b/9", "b/A", "b/a", "b/\u00e9", "b/sub/x", "b", "bb/1", "a/b/c", "b-1"]
    for name in names[:1] + names[1:6] + names[7:]:  # in a directory `b` cannot be a file too
        storage.put(name, name.encode())
    put = sorted(set(names) - {"b"})
    assert [entry.name for entry in storage.list()] == put
    assert [entry.name for entry in storage.list("b/")] == ["b/10", "b/9", "b/A", "b/a", "b/sub/x", "b/\u00e9"]
    assert [entry.name for entry in storage.list("b/s")] == ["b/sub/x"]
    assert [entry.name for entry in storage.list("b")] == [name for name in put if name.startswith("b")]
    assert {entry.name: entry.size_bytes for entry in storage.list()} == {n: len(n.encode()) for n in put}


def test_more_objects_than_one_answer_holds_are_all_listed(
    s3_bucket: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage(s3_bucket())
    names = [f"many/{number:04d}" for number in range(25)]
    for name in names:
        storage.put(name, b"x")
    pages = storage._client.get_paginator("list_objects_v2")
    paginate, answers = pages.paginate, []

    def in_small_pages(**arguments: object) -> object:
        for page in paginate(**arguments, PaginationConfig={"PageSize": 10}):
            answers.append(page)
            yield page

    monkeypatch.setattr(pages, "paginate", in_small_pages)
    monkeypatch.setattr(storage._client, "get_paginator", lambda operation: pages)
    assert [entry.name for entry in storage.list("many/")] == names
    assert len(answers) == 3


def test_an_object_is_created_only_once(storage: Storage) -> None:
    assert storage.create("manifests/1", b"first")
    assert not storage.create("manifests/1", b"second")
    assert storage.get("manifests/1") == b"first"
    storage.delete("manifests/1")
    assert storage.create("manifests/1", b"third")
    assert storage.get("manifests/1") == b"third"


def test_a_deleted_object_is_gone_and_its_neighbours_stay(storage: Storage) -> None:
    for name in ("x/y/1", "x/y/2", "x/z"):
        storage.put(name, b"1")
    storage.delete("x/y/1")
    storage.delete("x/y/1")
    assert [entry.name for entry in storage.list()] == ["x/y/2", "x/z"]
    storage.delete("x/y/2")
    assert [entry.name for entry in storage.list()] == ["x/z"]
    storage.put("x/y/3", b"again")
    assert storage.get("x/y/3") == b"again"


def test_a_file_goes_in_and_comes_out_unchanged(storage: Storage, tmp_path: Path) -> None:
    source = tmp_path / "source.bin"
    source.write_bytes(os.urandom(300_000))
    storage.put_file("deep/er/file", source)
    assert storage.get("deep/er/file") == source.read_bytes()
    fetched = storage.fetch("deep/er/file", tmp_path / "new" / "place" / "file")
    assert fetched.read_bytes() == source.read_bytes()
    assert storage.get_range("deep/er/file", 299_990, 10) == source.read_bytes()[-10:]


def test_a_missing_file_is_named_by_what_reads_it(storage: Storage, tmp_path: Path) -> None:
    if isinstance(storage, DirectoryStorage):
        assert not storage.fetch("not/there", tmp_path / "place").exists()
    else:
        with pytest.raises(MissingObjectError, match="not/there"):
            storage.fetch("not/there", tmp_path / "place")
    assert not (tmp_path / "place").exists()


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_odd_names_are_only_names(storage: Storage, name: str, tmp_path: Path) -> None:
    if "\n" in name and not isinstance(storage, DirectoryStorage):
        pytest.skip("moto's server routes no address with a line feed")
    storage.put(f"odd/{name}", b"put")
    storage.put("odd/zz", b"other")
    assert [entry.name for entry in storage.list("odd/")] == sorted([f"odd/{name}", "odd/zz"])
    assert storage.get_range(f"odd/{name}", 1, 2) == b"ut"
    assert storage.fetch(f"odd/{name}", tmp_path / "here").read_bytes() == b"put"
    assert not storage.create(f"odd/{name}", b"created")
    storage.delete(f"odd/{name}")
    assert [entry.name for entry in storage.list()] == ["odd/zz"]


def test_two_prefixes_of_one_bucket_do_not_see_each_other(s3_bucket: Callable[[], str]) -> None:
    uri = s3_bucket()
    one, other, whole = open_storage(f"{uri}/a"), open_storage(f"{uri}/ab/"), open_storage(uri.split("/some")[0])
    one.put("x", b"1")
    other.put("y", b"22")
    assert [entry.name for entry in one.list()] == ["x"]
    assert [entry.name for entry in other.list()] == ["y"]
    assert [entry.name for entry in whole.list()] == ["some/prefix/a/x", "some/prefix/ab/y"]


def test_an_absent_bucket_is_not_an_empty_store(s3_bucket: Callable[[], str]) -> None:
    absent = open_storage("s3://no-such-bucket-here/prefix")
    with pytest.raises(OperationError, match="no-such-bucket-here"):
        list(absent.list())
    with pytest.raises(OperationError, match="no-such-bucket-here"):
        absent.create("x", b"")


def test_a_uri_of_another_kind_is_refused() -> None:
    for uri in ("gs://bucket/x", "http://host/x", "s3:///prefix"):
        with pytest.raises(ConfigError):
            open_storage(uri)


def test_of_many_creators_of_a_file_one_wins(directory: DirectoryStorage) -> None:
    for attempt in range(20):
        start = threading.Barrier(8)

        def create(number: int, name: str = f"race/{attempt}", start: threading.Barrier = start) -> bool:
            start.wait()
            return directory.create(name, str(number).encode())

        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(create, range(8)))
        assert won.count(True) == 1
        assert directory.get(f"race/{attempt}") == str(won.index(True)).encode()
    assert len([path for path in directory.root.rglob("*") if path.is_file()]) == 20


def test_a_reader_sees_the_old_object_or_the_new_one(directory: DirectoryStorage) -> None:
    values = [bytes([number]) * 200_000 for number in range(2)]
    directory.put("swap", values[0])
    done = threading.Event()

    def read() -> set[bytes]:
        seen = set()
        while not done.is_set():
            seen.add(directory.get("swap"))
            assert [entry.name for entry in directory.list()] == ["swap"]
        return seen

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        for number in range(60):
            directory.put("swap", values[number % 2])
        done.set()
        assert all(reader.result() <= set(values) for reader in readers)
    assert os.listdir(directory.root) == ["swap"]


@pytest.mark.parametrize("operation", ["put", "create", "put_file"])
def test_a_full_disk_leaves_the_old_object_and_no_temporary_file(
    directory: DirectoryStorage, operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.put("kept", b"old")
    (tmp_path / "source").write_bytes(b"new")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    write = {
        "put": lambda: directory.put("kept", b"new"),
        "create": lambda: directory.create("other", b"new"),
        "put_file": lambda: directory.put_file("kept", tmp_path / "source"),
    }
    with pytest.raises(OperationError, match="(kept|other) cannot be written: No space left"):
        write[operation]()
    assert os.listdir(directory.root) == ["kept"]
    assert directory.get("kept") == b"old"


def test_a_dangling_link_is_listed_and_missing(directory: DirectoryStorage) -> None:
    directory.put("a", b"1")
    (directory.root / "b").symlink_to(directory.root / "nowhere")
    assert [entry.name for entry in directory.list()] == ["a", "b"]
    with pytest.raises(MissingObjectError, match="/b does not exist"):
        directory.get("b")


def test_a_folder_that_cannot_be_listed_is_an_error_not_an_empty_one(
    directory: DirectoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.put("open/a", b"1")
    directory.put("shut/b", b"1")
    scandir = os.scandir

    def refused(path: str) -> object:  # not by mode bits: root reads everything
        if str(path).endswith("shut"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(OperationError, match="shut"):
        list(directory.list())


def test_a_store_that_does_not_exist_yet_is_empty(directory: DirectoryStorage) -> None:
    assert list(directory.list()) == []
    assert list(directory.list("manifests/")) == []


@pytest.mark.parametrize("vanishes", [0, 1])
def test_a_folder_that_another_removes_just_now_is_made_again(
    directory: DirectoryStorage, vanishes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, removed = Path.mkdir, []

    def mkdir(path: Path, *args: Any, **options: Any) -> None:
        if removed:
            return make(path, *args, **options)
        removed.append(path)
        if vanishes == 0:  # one above it, while the folder itself is being made
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return None  # itself, at once

    monkeypatch.setattr(Path, "mkdir", mkdir)
    directory.put("runs/r/heartbeat.json", b"beat")
    assert directory.get("runs/r/heartbeat.json") == b"beat"
    assert removed
