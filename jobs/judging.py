"""How good rankings are: recall, reciprocal rank and nDCG of each question, by trec_eval; recall of golden spans by coverage.

(golden questions, the chunks of one split, rankings) -> `(questions,) float64` per measure, in the questions' order. A golden
span is not a chunk: its recall at k is the share of its characters that the first k hits cover, widened by their window, and a
chunk's relevance for the other measures is the number of golden characters in it.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from enrichment.errors import ConfigError
from indexing.expansion import WindowBy
from indexing.passages import ChunkSpan
from jobs.golden import Golden, GoldenSpan, chunk_number, document_number

CUTS = (5, 10, 20)
RECALLS = tuple(f"recall@{cut}" for cut in CUTS)
MEASURES = (*RECALLS, "mrr", "ndcg@10")
_TREC_MEASURES = {f"recall.{','.join(map(str, CUTS))}", "recip_rank", "ndcg_cut.10"}
_TREC_NAMES = {f"recall@{cut}": f"recall_{cut}" for cut in CUTS} | {"mrr": "recip_rank", "ndcg@10": "ndcg_cut_10"}

Scores = Mapping[str, np.ndarray]
"""By measure, a value from 0 to 1 for each question: `(questions,) float64`."""


Span = ChunkSpan | GoldenSpan
Ranked = Sequence[ChunkSpan]
"""Hits, best first."""


class Judge:
    """Judges rankings of the chunks of one split."""

    def __init__(self, golden: Golden, chunks: Sequence[ChunkSpan]) -> None:
        """Raises ConfigError for a question whose answer is in none of the chunks."""
        import pytrec_eval

        self._golden = golden
        self._of_document: dict[str, list[ChunkSpan]] = {}
        for chunk in sorted(chunks):
            self._of_document.setdefault(chunk.document_id, []).append(chunk)
        self._by_document = False
        self.judged = self._from_spans() if golden.spans else self._from_qrels(chunks)
        self._evaluator = pytrec_eval.RelevanceEvaluator(self.judged, _TREC_MEASURES)

    def scores(self, rankings: Sequence[Ranked], window: int = 0, by: WindowBy = "chunks") -> Scores:
        """How good the rankings are, one for each question; windows, by chunks or characters, are of golden spans alone."""
        found = self._evaluator.evaluate(self.run(rankings))
        names = list(self._golden.queries)
        scores = {
            measure: np.array([found[name][trec] for name in names], np.float64)
            for measure, trec in _TREC_NAMES.items()
        }
        if self._golden.spans:
            spans = [[self._widened(chunk, window, by) for chunk in ranking[: CUTS[-1]]] for ranking in rankings]
            for cut, measure in zip(CUTS, RECALLS, strict=True):
                pairs = zip(names, spans, strict=True)
                shares = [covered(self._golden.spans[name], hits[:cut]) for name, hits in pairs]
                scores[measure] = np.array(shares, np.float64)
        return scores

    def run(self, rankings: Sequence[Ranked]) -> dict[str, dict[str, float]]:
        """The rankings as a run: scores that only fall, since trec_eval orders by score and, where scores tie, by number."""
        found = {}
        for name, ranking in zip(self._golden.queries, rankings, strict=True):
            numbers = dict.fromkeys(self._number(chunk) for chunk in ranking)
            found[name] = {number: float(len(numbers) - place) for place, number in enumerate(numbers)}
        return found

    def rank_of_answer(self, name: str, ranking: Ranked) -> int | None:
        """The place of the first hit that answers the question, from 1; None if there is none."""
        answers = {number for number, value in self.judged[name].items() if value > 0}
        places = (place for place, chunk in enumerate(ranking, 1) if self._number(chunk) in answers)
        return next(places, None)

    def _number(self, chunk: ChunkSpan) -> str:
        if self._by_document:
            return document_number(chunk.document_id)
        return chunk_number(chunk.document_id, chunk.chunk_index)

    def _from_spans(self) -> dict[str, dict[str, int]]:
        judged: dict[str, dict[str, int]] = {}
        for name, spans in self._golden.spans.items():
            documents = {span.document_id: _merged(spans, span.document_id) for span in spans}
            held = {
                chunk: _overlap(chunk, wanted) for id_, wanted in documents.items() for chunk in self._chunks_of(id_)
            }
            judged[name] = {self._number(chunk): overlap for chunk, overlap in held.items() if overlap}
            if not judged[name]:
                raise ConfigError(
                    f"the answer to question {name} lies in {spans[0].document_id}, of which no chunk holds it;"
                    " see that questions and documents belong together"
                )
        return judged

    def _chunks_of(self, document_id: str) -> list[ChunkSpan]:
        return self._of_document.get(document_id, [])

    def _from_qrels(self, chunks: Sequence[ChunkSpan]) -> dict[str, dict[str, int]]:
        documents = {document_number(document_id) for document_id in self._of_document}
        numbers = {chunk_number(chunk.document_id, chunk.chunk_index) for chunk in chunks}
        wanted = {number for judged in self._golden.judged.values() for number, value in judged.items() if value > 0}
        self._by_document = wanted <= documents
        if missing := sorted(wanted - (documents if self._by_document else numbers)):
            raise ConfigError(
                f"the qrels judge {missing[0]} relevant, which is neither a document's id nor, with # and a number behind it,"
                " a chunk's; all of them must be of one kind"
            )
        return {name: dict(judged) for name, judged in self._golden.judged.items()}

    def _widened(self, chunk: ChunkSpan, window: int, by: WindowBy) -> GoldenSpan:
        if by == "characters":  # beyond the document's end there is nothing golden
            return GoldenSpan(chunk.document_id, max(0, chunk.start - window), chunk.end + window)
        if not window:
            return GoldenSpan(chunk.document_id, chunk.start, chunk.end)
        chunks = self._of_document[chunk.document_id]
        place = bisect_left(chunks, chunk)
        beside = chunks[max(0, place - window) : place + window + 1]
        return GoldenSpan(chunk.document_id, min(c.start for c in beside), max(c.end for c in beside))


def covered(golden: Sequence[GoldenSpan], found: Iterable[Span]) -> float:
    """The share of the golden characters that lie in a found span; each character counts once."""
    hits = list(found)
    wanted = hit = 0
    for document_id in {span.document_id for span in golden}:
        both = _merged(hits, document_id)
        for start, end in _merged(golden, document_id):
            wanted += end - start
            hit += _overlap(GoldenSpan(document_id, start, end), both)
    return hit / wanted if wanted else 0.0


def _overlap(span: Span, others: Iterable[tuple[int, int]]) -> int:
    return sum(max(0, min(span.end, end) - max(span.start, start)) for start, end in others)


def _merged(spans: Iterable[Span], document_id: str) -> list[tuple[int, int]]:
    """The spans of one document as disjoint ones, in order."""
    found: list[tuple[int, int]] = []
    for start, end in sorted((span.start, span.end) for span in spans if span.document_id == document_id):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found
