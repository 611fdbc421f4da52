"""The example handbook and its questions: size, spans, answers that need two chunks, answers that name no subject."""

import json
import re
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from enrichment import documents, models
from enrichment.split import SplitOptions, split
from enrichment.tokens import FileTokenizer

EXAMPLES = Path(__file__).parents[1] / "examples"
HANDBOOK = EXAMPLES / "handbook"
GENERIC = {"and", "code", "for", "on", "plan", "policy", "procedure", "rules", "schedule", "terms"}


@cache
def texts() -> dict[str, str]:
    """By id; bytes decoded, so that line ends stay as they are."""
    return {p.relative_to(HANDBOOK).as_posix(): p.read_bytes().decode() for p in sorted(HANDBOOK.glob("**/*.md"))}


@cache
def questions() -> list[dict[str, Any]]:
    lines = (EXAMPLES / "handbook-questions.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@cache
def tokenizer(name: str) -> FileTokenizer:
    return FileTokenizer(models.resolve(name))


@cache
def bounds(name: str) -> list[tuple[int, int]]:
    """Start and end of each chunk of a document at the default split, with the real tokenizers."""
    loaded = documents.load(next(documents.scan(texts()[name].encode(), "markdown")), name, "markdown")
    text = loaded.document.text
    assert text == texts()[name]
    embedder = tokenizer("all-minilm-l6-v2").encode(text).offsets
    model = tokenizer("smollm2-135m-instruct").encode(text).offsets
    return [(c.start, c.end) for c in split(loaded.document, loaded.headings, SplitOptions(), embedder, model)]


def straddles(span: dict[str, Any]) -> bool:
    return any(span["start"] < end < span["end"] for _, end in bounds(span["document_id"]))


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def test_the_handbook_is_large_enough() -> None:
    assert len(texts()) >= 14
    assert sum(len(text.split()) for text in texts().values()) >= 15_000


def test_the_spans_lie_inside_their_documents_and_quote_them_once() -> None:
    assert len(questions()) == len({q["query_id"] for q in questions()}) == len({q["query"] for q in questions()}) == 60
    for span in chain.from_iterable(q["spans"] for q in questions()):
        text = texts()[span["document_id"]]
        assert 0 <= span["start"] < span["end"] <= len(text)
        assert text.count(text[span["start"] : span["end"]]) == 1


def test_cross_references_resolve() -> None:
    """A clause or section that is named exists in the same document, as a heading or as a numbered paragraph."""
    for name, text in texts().items():
        numbers = set(re.findall(r"(?m)^(?:#+ )?(\d+(?:\.\d+)*)\.? ", text))
        for named in re.findall(r"(?:clauses?|sections?) (\d[\d.]*(?: (?:and|to) \d[\d.]*)?)", text):
            assert {number.strip(".") for number in re.findall(r"[\d.]+", named)} <= numbers, (name, named)


def test_referent_answers_do_not_name_their_subject() -> None:
    """None of the words of the document's title occurs in the passage, the generic ones aside."""
    unnamed = 0
    for question in (q for q in questions() if q["kind"] == "referent"):
        (span,) = question["spans"]
        text = texts()[span["document_id"]]
        title = re.search(r"(?m)^title: (.+)$", text)
        assert title
        unnamed += not (words(title[1]) - GENERIC) & words(text[span["start"] : span["end"]])
    assert unnamed >= 10


@pytest.mark.model
def test_answers_straddle_a_chunk_boundary() -> None:
    straddling = [q for q in questions() if any(map(straddles, q["spans"]))]
    assert len(straddling) >= 10
    assert all(q["kind"] == "straddle" for q in straddling)
    assert all(map(straddles, chain.from_iterable(q["spans"] for q in questions() if q["kind"] == "straddle")))


@pytest.mark.model
def test_the_tarn_exclusions_are_cut_between_the_rule_and_its_exception() -> None:
    name = "products/tarn-warranty.md"
    text = texts()[name]
    (span,) = next(q["spans"] for q in questions() if q["query_id"] == "h03")
    assert (span["document_id"], span["start"], span["end"]) == (name, 2805, 3435)
    assert [b for b in bounds(name) if b[1] > span["start"] and b[0] < span["end"]] == [(2632, 3114), (3114, 3712)]
    before, after = text[span["start"] : 3114], text[3114 : span["end"]]
    assert before.startswith("Nothing is due where the fault comes from water in the ammonia charge")
    assert before.endswith("by more than the tolerance which that schedule allows.\n\n")
    assert after.startswith("3.3 The previous clause does not apply where the operator shows that the departure could")
    assert after.endswith("unless the oil was filled by Brennick or on Brennick's written instruction.")
