"""Runs of relevant chunks: of a document the contiguous pieces, of any length, whose chunks are worth most together.

A query's ranking -> relevances from 0 to 1 -> runs. What a chunk is worth is its relevance, 0 if it was not retrieved, less a
penalty; what a run is worth is the sum. The run that is worth most is taken out of its document, then the next of what is
left. Runs never share a chunk, never cross a document and are not longer than their bound, and the budget cuts none.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from indexing.search import Hit


class Place(NamedTuple):
    """A chunk of a document, both by numbers."""

    document: int
    chunk: int


@dataclass(frozen=True, slots=True)
class Run:
    """Chunks `first` to `last` of a document, and what they are worth together."""

    document: int
    first: int
    last: int
    worth: float

    def places(self) -> set[Place]:
        """Its chunks."""
        return {Place(self.document, chunk) for chunk in range(self.first, self.last + 1)}


def relevances(ranking: Sequence[Hit]) -> list[float]:
    """From 1 for the best score of a ranking to 0 for the worst, in between in proportion.

    Of a reranked one the cross-encoder's scores count, and hits that it was not asked about have 0.
    """
    reranked = any(hit.rerank is not None for hit in ranking)
    scores = [hit.rerank if reranked else hit.score for hit in ranking]
    known = [score for score in scores if score is not None]
    if not known:
        return []
    worst, breadth = min(known), max(known) - min(known)
    return [0.0 if score is None else (score - worst) / breadth if breadth else 1.0 for score in scores]


def extract(
    relevance: Mapping[Place, float],
    hits: Sequence[Place],
    penalty: float,
    longest: int,
    fits: Callable[[Sequence[Run]], bool],
) -> list[Run]:
    """The runs that hold one of `hits`, those that are worth most first; `relevance` is of all retrieved chunks.

    A run is worth more than 0, begins and ends with chunks that are, and has at most `longest`. A hit that is in none is a run
    by itself, whatever it is worth. One with which the runs do not fit is not taken, and lesser runs in its place are tried.
    Ties go to the shorter run, then to the document that was named first, then to the earlier run.
    """
    wanted, used, kept = frozenset(hits), set[Place](), list[Run]()
    for run in sorted(_candidates(relevance, wanted, penalty, longest), key=_order):
        places = run.places()
        if not used.isdisjoint(places):
            continue
        if not wanted.isdisjoint(places):
            if not fits([*kept, run]):
                continue
            kept.append(run)
        used |= places  # also where it holds no hit: what is worth less does not take its chunks
    return kept


def _order(run: Run) -> tuple[float, int, int, int]:
    return -run.worth, run.last - run.first, run.document, run.first


def _candidates(
    relevance: Mapping[Place, float], hits: frozenset[Place], penalty: float, longest: int
) -> Iterator[Run]:
    """All that a run may be. The best of what is left of a document is the best of these that takes no chunk twice."""
    retrieved = sorted(relevance)
    for number, first in enumerate(retrieved):
        total = 0.0
        for last in retrieved[number : number + longest] if relevance[first] > penalty else ():
            length = last.chunk - first.chunk + 1
            if last.document != first.document or length > longest:
                break
            total += relevance[last]
            if relevance[last] > penalty and total > penalty * length:
                yield Run(*first, last.chunk, total - penalty * length)
    for hit in hits:
        if relevance[hit] <= penalty:
            yield Run(*hit, hit.chunk, relevance[hit] - penalty)
