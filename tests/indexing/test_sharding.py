"""P21: the same rows in 1, 2, 7 and 30 segments give the same hits in the same order, whatever is asked and how.

Skewed on purpose: a topic per segment, so that a word is common in one and absent from the others. Among the rows are dead
ones, texts that occur under several ids, and texts that are embedded in several parts.
"""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from indexing import dead
from indexing.filters import NO_FILTER, Filter
from indexing.fusion import Fusion
from indexing.manifest import DeadEntry
from indexing.search import Hit, Indexes, Mode
from indexing.snapshot import Snapshot

pytestmark = pytest.mark.soak  # 40 Lucene indexes; test_snapshot.py and test_dense_lists.py ask the same of fewer
TOPICS, K = 30, 10
COMMON = ["payment", "clause", "tenant", "notice", "winter", "deposit", "annual", "letter"]
TWINS = "The payment clause of the tenant ends in winter. A deposit follows the annual letter."
DEAD = [f"t{topic:02d}/b" for topic in range(0, TOPICS, 3)] + ["t04/twin", "t11/long"]
Answers = list[list[tuple[tuple[str, int, int], float]]]


def words_of(topic: int) -> list[str]:
    return [f"topic{topic:02d}word{number}" for number in range(6)]


def sources() -> str:
    """For each topic documents a, b and c of ten sentences, some with a twin, some with a sentence of 600 words."""
    chance, lines = random.Random(7), []
    for topic in range(TOPICS):
        records = {
            name: " ".join(
                " ".join(chance.choices(words_of(topic) + COMMON, k=chance.randint(3, 12))).capitalize() + "."
                for _ in range(10)
            )
            for name in "abc"
        }
        if topic % 4 == 0:
            records["twin"] = TWINS
        if topic % 11 == 0:
            records["long"] = " ".join(chance.choices(words_of(topic) + COMMON, k=600)).capitalize() + "."
        for name, text in records.items():
            record = {"id": f"t{topic:02d}/{name}", "title": "T", "text": text, "metadata": {"kind": name}}
            lines.append(json.dumps(record))
    return "\n".join(lines)


@pytest.fixture(scope="module")
def sharded(stage: Callable[..., Any]) -> Mapping[int, Snapshot]:
    staged = stage({"made.jsonl": sources()}, split={"by": "sentences", "size": 1})
    found = {}
    for rows_per_segment in (10_000, 500, 130, 30):
        published = staged.publish(rows_per_segment)
        found[len(published.segments)] = with_dead(Snapshot(staged.storage, published))
    assert sorted(found) == [1, 2, 7, 30]
    segments = found[1].manifest.segments
    assert sum(s.num_vectors for s in segments) > sum(s.num_rows for s in segments), "some rows have parts"
    return found


def with_dead(opened: Snapshot) -> Snapshot:
    """The same snapshot in which the documents in DEAD have died."""
    listed: dict[str, DeadEntry] = {}
    for segment, documents in zip(opened.manifest.segments, opened._documents, strict=True):
        places = np.flatnonzero([name in DEAD for name in documents["id"].to_pylist()])
        firsts, numbers = (documents[name].to_numpy()[places] for name in ("first_row", "num_rows"))
        bits = dead.with_documents(dead.none_of(segment), places, firsts, numbers)
        if len(places):
            listed[segment.id] = dead.write(opened.storage, segment, bits)
    assert sum(entry.num_documents for entry in listed.values()) == len(DEAD)
    return Snapshot(opened.storage, replace(opened.manifest, dead=listed))


def queries() -> list[str]:
    chance = random.Random(11)
    found = [TWINS, "the winter", *words_of(5)]
    while len(found) < 200:
        topics = chance.sample(range(TOPICS), chance.randint(1, 3))
        found.append(
            " ".join(chance.choices([w for t in topics for w in words_of(t)] + COMMON, k=chance.randint(1, 6)))
        )
    return found


def named(opened: Snapshot, hits: list[Hit]) -> list[tuple[tuple[str, int, int], float]]:
    return [(opened.span_of(hit), hit.score) for hit in hits]


def answers(opened: Snapshot, mode: Mode, filters: Filter = NO_FILTER, fusion: Fusion | None = None) -> Answers:
    indexes: Indexes = opened.open_indexes(mode)
    return [named(opened, hits) for hits in indexes.search_many(queries(), K, mode, filters, fusion)]


def assert_same(found: Answers, expected: Answers) -> None:
    for query, some, others in zip(queries(), found, expected, strict=True):
        assert [row for row, _ in some] == [row for row, _ in others], query
        assert [score for _, score in some] == pytest.approx([score for _, score in others], abs=1e-4)


@pytest.mark.parametrize(
    ("mode", "fusion"),
    [
        ("dense", None),
        ("lexical", None),
        ("hybrid", None),
        ("hybrid", Fusion("scores", 1.0, 0.5)),
        ("hybrid", Fusion("scores", 1.0, 0.5, 0.5)),
    ],
)
@pytest.mark.parametrize("filters", [NO_FILTER, Filter(where=(("kind", "a"),)), Filter(id_prefix="t1")])
def test_the_number_of_segments_changes_no_answer(
    sharded: Mapping[int, Snapshot], mode: Mode, fusion: Fusion | None, filters: Filter
) -> None:
    one = answers(sharded[1], mode, filters, fusion)
    for number in (2, 7, 30):
        assert_same(answers(sharded[number], mode, filters, fusion), one)
    assert all(len(hits) == K for hits in one) or mode == "lexical"
    ids = {row[0] for hits in one for row, _ in hits}
    assert len(ids) > 10 and not ids & set(DEAD)


def test_the_corpus_would_show_a_wrong_answer(sharded: Mapping[int, Snapshot]) -> None:
    """The dead would be found, twins tie at the last place, and statistics of each segment alone give other rows."""
    alive, parts = sharded[1], sharded[30]
    undead = Snapshot(alive.storage, replace(alive.manifest, dead={}))
    assert any(row[0] in DEAD for hits in answers(undead, "lexical") for row, _ in hits)
    # Two long sentences, then the first sentence of seven twins; the tenth hit ties with six more.
    twins = [hit for hit in answers(alive, "lexical")[0] if hit[0][0].endswith("twin")]
    assert len(twins) == K - 2 and len({score for _, score in twins}) == 2
    assert twins == sorted(twins, key=lambda hit: (-hit[1], hit[0]))
    shares = [
        len({row for row, _ in truth} & set(found)) / max(1, len(truth))
        for truth, found in zip(answers(parts, "lexical"), naively_merged(parts), strict=True)
    ]
    assert np.mean(shares) < 0.9


def naively_merged(opened: Snapshot) -> list[list[tuple[str, int, int]]]:
    """For each query the best rows by the scores that each segment alone gives."""
    scored: list[list[tuple[float, tuple[str, int, int]]]] = [[] for _ in queries()]
    for segment in opened.manifest.segments:
        single = Snapshot(opened.storage, replace(opened.manifest, segments=(segment,)))
        for found, hits in zip(scored, answers(single, "lexical"), strict=True):
            found += [(score, row) for row, score in hits]
        single.close()
    return [[row for _, row in sorted(found, key=lambda hit: (-hit[0], hit[1]))[:K]] for found in scored]
