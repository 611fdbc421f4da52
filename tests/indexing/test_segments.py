"""Staged parts -> segments: one set of rows on all sides, in order, by bytes; whatever the ids and the texts are."""

import json
import unicodedata
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from enrichment.errors import ConfigError, OperationError
from indexing import layout, lexical_build, segments, tables
from indexing.manifest import SegmentEntry
from indexing.snapshot import Snapshot
from indexing.staging import STAGED_DOCUMENTS
from indexing.storage import DirectoryStorage

IDS = [
    "a",
    "a_b",
    "b_c",
    "c",
    "a-0",
    "../x",
    "../../../../tmp/x",
    "/etc/passwd",
    "a//b",
    "a/b",
    "photos/",
    ".",
    "..",
    "A",
    unicodedata.normalize("NFC", "caf\u00e9"),
    unicodedata.normalize("NFD", "caf\u00e9"),
    "k" * 1024,
    "k" * 1023,
    "\U0001f600",
    "line\nfeed",
    "line\u2028separator",
    "nul\0byte",
    "soap",
    " leading and trailing ",
    "s3://bucket/key",
    "con:aux|?*<>",
    "\uffff",
    "\U00010000",
]
TEXTS = {
    "crlf": "First line.\r\nSecond line. Third.\r\n\r\nFourth.\r\n",
    "cr": "One.\rTwo.\rThree.",
    "nul": "Before.\0After. \0\0 And more.\x01\x1f",
    "emoji": "A family \U0001f468\u200d\U0001f469\u200d\U0001f467. A flag \U0001f1e9\U0001f1f0! Thumbs \U0001f44d\U0001f3fd.",
    "cjk": "\u6771\u4eac\u306f\u65e5\u672c\u306e\u9996\u90fd\u3067\u3059\u3002\u4eba\u53e3\u304c\u591a\u3044\u3002",
    "separators": "One.\u2028Two.\u2029Three.\x85Four.\x0bFive.\x0cSix.",
    "combining": "e\u0301e\u0301 a\u0300. Next one\u0327. " * 20,
    "mark": "inside \ufeff mark. ok.",
    "long": "x" * 700 + " \u00fc" * 300,
}


def records(texts: dict[str, str]) -> str:
    return "".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in texts.items())


@pytest.fixture(scope="module")
def hostile(open_corpus: Callable[..., Snapshot]) -> Snapshot:
    """Every hostile id over a tame text, every hostile text under a tame id."""
    texts = {name: f"This is the document number {number}. It has words." for number, name in enumerate(IDS)}
    return open_corpus({"in.jsonl": records(texts | TEXTS)}, split={"by": "sentences", "size": 1})


Edit = Callable[[dict[str, pa.Table]], None]


@pytest.fixture
def build_edited(stage: Callable[..., Any], no_lexical: None) -> Callable[[Edit], SegmentEntry]:
    """Stage six documents, edit the tables of one part, build one segment of all."""

    def build(edit: Edit) -> SegmentEntry:
        texts = {name: f"{name} one. {name} two. {name} three." for name in ("ant", "bee", "cat", "dog", "eel")}
        staged = stage({"in.jsonl": records({**texts, "blank": " \n"})})
        parts = list(dict.fromkeys(staged.summary["part"].to_pylist()))
        kinds = {
            layout.DOCUMENTS: STAGED_DOCUMENTS,
            layout.ROWS: tables.ROWS,
            layout.VECTORS: tables.vectors(64),
        }
        names = {name: layout.staged(staged.run.id, parts[0], name) for name in kinds}
        found = {name: tables.read(staged.storage.get(names[name]), kind) for name, kind in kinds.items()}
        edit(found)
        for name, kind in kinds.items():
            staged.storage.put(names[name], tables.to_bytes(found[name].cast(kind)))
        return segments.build(staged.storage, staged.run.id, parts, "ant", "eel", 64, staged.run.config.index)

    return build


def without(name: str, row: int) -> Edit:
    def edit(found: dict[str, pa.Table]) -> None:
        found[name] = found[name].filter(pa.array(np.arange(found[name].num_rows) != row))

    return edit


def drop_indexed_document(found: dict[str, pa.Table]) -> None:
    place = found[layout.DOCUMENTS]["status"].to_pylist().index("indexed")
    without(layout.DOCUMENTS, place)(found)


