"""Questions that a model writes: which passages it is asked about, what is kept, what is dropped and why."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from enrichment.engine import Capacity, Completion, PromptRefusedError
from enrichment.errors import ConfigError
from enrichment.tokens import FakeTokenizer
from indexing.snapshot import Snapshot
from jobs import cli, config, golden, questions
from jobs.check import read_questions
from jobs.golden import GoldenSpan
from jobs.progress import Progress
from jobs.questions import Passage

NAMES = ("ash", "birch", "cedar", "elm", "fir", "hazel", "larch", "maple", "oak", "pine")
QUIET = Progress(show=False)


def text(name: str) -> str:
    sentences = (
        f"The {name} was planted behind the house, and this is all that the gardener {who} wrote about its {years} years. "
        for who, years in [("Ann", "early"), ("Bob", "late"), ("Cy", "last")]
    )
    return f"# {name.title()}\n\n{''.join(sentences)}"


@pytest.fixture
def garden(nights: Any) -> Any:
    nights.write(**{name: text(name) for name in NAMES})
    nights.refresh(split={"by": "characters", "size": 150})
    return nights


class Asks:
    """Answers with what it is told to, and keeps the prompts."""

    capacity, preemptions = Capacity(None, 64), 0

    def __init__(self, *answers: str) -> None:
        self.answers, self.prompts, self.closed = answers, list[Sequence[int]](), False

    async def generate(self, prompt: Sequence[int], sampling: Any, enough: Any) -> Completion:
        self.prompts.append(prompt)
        answer = self.answers[len(self.prompts) % len(self.answers)]
        if answer == "refuse":
            raise PromptRefusedError("no")
        return Completion(answer, "stop", len(prompt), 0, 9)

    def close(self) -> None:
        self.closed = True


def configured(garden: Any) -> config.Config:
    return config.parse(
        {
            "corpus": str(garden.root / "corpus"),
            "documents": {"uri": str(garden.docs)},
            "embedding": {"name": "fake"},
            "model": {"name": "fake"},
        }
    )


def test_questions_are_kept_with_their_golden_spans(garden: Any, tmp_path: Path) -> None:
    good = " Who looked after things in those days of yore, so to say? More"
    engine = Asks(good, " What?", good, "refuse", good, " In which passage is it?")
    record = questions.write(configured(garden), 6, tmp_path / "q.jsonl", QUIET, lambda options: engine)
    lines = [json.loads(line) for line in (tmp_path / "q.jsonl").read_text().splitlines()]
    assert len(lines) == record["questions"] == 6 and engine.closed
    assert {line["query"] for line in lines} == {"Who looked after things in those days of yore, so to say?"}
    assert all(line["generated"] is True and line["model"] == "fake" for line in lines)
    fates = record["passages"]
    assert {"kept", "no question", "refused by the engine", "about the passage"} <= set(fates)
    assert sum(fates.values()) == len(engine.prompts)
    found = golden.read(tmp_path / "q.jsonl")
    snapshot: Snapshot = garden.open()
    for (span,) in found.spans.values():
        assert len(snapshot.original(span.document_id)[span.start : span.end]) >= 120
    assert len(read_questions(str(tmp_path / "q.jsonl"))) == 6


def test_passages_are_of_three_kinds_in_turn_and_the_same_each_time(garden: Any) -> None:
    found = list(questions.passages(garden.open()))
    assert [passage.kind for passage in found[:6]] == ["inside", "boundary", "referent"] * 2
    assert found == list(questions.passages(garden.open()))
    chunks = {(row["start"], row["end"]) for row in garden.open().rows("ash.md")}
    for passage in found:
        original = garden.open().original(passage.span.document_id)
        assert original[passage.span.start : passage.span.end] == passage.text
        if passage.kind == "boundary":
            edges = {end for _, end in chunks if passage.span.start < end < passage.span.end}
            assert edges or passage.span.document_id != "ash.md"
        if passage.kind == "referent":
            assert "this" in passage.text or "its" in passage.text


def test_the_prompt_shows_the_passage_and_no_control_token_of_a_document(garden: Any) -> None:
    engine = Asks(" no")
    questions.write(configured(garden), 1, garden.root / "q.jsonl", QUIET, lambda options: engine)
    words = set(FakeTokenizer().encode_template("planted behind gardener"))
    assert engine.prompts and all(words & set(prompt) for prompt in engine.prompts)


@pytest.mark.parametrize(
    ("answer", "fate"),
    [
        (" Who tended the trees of old, and for whom?", "kept"),
        (" Where was the ash planted?", "found by keywords"),
        (" Is it so that the ash was planted behind the house, and this is all?", "copied"),
        (" Why?", "no question"),
        (" It says nothing", "no question"),
        (" " + "word " * 50 + "?", "no question"),
        (" What does the excerpt say about old trees?", "about the passage"),
        (None, "refused by the engine"),
    ],
)
def test_what_no_one_would_ask_and_what_any_keyword_finds_is_dropped(
    garden: Any, answer: str | None, fate: str
) -> None:
    snapshot = garden.open()
    original = snapshot.original("ash.md")
    passage = Passage("inside", GoldenSpan("ash.md", 0, len(original)), original, None, "")
    query, found = questions.judged(answer, passage, snapshot)
    assert found == fate and (query is not None) == (fate == "kept")


def test_what_cannot_be_written_is_named(garden: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="-n is 0"):
        questions.write(configured(garden), 0, tmp_path / "q", QUIET)
    settings = configured(garden).as_dict() | {"model": None, "context": {"strategy": "header"}}
    with pytest.raises(ConfigError, match="needs a model"):
        questions.write(config.parse(settings), 3, tmp_path / "q", QUIET)


def test_what_an_engine_prints_is_no_part_of_the_result(
    garden: Any, tmp_path: Path, capfd: Any, monkeypatch: Any
) -> None:
    class Prints(Asks):
        async def generate(self, *args: Any) -> Completion:
            os.write(1, b"a warning of the engine or of its processes\n")
            return await super().generate(*args)

    monkeypatch.setattr(questions, "start_engine", None)
    monkeypatch.setattr(
        questions.write, "__defaults__", (lambda options: Prints(" Who tended the trees of old, and why?"),)
    )
    sources = {"corpus": str(garden.root / "corpus"), "documents": {"uri": str(garden.docs)}}
    fake = {"embedding": {"name": "fake"}, "model": {"name": "fake"}}
    (tmp_path / "c.yaml").write_text(json.dumps({**sources, **fake}))
    assert (
        cli.main(["questions", str(tmp_path / "c.yaml"), "-n", "2", "--out", str(tmp_path / "q.jsonl"), "--json"]) == 0
    )
    output = capfd.readouterr()
    assert json.loads(output.out)["questions"] == 2 and "a warning of the engine" in output.err
