"""`keywords`: what is read out of an answer, and what is refused."""

import pytest

from enrichment.keywords import KeywordJudge
from enrichment.records import Document, DocumentId

JUDGE = KeywordJudge(Document(DocumentId("a"), "The lease of the Selby Mill ends in May 2024."))


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (" lease, Selby Mill, May 2024", "lease, Selby Mill, May 2024"),
        (" lease; Selby Mill\n- end of term", "lease, Selby Mill, end of term"),
        ("\n1. lease\n2. Selby Mill\n", "lease, Selby Mill"),
        (" lease, Lease, LEASE, mill", "lease, mill"),
        (" lease, mill, and then the model goes on to write whole sentences, rent", "lease, mill"),
        (", ".join(f"word{n}" for n in range(40)), ", ".join(f"word{n}" for n in range(12))),
    ],
)
def test_a_list_is_read_once_each_up_to_the_first_that_is_no_keyword(output: str, text: str) -> None:
    assert JUDGE(output)[:2] == (text, None)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("", "empty"),
        (" the mill", "no_keywords"),
        (" lease, https://evil.example/x", "url"),
        (" lease, <b>mill</b>", "markup"),
        (" !!!!!!!!, lease", "loop"),
        ("<think>lease, mill</think>", "reasoning"),
    ],
)
def test_what_is_no_list_is_refused(output: str, reason: str) -> None:
    assert JUDGE(output) == (None, reason, ())


def test_names_that_the_document_lacks_are_told() -> None:
    assert JUDGE(" lease, Selby Mill, York, 1999").ungrounded == ("1999", "York")


def test_an_output_is_stopped_once_the_list_is_full() -> None:
    assert not JUDGE.enough(" lease, mill") and JUDGE.enough(", ".join("abcdefghijklmnop"))
