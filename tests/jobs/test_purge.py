"""Legal erasure: gone from every kept snapshot, originals, ledger and runs; the others as before; and a proof."""

import io
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from enrichment.errors import ConfigError, OperationError
from indexing import erasure, heartbeat, layout, ledger_parts, live, manifest, traces
from indexing.heartbeat import AlreadyRunningError
from indexing.snapshot import Snapshot
from indexing.storage import DirectoryStorage, Storage, open_storage
from indexing.verification import verify
from jobs.purge import purge

RUN = "20260101T000000-00000000"


@pytest.fixture
def storage(three_nights: Any) -> DirectoryStorage:
    """The three three_nights, with what runs leave behind about birch."""
    found: DirectoryStorage = three_nights.storage
    documents = found.get(layout.segment(three_nights.segment_of(1, "birch.md"), layout.DOCUMENTS))
    found.put(layout.run_file(RUN, "documents.parquet"), documents)
    report = {"rejected": [{"id": "birch.md", "reason": "x"}, {"id": "y", "reason": "the id birch.md comes twice"}]}
    found.put(layout.run_file(RUN, "report.json"), json.dumps({**report, "snapshot": 1}).encode())
    found.put(layout.run_file(RUN, "events.jsonl"), b'{"stage": "read"}\n{"stage": "enrich"}\n')
    found.put(layout.run_file(RUN, "staged/p/left"), b"Rule 1 of birch holds for each thing in it.")
    return found


def everything(storage: Storage) -> dict[str, bytes]:
    return {entry.name: storage.get(entry.name) for entry in storage.list()}


def ids(storage: Storage, sequence: int) -> list[str]:
    found = manifest.load(storage, sequence)
    return sorted(live.documents(storage, found.segments, found.dead, ["id"])["id"].to_pylist())


def all_text(data: bytes, name: str) -> str:
    """All that a file says, uncompressed."""
    if name.endswith(".parquet"):
        return repr(pq.read_table(io.BytesIO(data)).to_pylist())
    return data.decode("utf-8", "replace")


@pytest.mark.parametrize("document", ["birch.md", "alder.md", "juniper.md", "cedar.md"])
def test_nothing_is_left_of_it_anywhere(storage: DirectoryStorage, document: str) -> None:
    """A dead one, one with two versions, a new one, one alive in all snapshots."""
    word = document.removesuffix(".md")
    assert any(f"of {word} holds" in all_text(data, name) for name, data in everything(storage).items())
    record = purge(storage, document)
    assert record["found"] and record["left"] == [] and record["copies"] == []
    for name, data in everything(storage).items():
        text = all_text(data, name)
        assert document not in text and f"of {word}" not in text, name
        assert word.encode() not in data, name
    assert record["searched"]["objects"] >= len(everything(storage)) - 1
    assert verify(storage)["ok"]


def test_every_kept_snapshot_has_the_others_as_before(storage: DirectoryStorage) -> None:
    before = {sequence: ids(storage, sequence) for sequence in (1, 2, 3)}
    counts = {sequence: manifest.load(storage, sequence).counts for sequence in (1, 2, 3)}
    texts = Snapshot(storage, manifest.load(storage, 1)).original("alder.md")
    record = purge(storage, "birch.md")
    assert record["snapshots_rewritten"] == [1, 2, 3] and record["snapshot"] == 4
    for sequence in (1, 2, 3):
        assert ids(storage, sequence) == [name for name in before[sequence] if name != "birch.md"]
        found, old = manifest.load(storage, sequence), counts[sequence]
        gone = 1 if "birch.md" in before[sequence] else 0
        assert found.counts["documents"]["total"] == old["documents"]["total"] - gone
        assert found.counts["documents"]["indexed"] == old["documents"]["indexed"] - gone
        dead = sum(entry.num_rows for entry in found.dead.values())
        assert found.counts["chunks"]["total"] == sum(segment.num_rows for segment in found.segments) - dead
        chunks = found.counts["chunks"]
        assert chunks["ok"] + chunks["fallback"] + chunks["failed"] + chunks["skipped"] == chunks["total"]
        assert chunks["generated"] + chunks["reused"] == chunks["ok"] + chunks["fallback"]
    assert ids(storage, 4) == ids(storage, 3) and manifest.load(storage, 4).parent == 3
    assert Snapshot(storage, manifest.load(storage, 1)).original("alder.md") == texts
    assert manifest.load(storage, 1).created_at and manifest.load(storage, 1).sequence == 1


def test_the_others_answer_as_before_and_it_does_not(storage: DirectoryStorage) -> None:
    def answers() -> list[list[tuple[str, str]]]:
        snapshot = Snapshot(storage, manifest.load(storage, 1))
        found = [snapshot.search(q, 50, m) for q in ("Rule 3 of cedar", "thing") for m in ("dense", "lexical")]
        return [[(p.document_id, h.context or "") for p in passages for h in p.hits] for passages in found]

    before = answers()
    assert any(name == "birch.md" for passages in before for name, _ in passages)
    purge(storage, "birch.md")
    for old, new in zip(before, answers(), strict=True):
        assert sorted(new) == sorted(entry for entry in old if entry[0] != "birch.md")
    with pytest.raises(ConfigError, match=r"holds no document birch\.md"):
        Snapshot(storage, manifest.load(storage, 1)).original("birch.md")


