"""Originals on a real S3 wire: few reads, each document once, and what is damaged is named."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from enrichment.errors import OperationError
from indexing import layout, originals
from indexing.snapshot import Snapshot
from indexing.storage import Storage, open_storage

NAMES = [f"d{number:02d}.txt" for number in range(12)]


def text_of(name: str) -> str:
    return f"The roof of {name} leaks — häufig. The tenant of {name} pays. " + f"Filler of {name}. " * 20


@pytest.fixture(scope="module")
def local(stage: Callable[..., Any]) -> Snapshot:
    staged = stage({name: text_of(name) for name in NAMES}, split={"by": "sentences", "size": 1})
    return Snapshot(staged.storage, staged.publish(rows_per_segment=100))


@pytest.fixture
def remote(local: Snapshot, s3_bucket: Callable[[], str], tmp_path: Any, monkeypatch: Any) -> Iterator[Snapshot]:
    """The same snapshot on S3."""
    monkeypatch.setenv("SITUATE_CACHE", str(tmp_path / "cache"))
    storage = open_storage(s3_bucket())
    for entry in local.storage.list(layout.SEGMENTS):
        storage.put(entry.name, local.storage.get(entry.name))
    yield Snapshot(storage, local.manifest)


@pytest.fixture
def reads(remote: Snapshot, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """The ranged reads that were made."""
    made: list[tuple[str, int, int]] = []
    kind = type(remote.storage)
    original = kind.get_range

    def counted(self: Storage, name: str, offset: int, length: int) -> bytes:
        made.append((name, offset, length))
        return original(self, name, offset, length)  # type: ignore[arg-type]

    monkeypatch.setattr(kind, "get_range", counted)
    return made


def test_a_result_costs_one_read_per_segment_and_the_same_one_again_none(
    local: Snapshot, remote: Snapshot, reads: list[tuple[str, int, int]]
) -> None:
    expected = local.search("roof tenant", k=24, mode="lexical", window=1)
    assert {passage.document_id for passage in expected} == set(NAMES)
    assert remote.search("roof tenant", k=24, mode="lexical", window=1) == expected
    assert len(reads) == len(local.manifest.segments) > 1
    reads.clear()
    assert remote.search("roof", k=12, mode="lexical", window=2)
    assert [remote.original(name) for name in NAMES] == [text_of(name) for name in NAMES]
    assert reads == []


def test_what_lies_far_apart_is_read_apart(
    remote: Snapshot, reads: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(text_of(NAMES[0]).encode())
    wanted = [originals.Slice(0, place, 0, 8) for place in (4, 0, 1, 0)]
    monkeypatch.setattr(originals, "MERGED_GAP_BYTES", 2 * size - 1)
    assert remote._originals.read(wanted) == ["The roof"] * 4
    assert [(offset, length) for _, offset, length in reads] == [(0, 2 * size), (4 * size, size)]


def test_one_read_takes_no_more_than_fits(
    remote: Snapshot, reads: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(text_of(NAMES[0]).encode())
    monkeypatch.setattr(originals, "MERGED_BYTES", 2 * size)
    remote._originals.read([originals.Slice(0, place, 0, 8) for place in range(4)])
    assert [length for _, _, length in reads] == [2 * size, 2 * size]


def test_what_is_kept_is_bounded(
    remote: Snapshot, reads: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(text_of(NAMES[0]).encode())
    monkeypatch.setattr(originals, "KEPT_BYTES", 2 * size)
    for name in (*NAMES, NAMES[-2], NAMES[-1]):
        assert remote.original(name) == text_of(name)
    assert len(reads) == len(NAMES), "the last two were kept"
    assert remote.original(NAMES[0]) == text_of(NAMES[0])
    assert len(reads) == len(NAMES) + 1, "the first was not"


def test_a_damaged_document_is_named_and_its_neighbours_are_read(remote: Snapshot) -> None:
    name = layout.segment(remote.manifest.segments[0].id, layout.ORIGINALS)
    data = bytearray(remote.storage.get(name))
    data[2 * len(text_of(NAMES[0]).encode()) + 5] ^= 1
    remote.storage.put(name, bytes(data))
    with pytest.raises(OperationError, match=f"{name} does not hold the text of {NAMES[2]}: it is damaged"):
        remote._originals.read([originals.Slice(0, place, 0, 8) for place in range(4)])
    assert remote.original(NAMES[1]) == text_of(NAMES[1])
    with pytest.raises(OperationError, match=NAMES[2]):
        remote.original(NAMES[2])


def test_a_truncated_file_is_named(remote: Snapshot) -> None:
    name = layout.segment(remote.manifest.segments[0].id, layout.ORIGINALS)
    remote.storage.put(name, remote.storage.get(name)[:-1])
    with pytest.raises(OperationError, match=name):
        remote.original(remote._documents[0]["id"][-1].as_py())


def test_spans_of_bytes_are_cut_at_characters(local: Snapshot, remote: Snapshot) -> None:
    for opened in (local, remote):
        rows = opened.rows(NAMES[3])
        texts = [opened.original(NAMES[3], (row["byte_start"], row["byte_end"])) for row in rows]
        assert "".join(texts) == text_of(NAMES[3])
        assert all(len(text) == row["end"] - row["start"] for text, row in zip(texts, rows, strict=True))


def test_groups_keep_every_range_once() -> None:
    for gaps in itertools.product((0, 1 << 20, (1 << 20) + 1), repeat=4):
        ranges, place = [], 0
        for gap in (0, *gaps):
            place += gap
            ranges.append((place, place + 10))
            place += 10
        groups = list(originals._groups(ranges))
        assert [number for group in groups for number in group] == list(range(5))
        assert len(groups) == 1 + sum(gap > 1 << 20 for gap in gaps)
