"""Golden questions in and out: JSON lines, TREC topics and qrels; what cannot be read is named."""

import json
from pathlib import Path

import pytest

from enrichment.errors import ConfigError
from jobs import golden
from jobs.golden import GoldenSpan

SPAN = {"document_id": "a b#1%.md", "start": 0, "end": 9}


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_json_lines_bring_spans(tmp_path: Path) -> None:
    lines = [{"query_id": "q1", "query": "Which?", "spans": [SPAN]}, {"id": 7, "query": "What?", "spans": [SPAN, SPAN]}]
    found = golden.read(written(tmp_path / "q.jsonl", "\n".join(map(json.dumps, lines))))
    assert found.queries == {"q1": "Which?", "7": "What?"}
    assert found.spans["q1"] == (GoldenSpan("a b#1%.md", 0, 9),) and len(found.spans["7"]) == 2
    assert found.document_ids == {"a b#1%.md"}


@pytest.mark.parametrize(
    "topics",
    [
        "q1\tWhich  roof?\n\nq2\tWhat\tnow?\n",
        "<top>\n<num> Number: q1\n<title> Which  roof?\n<desc> no\n</top>\n<top><num>q2</num><title>What\tnow?</title></top>",
    ],
)
def test_topics_come_with_qrels(tmp_path: Path, topics: str) -> None:
    qrels = written(tmp_path / "q.qrels", "q1 0 a%20b%231%25.md#3 2\nq2 0 c.md#0 1\nq2 0 d.md#0 0\n\nq9 0 x 1\n")
    found = golden.read(written(tmp_path / "q.tsv", topics), qrels)
    assert list(found.queries) == ["q1", "q2"] and found.queries["q1"].split() == ["Which", "roof?"]
    assert found.judged == {"q1": {"a%20b%231%25.md#3": 2}, "q2": {"c.md#0": 1, "d.md#0": 0}}
    assert {"a b#1%.md", "c.md"} <= found.document_ids and "d.md" not in found.document_ids
    assert golden.chunk_number("a b#1%.md", 3) == "a%20b%231%25.md#3"


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    judged = {"q1": {golden.chunk_number("a b.md", 2): 3, "c#0": 0}}
    golden.write_qrels(judged, tmp_path / "qrels")
    golden.write_topics(golden.Golden({"q1": "two\nlines"}), tmp_path / "topics")
    found = golden.read(tmp_path / "topics", tmp_path / "qrels")
    assert found.judged == judged and found.queries == {"q1": "two lines"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no question"),
        ('{"query": "x", "spans": [{"document_id": "a", "start": 2, "end": 2}]}', ":1 has the span 2 to 2"),
        ('{"query": "x", "spans": [{"document_id": "a"}]}', ":1 has a span without"),
        ('{"query": "x"}', "gives question 0 no spans"),
        ('{"query": "x", "query_id": "a b", "spans": []}', ":1 has the query_id 'a b'"),
        ('{"query": " "}', ":1 has no query"),
        ('{"query": "x"}\n[1]', ":2 is no JSON object"),
        ('{"query": "x"}\n{', ":2 is not JSON"),
        ("q1 no tab", ":1 is no question"),
        ("q1\tx\nq1\ty", "two questions with one id"),
        ("<top><num>1</num></top>", "topic 1 has no"),
    ],
)
def test_what_is_no_question_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match="q.txt") as caught:
        golden.read(written(tmp_path / "q.txt", text))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("qrels", "message"), [("q1 0 a", ":1 is no judgement"), ("q1 0 a x", ":1 is no"), ("q2 0 a 1", "for question q1")]
)
def test_what_is_no_judgement_is_named(tmp_path: Path, qrels: str, message: str) -> None:
    with pytest.raises(ConfigError, match="q.qrels") as caught:
        golden.read(written(tmp_path / "q.tsv", "q1\tx"), written(tmp_path / "q.qrels", qrels))
    assert message in str(caught.value)
