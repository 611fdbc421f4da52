"""The commit under races and faults, on a directory and on an S3 server with a real compare-and-swap."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from s3_proxy import S3Proxy

from enrichment.errors import OperationError, PublishGateError
from indexing import layout, manifest, s3
from indexing.manifest import LostRaceError, Manifest
from indexing.s3 import S3Storage
from indexing.storage import Storage, open_storage


@pytest.fixture
def remote(s3_bucket: Callable[[], str], s3_faults: S3Proxy) -> Storage:
    return open_storage(s3_bucket())


def following(parent: Manifest | None, **fields: Any) -> Manifest:
    given: dict[str, Any] = {"run_id": "run", "config": {}, "fingerprints": {}, "dimension": 4, "counts": {}}
    return manifest.new_manifest(parent, **{**given, "segments": (), "dead": {}, "rejected": (), **fields})


@pytest.fixture(params=[20, pytest.param(200, marks=pytest.mark.soak)])
def races(request: pytest.FixtureRequest, storage: Storage) -> int:
    """200 also without `soak` where a write takes no network."""
    return request.param if isinstance(storage, S3Storage) else 200


def test_of_two_publishers_one_wins_each_race_and_nothing_is_lost(storage: Storage, races: int) -> None:
    """P14: each race has one winner; the loser plans anew from it, so both pieces of work are in the end published."""
    start, each_publishes = threading.Barrier(2), races // 2

    def publisher(name: str) -> list[str]:
        outcomes = []
        for number in range(each_publishes):
            run_id = f"{name}-{number}"
            start.wait()
            for attempt in range(10):
                candidate = following(manifest.latest(storage), run_id=run_id)
                try:
                    manifest.publish(storage, candidate)
                except LostRaceError:
                    continue
                outcomes.append(f"{run_id} after {attempt}")
                break
        return outcomes

    with ThreadPoolExecutor(2) as pool:
        done = [outcome for each in pool.map(publisher, ("left", "right")) for outcome in each]
    assert len(done) == races
    assert manifest.sequences(storage) == list(range(1, races + 1))
    stored = [manifest.load(storage, sequence) for sequence in manifest.sequences(storage)]
    assert {s.run_id for s in stored} == {f"{name}-{n}" for name in ("left", "right") for n in range(each_publishes)}
    assert [found.parent for found in stored] == [None, *range(1, races)]
    assert sum(not outcome.endswith(" after 0") for outcome in done) > races // 10, "the publishers hardly ever met"


def test_each_race_for_one_sequence_has_one_winner(storage: Storage, races: int) -> None:
    """P14, the bare commit: both write the same name at the same moment."""
    start, parent = threading.Barrier(2), None

    def publish(candidate: Manifest) -> bool:
        start.wait()
        try:
            manifest.publish(storage, candidate)
        except LostRaceError:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        for _ in range(races):
            candidates = [following(parent) for _ in range(2)]
            won = list(pool.map(publish, candidates))
            assert won.count(True) == 1
            parent = candidates[won.index(True)]
            assert manifest.load(storage, parent.sequence).nonce == parent.nonce


@pytest.mark.parametrize("times", [1, 2])
def test_a_lost_answer_to_the_commit_is_neither_a_failure_nor_a_second_commit(
    remote: Storage, s3_faults: S3Proxy, times: int
) -> None:
    """P15: the client repeats the write, is told that the name exists, and finds its own nonce there."""
    s3_faults.fail("drop", "PUT", "manifests/", times)
    own = following(None)
    manifest.publish(remote, own)
    assert sum(method == "PUT" and "manifests/" in path for method, path, _ in s3_faults.requests) == times + 1
    assert manifest.sequences(remote) == [1]
    assert manifest.load(remote, 1).nonce == own.nonce


def test_when_every_answer_to_the_commit_is_lost_it_is_still_found(remote: Storage, s3_faults: S3Proxy) -> None:
    s3_faults.fail("drop", "PUT", "manifests/", 100)
    own = following(None)
    manifest.publish(remote, own)
    assert manifest.load(remote, 1).nonce == own.nonce


def test_a_commit_that_never_arrived_is_an_error_and_publishes_nothing(remote: Storage, s3_faults: S3Proxy) -> None:
    s3_faults.fail("status", "PUT", "manifests/", 100, 403)
    with pytest.raises(OperationError, match="0001.json") as raised:
        manifest.publish(remote, following(None))
    assert not isinstance(raised.value, LostRaceError)
    assert manifest.latest(remote) is None


def test_a_lost_answer_after_anothers_commit_is_a_lost_race(remote: Storage, s3_faults: S3Proxy) -> None:
    first, second = following(None), following(None)
    manifest.publish(remote, first)
    s3_faults.fail("drop", "PUT", "manifests/")
    with pytest.raises(LostRaceError, match="0001.json was published by another run"):
        manifest.publish(remote, second)
    assert manifest.load(remote, 1).nonce == first.nonce


def test_a_409_is_tried_again(remote: Storage, s3_faults: S3Proxy) -> None:
    """P16: two conditional writes met; the store asks for another try, botocore makes none."""
    s3_faults.fail("status", "PUT", "manifests/", 3, 409)
    own = following(None)
    manifest.publish(remote, own)
    assert manifest.load(remote, 1).nonce == own.nonce


def test_a_409_without_end_is_an_error_after_a_bounded_number_of_tries(
    remote: Storage, s3_faults: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "_LONGEST_PAUSE_S", 0.01)
    s3_faults.fail("status", "PUT", "manifests/", 1000, 409)
    with pytest.raises(OperationError, match="is being written by many at once"):
        manifest.publish(remote, following(None))
    assert sum(method == "PUT" and "manifests/" in path for method, path, _ in s3_faults.requests) == s3._TRIES


@pytest.mark.parametrize("own", [True, False])
def test_a_412_is_decided_by_the_nonce(remote: Storage, s3_faults: S3Proxy, own: bool) -> None:
    """P16: the same answer means success for the writer whose manifest lies there, and a lost race for any other."""
    mine, other = following(None), following(None)
    remote.put(layout.manifest(1), (mine if own else other).to_json())
    s3_faults.fail("status", "GET", "manifests/", 1, 404)  # the look before the write comes too early to see it
    s3_faults.fail("status", "PUT", "manifests/", 1, 412)
    if own:
        manifest.publish(remote, mine)
    else:
        with pytest.raises(LostRaceError):
            manifest.publish(remote, mine)
    assert any(method == "PUT" and "manifests/" in path for method, path, _ in s3_faults.requests[2:])


def test_what_changed_or_is_gone_is_not_replaced(storage: Storage) -> None:
    storage.put("x", b"old")
    assert not storage.replace("x", b"new", expected=b"other")
    assert storage.get("x") == b"old"
    assert storage.replace("x", b"new", expected=b"old")
    assert storage.get("x") == b"new"
    assert not storage.replace("absent", b"new", expected=b"old")
    assert [entry.name for entry in storage.list()] == ["x"]


def test_a_404_to_a_conditional_replacement_is_a_lost_race(remote: Storage, s3_faults: S3Proxy) -> None:
    """P16: the object was removed between the look and the write."""
    remote.put("x", b"old")
    s3_faults.fail("status", "PUT", "/x", 1, 404)
    assert not remote.replace("x", b"new", expected=b"old")
    assert any("If-Match" in headers for _, _, headers in s3_faults.requests)


def test_of_two_replacements_at_once_one_wins(remote: Storage) -> None:
    start = threading.Barrier(2)

    def swap(data: bytes, expected: bytes) -> bool:
        start.wait()
        return remote.replace("x", data, expected)

    held = b"begin"
    remote.put("x", held)
    with ThreadPoolExecutor(2) as pool:
        for number in range(20):
            candidates = [f"{name}{number}".encode() for name in ("a", "b")]
            won = list(pool.map(swap, candidates, [held, held]))
            assert won.count(True) == 1
            held = remote.get("x")
            assert held == candidates[won.index(True)]


def test_a_lost_answer_to_a_replacement_is_no_lost_race(remote: Storage, s3_faults: S3Proxy) -> None:
    remote.put("x", b"old")
    s3_faults.fail("drop", "PUT", "/x")
    assert remote.replace("x", b"new", expected=b"old")
    assert remote.get("x") == b"new"


def test_a_manifest_of_version_1_is_read(tmp_path: Path) -> None:
    """P36: written by the first release, byte for byte but for its content."""
    storage = open_storage(str(tmp_path))
    storage.put(layout.manifest(1), (Path(__file__).parent / "manifest-version-1.json").read_bytes())
    found = manifest.require_latest(storage)
    assert (found.sequence, found.held, found.counts["documents"]["total"]) == (1, None, 3)
    manifest.publish(storage, following(found))
    assert manifest.sequences(storage) == [1, 2]


def test_a_held_snapshot_is_not_published_over(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    found = following(None)
    manifest.refuse_held(storage, found)
    manifest.refuse_held(storage, None)
    with pytest.raises(PublishGateError, match="rolled back to snapshot 7 and holds there; `situate rollback .* --rel"):
        manifest.refuse_held(storage, replace(found, held=7))
