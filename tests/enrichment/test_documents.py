"""The one rule for what a text is, by format: what is kept, what is replaced and counted, what is refused and why."""

import codecs
import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from enrichment.documents import FormatName, Loaded, format_of, load, scan
from enrichment.errors import DocumentError


def loaded(data: bytes, name: str) -> list[Loaded]:
    format_name = format_of(name, "auto")
    assert format_name is not None
    return [load(record, name, format_name) for record in scan(data, format_name)]


def one(data: bytes, name: str) -> Loaded:
    (found,) = loaded(data, name)
    return found


def refused(data: bytes, name: str) -> list[str]:
    """The reason of every record that cannot be used."""
    format_name = format_of(name, "auto")
    assert format_name is not None
    reasons = []
    for record in scan(data, format_name):
        try:
            load(record, name, format_name)
        except DocumentError as error:
            reasons.append(error.reason)
    return reasons


def line(**fields: Any) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def parquet(**columns: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, row_group_size=2)
    return sink.getvalue()


# One text, every format


UNCHANGED = [
    "a\r\nb\rc\n",
    "nul \0 c0 \x01\x1f del \x7f",
    "nel \x85 ls \u2028 ps \u2029",
    "\U0001f468\u200d\U0001f469",
    "",
]


@pytest.mark.parametrize("text", UNCHANGED, ids=ascii)
def test_a_text_is_kept_as_it_is_in_every_format(text: str) -> None:
    for data, name in (
        (text.encode(), "a.md"),
        (text.encode(), "a.txt"),
        (line(text=text), "a.jsonl"),
        (json.dumps({"text": text}, ensure_ascii=False).encode(), "a.ndjson"),
        (parquet(text=[text]), "a.parquet"),
    ):
        found = one(data, name)
        assert (found.document.text, found.replaced) == (text, 0)


@pytest.mark.parametrize("name", ["a.md", "a.txt"])
def test_one_byte_order_mark_is_stripped(name: str) -> None:
    assert one(codecs.BOM_UTF8 + b"text", name).document.text == "text"
    assert one(codecs.BOM_UTF8 * 2 + b"text", name).document.text == "\ufefftext"
    assert one(b"in \xef\xbb\xbf side", name).document.text == "in \ufeff side"
    assert one(codecs.BOM_UTF16_LE + "t\u00e9xt".encode("utf-16-le"), name).document.text == "t\u00e9xt"
    assert one(codecs.BOM_UTF16_BE + "t\u00e9xt".encode("utf-16-be"), name).document.text == "t\u00e9xt"


def test_a_byte_order_mark_in_records_is_stripped() -> None:
    first, second = loaded(codecs.BOM_UTF8 + line(id="a", text="\ufeffone") + line(id="b", text="two"), "a.jsonl")
    assert (first.document.id, first.document.text, second.document.text) == ("a", "one", "two")
    assert one(parquet(text=["\ufeffone"]), "a.parquet").document.text == "one"


@pytest.mark.parametrize("data", [b"\xff", b"ok \xc3", b"\xed\xa0\x80", codecs.BOM_UTF16_LE + b"\x00\xd8", b"caf\xe9"])
def test_undecodable_bytes_are_refused_with_their_place(data: bytes) -> None:
    for name in ("a.md", "a.txt"):
        assert refused(data, name) == ["undecodable"]
    with pytest.raises(DocumentError, match="byte 3 is not UTF-8: convert the file"):
        loaded(b"caf\xe9", "a.txt")


# Markdown


def test_front_matter_gives_title_date_and_metadata() -> None:
    matter = "title:  Fell   Warranty\ndate: 2024-01-02\nowner: sales\nversion: 1.10\nyes: no\ntags: [a, b]\nnested: {x: 1}\n"
    text = f"---\n{matter}---\n# Other\n\nText.\n"
    found = one(text.encode(), "x/y.md")
    document = found.document
    assert (document.id, document.title, document.date) == ("x/y.md", "Fell Warranty", "2024-01-02")
    assert document.metadata == {"owner": "sales", "version": "1.10", "yes": "no", "tags": "a, b"}
    assert document.text == text
    assert document.text[document.body_start :] == "# Other\n\nText.\n"
    assert [heading.title for heading in found.headings] == ["Other"]


