"""Golden questions asked of a corpus, and the gate that they decide at: a worse snapshot is not published."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from enrichment.errors import ConfigError, PublishGateError
from indexing import layout, manifest
from jobs import check, cli
from jobs.difference import Asked

NAMES = ("ash", "birch", "cedar", "elm", "fir", "hazel", "larch", "maple", "oak", "pine")
CHARACTERS = {"by": "characters", "size": 120}  # of which the second chunk ends inside the answer


def text(name: str, fact: str = "") -> str:
    """A document of about two hundred characters, then what is asked for."""
    filler = (
        f"The {name} stands in the garden behind the house, where nobody has counted the leaves of it for years. " * 2
    )
    return f"# {name.title()}\n\n{filler}{fact or f'The {name} was planted in 19{len(name)}4 by a gardener.'}\n"


def question(name: str, **more: Any) -> dict[str, Any]:
    return {"query_id": name, "query": f"When was the {name} planted by a gardener?"} | {
        "contains": f"The {name} was planted in 19{len(name)}4 by a gardener.",
        **more,
    }


@pytest.fixture
def asked(tmp_path: Path) -> Callable[..., str]:
    """`asked(questions)`: the path of a file of them."""

    def written(*records: dict[str, Any]) -> str:
        path = tmp_path / "golden.jsonl"
        path.write_text("\n".join(map(json.dumps, records)))
        return str(path)

    return written


@pytest.fixture
def garden(nights: Any) -> Any:
    nights.write(**{name: text(name) for name in NAMES})
    return nights


def gate(golden: str, **options: Any) -> dict[str, Any]:
    return {"gate": {"golden": golden, "k": 3, "mode": "lexical"} | options}


def test_an_answer_that_the_splitter_cut_is_whole_in_a_window(
    garden: Any, asked: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The split is moved so that the answer is cut; without a window the gate refuses the snapshot."""
    golden = asked(*map(question, NAMES))
    first = garden.refresh(split={"by": "sentences"}, **gate(golden, min_recall=0.9, k=1))
    assert first.published and first.gate["recall"] == 1.0
    with pytest.raises(
        PublishGateError, match=r"not published, snapshot 1 still answers: .*less than 0\.9: ash, birch"
    ):
        garden.refresh(split=CHARACTERS, **gate(golden, min_recall=0.9, k=1))
    assert garden.manifest.sequence == 1
    assert "planted" in garden.open().search("When was the ash planted?", 1, "lexical")[0].text

    garden.refresh(split=CHARACTERS)  # without a gate it is published
    corpus = str(garden.root / "corpus")
    assert cli.main(["check", corpus, "--golden", golden, "--mode", "lexical", "-k", "1"]) == 1
    output = capsys.readouterr()
    assert "less than 1: ash, birch, cedar, elm, fir and 5 more not all of it" in output.err
    assert "lacks: The ash was planted in 1934 by a gardener." in output.out
    assert cli.main(["check", corpus, "--golden", golden, "--mode", "lexical", "-k", "1", "--window", "1"]) == 0
    assert "1.000 of what answers 10 questions is found" in capsys.readouterr().out


@pytest.mark.parametrize("way", [["--window", "120", "--window-by", "characters"], ["--expand", "parent"]])
def test_hits_widen_as_in_a_search_and_a_way_of_ones_own_takes_the_place_of_the_gates(
    garden: Any, asked: Callable[..., str], capsys: pytest.CaptureFixture[str], way: list[str]
) -> None:
    golden = asked(*map(question, NAMES))
    narrow = {"window": 1, "window_by": "characters", "within_section": True}
    first = garden.refresh(split=CHARACTERS, **gate(golden, k=1, **narrow))
    assert first.gate["recall"] < 0.5
    command = ["check", str(garden.root / "corpus"), "--golden", golden]
    assert cli.main([*command, *way, "--min-recall", "1"]) == 0
    assert cli.main([*command, "--min-recall", "1"]) == 1
    assert cli.main([*command, "--expand", "parent", "--window", "3"]) == 2
    assert "which takes no window" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"^gate: expand is run, which takes no window"):
        garden.refresh(**gate(golden, window=1, expand="run"))


def test_a_recall_that_drops_is_refused_and_yesterday_answers(garden: Any, asked: Callable[..., str]) -> None:
    golden = asked(*map(question, NAMES))
    garden.refresh(**gate(golden))
    garden.write(oak=text("oak", "Nothing is known of who planted the oak."), elm=text("elm", "It is old."))
    with pytest.raises(PublishGateError) as refused:
        garden.refresh(**gate(golden, max_drop=0.1))
    assert str(refused.value) == (
        "not published, snapshot 1 still answers: the golden questions find 0.800 of what answers them, 1.000 before"
        " (gate.max_drop 0.1): elm, oak not all of it; mend it, or publish it all the same with --force REASON"
    )
    assert garden.manifest.sequence == 1
    assert "1934 by a gardener" in garden.open().search("When was the oak planted?", 1, "lexical")[0].text


def test_a_drop_within_the_threshold_is_published(garden: Any, asked: Callable[..., str]) -> None:
    golden = asked(*map(question, NAMES))
    garden.refresh(**gate(golden))
    garden.write(oak=text("oak", "Nothing is known."))
    found = garden.refresh(**gate(golden, max_drop=0.1))
    assert found.published and found.gate["recall"] == 0.9 and "refused" not in found.gate
    assert garden.manifest.gate == found.gate


