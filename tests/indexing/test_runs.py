"""Runs of relevant chunks: hand-checked extractions, and what holds for any."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexing.runs import Place, Run, extract, relevances
from indexing.search import Hit


def anything(runs: Sequence[Run]) -> bool:
    return True


def extracted(
    values: dict[int, float], hits: list[int], penalty: float = 0.2, longest: int = 15
) -> list[tuple[int, int]]:
    """The runs of one document as first and last chunks."""
    relevance = {Place(0, chunk): value for chunk, value in values.items()}
    found = extract(relevance, [Place(0, chunk) for chunk in hits], penalty, longest, anything)
    return [(run.first, run.last) for run in found]


def test_relevant_chunks_that_are_near_each_other_become_one_run() -> None:
    # Less 0.2 each: .8 -.2 .7 -.2 -.2 -.2 -.2 .3. To chunk 2: 1.3. From there to chunk 7: 0.8 lost, 0.3 gained.
    assert extracted({0: 1.0, 2: 0.9, 7: 0.5}, [0, 2, 7]) == [(0, 2), (7, 7)]


def test_a_gap_is_bridged_exactly_where_that_pays() -> None:
    assert extracted({0: 1.0, 3: 0.625}, [0, 3], penalty=0.25) == [(0, 0), (3, 3)], "0.375 gained for 0.5 lost"
    assert extracted({0: 1.0, 3: 0.875}, [0, 3], penalty=0.25) == [(0, 3)], "0.625 gained for 0.5 lost"
    assert extracted({0: 1.0, 3: 0.75}, [0, 3], penalty=0.25) == [(0, 0), (3, 3)], "nothing gained: the shorter"


def test_a_chunk_that_was_found_but_is_worth_little_makes_a_gap_cheaper() -> None:
    assert extracted({0: 1.0, 2: 0.375}, [0, 2], penalty=0.25) == [(0, 0), (2, 2)]
    assert extracted({0: 1.0, 1: 0.2, 2: 0.375}, [0, 2], penalty=0.25) == [(0, 2)]


def test_runs_come_by_what_they_are_worth_not_by_their_best_hit() -> None:
    assert extracted({0: 1.0, 10: 0.7, 11: 0.7}, [0, 10]) == [(10, 11), (0, 0)]  # worth 1.0 and 0.8


def test_the_best_run_is_taken_out_before_the_next_is_looked_for() -> None:
    # Less 0.5 each: .5 .4 -.5 .3 .5. No three are worth as much as 0-1 with 0.9; then 3-4 with 0.8.
    assert extracted({0: 1.0, 1: 0.9, 3: 0.8, 4: 1.0}, [0, 4], penalty=0.5, longest=3) == [(0, 1), (3, 4)]
    # Less 0.1 each: 1-4 is worth 3.2, 0-3 2.9, 2-5 2.8. Of what is left chunk 5 is no hit.
    values = {0: 0.6, 1: 0.9, 2: 0.9, 3: 0.9, 4: 0.9, 5: 0.5}
    assert extracted(values, [0, 1], penalty=0.1, longest=4) == [(1, 4), (0, 0)]


def test_a_run_without_a_hit_is_not_returned_and_its_chunks_are_not_given_to_others() -> None:
    values = {0: 1.0, 1: 1.0, 2: 1.0, 3: 0.6}  # of three at most 0-2 is worth most, and 1-3 holds the hit
    assert extracted(values, [3], penalty=0.5, longest=3) == [(3, 3)]
    assert extracted({0: 0.4, 5: 1.0}, [5]) == [(5, 5)]


def test_a_hit_that_is_worth_nothing_is_a_run_by_itself() -> None:
    assert extracted({0: 1.0, 5: 0.1, 9: 0.0}, [0, 5, 9]) == [(0, 0), (5, 5), (9, 9)]
    assert extracted({0: 0.0}, [0], penalty=0.0) == [(0, 0)]


def test_without_a_penalty_a_run_is_as_long_as_it_may_be_and_no_padding_is_added() -> None:
    values = {0: 1.0, 2: 0.5, 4: 0.5, 6: 0.5}
    assert extracted(values, [0], penalty=0.0, longest=5) == [(0, 4)]
    assert extracted(values, [0, 6], penalty=0.0, longest=100) == [(0, 6)]


def test_runs_never_cross_a_document() -> None:
    relevance = {Place(0, 4): 1.0, Place(1, 5): 1.0, Place(1, 6): 0.9}
    found = extract(relevance, [Place(0, 4), Place(1, 5)], 0.2, 15, anything)
    assert [(run.document, run.first, run.last) for run in found] == [(1, 5, 6), (0, 4, 4)]


def test_lesser_runs_are_tried_where_one_does_not_fit() -> None:
    relevance = {Place(0, chunk): value for chunk, value in enumerate((1.0, 0.3, 0.9, 0.8))}
    for room, expected in ((4, [(0, 3)]), (3, [(0, 2)]), (2, [(2, 3)]), (1, [(0, 0)])):

        def fits(runs: Sequence[Run], room: int = room) -> bool:
            return sum(run.last - run.first + 1 for run in runs) <= room

        found = extract(relevance, [Place(0, 0), Place(0, 2)], 0.1, 15, fits)
        assert [(run.first, run.last) for run in found] == expected, room


def hit(score: float, rerank: float | None = None) -> Hit:
    return Hit(0, 0, score, rerank=rerank)


def test_relevance_goes_from_the_best_score_to_the_worst() -> None:
    assert relevances([hit(9.0), hit(5.0), hit(1.0)]) == [1.0, 0.5, 0.0]
    assert relevances([hit(-1.0), hit(-3.0)]) == [1.0, 0.0]
    assert relevances([hit(3.0), hit(3.0)]) == [1.0, 1.0]
    assert relevances([]) == []


def test_of_a_reranked_ranking_the_reranker_decides() -> None:
    assert relevances([hit(1.0, 4.0), hit(9.0, 3.0), hit(5.0, 0.0), hit(8.0)]) == [1.0, 0.75, 0.0, 0.0]


eighths = st.integers(0, 8).map(lambda n: n / 8)  # sums of them are exact
rankings = st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 9)), eighths, min_size=1, max_size=20)


@given(rankings, st.integers(1, 20), eighths, st.integers(1, 6), st.integers(0, 40))
def test_runs_are_disjoint_bounded_and_keep_every_hit_that_fits(
    values: dict[tuple[int, int], float], k: int, penalty: float, longest: int, room: int
) -> None:
    relevance = {Place(*key): value for key, value in sorted(values.items(), key=lambda item: -item[1])}
    hits = list(relevance)[:k]
    found = extract(relevance, hits, penalty, longest, anything)
    taken = [place for run in found for place in run.places()]
    assert len(taken) == len(set(taken))
    assert set(hits) <= set(taken)
    assert all(run.last - run.first < longest and not run.places().isdisjoint(hits) for run in found)
    for run in found:
        assert run.worth == sum(relevance.get(place, 0.0) - penalty for place in run.places())
    assert [run.worth for run in found] == sorted((run.worth for run in found), reverse=True)
    within = extract(relevance, hits, penalty, longest, lambda runs: sum(len(run.places()) for run in runs) <= room)
    assert sum(len(run.places()) for run in within) <= room
    assert within or not room


@given(st.lists(eighths, min_size=1, max_size=12), eighths, st.integers(1, 12))
def test_the_first_run_is_worth_as_much_as_any_piece_of_its_length(
    values: list[float], penalty: float, longest: int
) -> None:
    relevance = {Place(0, chunk): value for chunk, value in enumerate(values)}
    pieces = itertools.combinations(range(len(values) + 1), 2)
    worths = [sum(values[low:high]) - penalty * (high - low) for low, high in pieces if high - low <= longest]
    best, *_ = extract(relevance, list(relevance), penalty, longest, anything)
    assert best.worth == max(worths)


@given(rankings, st.integers(1, 19), eighths, st.integers(1, 6))
def test_more_hits_only_add_runs(values: dict[tuple[int, int], float], k: int, penalty: float, longest: int) -> None:
    relevance = {Place(*key): value for key, value in sorted(values.items(), key=lambda item: -item[1])}
    few = extract(relevance, list(relevance)[:k], penalty, longest, anything)
    more = extract(relevance, list(relevance)[: k + 1], penalty, longest, anything)
    assert [run for run in more if run in few] == few


@pytest.mark.parametrize("longest", [1, 2, 3, 7])
def test_a_long_stretch_of_relevant_chunks_is_cut_by_the_bound_alone(longest: int) -> None:
    found = extracted(dict.fromkeys(range(7), 1.0), list(range(7)), longest=longest)
    assert [last - first + 1 for first, last in found] == [longest] * (7 // longest) + [7 % longest] * (7 % longest > 0)
