"""A deterministic engine without a model, for tests, dry runs and benchmarks of everything around the model.

It answers with one sentence made of the prompt's length and hash, caches prefixes as a real engine with unlimited
memory would, and counts its calls. A snapshot made with it says so in its fingerprint.
"""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from enrichment.engine import CPU_BLOCK_TOKENS, Capacity, Completion, PromptRefusedError, Sampling, never


class FakeEngine:
    """Honours the Engine Protocol. `calls` counts requests that were answered."""

    def __init__(self, max_model_len: int = 8192, block_tokens: int = CPU_BLOCK_TOKENS) -> None:
        self.calls = 0
        self._max_model_len = max_model_len
        self._block_tokens = block_tokens
        self._blocks: set[bytes] = set()
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
        running, cached, hit = hashlib.sha256(), 0, True
        for start in range(0, len(ids) - len(ids) % self._block_tokens, self._block_tokens):
            running.update(ids[start : start + self._block_tokens].tobytes())
            block = running.digest()
            hit = hit and block in self._blocks
            # At least the last token is always computed: its logits are the answer's beginning.
            if hit and start + self._block_tokens < len(ids):
                cached += self._block_tokens
            self._blocks.add(block)
        return cached
