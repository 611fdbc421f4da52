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


def test_a_rewritten_document_has_its_own_summary_also_where_chunks_are_reused(nights: Any, asked: list[Any]) -> None:
    """An older version's context of one chunk is not taken for all of them, even if that chunk, a heading, is unchanged."""
    settings = {"context": {**SUMMARY, "reuse": "chunk"}}
    nights.write(a="# Report\n\nAda leases the mill. It is old. It stands by the weir.\n")
    nights.refresh(**settings)
    nights.write(a="# Report\n\nWhales sing at night. They dive. They surface again.\n")
    assert nights.refresh(**settings).chunks["generated"] == 1
    assert len(asked) == 2 and len(contexts(nights, "a.md")) == 1 and "letter 2" in contexts(nights, "a.md").pop()


def test_what_the_one_call_took_stands_on_one_row(nights: Any, asked: list[Any]) -> None:
    """So that sums over rows, as an evaluation makes them, are what was paid."""
    nights.write(a=text_of("a"), b=text_of("b", rules=20))
    tokens = nights.refresh(context=SUMMARY).tokens
    rows = [row for name in ("a.md", "b.md") for row in nights.open().rows(name)]
    assert sum(row["prompt_tokens"] for row in rows) == tokens["prompt"] == sum(map(len, asked))
    assert sum(row["attempts"] for row in rows) == 2 and sum(row["output_tokens"] for row in rows) == 18


def test_the_row_says_how_much_of_a_long_document_was_read(nights: Any, asked: list[Any]) -> None:
    nights.write(a=text_of("a", rules=400), b=text_of("b"))
    nights.refresh(context=SUMMARY, model={"name": "fake", "max_model_len": 512})
    long, short = nights.open().rows("a.md"), nights.open().rows("b.md")
    length = len(text_of("a", rules=400))
    assert {row["scope_start"] for row in [*long, *short]} == {0}
    assert len({row["scope_end"] for row in long}) == 1 and 500 < long[0]["scope_end"] < length / 4
    assert {row["scope_end"] for row in short} == {len(text_of("b"))}
    assert max(map(len, asked)) <= 512