def test_what_was_paid_for_under_an_older_name_goes_and_other_payments_stay(storage: DirectoryStorage) -> None:
    """birch.md was once called old-birch.md: same text, same keys, paid for under that id."""
    for name in list(ledger_parts.names(storage)):
        table = ledger_parts.read(storage, name)
        owners = ["old-birch.md" if owner == "birch.md" else owner for owner in table["document_id"].to_pylist()]
        place = table.schema.get_field_index("document_id")
        renamed = table.set_column(place, table.schema.field(place), [owners])
        from indexing import tables

        storage.delete(name)
        storage.put(name.replace(".parquet", "-renamed.parquet"), tables.to_bytes(renamed))
    before = [(n, ledger_parts.read(storage, n)) for n in ledger_parts.names(storage)]
    paid = sum(owner == "old-birch.md" for _, table in before for owner in table["document_id"].to_pylist())
    assert paid > 5
    assert purge(storage, "birch.md")["ledger_entries_removed"] == paid
    after = [
        owner for n in ledger_parts.names(storage) for owner in ledger_parts.read(storage, n)["document_id"].to_pylist()
    ]
    assert "old-birch.md" not in after and len(after) == sum(table.num_rows for _, table in before) - paid


def test_records_of_runs_lose_it_and_keep_the_rest(storage: DirectoryStorage) -> None:
    purge(storage, "birch.md")
    report = json.loads(storage.get(layout.run_file(RUN, "report.json")))
    assert report == {"rejected": [{"id": "y", "reason": f"the id {traces.ERASED} comes twice"}], "snapshot": 1}
    table = pq.read_table(io.BytesIO(storage.get(layout.run_file(RUN, "documents.parquet"))))
    assert table["id"].to_pylist() == ["alder.md"]
    assert storage.get(layout.run_file(RUN, "events.jsonl")) == b'{"stage": "read"}\n{"stage": "enrich"}\n'
    assert not list(storage.list(layout.run_file(RUN, "staged/")))


def test_the_proof_is_kept_and_does_not_name_it(storage: DirectoryStorage) -> None:
    purge(storage, "birch.md")
    [name] = [entry.name for entry in storage.list(layout.RUNS) if entry.name.endswith(layout.ERASURE)]
    proof = json.loads(storage.get(name))
    assert proof["left"] == [] and proof["searched"]["objects"] > 20 and len(proof["document_sha256"]) == 64
    assert b"birch" not in storage.get(name)


def test_a_copy_under_another_id_stays_and_is_named(stage: Callable[..., Any]) -> None:
    text = "# Same\n\n" + "This very sentence stands in both of the documents, word for word. " * 4
    staged = stage({"a.md": text, "b.md": text, "c.md": "# Other\n\nNothing of it is here. And no more of it."})
    staged.publish()
    record = purge(staged.storage, "a.md")
    assert {entry["id"] for entry in record["copies"]} == {"b.md"} and record["left"] == []
    assert ids(staged.storage, 2) == ["b.md", "c.md"]


def test_of_a_document_that_is_not_there_nothing_is_found(storage: DirectoryStorage) -> None:
    before = everything(storage)
    record = purge(storage, "Birch.md")
    assert not record["found"] and record["left"] == []
    after = {name: data for name, data in everything(storage).items() if not name.endswith(layout.ERASURE)}
    assert after == {name: data for name, data in before.items() if "/staged/" not in name}


def test_the_last_document_can_go(stage: Callable[..., Any]) -> None:
    staged = stage({"a.md": "# A\n\nOne sentence here. Another sentence there."})
    staged.publish()
    assert purge(staged.storage, "a.md")["left"] == []
    assert manifest.require_latest(staged.storage).segments == ()
    assert manifest.require_latest(staged.storage).counts["documents"]["total"] == 0


STEPS = [(erasure, "rewrite_manifests"), (traces, "clean_ledger"), (traces, "clean_runs"), (erasure, "remove_unlisted")]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step[1])
@pytest.mark.parametrize("after", [True, False], ids=["after", "before"])
def test_a_crash_at_any_step_leaves_readable_snapshots_and_the_same_command_finishes(
    storage: DirectoryStorage, monkeypatch: pytest.MonkeyPatch, step: tuple[Any, str], after: bool
) -> None:
    module, name = step
    work = getattr(module, name)

    def crash(*arguments: Any) -> None:
        if after:
            work(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, name, crash)
        with pytest.raises(KeyboardInterrupt):
            purge(storage, "birch.md")
    for sequence in manifest.sequences(storage):
        ids(storage, sequence)
    record = purge(storage, "birch.md")
    assert record["left"] == []
    for file, data in everything(storage).items():
        assert "birch" not in all_text(data, file) and b"birch" not in data, file