def drop_rows_and_vectors_of_one_document(found: dict[str, pa.Table]) -> None:
    """The first three rows go, with their vectors: what is left is consistent but for the document."""
    found[layout.ROWS] = found[layout.ROWS].slice(3)
    kept = found[layout.VECTORS].slice(3)
    found[layout.VECTORS] = kept.set_column(0, "row", pa.array(np.asarray(kept["row"]) - 3))


def drop_middle_row_and_its_vector(found: dict[str, pa.Table]) -> None:
    without(layout.ROWS, 1)(found)
    without(layout.VECTORS, 1)(found)
    rows = np.asarray(found[layout.VECTORS]["row"])
    found[layout.VECTORS] = found[layout.VECTORS].set_column(0, "row", pa.array(np.where(rows > 1, rows - 1, rows)))


def repeat_a_row(found: dict[str, pa.Table]) -> None:
    rows, vectors = found[layout.ROWS], found[layout.VECTORS]
    found[layout.ROWS] = pa.concat_tables([rows, rows.slice(0, 1)])
    again = vectors.slice(0, 1).set_column(0, "row", pa.array([rows.num_rows]))
    found[layout.VECTORS] = pa.concat_tables([vectors, again.cast(vectors.schema)])


def repeat_a_document(found: dict[str, pa.Table]) -> None:
    documents = found[layout.DOCUMENTS]
    found[layout.DOCUMENTS] = pa.concat_tables([documents, documents.slice(0, 1)])


def repeat_a_vector(found: dict[str, pa.Table]) -> None:
    found[layout.VECTORS] = pa.concat_tables([found[layout.VECTORS], found[layout.VECTORS].slice(0, 1)])


def point_a_vector_beyond_the_rows(found: dict[str, pa.Table]) -> None:
    rows = np.asarray(found[layout.VECTORS]["row"]).copy()
    rows[-1] = 1000
    found[layout.VECTORS] = found[layout.VECTORS].set_column(0, "row", pa.array(rows))


def test_parts_that_agree_build(build_edited: Callable[[Edit], SegmentEntry]) -> None:
    built = build_edited(lambda found: None)
    assert (built.num_documents, built.num_rows, built.num_vectors) == (6, 15, 15)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (without(layout.VECTORS, 2), "documents ant to eel has 15 rows but vectors for 14"),
        (without(layout.VECTORS, 0), "documents ant to eel has 15 rows but vectors for 14"),
        (without(layout.ROWS, 0), "a staged part has 5 rows but vectors for row 5"),
        (drop_indexed_document, "rows without an indexed document: ant"),
        (drop_rows_and_vectors_of_one_document, "the indexed document ant has no rows"),
        (drop_middle_row_and_its_vector, "not exactly its chunks"),
        (repeat_a_row, "not exactly its chunks"),
        (repeat_a_document, "the indexed document ant has no rows or comes twice"),
        (repeat_a_vector, "a vector twice"),
        (point_a_vector_beyond_the_rows, "a staged part has 6 rows but vectors for row 1000"),
    ],
)
def test_parts_that_disagree_do_not_build(
    build_edited: Callable[[Edit], SegmentEntry], edit: Edit, message: str
) -> None:
    with pytest.raises(OperationError, match=message):
        build_edited(edit)


