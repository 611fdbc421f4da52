"""Candidates and what they score -> which is best, what contexts gain over the best without them, and one sentence.

The gain of contexts is stated over the strongest candidate that has none, whatever else that one has, and both are chosen by
cross-validation: on other questions than they are compared on. Ties go to what is named first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from indexing.expansion import WindowBy
from indexing.fusion import Fusion
from indexing.passages import ChunkSpan
from indexing.search import Mode
from indexing.snapshot import Snapshot
from jobs import significance
from jobs.golden import Golden
from jobs.judging import CUTS, Judge, Scores
from jobs.variants import Side, Variant

Kind = Literal["plain", "header", "context"]
"""What the indexes of a candidate see: the text alone, also headers, also what a model wrote."""
Ranking = Mapping[ChunkSpan, float]
_SHOWN = 20  # questions that are won and lost


@dataclass(frozen=True, slots=True)
class Built:
    """A variant's corpus, open: its chunks, and what each of its indexes answers to each question, FUSION_DEPTH deep."""

    variant: Variant
    snapshot: Snapshot
    record: Mapping[str, Any]
    chunks: tuple[ChunkSpan, ...]
    dense: tuple[Ranking, ...]
    lexical: tuple[Ranking, ...]


@dataclass(frozen=True)
class Candidate:
    """A way to search: the dense index of one variant, the lexical one of another, or both; its hits for every question."""

    mode: Mode
    dense: Built | None
    lexical: Built | None
    fusion: Fusion | None
    judge: Judge
    rankings: tuple[tuple[ChunkSpan, ...], ...]

    @property
    def name(self) -> str:
        """As it is called in tables."""
        sides = [f"{name} {built.variant.seen_as(name)}" for name, built in self.sides]
        return ", ".join([*sides, _named(self.fusion)] if self.fusion else sides)

    @property
    def kind(self) -> Kind:
        """What it needs to have been made."""
        variants = [built.variant for _, built in self.sides]
        if any(variant.is_generated for variant in variants):
            return "context"
        return "header" if any("header" in variant.view for variant in variants) else "plain"

    @property
    def sides(self) -> list[tuple[Side, Built]]:
        """The indexes that it searches, one or both."""
        both: list[tuple[Side, Built | None]] = [("dense", self.dense), ("lexical", self.lexical)]
        return [(side, built) for side, built in both if built]

    def described(self) -> dict[str, Any]:
        """What it is, for the record."""
        views: dict[str, str] = {side: built.variant.seen_as(side) for side, built in self.sides}
        return {
            "name": self.name,
            "kind": self.kind,
            "mode": self.mode,
            "dense": views.get("dense"),
            "lexical": views.get("lexical"),
            "fusion": _named(self.fusion) if self.fusion else None,
        }


def compared(
    questions: Golden, candidates: Sequence[Candidate], measure: str, windows: Sequence[int], by: WindowBy = "chunks"
) -> dict[str, Any]:
    """The record of a comparison: `combinations`, `best`, `gains`, `cost`, `won`, `lost`, `windows`, `recommendation`."""
    scored = {candidate.name: candidate.judge.scores(candidate.rankings) for candidate in candidates}
    known = {candidate.name: candidate for candidate in candidates}
    by_kind = {kind: [c.name for c in candidates if c.kind == kind] for kind in ("plain", "header", "context")}

    def strongest(names: Sequence[str]) -> str:
        return max(names, key=lambda name: scored[name][measure].mean())

    best = {kind: strongest(names) for kind, names in by_kind.items() if names}
    free = [*by_kind["plain"], *by_kind["header"]]
    gains = {"header": _gain(questions, scored, by_kind["header"], by_kind["plain"], measure)}
    record: dict[str, Any] = {
        "combinations": [_row(candidate, scored[candidate.name], measure) for candidate in candidates],
        "best": best,
        "gains": gains,
        "cost": None,
        "won": [],
        "lost": [],
        "windows": {name: _windows(known[name], windows, by) for name in best.values()} if windows else {},
    }
    if by_kind["context"]:
        gains["context"] = _gain(questions, scored, by_kind["context"], free, measure)
        record["cost"] = _cost(known[best["context"]], gains["context"]["points"])
        won, lost = _changed(questions, known[best["context"]], known[strongest(free)], scored, measure)
        record |= {"won": won, "lost": lost}
    return record | {"recommendation": recommendation(record, measure, len(questions.queries))}