def test_without_a_title_the_first_top_heading_is_it_then_the_name() -> None:
    assert one(b"## Low\n\n# Top\n\n# Next\n", "x.md").document.title == "Top"
    assert one(b"## Low\n", "x.md").document.title == "x.md"
    assert one(b"---\ntitle: ''\n---\n# Top\n", "x.md").document.title == "Top"
    assert one(b"---\r\ntitle: CR\r\n---\r\ntext", "x.md").document.title == "CR"
    assert one(b"# Not a heading in text", "x.txt").document.title == "x.txt"


@pytest.mark.parametrize(
    "text",
    [
        "---\nnot: closed\n\ntext",
        "---\n- a\n- list\n---\ntext",
        "---\n: {[broken\n---\ntext",
        "---\n!!python/object/apply:os.system [echo]\n---\ntext",
        "text\n---\ntitle: late\n---\n",
        " ---\ntitle: indented\n---\n",
        "---\na: &a long\nb: [*a, *a]\n---\ntext",
        "---\n" + "[" * 2000 + "\n---\ntext",
        "----\ntitle: four\n----\n",
    ],
    ids=range(9),
)
def test_what_is_no_front_matter_stays_text(text: str) -> None:
    document = one(text.encode(), "x.md").document
    assert (document.text, document.body_start, document.title, document.metadata) == (text, 0, "x.md", {})


# JSON lines


def test_a_record_gives_id_title_text_and_metadata() -> None:
    record = {
        "id": 7,
        "title": " A\n title ",
        "text": "t",
        "metadata": {"date": "2024", "n": 1, "none": None, "l": [1]},
    }
    document = one(line(**record), "a.jsonl").document
    assert (document.id, document.title, document.date) == ("7", "A title", "2024")
    assert document.metadata == {"date": "2024", "n": "1", "l": "[1]"}


def test_a_record_without_an_id_has_its_file_and_line() -> None:
    found = loaded(b"\n" + line(text="a") + b"  \n" + line(text="b", id=None) + line(text="c", id=""), "d/a.jsonl")
    assert [entry.document.id for entry in found] == ["d/a.jsonl#2", "d/a.jsonl#4", "d/a.jsonl#5"]
    assert [entry.document.title for entry in found] == ["d/a.jsonl#2", "d/a.jsonl#4", "d/a.jsonl#5"]


def test_lone_surrogates_are_replaced_and_counted() -> None:
    raw = rb'{"id": "i\udfff", "title": "t\ud800", "text": "a\ud800b \udc00\ud83d\ude00", "metadata": {"k\ud800": "v\ud800"}}'
    found = one(raw, "a.jsonl")
    assert (found.document.text, found.replaced) == ("a\ufffdb \ufffd\U0001f600", 2)
    assert (found.document.id, found.document.title) == ("i\ufffd", "t\ufffd")
    assert found.document.metadata == {"k\ufffd": "v\ufffd"}
    repr(found).encode()


def test_only_a_line_feed_ends_a_record() -> None:
    texts = ["a\u2028b\u2029c\x85d", "x\x0by\x0cz\x1c\x1d\x1e"]
    raw = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\r\n" for text in texts).encode()
    assert [entry.document.text for entry in loaded(raw, "a.jsonl")] == texts
    assert [entry.document.text for entry in loaded(raw.rstrip(), "a.jsonl")] == texts


def test_a_broken_line_is_refused_and_its_neighbours_stand() -> None:
    broken = [
        b'{"text": "cut',
        b"[1]",
        b"null",
        b'"text"',
        b"{'text': 'x'}",
        b'{"text": "\xff"}',
        b"[" * 100_000,
        b"\0",
    ]
    raw = line(text="first") + b"\n".join(broken) + b"\n" + line(text="last")
    assert refused(raw, "a.jsonl") == ["unreadable"] * len(broken)
    records = list(scan(raw, "jsonl"))
    assert [record.number for record in records] == list(range(1, len(broken) + 3))
    assert [r.fields["text"] for r in records if r.fields] == ["first", "last"]


@pytest.mark.parametrize("text", [None, 7, ["a"], {"a": 1}, True])
def test_a_record_without_text_is_refused(text: Any) -> None:
    assert refused(line(id="a", text=text), "a.jsonl") == ["no_text"]
    assert refused(line(id="a"), "a.jsonl") == ["no_text"]


