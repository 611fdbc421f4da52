"""Sources -> references: every file and record is listed, read, refused by name or left out by a stated rule."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from enrichment.errors import ConfigError, DocumentError, OperationError
from indexing import live
from indexing.manifest import DeadEntry
from indexing.storage import open_storage
from jobs import counts, difference, sources
from jobs.config import DocumentsOptions
from jobs.difference import Changes, Plan
from jobs.sources import SourceReader

Files = Mapping[str, str | bytes]
Write = Callable[..., str]


def line(**fields: Any) -> str:
    return json.dumps(fields) + "\n"


def parquet(path: Path, **columns: Any) -> None:
    pq.write_table(pa.table(columns), path)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write({name: content})` -> the folder `docs` below the test's own."""

    def write_files(files: Files) -> str:
        for name, content in files.items():
            path = tmp_path / "docs" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(tmp_path / "docs")

    return write_files


def names(uri: str, besides: str | None = None, **options: Any) -> list[str]:
    return [file.name for file in sources.list_files(DocumentsOptions(uri, **options), besides).files]


def resolved(uri: str, **options: Any) -> pa.Table:
    given = DocumentsOptions(uri, **options)
    listing = sources.list_files(given)
    return sources.resolve(
        pa.concat_tables([sources.scan_file(listing.root, f, given.max_bytes) for f in listing.files])
    )


def problems(refs: pa.Table) -> dict[tuple[str, str], str]:
    return {(ref["id"], ref["file"]): ref["problem"] for ref in refs.to_pylist() if ref["problem"]}


TREE = {"a.md": "A", "b.txt": "B", "c.pdf": "C", "d/e.md": "E", "d/f/g.md": "G", "d/f/h.jsonl": "{}"}


def test_a_folder_is_listed_in_order_and_other_kinds_are_counted(write: Write) -> None:
    uri = write(TREE)
    listing = sources.list_files(DocumentsOptions(uri))
    assert [file.name for file in listing.files] == ["a.md", "b.txt", "d/e.md", "d/f/g.md", "d/f/h.jsonl"]
    assert [file.size_bytes for file in listing.files] == [1, 1, 1, 1, 2]
    assert listing.num_ignored == 1
    assert names(uri + "/") == names(uri)
    assert names(uri, format="text") == sorted(TREE)


def test_one_file_is_a_source(write: Write) -> None:
    uri = write(TREE | {"README": "R", "a.mdx": "no", "xa.md": "no"})
    assert names(f"{uri}/a.md") == ["a.md"]
    assert names(f"{uri}/README", format="text") == ["README"]
    (ref,) = resolved(f"{uri}/d/f/g.md").to_pylist()
    assert SourceReader(f"{uri}/d/f").load(ref)[0].document.text == "G"


def test_a_folder_named_like_a_file_is_a_folder(write: Write) -> None:
    assert names(write({"x.md/a.txt": "A"}) + "/x.md") == ["a.txt"]


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("**/*.md", ["a.md", "d/e.md", "d/f/g.md"]),
        ("*.md", ["a.md"]),
        ("d/**/*.md", ["e.md", "f/g.md"]),
        ("d/*/*.md", ["f/g.md"]),
        ("d/**", ["e.md", "f/g.md", "f/h.jsonl"]),
        ("?.txt", ["b.txt"]),
        ("[ab].*", ["a.md", "b.txt"]),
        ("[!a].*", ["b.txt"]),
        ("**/[eg].md", ["d/e.md", "d/f/g.md"]),
    ],
)
def test_a_glob_picks_names(write: Write, glob: str, expected: list[str]) -> None:
    assert names(f"{write(TREE)}/{glob}") == expected


def test_a_relative_glob_starts_here(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write(TREE))
    assert names("**/*.md") == names("./**/*.md") == ["a.md", "d/e.md", "d/f/g.md"]
    assert names("d/*.md") == ["e.md"]
    assert names(".") == ["a.md", "b.txt", "d/e.md", "d/f/g.md", "d/f/h.jsonl"]


def test_a_folder_with_brackets_in_its_name_is_itself(write: Write) -> None:
    assert names(write({"notes [2024]/a.md": "A"}) + "/notes [2024]") == ["a.md"]


def test_hidden_files_are_ignored(write: Write) -> None:
    uri = write({"a.md": "A", ".b.md": "B", ".git/c.md": "C", "d/.e/f.md": "F", "d/.g.md": "G", "d/h.md": "H"})
    assert names(uri) == ["a.md", "d/h.md"]
    assert names(f"{uri}/**/*.md") == ["a.md", "d/h.md"]