def recommendation(record: Mapping[str, Any], measure: str, num_questions: int) -> str:
    """What the gains say, in one sentence: what costs less is enough unless the questions can tell that it is not."""
    header, context = record["gains"]["header"], record["gains"].get("context")
    if context and context["low"] > 0:
        cost = record["cost"]
        return (
            f"contexts are worth their cost here: {_told(context, measure)} over the best index without them,"
            f" for {cost['computed']:,} tokens read and {cost['written']:,} written"
        )
    enough = (
        f"headers alone are enough here: they gain {_told(header, measure)} over the plain text"
        if header["low"] > 0
        else f"the plain text is enough here: headers gain {_told(header, measure)}"
    )
    if context is None:
        return f"{enough}; contexts were not compared"
    return f"{enough}; contexts gain {_told(context, measure)} over the best without them, by {num_questions} questions"


def _told(gain: Mapping[str, Any], measure: str) -> str:
    return f"{gain['points']:+.1f} points of {measure} (95 %: {gain['low']:+.1f} to {gain['high']:+.1f})"


def _gain(
    questions: Golden, scored: Mapping[str, Scores], those: Sequence[str], over: Sequence[str], measure: str
) -> dict[str, Any]:
    """What the best of `those` gains over the best of `over`, in points (hundredths), both chosen on other questions."""
    fold_of = significance.folds(list(questions.queries))
    ties = {name: scores["mrr"] for name, scores in scored.items()}
    one, chosen = significance.cross_validated({name: scored[name][measure] for name in those}, fold_of, ties)
    other, against = significance.cross_validated({name: scored[name][measure] for name in over}, fold_of, ties)
    low, high = significance.interval(one - other)
    return {
        "points": _points(float((one - other).mean())),
        "low": _points(low),
        "high": _points(high),
        "p": round(significance.p_value(one - other), 4),
        "score": round(float(one.mean()), 4),
        "over": round(float(other.mean()), 4),
        "chosen": sorted(set(chosen)),
        "against": sorted(set(against)),
    }


def _row(candidate: Candidate, scores: Scores, measure: str) -> dict[str, Any]:
    low, high = significance.interval(scores[measure])
    lengths = [sum(c.end - c.start for c in ranking[: CUTS[1]]) for ranking in candidate.rankings]
    return candidate.described() | {
        "scores": {name: round(float(values.mean()), 4) for name, values in scores.items()},
        "interval": [round(low, 4), round(high, 4)],
        "characters": round(float(np.mean(lengths))),
    }


def _windows(candidate: Candidate, windows: Sequence[int], by: WindowBy) -> dict[str, dict[str, float]]:
    found = {}
    for window in windows:
        scores = candidate.judge.scores(candidate.rankings, window, by)
        found[str(window)] = {
            name: round(float(v.mean()), 4) for name, v in scores.items() if name.startswith("recall")
        }
    return found


def _cost(candidate: Candidate, points: float) -> dict[str, Any]:
    """What the contexts of a candidate took to write, when they were written; and per point gained."""
    made = {b.variant.told: b.record["context_tokens"] for _, b in candidate.sides if b.variant.is_generated}
    computed = sum(tokens["computed"] for tokens in made.values())
    written = sum(tokens["written"] for tokens in made.values())
    per_point = round((computed + written) / points) if points > 0 else None
    return {"computed": computed, "written": written, "per_point": per_point}


def _changed(
    questions: Golden, one: Candidate, other: Candidate, scored: Mapping[str, Scores], measure: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The questions that `one` answers better than `other`, and worse, most first: with the chunks that did it."""
    differences = scored[one.name][measure] - scored[other.name][measure]
    told = []
    for place, (name, query) in enumerate(questions.queries.items()):
        ranks = [c.judge.rank_of_answer(name, c.rankings[place]) for c in (one, other)]
        better = ranks[0] if differences[place] > 0 else ranks[1]
        ranking = (one if differences[place] > 0 else other).rankings[place]
        chunk = ranking[better - 1] if better else None
        told.append(
            {
                "question": name,
                "query": query,
                "points": _points(float(differences[place])),
                "rank": ranks[0],
                "rank_without": ranks[1],
                "document_id": chunk.document_id if chunk else None,
                "chunk_index": chunk.chunk_index if chunk else None,
                "context": _context(one, chunk) if chunk else None,
            }
        )
    order = np.argsort(-differences, kind="stable")
    won = [told[place] for place in order if differences[place] > 0]
    lost = [told[place] for place in order[::-1] if differences[place] < 0]
    return won[:_SHOWN], lost[:_SHOWN]


def _context(candidate: Candidate, chunk: ChunkSpan) -> str | None:
    built = next(b for _, b in reversed(candidate.sides) if b.variant.is_generated)
    row = built.snapshot.rows(chunk.document_id)[chunk.chunk_index]
    found: str | None = row["context"] or row["rewrite"]
    return found


def _named(fusion: Fusion) -> str:
    document = f":{fusion.document_weight:g}" if fusion.document_weight else ""
    return f"{fusion.method} {fusion.dense_weight:g}:{fusion.lexical_weight:g}{document}"


def _points(share: float) -> float:
    return round(100 * share, 2)
