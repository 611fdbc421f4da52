"""`questions`: what is read out of an answer, and what is refused."""

import pytest

from enrichment.asked_questions import WORDING, QuestionJudge
from enrichment.records import Document, DocumentId

JUDGE = QuestionJudge(Document(DocumentId("a"), "The lease of the Selby Mill ends in May 2024."))
WHEN, WHO, WHAT, WHERE = (
    "When does the lease end?",
    "Who leases the Selby Mill?",
    "What ends in May?",
    "Where is it let?",
)


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (f" {WHEN}\n2. {WHO}\n3. {WHAT}\n4. {WHERE}", f"{WHEN} {WHO} {WHAT}"),
        (f" {WHEN} {WHEN} {WHO}", f"{WHEN} {WHO}"),
        (f' "{WHEN}\nIt ends in May.\n- {WHO}', f"{WHEN} {WHO}"),
        (" 租约什么时候到期结束呢？", "租约什么时候到期结束呢？"),
    ],
)
def test_up_to_three_questions_are_read_each_once(output: str, text: str) -> None:
    assert JUDGE(output)[:2] == (text, None)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("", "empty"),
        (" The lease ends in May.", "no_question"),
        (" Do you see www.evil.example/x?", "url"),
        (
            f" Can you {WORDING.question.lower().rstrip('.')} as someone would ask them who has not read the document?",
            "echo",
        ),
        ("<think>When?</think>", "reasoning"),
    ],
)
def test_what_has_no_question_is_refused(output: str, reason: str) -> None:
    assert JUDGE(output) == (None, reason, ())


def test_names_that_the_document_lacks_are_told_and_an_output_is_stopped_behind_the_third() -> None:
    assert JUDGE(" Who is the tenant of the York Mill?").ungrounded == ("York",)
    assert not JUDGE.enough(f"{WHEN} {WHO}") and JUDGE.enough(f"{WHEN} {WHO} {WHAT}")
