"""A deterministic engine without a model, for tests, dry runs and benchmarks of everything around the model.

It answers with one sentence made of the prompt's length and hash, caches prefixes as a real engine does, the least
recently used blocks leaving first, and counts its calls. A snapshot made with it says so in its fingerprint.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from enrichment.engine import CPU_BLOCK_TOKENS, Capacity, Completion, PromptRefusedError, Sampling, never

CACHE_BLOCKS = 65_536  # 2 million tokens, as much as a large GPU holds, in 15 MB of hashes


class FakeEngine:
    """Honours the Engine Protocol. `calls` counts requests that were answered."""

    def __init__(
        self, max_model_len: int = 8192, block_tokens: int = CPU_BLOCK_TOKENS, cache_blocks: int = CACHE_BLOCKS
    ) -> None:
        self.calls = 0
        self._cache_blocks = cache_blocks
        self._max_model_len = max_model_len
        self._block_tokens = block_tokens
        self._blocks: OrderedDict[bytes, None] = OrderedDict()  # least recently used first
        self.capacity = Capacity(None, 64)
        self.preemptions = 0

    async def generate(
        self, prompt: Sequence[int], sampling: Sampling, enough: Callable[[str], bool] = never
    ) -> Completion:
        if len(prompt) + sampling.max_tokens > self._max_model_len:
            raise PromptRefusedError(f"{len(prompt)} tokens do not fit into {self._max_model_len}")
        self.calls += 1
        ids = np.asarray(prompt, dtype=np.int64)
        name = hashlib.sha256(ids.tobytes()).hexdigest()[:8]
        text = f" stands after {len(prompt)} tokens of its document and is known as {name}."
        return Completion(text, "stop", len(prompt), self._cached(ids), len(text.split()))

    def close(self) -> None:
        self._blocks.clear()

    def _cached(self, ids: np.ndarray) -> int:
        """Prompt tokens in full blocks seen before, by a running hash as a prefix cache keeps it."""
        data, size = memoryview(ids.tobytes()), self._block_tokens * ids.itemsize
        running, blocks = hashlib.sha256(), []
        for start in range(0, len(data) - len(data) % size, size):
            running.update(data[start : start + size])
            blocks.append(running.digest())
        known = next((place for place, block in enumerate(blocks) if block not in self._blocks), len(blocks))
        for block in reversed(blocks):  # a prompt's end is forgotten before its beginning, which more prompts share
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._cache_blocks:
            self._blocks.popitem(last=False)
        # At least the last token is always computed: its logits are the answer's beginning.
        return min(known, max(0, len(ids) - 1) // self._block_tokens) * self._block_tokens