def test_null_titles_in_one_file_and_strings_in_another_are_one_schema() -> None:
    files: list[tuple[bytes, FormatName]] = [
        (line(id="a", title=None, text="x") + line(id="b", title=None, text="y"), "jsonl"),
        (line(id="c", title="C", text="z"), "jsonl"),
        (parquet(id=["d"], title=pa.array([None], pa.null()), text=["w"]), "parquet"),
    ]
    titles = [load(record, "f", kind).document.title for data, kind in files for record in scan(data, kind)]
    assert titles == ["a", "b", "C", "d"]


def test_a_records_hash_is_of_its_content_not_of_its_place() -> None:
    first, second = scan(line(id="a", text="x") + line(id="b", text="y"), "jsonl")
    moved = list(scan(b"\n" + line(id="b", text="y") + line(id="a", text="x"), "jsonl"))
    assert {first.sha256(), second.sha256()} == {record.sha256() for record in moved}
    assert first.sha256() != second.sha256()


# Parquet


def test_parquet_rows_are_records_in_order_over_row_groups() -> None:
    found = loaded(parquet(id=list("abcde"), text=[f"text {n}" for n in range(5)], other=[1] * 5), "x.parquet")
    assert [(entry.document.id, entry.document.text) for entry in found] == [
        (c, f"text {n}") for n, c in enumerate("abcde")
    ]


def test_parquet_without_ids_numbers_its_rows() -> None:
    assert [entry.document.id for entry in loaded(parquet(text=["a", "b", "c"]), "d/x.parquet")] == [
        "d/x.parquet#1",
        "d/x.parquet#2",
        "d/x.parquet#3",
    ]


def test_parquet_metadata_may_be_a_struct_a_map_or_json() -> None:
    as_struct = pa.array([{"a": "1", "date": "2024"}])
    as_map = pa.array([[("a", "1"), ("date", "2024")]], pa.map_(pa.string(), pa.string()))
    as_json = pa.array(['{"a": "1", "date": "2024"}'])
    for metadata in (as_struct, as_map, as_json):
        document = one(parquet(text=["x"], metadata=metadata), "x.parquet").document
        assert (document.metadata, document.date) == ({"a": "1", "date": "2024"}, "2024")
    assert one(parquet(text=["x"], metadata=["no JSON"]), "x.parquet").document.metadata == {"metadata": "no JSON"}


def test_an_empty_parquet_file_holds_no_records() -> None:
    assert list(scan(parquet(text=pa.array([], pa.string())), "parquet")) == []


@pytest.mark.parametrize(
    "text", [pa.array([None], pa.string()), pa.array([1]), pa.array([b"bytes"])], ids=["null", "int", "bytes"]
)
def test_parquet_without_text_is_refused(text: pa.Array) -> None:
    assert refused(parquet(id=["a"], text=text), "x.parquet") == ["no_text"]
    with pytest.raises(DocumentError, match="no column text but id"):
        list(scan(parquet(id=["a"]), "parquet"))


def test_a_damaged_parquet_file_is_a_refused_document_not_a_crash() -> None:
    data = parquet(id=["a", "b", "c"], text=["text one", "text two", "text three"])
    problems = 0
    for place in range(0, len(data), 3):
        flipped = data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]
        try:
            list(scan(flipped, "parquet"))
        except DocumentError as error:
            assert error.reason in ("unreadable", "no_text")
            problems += 1
    assert problems > 20
    for cut in (0, 3, len(data) // 2, len(data) - 1):
        with pytest.raises(DocumentError):
            list(scan(data[:cut], "parquet"))


def test_text_in_parquet_that_is_not_utf8_is_refused() -> None:
    wrong = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe"))
    with pytest.raises(DocumentError, match="UTF-8|utf-8"):
        list(scan(parquet(text=wrong), "parquet"))


# Names


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.md", "markdown"),
        ("A.MARKDOWN", "markdown"),
        ("d.md/a.txt", "text"),
        ("a.rst", "text"),
        ("a.b.jsonl", "jsonl"),
        ("a.parquet", "parquet"),
        ("a.pdf", None),
        ("README", None),
        ("d.md/README", None),
        ("md", None),
    ],
)
def test_a_format_is_known_by_the_end_of_the_name(name: str, expected: str | None) -> None:
    assert format_of(name, "auto") == expected
    assert format_of(name, "text") == "text"


def test_a_name_with_a_line_feed_gives_a_title_of_one_line() -> None:
    for name in ("a\nb.txt", "a\nb.md"):
        document = one(b"text", name).document
        assert document.id == name
        assert document.title == " ".join(name.split("\n"))
    assert one(line(id="a\nb", text="x"), "x.jsonl").document.title == "a b"
