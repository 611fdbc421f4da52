"""How much text fits into a chunk: token offsets -> how far a chunk may reach. Nothing is tokenized here."""

import numpy as np

from enrichment.tokens import TokenOffsets

CHARACTERS_PER_TOKEN = 8
"""English has 4 to 5 characters per token; only unbroken runs, which may be one token, have over 8."""

MODEL_TOKENS_PER_TOKEN = 2
"""Another vocabulary may need more tokens for the same text, but not without bound: prompts are made of them."""


class Limits:
    """At most `size` tokens of the embedder, 8 x size code points and, where given, 2 x size tokens of the model.

    A token counts for every span that it overlaps.
    """

    def __init__(self, length: int, size: int, embedder: TokenOffsets, model: TokenOffsets | None) -> None:
        self.length = length
        self.size = size
        self._embedder = _counted(embedder)
        self._all = [(self._embedder, size)]
        if model is not None:
            self._all.append((_counted(model), MODEL_TOKENS_PER_TOKEN * size))

    def count(self, start: int, end: int) -> int:
        """The embedder's tokens in a span that is not empty."""
        return int(self._embedder.starts.searchsorted(end, "left") - self._embedder.ends.searchsorted(start, "right"))

    def fits(self, start: int, end: int) -> bool:
        return end <= self.reach(start)

    def reach(self, start: int) -> int:
        """The last end of a span from `start` that keeps all limits; `start` where not one code point does."""
        reach = min(self.length, start + CHARACTERS_PER_TOKEN * self.size)
        for tokens, size in self._all:
            index = int(tokens.ends.searchsorted(start, "right")) + size
            if index < len(tokens.starts):
                reach = min(reach, int(tokens.starts[index]))
        return max(reach, start)

    def back(self, end: int) -> int:
        """The first start of a span to `end` that keeps all limits."""
        back = max(0, end - CHARACTERS_PER_TOKEN * self.size)
        for tokens, size in self._all:
            index = int(tokens.starts.searchsorted(end, "left")) - size - 1
            if index >= 0:
                back = max(back, int(tokens.ends[index]))
        return min(back, end)


def _counted(tokens: TokenOffsets) -> TokenOffsets:
    kept = tokens.ends > tokens.starts
    return TokenOffsets(tokens.starts[kept], np.maximum.accumulate(tokens.ends[kept]))
