"""Snapshots listed and compared; going back and forth changes no answer. P24."""

import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from enrichment.errors import ConfigError, OperationError, PublishGateError
from indexing import heartbeat, history, layout, manifest
from indexing.heartbeat import AlreadyRunningError
from indexing.snapshot import Snapshot
from indexing.storage import DirectoryStorage


def answers(storage: DirectoryStorage, sequence: int) -> list[Any]:
    snapshot = Snapshot(storage, manifest.load(storage, sequence))
    return [
        [passage.as_dict() for passage in snapshot.search(query, 6, mode)]
        for query in ("Rule 3 of alder holds", "each other thing", "juniper")
        for mode in ("dense", "lexical", "hybrid")
    ]


@pytest.fixture
def two(three_nights: Any) -> DirectoryStorage:
    """Two snapshots without dead rows: the first night's segments, and one of them with the second night's."""
    storage: DirectoryStorage = three_nights.storage
    second = manifest.load(storage, 2)
    for sequence in (2, 3):
        storage.delete(layout.manifest(sequence))
    manifest.publish(storage, replace(second, segments=second.segments[1:], dead={}))
    return storage


def test_rollback_restores_the_same_answers_and_forward_again_works(two: DirectoryStorage) -> None:
    first, second = answers(two, 1), answers(two, 2)
    assert first != second
    assert history.roll_back(two, 1).sequence == 3
    assert answers(two, 3) == first
    assert history.roll_back(two, 2).sequence == 4
    assert answers(two, 4) == second
    copied = ("segments", "dead", "counts", "config", "fingerprints", "dimension", "rejected", "stale", "run_id")
    for old, new in ((1, 3), (2, 4)):
        for name in copied:
            assert getattr(manifest.load(two, old), name) == getattr(manifest.load(two, new), name)


def test_a_rollback_holds_until_it_is_released(three_nights: Any) -> None:
    storage = three_nights.storage
    held = history.roll_back(storage, 1)
    assert (held.sequence, held.parent, held.held) == (4, 3, 1)
    with pytest.raises(PublishGateError, match="rolled back to snapshot 1 and holds there"):
        manifest.refuse_held(storage, manifest.require_latest(storage))
    again = history.roll_back(storage, 4)
    assert again.held == 1, "the snapshot that is meant, not the rollback to it"
    released = history.release(storage)
    assert (released.sequence, released.held, released.segments) == (6, None, held.segments)
    manifest.refuse_held(storage, manifest.require_latest(storage))
    with pytest.raises(ConfigError, match="is not rolled back: snapshot 6 holds nothing"):
        history.release(storage)


def test_a_rollback_to_what_is_not_there_is_refused_by_name(three_nights: Any) -> None:
    with pytest.raises(ConfigError, match="holds no snapshot 9; snapshots 1 to 3 are kept"):
        history.roll_back(three_nights.storage, 9)
    segment = manifest.load(three_nights.storage, 1).segments[0]
    three_nights.storage.delete(layout.segment(segment.id, layout.ROWS))
    with pytest.raises(OperationError, match=r"rows.parquet is missing or cut short; choose another snapshot"):
        history.roll_back(three_nights.storage, 1)
    assert manifest.require_latest(three_nights.storage).sequence == 3
    assert not list(three_nights.storage.list(layout.RUNS + "2"))


def test_a_rollback_leads_away_from_a_damaged_manifest(three_nights: Any) -> None:
    storage = three_nights.storage
    storage.put(layout.manifest(3), storage.get(layout.manifest(3))[:-9])
    with pytest.raises(OperationError, match="damaged"):
        manifest.latest(storage)
    assert history.roll_back(storage, 2).sequence == 4
    found = manifest.require_latest(storage)
    assert (found.sequence, found.parent, found.held) == (4, 3, 2)
    assert history.release(storage).sequence == 5


