"""The operator's commands as a person or a script meets them: status, one sentence, JSON alone on stdout."""

import json
from typing import Any

import pytest

from indexing import layout, manifest
from jobs import cli


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    status = cli.main([*arguments, "--json"])
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1
    return status, json.loads(captured.out), captured.err


def text(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main([*arguments]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_verify_exits_1_and_names_the_file(three_nights: Any, capsys: pytest.CaptureFixture[str]) -> None:
    uri = three_nights.storage.uri
    assert run(capsys, "verify", uri)[0] == 0
    assert "all is as it was written" in text(capsys, "verify", uri, "--sample", "0.5")
    [path, *_] = sorted(three_nights.storage.root.glob("segments/*/rows.parquet"))
    path.write_bytes(path.read_bytes()[:-1])
    status, record, said = run(capsys, "verify", uri)
    name = path.relative_to(three_nights.storage.root).as_posix()
    assert (status, record["ok"], [p["file"] for p in record["problems"]]) == (1, False, [name])
    assert said.startswith(f"situate: {uri}/{name}: has ") and said.count("\n") == 1
    assert run(capsys, "verify", uri, "--sample", "2")[0] == 2


def test_snapshots_and_diff(three_nights: Any, capsys: pytest.CaptureFixture[str]) -> None:
    uri = three_nights.storage.uri
    status, record, _ = run(capsys, "snapshots", uri)
    assert status == 0 and [entry["snapshot"] for entry in record["snapshots"]] == [1, 2, 3]
    assert "2 segments, 0 dead rows" in text(capsys, "snapshots", uri)
    status, record, _ = run(capsys, "diff", uri, "1", "2")
    assert (status, record["new"], record["changed"]) == (0, ["juniper.md"], ["alder.md"])
    assert "new: 1 juniper.md changed: 1 alder.md deleted: 0" in text(capsys, "diff", uri, "1", "2")
    assert run(capsys, "diff", uri, "1", "8")[0] == 2


def test_rollback_and_release(three_nights: Any, capsys: pytest.CaptureFixture[str]) -> None:
    uri = three_nights.storage.uri
    assert run(capsys, "rollback", uri, "1")[:2] == (0, {"snapshot": 4, "held": 1})
    assert "held at 1" in text(capsys, "snapshots", uri)
    assert run(capsys, "rollback", uri, "--release")[:2] == (0, {"snapshot": 5, "held": None})
    status, _, said = run(capsys, "rollback", uri, "--release")
    assert status == 2 and "holds nothing to release" in said
    for arguments in ((), ("1", "--release")):
        status, _, said = run(capsys, "rollback", uri, *arguments)
        assert status == 2 and "either the number of a snapshot to roll back to or --release" in said
    assert manifest.require_latest(three_nights.storage).sequence == 5


def test_a_refresh_of_a_held_corpus_exits_4_with_one_sentence(
    three_nights: Any, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = three_nights.storage.uri
    cli.main(["rollback", uri, "1"])
    capsys.readouterr()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# A\n\ntext\n")
    config = tmp_path / "job.yaml"
    config.write_text(
        f"corpus: {uri}\ndocuments: {{uri: {tmp_path}/docs}}\nembedding: {{name: fake}}\nmodel: {{name: fake}}\n"
    )
    status, record, said = run(capsys, "refresh", str(config))
    assert status == 4 and said.count("\n") == 1
    assert record["error"] in said and f"`situate rollback {uri} --release`" in said
    assert manifest.require_latest(three_nights.storage).sequence == 4


def test_gc_is_a_dry_run_unless_told_otherwise(three_nights: Any, capsys: pytest.CaptureFixture[str]) -> None:
    storage = three_nights.storage
    storage.put("segments/orphan/rows.parquet", b"x")
    status, record, _ = run(capsys, "gc", storage.uri, "--older-than", "0", "--keep", "2")
    assert status == 0 and not record["deleted"] and record["snapshots"] == [1]
    assert "segments/orphan/rows.parquet" in record["objects"]
    assert "nothing was removed; --delete removes it" in text(capsys, "gc", storage.uri, "--older-than", "0")
    assert manifest.sequences(storage) == [1, 2, 3]
    assert run(capsys, "gc", storage.uri, "--older-than", "0", "--keep", "2", "--delete")[1]["deleted"]
    assert manifest.sequences(storage) == [2, 3] and not list(storage.list("segments/orphan"))
    assert run(capsys, "gc", storage.uri, "--keep", "0")[0] == 2


def test_purge_prints_its_proof(three_nights: Any, capsys: pytest.CaptureFixture[str]) -> None:
    uri = three_nights.storage.uri
    status, record, _ = run(capsys, "purge", uri, "birch.md")
    assert status == 0 and record["left"] == [] and record["found"]
    said = text(capsys, "purge", uri, "alder.md")
    assert "left of it: nothing" in said and "the sources were not" in said


def test_purge_of_an_id_that_left_no_trace_is_no_success(three_nights: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status, record, complaint = run(capsys, "purge", three_nights.storage.uri, "no/such.md")
    assert status == 1 and not record["found"] and "holds no trace of no/such.md" in complaint


def test_a_purge_that_leaves_a_trace_exits_1(
    three_nights: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from indexing import traces

    monkeypatch.setattr(traces, "clean_ledger", lambda storage, known: 0)
    status, record, said = run(capsys, "purge", three_nights.storage.uri, "birch.md")
    assert status == 1 and all(entry["object"].startswith(layout.LEDGER) for entry in record["left"])
    assert "still holds its id of birch.md; run the same command again" in said
