"""Extraction: fields that a document states, and nothing that it does not."""

import numpy as np
import pytest

from enrichment.extraction import Extraction, FieldJudge, fingerprint, read
from enrichment.prompts import PLAIN_CHAT
from enrichment.recipe import Given
from enrichment.records import Document, DocumentId
from enrichment.tokens import FakeTokenizer

TEXT = "Lease of the Selby Mill, made on 1 May 2024\nbetween Ada Wells and the Selby Mill Ltd."
JUDGE = FieldJudge(TEXT, ("date", "parties"))


def test_what_stands_in_the_document_is_kept_across_its_lines_and_in_any_case() -> None:
    judged = JUDGE(" 1 May 2024\nparties: ada wells and the Selby Mill Ltd\nsigned: yes")
    assert judged.text == "date: 1 May 2024\nparties: ada wells and the Selby Mill Ltd"
    assert FieldJudge(TEXT, ("made",))(" 1 May 2024 between Ada Wells").text == "made: 1 May 2024 between Ada Wells"


@pytest.mark.parametrize(
    "output",
    ["", " none", " 2 May 2024", " 1 May 2025\nparties: York Mill", "\nowner: Ada Wells", " " + "Selby Mill " * 40],
)
def test_what_does_not_is_left_out_and_not_asked_for_again(output: str) -> None:
    assert JUDGE(output) == ("", None, ())


def test_one_field_may_be_there_without_the_other() -> None:
    assert JUDGE(" none\nparties: Ada Wells").text == "parties: Ada Wells"
    assert JUDGE("<think>1 May 2024</think> 1 May 2024").reason == "reasoning"


def test_lines_are_read_the_first_of_a_field_counts() -> None:
    assert read("date: a\n- **Date**: b\nparties :  c. \nnothing\nx: unknown") == {"date": "a", "parties": "c"}


def test_an_output_is_stopped_behind_the_last_field() -> None:
    assert not JUDGE.enough(" 1 May 2024\nparties: A") and JUDGE.enough(" 1 May 2024\nparties: A\n")


def test_the_prompt_has_as_much_of_the_beginning_as_fits() -> None:
    tokenizer = FakeTokenizer()
    document = Document(DocumentId("a"), "word " * 500, title="Lease")
    asked = Extraction(tokenizer, PLAIN_CHAT, ("date",))
    whole, _ = asked.question(Given(document, (), (), tokenizer.encode(document.text), 4096))
    cut, _ = asked.question(Given(document, (), (), tokenizer.encode(document.text), 300))
    word = int(tokenizer.encode("word").ids[0])
    assert (whole == word).sum() == 500 and len(cut) == 300
    end = tokenizer.encode_template("Copy out the fields.\nAssistant: date:")
    assert cut[-len(end) :].tolist() == whole[-len(end) :].tolist() == end
    assert np.array_equal(cut[:40], whole[:40])


def test_another_field_is_another_question() -> None:
    assert len({fingerprint(fields) for fields in (("date",), ("date", "parties"), ("parties", "date"))}) == 3
