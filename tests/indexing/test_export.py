"""An export holds exactly the live rows, with what was generated and every vector; whole or not at all."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from enrichment.errors import ConfigError, OperationError
from indexing import destination, export, layout, lexical_build, tables
from indexing.manifest import Manifest
from indexing.storage import open_storage
from jobs import cli

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))  # a folder of commands, no package

import generated  # noqa: E402

HOSTILE = ("../x", "/etc/passwd", "a//b", "é", "e\u0301", "line\nend", "🙂", "<script>", "\u2028")
LONG = "kettle " * 700 + "end. And a second sentence."  # its first chunk has four vectors


@pytest.fixture(scope="module")
def corpus(nights_in: Callable[[Path], Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two nights: rows with parts, without context and dead; a blank and a broken document; ids that mean mischief. Made once
    and without Lucene; do not write to it.
    """
    nights = nights_in(tmp_path_factory.mktemp("nights"))
    records: list[dict[str, Any]] = [
        {"id": name, "title": None, "text": f"One of {i}. Two of {i}."} for i, name in enumerate(HOSTILE)
    ]
    records.append({"id": "meta", "text": "First. Second.", "metadata": {"team": "Öl", "quote": '"'}})
    lines = "".join(json.dumps(record) + "\n" for record in records)
    nights.write(**{"made.jsonl": lines, "long": LONG, "single": "Only one chunk.", "blank.txt": " \n"})
    nights.write(**{"guide": "---\ntitle: Guide\ndate: 2026-03-01\n---\n# A\n\nOne. Two.\n\n## B\n\nThree. Four.\n"})
    nights.write(**{"broken.txt": b"\xfa\xfb is no text", "old": "It goes. Away."})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lexical_build, "build", lambda texts, segment_id, directory, language: sum(1 for _ in texts))
        nights.refresh()
        nights.write(old=None, guide="# A\n\nOne. Two.\n\n## B\n\nThree, changed. Four.\n")
        nights.refresh()
    assert len(nights.manifest.segments) == 2 and nights.manifest.dead
    return nights


@pytest.fixture
def copied(corpus: Any, nights_in: Callable[[Path], Any], tmp_path: Path) -> Any:
    """The same, to be damaged."""
    shutil.copytree(corpus.root, tmp_path / "copied")
    return nights_in(tmp_path / "copied")


def exported(corpus: Any, target: Path, form: str = "parquet", part_bytes: int = export.PART_BYTES) -> export.Exported:
    with destination.opened(str(target)) as where:
        return export.write(corpus.storage, corpus.manifest, where, form, lambda done: None, part_bytes)  # type: ignore[arg-type]


def expected(corpus: Any) -> list[dict[str, Any]]:
    """The live rows and their vectors as the open snapshot gives them, document by document."""
    snapshot, found = corpus.open(), []
    for segment in corpus.manifest.segments:
        folder = Path(corpus.storage.uri) / layout.SEGMENTS / segment.id
        documents = pq.read_table(folder / layout.DOCUMENTS).to_pylist()
        vectors = pq.read_table(folder / layout.VECTORS).to_pylist()
        for document in documents:
            try:
                live = snapshot.document(document["id"])
            except ConfigError:
                continue
            if live["source_sha256"] != document["source_sha256"] or document["status"] == "quarantined":
                continue
            for row in snapshot.rows(document["id"]):
                number = document["first_row"] + row["chunk_index"]
                text = snapshot.original(document["id"], (row["byte_start"], row["byte_end"]))
                for vector in (vector for vector in vectors if vector["row"] == number):
                    values = np.frombuffer(vector["vector"], np.float16).astype(float).tolist()
                    found.append({**document, **row, "text": text, "part": vector["part"], "vector": values})
    return found