def test_an_index_with_one_row_less_does_not_build(
    build_edited: Callable[[Edit], SegmentEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(lexical_build, "build", lambda texts, segment_id, directory, language: sum(1 for _ in texts) - 1)
        with pytest.raises(OperationError, match="15 rows but 14 in its lexical index"):
            build_edited(lambda found: None)
    as_matrix = segments.as_matrix
    monkeypatch.setattr(segments, "as_matrix", lambda vectors, dimension: as_matrix(vectors, dimension)[:-1])
    with pytest.raises(OperationError, match="15 vectors but 14 in its dense index"):
        build_edited(lambda found: None)


@pytest.mark.parametrize("fields", [["body"], ["header"], ["body", "header"]])
def test_any_fields_of_a_row_can_be_embedded(stage: Callable[..., Any], no_lexical: None, fields: list[str]) -> None:
    staged = stage({"a.md": "# A\n\nOne sentence. Another one.\n"}, index={"dense_text": fields})
    (segment,) = staged.publish().segments
    assert segment.num_vectors == segment.num_rows > 1


def test_nothing_is_uploaded_by_a_build_that_fails(stage: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexical_build, "build", lambda *arguments: 0)
    staged = stage({"a.txt": "One. Two."})
    with pytest.raises(OperationError):
        staged.publish()
    assert not [e for e in staged.storage.list() if e.name.startswith((layout.SEGMENTS, layout.MANIFESTS))]


def test_a_segment_does_not_depend_on_the_order_of_its_parts(stage: Callable[..., Any], no_lexical: None) -> None:
    staged = stage({"in.jsonl": records({name: f"{name}. Two." for name in "abcdef"})})
    parts = sorted(set(staged.summary["part"].to_pylist()))
    assert len(parts) == 2
    built = [
        segments.build(staged.storage, staged.run.id, order, "a", "f", 64, staged.run.config.index)
        for order in (parts, parts[::-1])
    ]
    assert built[0].digest == built[1].digest
    assert built[0].id != built[1].id


def test_a_duplicate_shares_its_id_and_owns_no_rows(open_corpus: Callable[..., Snapshot]) -> None:
    """Line 2 is kept though its name sorts behind that of line 10."""
    kept, other = (
        {"id": "x", "text": "The first text. It counts."},
        {"id": "x", "text": "The second text. It does not."},
    )
    snapshot = open_corpus(
        {"a.jsonl": f"\n{json.dumps(kept)}{chr(10) * 8}{json.dumps(other)}", "z.txt": "Another. One."}
    )
    documents = snapshot._documents[0].select(["id", "source", "status", "num_rows", "length"]).to_pylist()
    assert [tuple(document.values()) for document in documents] == [
        ("x", "a.jsonl:10", "quarantined", 0, 0),
        ("x", "a.jsonl:2", "indexed", 2, 26),
        ("z.txt", "z.txt", "indexed", 2, 13),
    ]
    assert snapshot.original("x") == kept["text"]
    assert [row["chunk_index"] for row in snapshot.rows("x")] == [0, 1]
    assert [row["chunk_index"] for row in snapshot.rows("z.txt")] == [0, 1]
    assert [entry["id"] for entry in snapshot.manifest.rejected] == ["x"]
    assert "a.jsonl:2" in snapshot.manifest.rejected[0]["reason"]
    found = {passage.document_id for passage in snapshot.search("second text another", k=10, mode="lexical")}
    assert found == {"x", "z.txt"}
    assert all("second" not in passage.text for passage in snapshot.search("second", k=10))


@pytest.mark.parametrize("number", range(len(IDS)), ids=lambda number: ascii(IDS[number])[:20])
def test_a_hostile_id_is_only_data(hostile: Snapshot, number: int) -> None:
    name, text = IDS[number], f"This is the document number {number}. It has words."
    assert hostile.document(name)["id"] == name
    assert hostile.original(name) == text
    rows = hostile.rows(name)
    assert [(row["document_id"], row["chunk_index"]) for row in rows] == [(name, 0), (name, 1)]
    spans = [(row["byte_start"], row["byte_end"]) for row in rows]
    assert "".join(hostile.original(name, span) for span in spans) == text
    best = hostile.search(f"document number {number}", k=1, mode="lexical")[0]
    assert (best.document_id, best.text) == (name, text[: rows[0]["end"]])


def test_hostile_ids_name_no_file_and_stay_apart(hostile: Snapshot) -> None:
    assert isinstance(hostile.storage, DirectoryStorage)
    corpus = hostile.storage.root
    assert sorted(path.name for path in corpus.parent.iterdir()) == ["corpus", "docs"]
    assert sorted(path.name for path in corpus.iterdir()) == ["ledger", "manifests", "runs", "segments"]
    expected = {"documents.parquet", "originals.bin", "rows.parquet", "vectors.parquet", "dense.faiss", "lexical"}
    (segment,) = (corpus / "segments").iterdir()
    assert {path.name for path in segment.iterdir()} == expected
    assert hostile.manifest.counts["documents"]["total"] == len(set(IDS)) + len(TEXTS)
    assert hostile.manifest.counts["documents"]["quarantined"] == 0
    with pytest.raises(ConfigError, match="holds no document"):
        hostile.document("b")


def test_documents_and_rows_are_sorted_and_numbered(hostile: Snapshot) -> None:
    documents, rows = hostile._documents[0], hostile._rows[0]
    ids, numbers = documents["id"].to_pylist(), documents["num_rows"].to_pylist()
    assert ids == sorted([*IDS, *TEXTS], key=lambda name: name.encode()) == sorted([*IDS, *TEXTS])
    keys = list(zip(rows["document_id"].to_pylist(), rows["chunk_index"].to_pylist(), strict=True))
    assert keys == [(name, index) for name, number in zip(ids, numbers, strict=True) for index in range(number)]
    assert documents["first_row"].to_pylist() == [sum(numbers[:place]) for place in range(len(ids))]
    lengths = documents["length"].to_pylist()
    assert documents["offset"].to_pylist() == [sum(lengths[:place]) for place in range(len(ids))]


@pytest.mark.parametrize("split", [{"by": "characters", "size": 30, "overlap": 7}, {"by": "sentences"}, {"size": 9}])
def test_every_chunk_is_its_bytes_of_the_original(
    stage: Callable[..., Any], no_lexical: None, split: dict[str, Any]
) -> None:
    """By plain Parquet and seek, as any other reader would."""
    staged = stage({"in.jsonl": records(TEXTS)}, split=split)
    (segment,) = staged.publish().segments
    folder = staged.storage.root / "segments" / segment.id
    documents = {d["id"]: d for d in pq.read_table(folder / layout.DOCUMENTS).to_pylist()}
    rows = pq.read_table(folder / layout.ROWS).to_pylist()
    originals = (folder / layout.ORIGINALS).read_bytes()
    assert set(documents) == set(TEXTS) == {row["document_id"] for row in rows}
    for row in rows:
        text, document = TEXTS[row["document_id"]], documents[row["document_id"]]
        first = document["offset"] + row["byte_start"]
        assert originals[first : document["offset"] + row["byte_end"]].decode() == row["text"]
        assert text[row["start"] : row["end"]] == row["text"] != ""
        assert row["byte_end"] <= document["length"]
    for name, text in TEXTS.items():
        own = [row for row in rows if row["document_id"] == name]
        assert (own[0]["start"], own[-1]["end"]) == (0, len(text))
        assert all(left["end"] >= right["start"] for left, right in pairwise(own))


def test_a_document_is_found_by_what_it_says_whatever_else_it_holds(hostile: Snapshot) -> None:
    assert {name: hostile.original(name) for name in TEXTS} == TEXTS
    for query, name in (("family flag thumbs", "emoji"), ("Second line Third Fourth", "crlf"), ("mark inside", "mark")):
        assert hostile.search(query, k=1, mode="lexical")[0].document_id == name
    for passage in hostile.search("one two three line", k=50, window=1):
        assert hostile.original(passage.document_id)[passage.start : passage.end] == passage.text


def test_the_matrix_is_the_vectors_in_order_also_of_a_slice() -> None:
    values = np.random.default_rng(1).standard_normal((9, 4)).astype(np.float16)
    columns = [list(range(9)), [0] * 9, [value.tobytes() for value in values]]
    schema = tables.vectors(4)
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
    for found, expected in (
        (table, values),
        (table.slice(3, 4), values[3:7]),
        (pa.concat_tables([table.slice(5), table.slice(0, 2)]), np.concatenate([values[5:], values[:2]])),
        (table.slice(0, 0), values[:0]),
    ):
        assert np.array_equal(segments.as_matrix(found, 4), expected)


def test_a_corpus_of_nothing_but_blanks_opens_and_finds_nothing(open_corpus: Callable[..., Snapshot]) -> None:
    snapshot = open_corpus({"a.md": "\n\n", "b.txt": "", "c.txt": b"\xff\xfe\xfd"})
    assert snapshot.manifest.counts["documents"]["empty"] == 2
    assert snapshot.manifest.counts["documents"]["quarantined"] == 1
    assert snapshot.original("a.md") == "\n\n"
    assert snapshot.original("b.txt") == ""
    assert snapshot.rows("a.md") == []
    for mode in ("hybrid", "dense", "lexical"):
        assert snapshot.search("anything", k=3, mode=mode) == []
