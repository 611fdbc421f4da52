"""Filters over real corpora: only what passes is found, all of it, with the scores it has without a filter."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from enrichment.errors import ConfigError
from indexing import dead
from indexing.filters import NO_FILTER, Filter, parse_pairs
from indexing.lexical import LexicalIndex
from indexing.search import Mode
from indexing.snapshot import Snapshot

HARD = 'a "b" \\ 家 \u2028 <é>'
NUMBER = 200


def records() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {
            "id": f"{'legal' if n % 2 else 'sales'}/{n:03d}",
            "title": f"Contract {n}",
            "text": f"The roof of house {n} leaks. The tenant pays for the roof.",
            "metadata": {"year": 2000 + n % 5, "owner": "Ada" if n % 10 == 0 else "Bob"},
        }
        for n in range(NUMBER)
    ]
    found[7]["metadata"] = {"owner": HARD, HARD: "x", "tags": ["b", "a"]}
    found[11]["metadata"] |= {"editor": "Ada"}  # key and value of a filter, but not together
    found[8]["metadata"] = {"Ada": "owner", "note": '"owner": "Ada"'}
    found[9]["title"] = "ÜBER 50% [a-z]"
    return found


@pytest.fixture(scope="module")
def opened(open_corpus: Callable[..., Snapshot]) -> Snapshot:
    lines = "\n".join(json.dumps(record) for record in records())
    return open_corpus({"in.jsonl": lines, "blank.txt": " "}, split={"by": "sentences", "size": 1})


def found(opened: Snapshot, filters: Filter, mode: Mode = "dense", k: int = 1000) -> list[tuple[str, float]]:
    hits = opened.open_indexes(mode).search("roof tenant leaks", k, mode, filters)
    return [(opened.span_of(hit)[0], hit.score) for hit in hits]


@pytest.mark.parametrize(
    ("filters", "numbers"),
    [
        (Filter(id_prefix="legal/"), set(range(1, NUMBER, 2))),
        (Filter(id_prefix="legal/00"), {1, 3, 5, 7, 9}),
        (Filter(id_prefix="egal"), set()),
        (Filter(title="contract 19"), {19, *range(190, 200)}),
        (Filter(title="über 50% [A-Z]"), {9}),
        (Filter(where=(("year", "2003"),)), {n for n in range(NUMBER) if n % 5 == 3} - {8}),
        (Filter(where=(("owner", "Ada"),)), set(range(0, NUMBER, 10))),
        (Filter(where=(("owner", "Ada"), ("year", "2000"))), set(range(0, NUMBER, 10))),
        (Filter(where=(("owner", "Ada"), ("year", "2001"))), set()),
        (Filter(where=(("owner", HARD),)), {7}),
        (Filter(where=((HARD, "x"),)), {7}),
        (Filter(where=(("tags", '["b", "a"]'),)), {7}),
        (Filter(where=(("owner", "Ad"),)), set()),
        (Filter(where=(("unknown", "Ada"),)), set()),
        (Filter(where=(("owner", "Ada"),), title="contract 1", id_prefix="sales/1"), {*range(100, 200, 10)}),
        (Filter(title="\ud800"), set()),
        (Filter(where=(("owner", "\ud800"),), id_prefix="\ud800"), set()),
    ],
)
@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_exactly_what_passes_is_found(opened: Snapshot, filters: Filter, numbers: set[int], mode: Mode) -> None:
    every = {record["id"] for n, record in enumerate(records()) if n in numbers}
    assert {name for name, _ in found(opened, filters, mode)} == every


@pytest.mark.parametrize("mode", ["dense", "lexical"])
def test_a_filter_changes_no_score_and_k_is_filled(opened: Snapshot, mode: Mode) -> None:
    every = found(opened, NO_FILTER, mode)
    for filters in (Filter(where=(("owner", "Ada"),)), Filter(id_prefix="legal/0"), Filter(title="contract 19")):
        passing = {name for name, _ in found(opened, filters, mode)}
        expected = [hit for hit in every if hit[0] in passing]
        assert len(expected) > 10
        assert found(opened, filters, mode, 7) == expected[:7]


def test_the_dead_stay_dead_under_a_filter(opened: Snapshot) -> None:
    segment = opened.manifest.segments[0]
    documents = opened._documents[0]
    place = documents["id"].to_pylist().index("legal/001")
    first, number = (documents[name].to_numpy()[[place]] for name in ("first_row", "num_rows"))
    bits = dead.with_documents(dead.none_of(segment), [place], first, number)  # type: ignore[arg-type]
    listed = {segment.id: dead.write(opened.storage, segment, bits)}
    mortal = Snapshot(opened.storage, dataclasses.replace(opened.manifest, dead=listed))
    for mode in ("dense", "lexical", "hybrid"):
        names = {name for name, _ in found(mortal, Filter(id_prefix="legal/00"), mode)}  # type: ignore[arg-type]
        assert names == {f"legal/{n:03d}" for n in (3, 5, 7, 9)}


def test_the_last_filters_are_remembered(opened: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    original = LexicalIndex._new_searcher

    def counted(self: LexicalIndex, left_out: Any) -> Any:
        made.append(left_out)
        return original(self, left_out)

    monkeypatch.setattr(LexicalIndex, "_new_searcher", counted)
    filters = [Filter(title=f"contract {n}") for n in (1, 2, 3)]
    first = [found(opened, each, "lexical") for each in filters]
    for _ in range(3):
        assert [found(opened, each, "lexical") for each in filters] == first
        found(opened, NO_FILTER, "lexical")
    assert len(made) == 3


def test_conditions_are_pairs() -> None:
    assert parse_pairs(["b=2", "a=1=x"]) == (("a", "1=x"), ("b", "2"))
    assert parse_pairs(["a="]) == (("a", ""),)
    for wrong in ("a", "=a", ""):
        with pytest.raises(ConfigError, match="write key=value"):
            parse_pairs([wrong])