def test_every_live_row_is_there_with_each_of_its_vectors_in_order(corpus: Any, tmp_path: Path) -> None:
    result = exported(corpus, tmp_path / "rows.parquet")
    records, wanted = pq.read_table(tmp_path / "rows.parquet").to_pylist(), expected(corpus)
    same = ("document_id", "chunk_index", "part", "title", "date", "metadata", "heading_path", "header", "text")
    same += ("start", "end", "byte_start", "byte_end", "status", "vector")
    assert [{n: r[n] for n in same} for r in records] == [{n: r[n] for n in same} for r in wanted]
    assert [record["generated_context"] for record in records] == [row["context"] for row in wanted]
    parts = [record["part"] for record in records if record["document_id"] == "long.md"]
    assert parts == [0, 1, 2, 3, 0]
    statuses = {record["document_id"]: record["status"] for record in records}
    assert statuses["single.md"] == "skipped" and {*HOSTILE, "meta"} <= set(statuses)
    assert not {"old.md", "blank.txt", "broken.txt"} & set(statuses)
    counts = corpus.manifest.counts
    assert (result.records, result.documents) == (len(records), counts["documents"]["indexed"])
    assert (
        result.chunks["total"]
        == counts["chunks"]["total"]
        == len({(r["document_id"], r["chunk_index"]) for r in records})
    )


def test_a_snapshot_without_rows_is_an_empty_file(
    nights_in: Callable[[Path], Any], tmp_path: Path, no_lexical: None
) -> None:
    nights = nights_in(tmp_path)
    nights.write(**{"blank.txt": " \n"})
    nights.refresh()
    exported(nights, tmp_path / "rows.parquet")
    exported(nights, tmp_path / "rows.jsonl", "jsonl")
    assert pq.read_table(tmp_path / "rows.parquet").num_rows == 0 and (tmp_path / "rows.jsonl").read_bytes() == b""


def test_lines_of_json_say_the_same_as_parquet(corpus: Any, tmp_path: Path) -> None:
    exported(corpus, tmp_path / "rows.parquet")
    exported(corpus, tmp_path / "rows.jsonl", "jsonl")
    data = (tmp_path / "rows.jsonl").read_bytes()
    assert data.isascii()  # nothing in it ends a line but the ends of the lines
    lines = [json.loads(line) for line in data.splitlines()]
    assert {line["document_id"]: line["metadata"] for line in lines}["meta"] == {"team": "Öl", "quote": '"'}
    plain = [{**line, "metadata": json.dumps(line["metadata"], sort_keys=True)} for line in lines]
    table = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert plain == [{**row, "metadata": json.dumps(json.loads(row["metadata"]), sort_keys=True)} for row in table]


def test_an_export_says_what_it_is(corpus: Any, tmp_path: Path) -> None:
    exported(corpus, tmp_path / "rows.parquet")
    metadata = pq.read_schema(tmp_path / "rows.parquet").metadata
    said = json.loads(metadata[b"situate.export"])
    assert metadata[b"situate.kind"] == b"export" and said["snapshot"] == 2 and said["dimension"] == 64
    assert said["embedding"]["fingerprint"] == corpus.manifest.fingerprints["embedding"]


def test_record_ids_are_the_same_in_every_export_and_never_those_of_another_record() -> None:
    names = [(d, c, p) for d in (*HOSTILE, "a", "a1", 'a", 1', "a,1", "A") for c in (0, 1, 10, 11) for p in (0, 1)]
    ids = [export.record_id(*name) for name in names]
    assert len(set(ids)) == len(names) and [export.record_id(*name) for name in names] == ids
    assert export.record_id("kettle.md", 4, 0) == str(uuid.uuid5(export.NAMESPACE, '["kettle.md", 4, 0]'))


