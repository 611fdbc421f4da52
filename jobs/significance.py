"""What differences between means over questions are worth: intervals, tests, and a choice that is judged by other questions.

All by resampling the questions, paired, with a fixed seed: the same values give the same numbers.
"""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

RESAMPLES = 10_000
FOLDS = 5
_SEED = 0


def interval(values: np.ndarray) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of the mean of `(n,) float64`; of one question it is the value itself.

    Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13.
    """
    from scipy.stats import bootstrap

    if len(values) < 2:
        return float(values.mean()), float(values.mean())
    found = bootstrap((values,), np.mean, n_resamples=RESAMPLES, method="percentile", rng=np.random.default_rng(_SEED))
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def p_value(differences: np.ndarray) -> float:
    """How often the mean of `(n,) float64` paired differences would be as far from 0 if their signs were chance.

    Source: Smucker, Allan and Carterette, "A comparison of statistical significance tests for information retrieval
    evaluation", CIKM 2007.
    """
    from scipy.stats import permutation_test

    if not differences.any():
        return 1.0
    found = permutation_test(
        (differences,),
        np.mean,
        permutation_type="samples",
        n_resamples=RESAMPLES,
        vectorized=True,
        rng=np.random.default_rng(_SEED),
    )
    return float(found.pvalue)


def folds(names: Sequence[str]) -> np.ndarray:
    """The fold of each question, `(n,) int64`: equal parts by a hash of the questions' ids."""
    order = sorted(range(len(names)), key=lambda place: hashlib.sha256(names[place].encode()).digest())
    found = np.zeros(len(names), np.int64)
    found[order] = np.arange(len(names)) % FOLDS
    return found


def cross_validated(
    candidates: Mapping[str, np.ndarray], fold_of: np.ndarray, ties: Mapping[str, np.ndarray] | None = None
) -> tuple[np.ndarray, list[str]]:
    """What the candidate that is best on the other folds scores on each question's own: `(n,) float64`, and who was chosen.

    So a candidate is never judged by the questions that it was chosen by. Ties go to the one that is best by `ties`, on the
    same questions, then to the one that is named first.
    """

    def rank(name: str) -> tuple[float, ...]:
        return tuple(float(values[name][others].mean()) for values in (candidates, ties or candidates))

    values: np.ndarray = np.zeros(len(fold_of), np.float64)
    chosen = []
    for fold in range(FOLDS):
        held_out = fold_of == fold
        others = ~held_out if held_out.any() and not held_out.all() else np.ones(len(fold_of), np.bool_)
        best = max(candidates, key=rank)
        values[held_out] = candidates[best][held_out]
        chosen.append(best)
    return values, chosen
