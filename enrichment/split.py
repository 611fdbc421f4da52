"""Document -> chunks: contiguous spans of its text, numbered from 0, each with its heading path and its bytes.

The spans tile the text when the overlap is 0 (unless they are given); each chunk starts and ends behind the one before.
A blank document has no chunks. Nothing is tokenized here: the caller brings the offsets, one pass per document.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, get_args

from enrichment.boundaries import grapheme_ceil, grapheme_floor
from enrichment.cuts import Cutter
from enrichment.errors import ConfigError, DocumentError
from enrichment.limits import Limits
from enrichment.records import Chunk, Document, Heading, Span
from enrichment.sections import Outline, Section
from enrichment.sentences import sentences
from enrichment.tokens import TokenOffsets

Unit = Literal["tokens", "characters", "sentences", "spans"]
_DEFAULT_SIZES = {"tokens": 200, "sentences": 1, "spans": 1}


@dataclass(frozen=True, slots=True)
class SplitOptions:
    """The configuration's `split`. `size` and `overlap` count what `by` names, `min_size` tokens (only by tokens).

    `size` defaults to 200 tokens or 1 sentence; characters have no default. `spans` is the uri of the file with the given
    spans; it is read elsewhere.
    """

    by: Unit = "tokens"
    size: int = None  # type: ignore[assignment]  # an int once __post_init__ has run
    overlap: int = 0
    min_size: int = 64
    language: str = "en"
    spans: str | None = None

    def __post_init__(self) -> None:
        if self.by not in get_args(Unit):
            raise ConfigError(f"split.by is {self.by!r}; use one of {', '.join(get_args(Unit))}.")
        if self.size is None:
            if self.by not in _DEFAULT_SIZES:
                raise ConfigError("split.size is missing; split.by: characters needs one, such as 400.")
            object.__setattr__(self, "size", _DEFAULT_SIZES[self.by])
        if self.size < 1:
            raise ConfigError(f"split.size is {self.size}; it must be at least 1.")
        if not 0 <= self.overlap < self.size:
            raise ConfigError(
                f"split.overlap is {self.overlap}; it must be at least 0 and below split.size, {self.size}."
            )
        if self.min_size < 0:
            raise ConfigError(f"split.min_size is {self.min_size}; it must be at least 0.")
        if not re.fullmatch("[a-z]{2,3}", self.language):
            raise ConfigError(f"split.language is {self.language!r}; write an ISO 639 code, such as en or de.")
        if (self.by == "spans") != (self.spans is not None):
            raise ConfigError("split.spans must name a file if split.by is spans, and must be absent otherwise.")


def split(
    document: Document,
    headings: Sequence[Heading],
    options: SplitOptions,
    embedder_tokens: TokenOffsets | None = None,
    model_tokens: TokenOffsets | None = None,
    given: Sequence[Span] | None = None,
) -> list[Chunk]:
    """The chunks of a document; `headings` are those of its text, sorted.

    `embedder_tokens` are needed by tokens, `given` by spans. Raises DocumentError `bad_spans` where those are unusable.
    """
    if not document.text.strip():
        return []
    outline = Outline(document, headings)
    if options.by == "tokens":
        if embedder_tokens is None:
            raise ValueError("a split by tokens needs the embedder's token offsets")
        spans = _by_tokens(document.text, outline, options, embedder_tokens, model_tokens)
    elif options.by == "characters":
        spans = list(_by_characters(document.text, options.size, options.overlap))
    elif options.by == "sentences":
        spans = list(_by_sentences(document.text, outline, options))
    else:
        spans = _checked(document, given)
    if options.by == "characters":
        paths = [outline.path_at(span.start) for span in spans]
    else:
        paths = [outline.path_of(span.start, span.end) for span in spans]
    byte = _byte_offsets(document.text, spans)
    return [
        Chunk(index, span.start, span.end, byte[span.start], byte[span.end], path)
        for index, (span, path) in enumerate(zip(spans, paths, strict=True))
    ]


def _by_tokens(
    text: str, outline: Outline, options: SplitOptions, embedder: TokenOffsets, model: TokenOffsets | None
) -> list[Span]:
    """Sections, small ones joined, each cut where it does not fit."""
    sections = outline.sections
    limits = Limits(len(text), options.size, embedder, model)
    overlap = Limits(len(text), options.overlap, embedder, model) if options.overlap else None
    cutter = Cutter(text, options.language, limits, overlap, [section.start for section in sections])
    spans: list[Span] = []
    first = 0
    while first < len(sections):
        behind, joins_previous = _group(sections, first, limits, options.min_size, spans[-1] if spans else None)
        start, end = sections[first].start, sections[behind - 1].end
        if joins_previous:
            spans[-1] = Span(spans[-1].start, end)
        else:
            spans += cutter.cut(start, end, sections[behind - 1].body)
        first = behind
    return spans


def _group(
    sections: Sequence[Section], first: int, limits: Limits, min_size: int, previous: Span | None
) -> tuple[int, bool]:
    """How far the section `first` joins those that follow, as the index behind, and whether all join the chunk before.

    A bare one joins what follows in any case. A small one joins what follows if both fit; where it is the last below
    its parent, it rather joins the chunk before, if that fits.
    """
    start, level, bare = sections[first].start, sections[first].level, sections[first].is_bare
    behind = first + 1
    while True:
        end = sections[behind - 1].end
        small = limits.count(start, end) < min_size
        if not bare and not small:
            return behind, False
        following = sections[behind] if behind < len(sections) else None
        closes = following is None or (not bare and following.level < level)
        if closes and small and previous and limits.fits(previous.start, end):
            return behind, True
        if following is None or not (bare or limits.fits(start, following.end)):
            return behind, False
        bare, level = bare and following.is_bare, min(level, following.level)
        behind += 1


def _by_characters(text: str, size: int, overlap: int) -> Iterator[Span]:
    """`size` code points each; a boundary inside a grapheme moves back to its start, or to its end to get on."""
    start = end = 0
    while end < len(text):
        stop = grapheme_floor(text, start + size, start)
        if stop <= end:  # a large grapheme comes next, and the overlap leaves no room for it
            start = end
            stop = grapheme_floor(text, start + size, start)
        if stop <= end:
            stop = grapheme_ceil(text, start + size, start, len(text))
        end = stop
        yield Span(start, end)
        start = max(grapheme_floor(text, end - overlap, start), grapheme_ceil(text, start + 1, start, end))


def _by_sentences(text: str, outline: Outline, options: SplitOptions) -> Iterator[Span]:
    """`size` sentences of one section each; a heading, and front matter, is a chunk of its own."""
    begin = 0
    for section in outline.sections:
        if section.body > section.start and text[begin : section.body].strip():
            yield Span(begin, section.body)
            begin = section.body
        if section.is_bare:  # blanks before the first heading go with it
            continue
        found = sentences(text[section.body : section.end], options.language)
        for first in range(0, max(len(found) - options.overlap, 1), options.size - options.overlap):
            last = found[min(first + options.size, len(found)) - 1]
            yield Span(begin if first == 0 else section.body + found[first].start, section.body + last.end)
        begin = section.end


def _checked(document: Document, given: Sequence[Span] | None) -> list[Span]:
    if given is None:
        raise DocumentError("bad_spans", f"No spans are given for document {document.id!r}; add them or leave it out.")
    before = 0
    for start, end in given:
        if not before <= start < end <= len(document.text):
            raise DocumentError(
                "bad_spans",
                f"The span ({start}, {end}) given for document {document.id!r} must be sorted by its start, not empty, "
                f"and inside the text of {len(document.text)} code points.",
            )
        before = start
    return list(given)


def _byte_offsets(text: str, spans: Sequence[Span]) -> dict[int, int]:
    """The UTF-8 offset of every start and end, in one pass over the text."""
    offsets = {}
    byte = before = 0
    for offset in sorted(set(chain.from_iterable(spans))):
        byte += len(text[before:offset].encode())
        offsets[offset] = byte
        before = offset
    return offsets