def test_a_manifest_that_changes_meanwhile_stops_it(storage: DirectoryStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "replace", lambda name, data, expected: False)
    with pytest.raises(OperationError, match=r"0001.json was changed meanwhile; run the same command again"):
        purge(storage, "birch.md")


def test_no_purge_beside_any_other_command(storage: DirectoryStorage) -> None:
    for kind in ("refresh", "gc", "rollback"):
        with heartbeat.beating(storage, "run-1", kind), pytest.raises(AlreadyRunningError, match=f"a {kind} of"):
            purge(storage, "birch.md")


def test_on_s3_the_same_and_versions_and_copies_are_thought_of(
    storage: DirectoryStorage, s3_bucket: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SITUATE_CACHE", str(tmp_path / "cache"))
    remote: Any = open_storage(s3_bucket())
    for name, data in everything(storage).items():
        remote.put(name, data)
    remote._client.put_bucket_versioning(Bucket=remote._bucket, VersioningConfiguration={"Status": "Enabled"})
    Snapshot(remote, manifest.load(remote, 1))  # fetches tables into this machine's cache
    cached = [
        path for path in (tmp_path / "cache").rglob("*.parquet") if "birch" in all_text(path.read_bytes(), path.name)
    ]
    assert cached
    record = purge(remote, "birch.md")
    assert not [path for path in cached if path.exists()]
    assert record["left"] == [] and record["snapshots_rewritten"] == [1, 2, 3]
    assert any("keeps older versions" in note for note in record["notes"])
    assert all("birch" not in all_text(data, name) for name, data in everything(remote).items())


class Marker:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_in_the_record_of_a_run_is_not_read(storage: DirectoryStorage, tmp_path: Path) -> None:
    """P33: the metadata that other writers leave is where readers have been known to look for one."""
    pickled = pickle.dumps(Marker(tmp_path / "ran"))
    field = pa.field(
        "id",
        pa.string(),
        metadata={b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": pickled},
    )
    table = pa.table([["birch.md", "z"]], schema=pa.schema([field], metadata={b"pandas": pickled, b"pyarrow": pickled}))
    sink = io.BytesIO()
    pq.write_table(table, sink)
    storage.put(layout.run_file(RUN, "documents.parquet"), sink.getvalue())
    assert purge(storage, "birch.md")["left"] == []
    assert not (tmp_path / "ran").exists()
    pickle.loads(pickled)
    assert (tmp_path / "ran").exists(), "the marker would have run"


HOSTILE = [
    "../x",
    "/etc/passwd",
    "a//b",
    "photos/",
    ".",
    "..",
    "A",
    "a",
    "\u00e9",
    "e\u0301",
    "x" * 1024,
    "\U0001f600",
    "l\nf",
]


def test_hostile_ids_are_only_data(stage: Callable[..., Any], tmp_path: Path) -> None:
    """P27: each is retrievable, and each can be erased without touching another."""
    lines = [
        json.dumps({"id": name, "text": f"Text {n} says one thing. It says {n} again."})
        for n, name in enumerate(HOSTILE)
    ]
    staged = stage({"all.jsonl": "\n".join(lines)})
    published = staged.publish()
    objects = [entry.name for entry in staged.storage.list()]
    assert all(name not in entry for name in HOSTILE if len(name) > 2 and name != "a//b" for entry in objects)
    snapshot = Snapshot(staged.storage, published)
    for number, name in enumerate(HOSTILE):
        assert snapshot.original(name).startswith(f"Text {number} ")
    for name in ("../x", "a", "\u00e9", "l\nf"):
        assert purge(staged.storage, name)["left"] == []
    left = sorted(set(HOSTILE) - {"../x", "a", "\u00e9", "l\nf"})
    assert ids(staged.storage, manifest.require_latest(staged.storage).sequence) == left
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_ids_that_are_words_of_a_manifest_are_only_data(stage: Callable[..., Any]) -> None:
    """What a manifest says of files and hashes does not count as a trace."""
    lines = [json.dumps({"id": name, "text": f"{name} says one thing. Then again."}) for name in ("dense", "e", "rest")]
    staged = stage({"all.jsonl": "\n".join(lines)})
    digits = staged.publish().segments[0].digest[:4]
    for name in ("dense", digits):
        assert purge(staged.storage, name)["left"] == []
    assert ids(staged.storage, 2) == ["e", "rest"]


@pytest.mark.parametrize("name", ["manifests/notes", "segments/notes", "runs/notes", "runs/other/notes", "notes"])
def test_files_of_others_do_not_stop_it(storage: DirectoryStorage, name: str) -> None:
    storage.put(name, b"not ours")
    assert purge(storage, "birch.md")["left"] == []
    storage.put("manifests/more-notes", b"about birch.md")
    assert [entry["object"] for entry in purge(storage, "birch.md")["left"]] == ["manifests/more-notes"]


def test_an_id_that_no_document_can_have_is_bad_usage(storage: DirectoryStorage) -> None:
    before = everything(storage)
    with pytest.raises(ConfigError, match="not UTF-8"):
        purge(storage, "caf\udce9")
    assert everything(storage) == before
