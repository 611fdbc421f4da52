"""Manifests: their order, the race to create the next one, and what is refused by name."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from enrichment.errors import ConfigError, OperationError
from indexing import layout, manifest
from indexing.manifest import DeadEntry, DenseEntry, FileEntry, Manifest, SegmentEntry, TrainedEntry
from indexing.storage import Storage, open_storage

SEGMENT = SegmentEntry(
    "s", "d" * 64, 1, 2, 3, (FileEntry("rows.parquet", 10, "e" * 64, 2), FileEntry("x", 0, "f" * 64))
)


@pytest.fixture(params=["directory", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "s3":
        return open_storage(request.getfixturevalue("s3_bucket")())
    return open_storage(str(tmp_path / "store"))


def following(parent: Manifest | None, **fields: Any) -> Manifest:
    given: dict[str, Any] = {
        "run_id": "run",
        "config": {"limits": {"fallback": 0.15}, "name": "\u00e9\u2028"},
        "fingerprints": {"model": "fake"},
        "dimension": 64,
        "counts": {"documents": {"total": 1}},
        "segments": (SEGMENT,),
        "dead": {"s": DeadEntry("a" * 64, 2, 1, 2)},
        "rejected": ({"id": "\U0001f600", "source": "a.md", "reason": "undecodable: byte 3"},),
        "stale": ({"id": "b", "source": "b.md", "source_sha256": "c" * 64, "reason": "kills_engine: x", "tries": 2},),
    }
    return manifest.new_manifest(parent, **{**given, **fields})


def publish_some(storage: Storage, number: int) -> list[Manifest]:
    found: list[Manifest] = []
    for _ in range(number):
        found.append(following(found[-1] if found else None))
        manifest.publish(storage, found[-1])
    return found


def stored(storage: Storage, sequence: int = 1) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(storage.get(layout.manifest(sequence)))
    return record


def test_a_manifest_is_read_as_it_was_published(storage: Storage) -> None:
    (published,) = publish_some(storage, 1)
    assert asdict(manifest.load(storage, 1)) == asdict(published)
    assert manifest.load(storage, 1).to_json() == published.to_json()


def test_sequences_follow_each_other_and_name_their_parent(storage: Storage) -> None:
    published = publish_some(storage, 3)
    assert [(entry.sequence, entry.parent) for entry in published] == [(1, None), (2, 1), (3, 2)]
    assert len({entry.nonce for entry in published}) == 3
    names = [entry.name for entry in storage.list(layout.MANIFESTS)]
    assert names == [f"manifests/{number:020d}.json" for number in (1, 2, 3)]


def test_names_sort_as_their_numbers_do() -> None:
    numbers = [1, 9, 10, 99, 100, 10**19]
    assert sorted(layout.manifest(number) for number in numbers) == [layout.manifest(number) for number in numbers]
    assert [layout.sequence_of(layout.manifest(number)) for number in numbers] == numbers


def test_the_latest_is_the_highest_number_whatever_else_lies_there(storage: Storage) -> None:
    assert manifest.latest(storage) is None
    with pytest.raises(ConfigError, match="holds no snapshot; run `situate refresh"):
        manifest.require_latest(storage)
    publish_some(storage, 2)
    for name in ("99.json", f"{3:020d}.json.bak", "zzz", f"{'x' * 20}.json", f"sub/{5:020d}.json"):
        storage.put(layout.MANIFESTS + name, b"{}")
    found = manifest.latest(storage)
    assert found is not None
    assert found.sequence == 2
    assert manifest.require_latest(storage).sequence == 2


def test_the_second_publisher_of_a_sequence_is_refused_and_changes_nothing(storage: Storage) -> None:
    first, second = following(None), following(None)
    manifest.publish(storage, first)
    with pytest.raises(OperationError, match="0001.json was published by another run"):
        manifest.publish(storage, second)
    assert manifest.load(storage, 1).nonce == first.nonce


def test_a_retry_of_the_own_publication_is_accepted_by_its_nonce(storage: Storage) -> None:
    own = following(None)
    manifest.publish(storage, own)
    manifest.publish(storage, own)
    assert manifest.load(storage, 1).nonce == own.nonce


def test_of_many_publishers_one_wins(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))

    def publish(candidate: Manifest) -> bool:
        try:
            manifest.publish(storage, candidate)
        except OperationError:
            return False
        return True

    parent = None
    for _ in range(10):
        candidates = [following(parent) for _ in range(6)]
        with ThreadPoolExecutor(6) as pool:
            won = list(pool.map(publish, candidates))
        assert won.count(True) == 1
        parent = manifest.require_latest(storage)
        assert parent.nonce == candidates[won.index(True)].nonce


def test_a_newer_version_is_refused_by_name(storage: Storage) -> None:
    publish_some(storage, 1)
    newer = stored(storage) | {"format_version": manifest.FORMAT_VERSION + 1, "added_later": [], "sequence": 2}
    storage.put(layout.manifest(2), json.dumps(newer).encode())
    with pytest.raises(OperationError, match=r"0002.json is of a newer version.*upgrade"):
        manifest.latest(storage)
    assert manifest.load(storage, 1).sequence == 1


def test_a_manifest_of_version_1_is_read(storage: Storage) -> None:
    """As the first release wrote it: `dead` without entries, nothing stale."""
    publish_some(storage, 1)
    old = stored(storage) | {"format_version": 1, "dead": {}}
    del old["stale"], old["sha256"]
    storage.put(layout.manifest(1), json.dumps(old).encode())
    found = manifest.load(storage, 1)
    assert (found.dead, found.stale, found.segments) == ({}, (), (SEGMENT,))


def test_a_manifest_of_version_2_is_read_as_flat(storage: Storage) -> None:
    """P36: as the releases before trained files wrote it."""
    publish_some(storage, 1)
    old = stored(storage) | {"format_version": 2}
    del old["dense"], old["sha256"]
    for segment in old["segments"]:
        del segment["trained"]
    storage.put(layout.manifest(1), json.dumps(old).encode())
    found = manifest.load(storage, 1)
    assert (found.dense.kind, found.dense.trained, found.segments) == ("SQfp16", None, (SEGMENT,))


def test_what_is_trained_is_read_as_it_was_published(storage: Storage) -> None:
    entry = TrainedEntry("t", "IVF8,SQ8", 10, "f" * 64, 400, 1000, 0.75)
    dense = DenseEntry("IVF8,SQ8", 0.97, 200, 4, 30, entry)
    manifest.publish(storage, following(None, dense=dense, segments=(replace(SEGMENT, trained="t"),)))
    found = manifest.load(storage, 1)
    assert found.dense == dense
    manifest.check_lists(found)
    with pytest.raises(OperationError, match="lists t, but its segment s was built with none"):
        manifest.check_lists(replace(found, segments=(SEGMENT,)))
    with pytest.raises(OperationError, match="lists no trained file, but its segment s was built with t"):
        manifest.check_lists(replace(found, dense=DenseEntry()))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: b"[]",
        lambda data: b"7",
        lambda data: b"null",
        lambda data: b"\xff\xfe",
        lambda data: b"[" * 100_000,
        lambda data: data.replace(b'"nonce"', b'"nonsense"'),
        lambda data: data.replace(b'"size_bytes"', b'"size"'),
        lambda data: data.replace(b'"format_version": 3', b'"format_version": "3"'),
        lambda data: data + b" {}",
    ],
)
def test_a_damaged_manifest_is_refused_by_name(storage: Storage, damage: Callable[[bytes], bytes]) -> None:
    publish_some(storage, 1)
    storage.put(layout.manifest(1), damage(storage.get(layout.manifest(1))))
    with pytest.raises(OperationError, match=r"0001.json is damaged.*roll back"):
        manifest.latest(storage)


def test_another_programs_file_is_refused_by_name(storage: Storage) -> None:
    storage.put(layout.manifest(1), b'{"kind": "something else"}')
    with pytest.raises(OperationError, match="0001.json is not a manifest"):
        manifest.latest(storage)


def test_every_flipped_byte_is_caught(tmp_path: Path) -> None:
    published = following(None)
    data = published.to_json()
    for place in range(len(data)):
        with pytest.raises(OperationError, match="^m "):
            manifest.from_json(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :], "m")


def test_a_manifest_under_another_number_is_refused(storage: Storage) -> None:
    publish_some(storage, 2)
    storage.put(layout.manifest(2), storage.get(layout.manifest(1)))
    with pytest.raises(OperationError, match=r"0002.json is damaged"):
        manifest.latest(storage)


def test_a_digest_knows_where_its_parts_end() -> None:
    assert manifest.digest(b"a", b"b_c") != manifest.digest(b"a_b", b"c")
    assert manifest.digest(b"ab") != manifest.digest(b"a", b"b")
    assert manifest.digest(b"", b"a") != manifest.digest(b"a", b"")
    assert replace(SEGMENT, id="t") != SEGMENT
