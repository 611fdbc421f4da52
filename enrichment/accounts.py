"""What a request took, beside what it would take with a cache that forgets nothing."""

from collections.abc import Sequence

import numpy as np

from enrichment.engine import Completion
from enrichment.strategies import Tokens


def account(before: np.ndarray, prompt: np.ndarray, attempts: Sequence[Completion], block_tokens: int) -> Tokens:
    """The tokens of one prompt's attempts; `before` is the prompt that was asked before it: what both begin with is cached."""
    if not attempts:
        return Tokens()
    # At least the last token is always computed: its logits are the answer's beginning.
    # A prompt from before the last may share more: then the cache knew.
    shared = max(min(_common(before, prompt), len(prompt) - 1), attempts[0].cached_tokens)
    retries = attempts[1:]
    return Tokens(
        prompt=sum(attempt.prompt_tokens for attempt in attempts),
        cached=sum(attempt.cached_tokens for attempt in attempts),
        ideal=len(prompt) - shared,
        block_rounding=shared % block_tokens,
        retries=sum(attempt.prompt_tokens - attempt.cached_tokens for attempt in retries),
        output=sum(attempt.output_tokens for attempt in attempts),
    )


def _common(first: np.ndarray, second: np.ndarray) -> int:
    """The number of tokens that both begin with."""
    length = min(len(first), len(second))
    differ = np.flatnonzero(first[:length] != second[:length])
    return int(differ[0]) if len(differ) else length
