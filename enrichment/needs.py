"""Which chunks need a context, by rules that cost nothing: those that cannot be understood, or found, from their own text.

The rules, the first that holds is given:
* *referent*: the chunk points at something that it does not name. "This", "such Product", "clause 4", "the above" anywhere;
  "it", "they" and the like among its first words, where what they stand for can only stand before. English only.
* *no_title_word*: none of the words of title and headings is in it, so that nothing in it says what it is about.
* *standalone*: it has few of the words by which its document's chunks are known, in the document's own words.

A word is compared by its first letters. What a rule misses goes without a context; `evaluate` says what that costs.
"""

import re
from collections import Counter
from collections.abc import Sequence

from enrichment.records import Chunk, Document

STANDS_ALONE = "stands_alone"
"""The reason of a chunk that is not asked about."""
_TYPICAL_WORDS = 12  # of a document: as many as a title and its headings have, about
_LEAST_TYPICAL = 0.15  # of them in a chunk: one in twelve is chance, two say what the document is about
_LEAST_CHUNKS = 3  # of which a document's typical words can be told
_STEM, _LEAST_LETTERS = 5, 4
_WORD = re.compile(r"[^\W\d_]+")
_UNNAMED = (
    r"th(?:is|ese|ose)|such|the (?:above|foregoing|former|latter|following|said|same)|aforesaid|aforementioned"
    r"|herein|hereof|hereunder|hereto|therein|thereof|thereto|thereunder|as (?:above|before|below|described|mentioned|defined)"
)
_KINDS = r"clause|section|article|paragraph|step|chapter|table|figure|appendix|schedule|annex|item|rule"
_NUMBERED = rf"(?:{_KINDS})s? (?:\d+|[IVX]+\b|\([a-z]\))"
_POINTS = re.compile(rf"\b(?:{_UNNAMED})\b|\b{_NUMBERED}", re.IGNORECASE)
_PRONOUN = re.compile(r"\W*(?:\w+\W+){0,3}?\b(it|its|they|them|their|he|she|his|her)\b", re.IGNORECASE)


def needs(document: Document, chunks: Sequence[Chunk], language: str = "en") -> list[str | None]:
    """For each chunk the rule by which it needs a context, or None."""
    texts = [document.text[chunk.start : chunk.end] for chunk in chunks]
    words = [_words(text) for text in texts]
    typical = _typical(words)
    return [
        (_referent(text, chunk.heading_path) if language == "en" else None)
        or _untitled(document.title, chunk.heading_path, own)
        or _unlike(typical, own)
        for chunk, text, own in zip(chunks, texts, words, strict=True)
    ]


def _referent(text: str, heading_path: Sequence[str]) -> str | None:
    """What the text points at and does not name; a chunk's own number, as in "Section 4", is a name."""
    own = heading_path[-1].casefold() if heading_path else ""
    body = text.strip().removeprefix("#").strip()
    found = [match[0] for match in _POINTS.finditer(body) if not own.startswith(match[0].casefold())]
    found += [match[1] for match in [_PRONOUN.match(body)] if match]
    return f"referent {found[0].casefold()!r}" if found else None


def _untitled(title: str | None, heading_path: Sequence[str], words: frozenset[str]) -> str | None:
    named = _words(" ".join([title or "", *heading_path]))
    return "no_title_word" if named and named.isdisjoint(words) else None


def _unlike(typical: frozenset[str], words: frozenset[str]) -> str | None:
    if not typical:
        return None
    share = len(typical & words) / len(typical)
    return f"standalone {share:.2f}" if share < _LEAST_TYPICAL else None


def _typical(chunks: Sequence[frozenset[str]]) -> frozenset[str]:
    """The words that most chunks of a document have, none that is in one chunk alone; ties by the word."""
    if len(chunks) < _LEAST_CHUNKS:
        return frozenset()
    counts = Counter(word for words in chunks for word in words)
    common = sorted((word for word, count in counts.items() if count > 1), key=lambda word: (-counts[word], word))
    return frozenset(common[:_TYPICAL_WORDS])


def _words(text: str) -> frozenset[str]:
    return frozenset(
        word.removesuffix("s")[:_STEM] for word in _WORD.findall(text.casefold()) if len(word) >= _LEAST_LETTERS
    )