def test_a_corpus_inside_the_source_folder_is_left_out(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = write({"a.md": "A", "corpus/segments/x/documents.parquet": "P", "corpus2/b.md": "B"})
    assert names(uri, besides=f"{uri}/corpus") == ["a.md", "corpus2/b.md"]
    monkeypatch.chdir(uri)
    assert names(".", besides="corpus") == ["a.md", "corpus2/b.md"]
    assert names(uri, besides="./corpus/") == ["a.md", "corpus2/b.md"]
    assert names(uri, besides="/somewhere/else") == names(uri)


def test_a_corpus_that_is_the_source_folder_is_refused(write: Write) -> None:
    uri = write({"a.md": "A"})
    for besides in (uri, uri + "/"):
        with pytest.raises(ConfigError, match="lies in the corpus"):
            names(uri, besides=besides)


def test_a_source_without_documents_is_a_configuration_error(write: Write, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    with pytest.raises(ConfigError, match="holds no documents: it does not exist or is empty"):
        names(str(tmp_path / "docs"))
    with pytest.raises(ConfigError, match=r"nowhere holds no documents.*\.md"):
        names(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="1 files of other kinds are there"):
        names(write({"a.pdf": "x", ".hidden.md": "x"}))
    with pytest.raises(ConfigError, match="holds no documents"):
        names(f"{tmp_path}/docs/absent.md")


@pytest.mark.parametrize("glob", ["[z-a]*.md", "[]", "*[!].md"])
def test_a_glob_that_is_none_is_a_configuration_error(write: Write, glob: str) -> None:
    uri = write({"a.md": "A"})
    with pytest.raises(ConfigError, match=r"documents\.uri .* is no glob"):
        names(f"{uri}/{glob}")


@pytest.mark.parametrize(
    ("glob", "expected"), [("[[a]*", ["[.md", "a.md"]), ("[!a]*", ["!.md", "[.md"]), ("[a!]*", ["!.md", "a.md"])]
)
def test_a_set_of_characters_holds_what_it_names(write: Write, glob: str, expected: list[str]) -> None:
    uri = write(dict.fromkeys(("!.md", "[.md", "a.md"), "A"))
    assert names(f"{uri}/{glob}") == expected


def test_a_duplicate_is_refused_and_both_sources_are_named(write: Write) -> None:
    uri = write(
        {
            "a.jsonl": line(id="x", text="1") + line(id="y", text="2") + line(id="x", text="3"),
            "b.jsonl": line(id="x", text="4"),
            "y": "no document",
            "z.md": "Z",
        }
    )
    refs = resolved(uri)
    assert [(ref["id"], ref["file"], ref["number"]) for ref in refs.to_pylist()] == [
        ("x", "a.jsonl", 1),
        ("x", "a.jsonl", 3),
        ("x", "b.jsonl", 1),
        ("y", "a.jsonl", 2),
        ("z.md", "z.md", None),
    ]
    assert [bool(problem) for problem in refs["problem"].to_pylist()] == [False, True, True, False, False]
    with pytest.raises(DocumentError, match=r"the id is taken by a.jsonl:1; give each document its own") as caught:
        SourceReader(uri).load(refs.to_pylist()[2])
    assert caught.value.reason == "duplicate_id"


def test_a_files_id_can_be_taken_by_a_record(write: Write) -> None:
    refs = resolved(write({"a.md": "A", "r.jsonl": line(id="a.md", text="other")}))
    assert list(problems(refs)) == [("a.md", "r.jsonl")]
    assert "taken by a.md;" in problems(refs)["a.md", "r.jsonl"]


def test_every_record_is_read_back_by_its_reference(write: Write, tmp_path: Path) -> None:
    texts = ["plain", "caf\u00e9 \u2028 x", "\U0001f600" * 50, "", "crlf\r\n"]
    lines = "".join(json.dumps({"id": f"l{n}", "text": t}, ensure_ascii=False) + "\n\n" for n, t in enumerate(texts))
    uri = write({"a.jsonl": lines, "t.txt": "text", "m.md": "# M\n"})
    pq.write_table(pa.table({"id": [f"p{n}" for n in range(5)], "text": texts}), f"{uri}/p.parquet", row_group_size=2)
    reader = SourceReader(uri)
    found = {}
    for ref in resolved(uri).to_pylist():
        loaded, sha256 = reader.load(ref)
        assert (loaded.document.id, sha256) == (ref["id"], ref["sha256"])
        found[ref["id"]] = loaded.document.text
    expected = {f"{kind}{n}": text for kind in "lp" for n, text in enumerate(texts)}
    assert found == {**expected, "t.txt": "text", "m.md": "# M\n"}


def test_parquet_files_with_and_without_rows_lie_side_by_side(write: Write) -> None:
    uri = write({"keep.md": "K"})
    parquet(Path(uri, "1.parquet"), text=pa.array([], pa.string()))
    parquet(Path(uri, "2.parquet"), text=["a", "b"], title=pa.array([None, None], pa.null()))
    parquet(Path(uri, "3.parquet"), text=["c"], title=["C"])
    Path(uri, "4.parquet").write_bytes(b"")
    parquet(Path(uri, "5.parquet"), words=["no text here"])
    refs = resolved(uri)
    assert refs["id"].to_pylist() == ["2.parquet#1", "2.parquet#2", "3.parquet#1", "4.parquet", "5.parquet", "keep.md"]
    found = problems(refs)
    assert found["4.parquet", "4.parquet"].startswith("unreadable: this is not a Parquet file")
    assert found["5.parquet", "5.parquet"].startswith("no_text: the file has no column text but words")
    assert len(found) == 2


def test_only_empty_parquet_files_resolve_to_nothing(write: Write) -> None:
    uri = write({})
    Path(uri).mkdir()
    parquet(Path(uri, "1.parquet"), text=pa.array([], pa.string()))
    assert resolved(uri).num_rows == 0


def test_shuffled_records_give_the_same_references(write: Write) -> None:
    records = [line(id=f"n{number}", text=f"text {number}") for number in range(9)]
    kept = ["id", "file", "sha256", "num_bytes", "problem"]
    before = resolved(write({"a.jsonl": "".join(records)})).select(kept)
    after = resolved(write({"a.jsonl": "\n".join(records[::-1])})).select(kept)
    assert after.equals(before)


def test_a_document_over_the_limit_is_refused_with_its_size(write: Write) -> None:
    refs = resolved(
        write({"big.md": "x" * 101, "fits.md": "x" * 100, "r.jsonl": line(id="r", text="\u00e9" * 51)}), max_bytes=100
    )
    found = problems(refs)
    assert set(found) == {("big.md", "big.md"), ("r", "r.jsonl")}
    assert found["big.md", "big.md"] == (
        "too_large: 101 bytes are over documents.max_bytes (100); raise it or split the document"
    )
    assert found["r", "r.jsonl"].startswith("too_large: 102 bytes")


def test_a_broken_record_is_a_reference_with_its_problem(write: Write) -> None:
    refs = resolved(write({"a.jsonl": line(text="one") + '{"text": \n' + line(text="three")}))
    assert refs["id"].to_pylist() == ["a.jsonl#1", "a.jsonl#2", "a.jsonl#3"]
    assert problems(refs)["a.jsonl#2", "a.jsonl"].startswith("unreadable: the line is not JSON")


def test_a_file_that_vanishes_is_refused_by_name(write: Write) -> None:
    uri = write({"a.md": "A", "b.jsonl": line(id="b", text="B")})
    refs = resolved(uri).to_pylist()
    os.remove(f"{uri}/a.md")
    Path(uri, "b.jsonl").write_text("{}")
    for ref, reason in ((refs[0], "unreadable"), (refs[1], "unreadable")):
        with pytest.raises(DocumentError, match=ref["file"]) as caught:
            SourceReader(uri).load(ref)
        assert caught.value.reason == reason


def test_a_dangling_link_is_a_reference_with_its_problem(write: Write) -> None:
    uri = write({"a.md": "A"})
    Path(uri, "b.md").symlink_to("nowhere.md")
    assert list(problems(resolved(uri))) == [("b.md", "b.md")]
    assert problems(resolved(uri))["b.md", "b.md"].startswith("unreadable")


def test_a_name_that_is_not_utf8_is_refused_and_its_neighbours_stand(write: Write) -> None:
    uri = write({"a.md": "A"})
    Path(os.fsdecode(os.fsencode(uri) + b"/caf\xe9.md")).write_text("C")
    refs = resolved(uri)
    assert refs["id"].to_pylist() == ["a.md", "caf\ufffd.md"]
    assert "not UTF-8; rename it" in problems(refs)["caf\ufffd.md", "caf\ufffd.md"]


def test_a_prefix_on_s3_is_a_source(s3_bucket: Callable[[], str]) -> None:
    uri = s3_bucket()
    storage = open_storage(uri)
    for name in ("docs/a.md", "docs/sub/b.md", "docs/.hidden.md", "docs/corpus/segments/x.parquet", "docs2/c.md"):
        storage.put(name, b"text")
    assert names(f"{uri}/docs", besides=f"{uri}/docs/corpus") == ["a.md", "sub/b.md"]
    assert names(f"{uri}/docs/**/*.md", besides=f"{uri}/docs/corpus") == ["a.md", "sub/b.md"]
    assert names(f"{uri}/docs/a.md") == ["a.md"]
    (ref,) = resolved(f"{uri}/docs/a.md").to_pylist()
    assert SourceReader(f"{uri}/docs").load(ref)[0].document.text == "text"


# The difference to the previous snapshot, and the counts


def test_moved_lines_are_no_change_and_changed_ones_are(stage: Callable[..., Any], no_lexical: None) -> None:
    records = [line(id=f"n{number}", text=f"text {number}") for number in range(6)]
    staged = stage({"a.jsonl": "".join(records), "b.md": "B"})
    published = staged.publish()
    docs = staged.run.config.documents.uri

    def plan(**other: str) -> Plan:
        prints = {**published.fingerprints, **other}
        return difference.plan(staged.storage, published, resolved(docs), prints, 0.5)

    assert plan().changes == Changes(unchanged=7)
    assert not plan().due
    Path(docs, "a.jsonl").write_text("".join(records[::-1]))
    assert plan().changes == Changes(unchanged=7) and not plan().due
    Path(docs, "c.jsonl").write_text("".join(records[:3]))
    Path(docs, "a.jsonl").write_text("\n" + "".join(records[3:]))
    assert plan().changes == Changes(unchanged=7) and not plan().due
    Path(docs, "b.md").write_text("changed")
    Path(docs, "a.jsonl").write_text(line(id="new", text="x") + records[4])
    found = plan()
    assert found.changes == Changes(new=1, changed=1, unchanged=4, deleted=2) and found.due
    assert found.work["id"].to_pylist() == ["b.md", "new"]
    assert found.old["id"].take(pa.array(found.gone)).to_pylist() == ["n3", "n5"]
    other = plan(model="other")
    assert other.settings and other.work.num_rows == 6
    first = difference.plan(staged.storage, None, resolved(docs), {}, 0.5)
    assert first.changes == Changes(new=6) and not first.settings


def test_of_two_records_with_one_id_a_swap_is_a_change(stage: Callable[..., Any], no_lexical: None) -> None:
    records = [line(id="x", text="one"), line(id="x", text="two")]
    staged = stage({"a.jsonl": "".join(records)})
    published = staged.publish()
    docs = staged.run.config.documents.uri

    def is_due() -> bool:
        return difference.plan(staged.storage, published, resolved(docs), published.fingerprints, 0.5).due

    assert not is_due()
    Path(docs, "a.jsonl").write_text("".join(records[::-1]))
    assert is_due()


def test_every_document_is_counted_once_whatever_becomes_of_it(stage: Callable[..., Any], no_lexical: None) -> None:
    staged = stage(
        {
            "a.md": "One. Two.",
            "b.md": " \n",
            "c.md": b"\xff",
            "d.jsonl": line(id="a.md", text="x") + "{\n" + line(id="d", text="D."),
        }
    )
    published = staged.publish()
    documents, chunks = published.counts["documents"], published.counts["chunks"]
    assert (documents["total"], documents["empty"], documents["quarantined"]) == (6, 1, 3)
    assert chunks["total"] == 3 == sum(chunks[status] for status in ("ok", "fallback", "failed", "skipped"))
    assert chunks["generated"] + chunks["reused"] == chunks["ok"] + chunks["fallback"] == 2
    assert [(entry["id"], entry["reason"].partition(":")[0]) for entry in published.rejected] == [
        ("a.md", "duplicate_id"),
        ("c.md", "undecodable"),
        ("d.jsonl#2", "unreadable"),
    ]


@pytest.mark.parametrize("tamper", ["total", "new", "rows", "status", "segment", "built", "refs", "dead"])
def test_counts_that_do_not_add_up_are_not_published(stage: Callable[..., Any], no_lexical: None, tamper: str) -> None:
    staged = stage({"a.md": "One. Two.", "b.md": "Three. Four."})
    published = staged.publish()
    plan, settled = staged.settled()
    census = live.documents(staged.storage, published.segments, {}, counts.COLUMNS)
    counted = counts.count(census, plan, settled)
    built = segments = list(published.segments)
    dead = {}
    counts.reconcile(plan, settled, counted, built, segments, dead)
    match tamper:
        case "total" | "new":
            counted["documents"][tamper] -= 1
        case "rows":
            counted["chunks"]["total"] += 1
        case "status":
            counted["chunks"]["ok"] -= 1
        case "segment":
            segments = []
        case "built":
            built = []
        case "refs":
            plan = replace(plan, num_listed=1)
        case "dead":
            dead = {segments[0].id: DeadEntry("", 0, 0, 1)}
    with pytest.raises(OperationError, match=r"do not add up \(\d+ and \d+\): nothing was published"):
        counts.reconcile(plan, settled, counted, built, segments, dead)
