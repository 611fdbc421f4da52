"""`summary`: one call of the model for each document, whose answer is the context of each of its chunks."""

from typing import Any

import pytest

from enrichment.engine import Completion
from enrichment.fake_engine import FakeEngine
from tests.conftest import text_of

SUMMARY = {"strategy": "summary"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The prompts; the answers number them."""
    found: list[tuple[int, ...]] = []

    async def generate(self: Any, prompt: Any, sampling: Any, enough: Any = None) -> Completion:
        found.append(tuple(prompt))
        return Completion(f" is letter {len(found)} of the tenants.", "stop", len(prompt), 0, 9)

    monkeypatch.setattr(FakeEngine, "generate", generate)
    return found


def contexts(nights: Any, name: str) -> set[str]:
    return {row["context"] for row in nights.open().rows(name)}


def test_a_document_is_asked_about_once_and_all_its_chunks_have_the_answer(nights: Any, asked: list[Any]) -> None:
    nights.write(a=text_of("a"), b=text_of("b", rules=40), short="It has one sentence only.")
    result = nights.refresh(context=SUMMARY)
    assert len(asked) == result.chunks["generated"] == 2
    assert result.chunks["ok"] == result.chunks["total"] - result.chunks["skipped"] and result.chunks["skipped"] >= 1
    assert len(contexts(nights, "a.md")) == len(contexts(nights, "b.md")) == 1
    assert contexts(nights, "a.md") != contexts(nights, "b.md")
    assert result.tokens["prompt"] == sum(map(len, asked)), "what all chunks share is counted once"


def test_nights_pay_for_documents_that_changed(nights: Any, asked: list[Any]) -> None:
    nights.write(a=text_of("a"), b=text_of("b"), c=text_of("c"))
    nights.refresh(context=SUMMARY)
    before = contexts(nights, "a.md")
    nights.write(b=text_of("b") + "It says more now.", d=text_of("d"), e=text_of("a"))
    result = nights.refresh(context=SUMMARY)
    assert len(asked) == 3 + 2 and result.chunks["generated"] == 2, "e.md has the text, and so the prompt, of a.md"
    assert contexts(nights, "a.md") == contexts(nights, "e.md") == before
    nights.write(a=None)
    nights.refresh(context=SUMMARY)
    nights.write(a=text_of("a"))
    assert nights.refresh(context=SUMMARY).chunks["generated"] == 0 and len(asked) == 5


def test_what_is_refused_is_refused_for_all(nights: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def generate(self: Any, prompt: Any, sampling: Any, enough: Any = None) -> Completion:
        return Completion("", "stop", len(prompt), 0, 1)

    monkeypatch.setattr(FakeEngine, "generate", generate)
    nights.write(a=text_of("a"))
    result = nights.refresh(context=SUMMARY)
    assert result.chunks["fallback"] == result.chunks["total"]
    assert {row["reason"] for row in nights.open().rows("a.md")} == {"empty"}


def test_only_needed_chunks_have_it_and_none_needed_asks_nothing(nights: Any, asked: list[Any]) -> None:
    nights.write(
        a="# Lease\n\nThe lease names the mill. This ends in May. The lease names the roof. The lease names rent.\n"
    )
    nights.refresh(context={**SUMMARY, "only": "needed"})
    given = [row["context"] is not None for row in nights.open().rows("a.md")]
    assert len(asked) == 1 and given.count(True) >= 1 and given.count(False) >= 1