def test_a_large_export_is_a_folder_of_numbered_files(
    corpus: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_RECORDS_AT_ONCE", 5)
    exported(corpus, tmp_path / "one.parquet")
    for form in ("parquet", "jsonl"):
        folder = tmp_path / form
        result = exported(corpus, folder, form, part_bytes=4000)
        names = sorted(path.name for path in folder.iterdir())
        assert len(result.files) > 2 and names == [destination.RECORD, *(file["name"] for file in result.files)]
        assert json.loads((folder / destination.RECORD).read_text())["files"] == result.files
        assert os.stat(folder).st_mode & 0o777 == os.stat(corpus.docs).st_mode & 0o777
    assert pq.read_table(tmp_path / "parquet").equals(pq.read_table(tmp_path / "one.parquet"))


def test_a_target_that_exists_is_left_as_it_is(corpus: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    for name in ("file", "folder"):
        with pytest.raises(ConfigError, match=f"{name} exists"):
            exported(corpus, tmp_path / name)
    with pytest.raises(ConfigError, match="absent is no directory"):
        exported(corpus, tmp_path / "absent" / "file")
    assert (tmp_path / "file").read_text() == "mine" and not list((tmp_path / "folder").iterdir())


def test_a_target_that_appears_meanwhile_is_left_as_it_is(corpus: Any, tmp_path: Path) -> None:
    for name, part_bytes in (("file", export.PART_BYTES), ("folder", 1)):
        with pytest.raises(ConfigError, match="exists"), destination.opened(str(tmp_path / name)) as where:

            def appear(done: int, name: str = name) -> None:
                theirs = tmp_path / name if name == "file" else tmp_path / name / "theirs"
                theirs.parent.mkdir(exist_ok=True)
                theirs.write_text("theirs")

            export.write(corpus.storage, corpus.manifest, where, "jsonl", appear, part_bytes)
    assert (tmp_path / "file").read_text() == "theirs"
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["theirs"]


@pytest.mark.parametrize("name", ["total", "skipped", "documents"])
def test_counts_that_are_not_the_manifests_end_the_export_and_leave_nothing(
    corpus: Any, tmp_path: Path, name: str
) -> None:
    counts = {group: dict(values) for group, values in corpus.manifest.counts.items()}
    if name == "documents":
        counts["documents"]["indexed"] += 1
    else:
        counts["chunks"][name] += 1
    wrong = dataclasses.replace(corpus.manifest, counts=counts)
    before = sorted(tmp_path.iterdir())
    with (
        pytest.raises(OperationError, match=rf"counts \d+ \({name}\)"),
        destination.opened(str(tmp_path / "x")) as where,
    ):
        export.write(corpus.storage, wrong, where, "parquet", lambda done: None)
    assert sorted(tmp_path.iterdir()) == before


def test_a_row_without_a_vector_ends_the_export(copied: Any, tmp_path: Path) -> None:
    segment = copied.manifest.segments[1]
    path = Path(copied.storage.uri) / layout.SEGMENTS / segment.id / layout.VECTORS
    table = tables.read(path, tables.vectors(64))
    tables.write(table.slice(1), path)
    listed = with_file(copied.manifest, 1, layout.VECTORS, path)
    with pytest.raises(OperationError, match="no vector for row 0"), destination.opened(str(tmp_path / "x")) as where:
        export.write(copied.storage, listed, where, "parquet", lambda done: None)
    assert not (tmp_path / "x").exists()


def with_file(found: Manifest, place: int, name: str, path: Path) -> Manifest:
    """The manifest with another size and hash for one file."""
    from indexing.segments import file_sha256

    segment = found.segments[place]
    new = [
        dataclasses.replace(f, size_bytes=path.stat().st_size, sha256=file_sha256(path)) if f.name == name else f
        for f in segment.files
    ]
    segments = [*found.segments]
    segments[place] = dataclasses.replace(segment, files=tuple(new))
    return dataclasses.replace(found, segments=tuple(segments))


@pytest.mark.parametrize("name", [layout.ROWS, layout.VECTORS, layout.DOCUMENTS])
def test_a_damaged_file_ends_the_export_by_name(copied: Any, tmp_path: Path, name: str) -> None:
    path = Path(copied.storage.uri) / layout.SEGMENTS / copied.manifest.segments[0].id / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    with pytest.raises(OperationError, match=f"{name} differs from its manifest"):
        exported(copied, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_an_export_to_s3_is_the_same(
    corpus: Any, tmp_path: Path, s3_bucket: Callable[[], str], monkeypatch: Any
) -> None:
    monkeypatch.setattr(export, "_RECORDS_AT_ONCE", 5)
    uri = s3_bucket()
    exported(corpus, tmp_path / "one.jsonl", "jsonl")
    with destination.opened(f"{uri}/one.jsonl") as where:
        export.write(corpus.storage, corpus.manifest, where, "jsonl", lambda done: None)
    with destination.opened(f"{uri}/many") as where:
        export.write(corpus.storage, corpus.manifest, where, "jsonl", lambda done: None, 4000)
    store, whole = open_storage(uri), (tmp_path / "one.jsonl").read_bytes()
    assert store.get("one.jsonl") == whole
    names = [entry.name for entry in store.list("many/")]
    assert len(names) > 3 and names[0] == f"many/{destination.RECORD}"
    assert b"".join(store.get(name) for name in names[1:]) == whole
    for taken in ("one.jsonl", "many"):
        with pytest.raises(ConfigError, match=f"{taken} exists"), destination.opened(f"{uri}/{taken}"):
            pass
    with destination.opened(f"{uri}/one"):  # another name with the same beginning
        pass


def test_a_failed_export_to_s3_takes_back_what_it_uploaded(
    corpus: Any, s3_bucket: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_RECORDS_AT_ONCE", 5)
    uri, seen = s3_bucket(), []
    store = open_storage(uri)

    def stop(done: int) -> None:
        seen.append(len(list(store.list())))
        if seen[-1] >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), destination.opened(f"{uri}/many") as where:
        export.write(corpus.storage, corpus.manifest, where, "jsonl", stop, 4000)
    assert seen[-1] >= 2 and not list(store.list())


def test_a_full_disk_leaves_nothing(corpus: Any, tmp_path: Path) -> None:
    """In a process that may write no file of more than 5 kB."""
    code = (
        "import resource, signal, sys; from jobs import cli\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, resource.RLIM_INFINITY))\n"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    for form in ("parquet", "jsonl"):
        arguments = ["export", corpus.storage.uri, str(tmp_path / "x"), "--format", form, "--json"]
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
        assert done.returncode == 1, done.stderr
        assert "cannot be written: File too large" in json.loads(done.stdout)["error"]
        assert [path.name for path in tmp_path.iterdir() if "x" in path.name] == []


def test_the_command_counts_and_chooses(corpus: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uri, target = corpus.storage.uri, tmp_path / "rows.jsonl"
    assert cli.main(["export", uri, str(target), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["snapshot"] == 2 and record["format"] == "jsonl" and record["size_bytes"] == target.stat().st_size
    assert record["chunks"]["total"] == corpus.manifest.counts["chunks"]["total"]
    assert [file["name"] for file in record["files"]] == ["rows.jsonl"]
    assert cli.main(["export", uri, str(tmp_path / "first.parquet"), "--snapshot", "1"]) == 0
    assert "snapshot 1: " in capsys.readouterr().out
    ids = pq.read_table(tmp_path / "first.parquet", columns=["document_id"])["document_id"].to_pylist()
    assert "old.md" in ids
    for arguments, sentence in (([str(target)], "exists"), ([str(tmp_path / "x"), "--snapshot", "9"], "no snapshot 9")):
        assert cli.main(["export", uri, *arguments]) == 2
        assert sentence in capsys.readouterr().err


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path, no_lexical: None) -> None:
    """45,000 chunks more, which are 50 MB of text and contexts, take less than 30 MB more."""
    small, large = (peak_of_export(tmp_path / str(chunks), chunks) for chunks in (5_000, 50_000))
    assert large - small < 30_000, "kB"


def peak_of_export(root: Path, chunks: int) -> int:
    """The largest resident memory in kB of a process that exports so many chunks in segments of 5,000."""
    made = open_storage(str(root / "corpus"))
    generated.publish(made, chunks, 5_000, embed=False)
    code = (
        "import sys, resource; from indexing import destination, export, manifest, storage\n"
        "store = storage.open_storage(sys.argv[1])\n"
        "with destination.opened(sys.argv[2]) as where:\n"
        "    export.write(store, manifest.require_latest(store), where, 'parquet', lambda done: None)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    command = [sys.executable, "-c", code, made.uri, str(root / "target")]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