def test_a_reason_opens_the_gate_and_the_manifest_keeps_it(garden: Any, asked: Callable[..., str]) -> None:
    golden = asked(*map(question, NAMES))
    garden.refresh(**gate(golden))
    garden.write(oak=text("oak", "Nothing is known."), elm=text("elm", "It is old."))
    found = garden.refresh(Asked(force="the oak was felled"), **gate(golden))
    assert found.published and garden.manifest.gate["forced"] == "the oak was felled"
    assert "max_drop" in garden.manifest.gate["refused"][0]
    garden.write(ash=text("ash"))
    assert not garden.refresh(**gate(golden)).published


def test_what_was_refused_costs_no_model_call_the_next_night(garden: Any, asked: Callable[..., str]) -> None:
    golden = asked(*map(question, NAMES))
    garden.refresh(**gate(golden))
    garden.write(oak=text("oak", "Nothing is known."))
    with pytest.raises(PublishGateError):
        garden.refresh(**gate(golden, max_drop=0.0))
    found = garden.refresh(**gate(golden, max_drop=0.2))
    assert found.published and found.chunks["generated"] == 0


def test_the_snapshot_before_is_asked_anew_when_the_questions_changed(garden: Any, asked: Callable[..., str]) -> None:
    garden.refresh()
    garden.write(oak=text("oak", "Nothing is known."))
    with pytest.raises(PublishGateError, match=r"find 0\.500 of what answers them, 1\.000 before"):
        garden.refresh(**gate(asked(question("oak"), question("elm"))))


@pytest.mark.usefixtures("no_lexical")
def test_counts_are_a_gate_of_their_own(garden: Any) -> None:
    garden.refresh()
    garden.write(**dict.fromkeys(NAMES[:4]))
    asked = Asked(allow_deletes=True)
    with pytest.raises(PublishGateError, match=r"it holds 6 documents of 10 \(gate\.documents 0\.8\)"):
        garden.refresh(asked, gate={"documents": 0.8})
    garden.write(**dict.fromkeys(("x", "y", "z"), b"\xff\xfe\xfd"))
    with pytest.raises(PublishGateError, match=r"3 of 9 are quarantined \(gate\.quarantined 0\.2\)"):
        garden.refresh(asked, gate={"quarantined": 0.2})
    assert garden.manifest.sequence == 1
    assert garden.refresh(asked, gate={"documents": 0.6, "quarantined": 0.4}).published


def test_a_changed_gate_alone_makes_no_snapshot(garden: Any, asked: Callable[..., str]) -> None:
    garden.refresh()
    assert not garden.refresh(**gate(asked(question("oak")))).published


def test_spans_must_lie_in_one_passage_and_a_budget_counts(garden: Any) -> None:
    garden.refresh(split={"by": "sentences"})
    whole = text("oak")
    start = whole.index("The oak was planted")
    span = {"document_id": "oak.md", "start": start, "end": len(whole) - 1}
    spans = check.GoldenSpan(**span), check.GoldenSpan("oak.md", 0, 5)
    two = check.GoldenQuestion("q", "When was the oak planted?", (), spans)
    options = check.GateOptions(k=1, mode="lexical")
    found = check.ask(garden.open(), [two], options)
    assert found.recall == 0.5 and found.missed[0]["missing"] == "oak.md [0:5]"
    assert check.ask(garden.open(), [two], check.GateOptions(k=1, mode="lexical", budget=5)).recall == 0.0
    assert check.ask(garden.open(), [two], check.GateOptions(k=1, mode="lexical", window=9)).recall == 1.0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", ":1 is not JSON"),
        ('{"query": "x"}', ":1 says neither contains nor spans"),
        ('{"query": "x", "contains": [3]}', ":1 has a contains that is no text"),
        ('{"contains": "x"}', ":1 has no query"),
        ('{"query": "x", "contains": "y", "id": 1}\n{"query": "x", "contains": "y", "id": 1}', ":2 has the query_id 1"),
        ("", "holds no question"),
    ],
)
def test_what_cannot_be_asked_stops_the_refresh_before_anything_is_spent(
    garden: Any, tmp_path: Path, line: str, message: str
) -> None:
    (tmp_path / "golden.jsonl").write_text(line)
    with pytest.raises(ConfigError, match=r"golden\.jsonl") as caught:
        garden.refresh(gate={"golden": str(tmp_path / "golden.jsonl")})
    assert message in str(caught.value)
    assert not list(garden.storage.list(layout.LEDGER))


def test_a_missing_file_and_shares_that_are_none_are_named(garden: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"golden questions nowhere\.jsonl cannot be read"):
        garden.refresh(gate={"golden": "nowhere.jsonl"})
    with pytest.raises(ConfigError, match=r"gate\.max_drop is 2"):
        check.GateOptions(max_drop=2)
    with pytest.raises(ConfigError, match=r"gate\.k is 0"):
        check.GateOptions(k=0)
    garden.refresh()
    assert cli.main(["check", str(garden.root / "corpus")]) == 2
    assert "no golden questions: give --golden FILE" in capsys.readouterr().err


def test_a_rollback_keeps_what_the_gate_found(garden: Any, asked: Callable[..., str]) -> None:
    from indexing import history

    garden.refresh(**gate(asked(question("oak"))))
    garden.write(new=text("new"))
    garden.refresh(**gate(asked(question("oak"), question("elm"))))
    history.roll_back(garden.storage, 1)
    assert manifest.require_latest(garden.storage).gate["questions"] == 1
