"""Hits -> passages of original text: expand each as asked, keep to a budget, merge, read, put the hits in.

A ranking and how to expand it -> passages. Each of the k best hits that fits the budget is in exactly one passage, with the
score that it has in the ranking, however it was expanded; the text is cut out of the stored originals.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from enrichment.records import Span
from enrichment.tokens import Tokenizer
from indexing import margins, runs, sections, windows
from indexing.documents import Documents, Owner
from indexing.excerpts import Excerpts
from indexing.expansion import Expansion
from indexing.passages import Passage, PassageHit
from indexing.runs import Place, Run
from indexing.search import Hit
from indexing.windows import Stretch


def assembled(
    documents: Documents,
    ranking: Sequence[Hit],
    k: int,
    how: Expansion,
    budget: int | None,
    tokenizer: Callable[[], Tokenizer],
) -> list[Passage]:
    """The passages of the k first hits of a ranking, in at most `budget` code points; runs also look at the hits behind."""
    ranking = ranking if how.expand == "run" else ranking[:k]
    owners = list(dict.fromkeys(map(documents.owner, ranking)))
    number = {owner: place for place, owner in enumerate(owners)}
    excerpts = Excerpts(documents, owners)
    places = [Place(number[owner := documents.owner(hit)], documents.chunk_index(owner, hit)) for hit in ranking]
    if how.expand == "run":
        relevance = dict(zip(places, runs.relevances(ranking), strict=True))
        stretches = _runs(excerpts, relevance, places[:k], how, budget)
    else:
        stretches = _around_each(excerpts, places, how, budget, tokenizer)
    excerpts.read([(stretch.document, stretch.span) for stretch in stretches])
    return [
        _passage(documents, owners[stretch.document], stretch, ranking, excerpts.text(stretch.document, stretch.span))
        for stretch in stretches
    ]


def around(
    documents: Documents, owner: Owner, index: int, how: Expansion, tokenizer: Callable[[], Tokenizer]
) -> tuple[Span, str]:
    """The window of one chunk, by number, of a document, and its text."""
    excerpts = Excerpts(documents, [owner])
    ((span,),) = _windows(excerpts, [Place(0, index)], how, tokenizer)
    excerpts.read([(0, span)])
    return span, excerpts.text(0, span)


def _around_each(
    excerpts: Excerpts,
    places: Sequence[Place],
    how: Expansion,
    budget: int | None,
    tokenizer: Callable[[], Tokenizer],
) -> list[Stretch]:
    """Every hit expanded by itself; what touches or overlaps is one stretch."""
    spans = _parents(excerpts, places) if how.expand == "parent" else _windows(excerpts, places, how, tokenizer)
    kept = windows.fitted([(place.document, span) for place, span in zip(places, spans, strict=True)], budget)
    names = list(kept)
    merged = windows.merge(list(kept.values()))
    return [replace(stretch, hits=tuple(names[hit] for hit in stretch.hits)) for stretch in merged]


def _windows(
    excerpts: Excerpts, places: Sequence[Place], how: Expansion, tokenizer: Callable[[], Tokenizer]
) -> list[Sequence[Span]]:
    """The window of each hit; there is nothing smaller that would do in its place."""
    if how.window_by == "chunks" or not how.window:
        size, within = how.window, how.within_section
        return [(windows.widen(excerpts.chunks(document), chunk, size, within),) for document, chunk in places]
    cores = [margins.core(excerpts, *place, how.within_section) for place in places]
    if how.window_by == "characters":
        found = margins.by_characters(excerpts, cores, how.window)
    else:
        found = margins.by_tokens(excerpts, cores, how.window, tokenizer())
    return [(span,) for span in found]


def _parents(excerpts: Excerpts, places: Sequence[Place]) -> list[Sequence[Span]]:
    """The parent section of each hit, and where the budget has no room for it the hit alone."""
    chunks = [excerpts.chunks(place.document) for place in places]
    return [
        (sections.parent(rows, place.chunk), rows[place.chunk].span) for rows, place in zip(chunks, places, strict=True)
    ]


def _runs(
    excerpts: Excerpts, relevance: Mapping[Place, float], hits: Sequence[Place], how: Expansion, budget: int | None
) -> list[Stretch]:
    """The runs that hold hits. Runs that touch stay apart; whose chunks overlap, as some splits make them, are one stretch."""

    def spans(found: Sequence[Run]) -> list[tuple[int, Span]]:
        chunks = [excerpts.chunks(run.document)[run.first : run.last + 1] for run in found]
        return [(run.document, windows.covering(rows)) for run, rows in zip(found, chunks, strict=True)]

    def fits(found: Sequence[Run]) -> bool:
        return budget is None or windows.length(spans(found)) <= budget

    found = runs.extract(relevance, hits, how.run_penalty, how.run_length, fits)
    stretches = []
    for stretch in windows.merge(spans(found), touching=False):
        held = set[Place]().union(*(found[run].places() for run in stretch.hits))
        stretches.append(replace(stretch, hits=tuple(n for n, place in enumerate(hits) if place in held)))
    return stretches


def _passage(documents: Documents, owner: Owner, stretch: Stretch, ranking: Sequence[Hit], text: str) -> Passage:
    record, found = documents.record(owner), []
    for hit in (ranking[number] for number in stretch.hits):
        row = documents.row(hit)
        place = tuple(row["heading_path"]), row["start"], row["end"]
        scores = hit.dense, hit.lexical, hit.rerank
        found.append(PassageHit(row["chunk_index"], hit.score, row["context"], *place, *scores))
    return Passage(record["id"], record["title"], *stretch.span, text, found[0].score, tuple(found))
