"""Windows by characters or by tokens: so many on each side of a hit, the same before it as behind it.

(excerpts, chunks) -> spans. A window ends with its document, or with the section of the hit's chunk; what one side lacks there
is not added to the other. Counts are exact, but an edge inside a grapheme moves outward to that grapheme's edge. Tokens are
the embedder's; the texts before and behind the hit are tokenized each on its own.
"""

import sys
from collections.abc import Sequence
from typing import NamedTuple

from enrichment.boundaries import LOOK_BEHIND, grapheme_ceil, grapheme_floor
from enrichment.records import Span
from enrichment.tokens import Tokenizer
from indexing import sections
from indexing.excerpts import Excerpt, Excerpts

_CHARACTERS_PER_TOKEN = 8
"""Read for each token at first: some twice what a word of English takes with its space."""
_SPARE_TOKENS = 32
"""Read beyond those that are wanted: where what was read begins or ends inside a word, its pieces are other tokens."""


class Core(NamedTuple):
    """The chunk that a window is around: its document by number, its span, and what the window must not leave."""

    document: int
    span: Span
    limits: Span

    def within_reach(self, size: int) -> Span:
        """With `size` code points on each side, inside the limits."""
        start, end = max(self.limits.start, self.span.start - size), min(self.limits.end, self.span.end + size)
        return Span(start, end)


def core(excerpts: Excerpts, document: int, index: int, within_section: bool) -> Core:
    """Chunk `index` of a document, limited to its document or to the chunks around it under the same headings."""
    chunks = excerpts.chunks(document)
    limits = (
        sections.own(chunks, index) if within_section else Span(0, sys.maxsize)
    )  # where it ends is seen in its text
    return Core(document, chunks[index].span, limits)


def by_characters(excerpts: Excerpts, cores: Sequence[Core], size: int) -> list[Span]:
    """The spans with `size` code points on each side of each core."""
    return _outward(excerpts, cores, [core.within_reach(size) for core in cores])


def by_tokens(excerpts: Excerpts, cores: Sequence[Core], size: int, tokenizer: Tokenizer) -> list[Span]:
    """The spans with `size` tokens on each side of each core; `size` is at least 1."""
    found: dict[Core, Span] = {}
    reach = _CHARACTERS_PER_TOKEN * (size + _SPARE_TOKENS)
    while missing := [core for core in cores if core not in found]:  # ends when the reach is the document at the latest
        excerpts.read([(core.document, core.within_reach(reach)) for core in missing])
        for core in missing:
            wanted = core.within_reach(reach)
            excerpt = excerpts.around(core.document, wanted).cut(wanted)
            if (span := _with_tokens(excerpt, core, size, tokenizer)) is not None:
                found[core] = span
        reach *= 2
    return _outward(excerpts, cores, [found[core] for core in cores])


def _with_tokens(excerpt: Excerpt, core: Core, size: int, tokenizer: Tokenizer) -> Span | None:
    """The core with `size` tokens on each side, all there is where there are no more; None if the excerpt is too short."""
    before = excerpt.text[: core.span.start - excerpt.start]
    behind = excerpt.text[core.span.end - excerpt.start :]
    starts, ends = tokenizer.encode(before).offsets.starts, tokenizer.encode(behind).offsets.ends
    all_before, all_behind = excerpt.start == core.limits.start, excerpt.last or excerpt.end == core.limits.end
    enough = size + _SPARE_TOKENS
    if (len(starts) < enough and not all_before) or (len(ends) < enough and not all_behind):
        return None
    start = excerpt.start + int(starts[-size]) if len(starts) > size else excerpt.start
    end = core.span.end + int(ends[size - 1]) if len(ends) > size else excerpt.end
    return Span(start, end)


def _outward(excerpts: Excerpts, cores: Sequence[Core], spans: Sequence[Span]) -> list[Span]:
    """The spans with edges that lie inside a grapheme moved to its edge, and ends behind the document moved to its end."""
    seen = [
        Core(core.document, span, core.limits).within_reach(LOOK_BEHIND)
        for core, span in zip(cores, spans, strict=True)
    ]
    excerpts.read([(core.document, span) for core, span in zip(cores, seen, strict=True)])
    found = []
    for core, span, around in zip(cores, spans, seen, strict=True):
        start, text, _ = excerpts.around(core.document, around).cut(core.limits)
        low = start + grapheme_floor(text, span.start - start)
        found.append(Span(low, start + grapheme_ceil(text, span.end - start, 0, len(text))))
    return found