def test_a_rollback_while_others_publish_follows_them(three_nights: Any) -> None:
    storage, start = three_nights.storage, threading.Barrier(2)
    content = {name: getattr(manifest.load(storage, 3), name) for name in history._CONTENT}

    def publish_ten() -> None:
        start.wait()
        for _ in range(10):
            while True:
                try:
                    manifest.publish(storage, manifest.new_manifest(manifest.require_latest(storage), **content))
                    break
                except manifest.LostRaceError:
                    continue
            time.sleep(0.02)  # nobody publishes without a pause; five races in a row are lost to one who does

    with ThreadPoolExecutor(1) as pool:
        others = pool.submit(publish_ten)
        start.wait()
        rolled = history.roll_back(storage, 1)
        others.result()
    assert manifest.sequences(storage) == list(range(1, 15))
    assert manifest.load(storage, rolled.sequence).nonce == rolled.nonce


def test_no_rollback_beside_a_gc(three_nights: Any) -> None:
    with heartbeat.beating(three_nights.storage, "run-gc", "gc"), pytest.raises(AlreadyRunningError, match="a gc of"):
        history.roll_back(three_nights.storage, 1)


def test_snapshots_are_listed_with_what_they_are(three_nights: Any) -> None:
    storage = three_nights.storage
    history.roll_back(storage, 2)
    (storage.root / layout.manifest(1)).write_bytes(b"{}")
    found = history.snapshots(storage)
    assert [record["snapshot"] for record in found] == [1, 2, 3, 4]
    assert "0001.json is damaged" in found[0]["error"]
    assert [record["documents"] for record in found[1:]] == [5, 4, 5]
    assert [record["segments"] for record in found[1:]] == [3, 3, 3]
    assert [record["held"] for record in found[1:]] == [None, None, 2]
    assert found[2]["dead_rows"] > found[1]["dead_rows"] > 0
    sizes = [path.stat().st_size for path in storage.root.glob("segments/**/*") if path.is_file()]
    assert found[1]["size_bytes"] == sum(sizes)
    with pytest.raises(ConfigError, match="holds no snapshot"):
        history.snapshots(DirectoryStorage(storage.root / "nowhere"))


def test_a_difference_names_the_documents(three_nights: Any) -> None:
    record = history.diff(three_nights.storage, 1, 2)
    assert (record["new"], record["changed"], record["deleted"]) == (["juniper.md"], ["alder.md"], [])
    assert record["counts"]["documents"]["total"] == [4, 5]
    record = history.diff(three_nights.storage, 2, 3)
    assert (record["new"], record["changed"], record["deleted"]) == ([], [], ["birch.md"])
    record = history.diff(three_nights.storage, 3, 1)
    assert (record["new"], record["changed"], record["deleted"]) == (["birch.md"], ["alder.md"], ["juniper.md"])
    assert history.diff(three_nights.storage, 3, 3)["counts"]["documents"] == {}
    with pytest.raises(ConfigError, match="holds no snapshot 7"):
        history.diff(three_nights.storage, 1, 7)


def test_a_difference_reads_no_segment_that_is_shared(three_nights: Any) -> None:
    shared = manifest.load(three_nights.storage, 1).segments[1]
    shutil.rmtree(Path(three_nights.storage.uri) / layout.segment(shared.id, ""))
    assert history.diff(three_nights.storage, 1, 2)["new"] == ["juniper.md"]


def test_changed_settings_are_named(three_nights: Any) -> None:
    third = manifest.load(three_nights.storage, 3)
    assert history.diff(three_nights.storage, 1, 3)["settings"] == {}
    changed = {**third.fingerprints, "model": "another"}
    config = {
        **third.config,
        "context": {**third.config["context"], "prompt": "quote"},
        "gate": {**third.config["gate"], "k": 20},
    }
    newer = replace(third, sequence=4, parent=3, nonce="n", fingerprints=changed, config=config)
    manifest.publish(three_nights.storage, newer)
    record = history.diff(three_nights.storage, 3, 4)
    assert record["settings"] == {"context.prompt": ["causal", "quote"], "gate.k": [10, 20]}
    assert record["fingerprints"] == {"model": [third.fingerprints["model"], "another"]}
    assert record["counts"]["chunks"] == {}
