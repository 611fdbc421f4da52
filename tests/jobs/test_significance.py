"""Intervals, tests and the choice by other questions: right on cases whose answer is known."""

import numpy as np
import pytest

from jobs import significance

RNG = np.random.default_rng(7)
NAMES = [f"q{n}" for n in range(50)]


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    trials = [significance.interval(RNG.normal(0.3, 1.0, 60)) for _ in range(60)]
    assert 50 <= sum(low < 0.3 < high for low, high in trials) <= 60


def test_the_same_values_give_the_same_numbers() -> None:
    values = RNG.normal(0.1, 0.3, 40)
    assert significance.interval(values) == significance.interval(values)
    assert significance.p_value(values) == significance.p_value(values)
    assert significance.interval(np.array([0.4])) == (0.4, 0.4)


def test_a_difference_that_is_always_there_is_no_chance_and_none_is() -> None:
    assert significance.p_value(np.full(12, 0.2)) < 0.002
    assert significance.p_value(np.tile([0.2, -0.2], 10)) > 0.5
    assert significance.p_value(np.zeros(9)) == 1.0


def test_folds_are_equal_parts_whatever_the_order() -> None:
    found = dict(zip(NAMES, significance.folds(NAMES), strict=True))
    assert np.bincount(list(found.values())).tolist() == [10] * 5
    assert dict(zip(NAMES[::-1], significance.folds(NAMES[::-1]), strict=True)) == found


def test_no_candidate_is_judged_by_the_questions_that_chose_it() -> None:
    """Of many candidates that are all luck the best looks good on the questions at hand; chosen by others it does not."""
    lucky = {f"c{n}": RNG.integers(0, 2, 50).astype(float) for n in range(200)}
    values, chosen = significance.cross_validated(lucky, significance.folds(NAMES))
    assert max(each.mean() for each in lucky.values()) > 0.65
    assert values.mean() < 0.62 and len(chosen) == 5


def test_a_candidate_that_is_best_everywhere_is_chosen_and_ties_go_to_the_first() -> None:
    fold_of = significance.folds(NAMES)
    good, bad = np.full(50, 0.9), np.full(50, 0.1)
    values, chosen = significance.cross_validated({"bad": bad, "good": good, "same": good}, fold_of)
    assert set(chosen) == {"good"} and values == pytest.approx(good)


def test_equal_ones_are_told_apart_by_the_second_measure_on_the_same_questions() -> None:
    fold_of = significance.folds(NAMES)
    same = {"poor": np.ones(50), "better": np.ones(50)}
    ties = {"poor": np.full(50, 0.2), "better": np.full(50, 0.8)}
    assert set(significance.cross_validated(same, fold_of, ties)[1]) == {"better"}
    unequal = same | {"poor": np.full(50, 1.0), "better": np.full(50, 0.9)}
    assert set(significance.cross_validated(unequal, fold_of, ties)[1]) == {"poor"}, "it decides nothing else"
