"""Strategies: what is generated for a document's chunks. One document in, one context per chunk out, in chunk order.

`none` and `header` generate nothing. `situate` asks a language model about every chunk, all of a document's requests back
to back, so that the shared prefix is computed once. Contexts that were paid for before are taken from `paid` by their key:
the exact prompt tokens, sampling and model.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np

from enrichment.engine import Completion, Engine, PromptRefusedError, Sampling, gather_in_order
from enrichment.errors import ConfigError
from enrichment.guards import judge
from enrichment.prompts import ANSWER_PREFIX, PromptKind, Prompts, Scope
from enrichment.records import Chunk, Context, Document, Heading, Span, Status
from enrichment.scopes import scopes
from enrichment.tokens import Encoding

RETRY_REPETITION_PENALTY = 1.3  # a refused output is most often a loop or a list without end: press harder against both
StrategyName = Literal["none", "header", "situate"]


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """The `context` section of the configuration."""

    strategy: StrategyName = "situate"
    prompt: PromptKind = "causal"
    max_output_tokens: int = 96
    reuse: Literal["exact"] = "exact"

    def __post_init__(self) -> None:
        if not 16 <= self.max_output_tokens <= 1024:
            raise ConfigError(f"context.max_output_tokens is {self.max_output_tokens}; it must be from 16 to 1024")


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a document's generation read and wrote, in tokens.

    `ideal` counts what the request before did not read already: each prefix token once, and what differs per chunk;
    `block_rounding` is what a cache of whole blocks must compute again; `retries` is what second attempts computed. With
    a cache that forgets nothing, computed = ideal + block_rounding + retries.
    """

    prompt: int = 0
    cached: int = 0
    ideal: int = 0
    block_rounding: int = 0
    retries: int = 0
    output: int = 0

    @property
    def computed(self) -> int:
        """Prompt tokens that were not served from the cache."""
        return self.prompt - self.cached

    def plus(self, other: "Tokens") -> "Tokens":
        """The sum, field by field."""
        return Tokens(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Outcome:
    """A document's contexts, one per chunk; which of them the model wrote just now; what that took."""

    contexts: tuple[Context, ...]
    generated: tuple[bool, ...]
    tokens: Tokens


class Strategy(Protocol):
    """Makes a document's contexts."""

    async def contexts(
        self, document: Document, headings: Sequence[Heading], chunks: Sequence[Chunk], encoding: Encoding | None
    ) -> Outcome:
        """One context per chunk, in chunk order; `encoding` is the document's text in the model's tokens."""


class Free:
    """`none` and `header`: nothing is generated."""

    async def contexts(
        self, document: Document, headings: Sequence[Heading], chunks: Sequence[Chunk], encoding: Encoding | None
    ) -> Outcome:
        return _skipped(document, chunks, "strategy")


class Situate:
    """`situate`: one or two sentences per chunk from a language model."""

    def __init__(
        self,
        engine: Engine,
        prompts: Prompts,
        options: ContextOptions,
        max_model_len: int,
        block_tokens: int,
        model_fingerprint: str,
        paid: Mapping[bytes, Context],
        done: Callable[[Document, Context], None] = lambda document, context: None,
    ) -> None:
        self._engine = engine
        self._prompts = prompts
        self._sampling = Sampling(max_tokens=options.max_output_tokens)
        self._max_prompt_tokens = max_model_len - options.max_output_tokens
        self._block_tokens = block_tokens
        self._model_fingerprint = model_fingerprint
        self._paid = paid
        self._done = done  # called with every context that the model wrote, as it is written
        self._last = np.zeros(0, dtype=np.int64)  # the prompt before, also of the document before

    async def contexts(
        self, document: Document, headings: Sequence[Heading], chunks: Sequence[Chunk], encoding: Encoding | None
    ) -> Outcome:
        if len(chunks) < 2:
            return _skipped(document, chunks, "single_chunk")
        assert encoding is not None
        overhead = len(self._prompts.prefix(document, headings))
        overhead += max(len(self._prompts.suffix(document, chunk)) for chunk in chunks)
        cuts = scopes(document, headings, chunks, encoding.offsets, max(1, self._max_prompt_tokens - overhead))
        prompts, calls = [], []
        for scope in cuts:
            for prompt in self._prompts.build(document, headings, encoding, scope):
                prompts.append(prompt)
                calls.append(self._one(document, scope, prompt))
        results = await gather_in_order(calls)
        tokens = Tokens()
        for prompt, (_, _, attempts) in zip(prompts, results, strict=True):
            if attempts:  # what was paid before or refused is in no cache
                tokens = tokens.plus(self._account(prompt, attempts))
        return Outcome(tuple(r[0] for r in results), tuple(r[1] for r in results), tokens)

    async def _one(
        self, document: Document, scope: Scope, prompt: np.ndarray
    ) -> tuple[Context, bool, Sequence[Completion]]:
        key = self._key(prompt)
        paid = self._paid.get(key)
        if paid is not None:
            return replace(paid, scope=scope.span), False, ()
        ids = [int(token) for token in prompt]
        attempts: list[Completion] = []
        judgement = None
        try:
            for sampling in (
                self._sampling,
                replace(self._sampling, repetition_penalty=RETRY_REPETITION_PENALTY, urgent=True),
            ):
                attempts.append(await self._engine.generate(ids, sampling))
                judgement = judge(attempts[-1].text, ANSWER_PREFIX, document.text)
                if judgement.text is not None:
                    break
        except PromptRefusedError as error:
            failed = Context(None, Status.FAILED, f"prompt_refused: {error}", scope.span, key)
            return failed, False, attempts
        assert judgement is not None
        context = Context(
            text=judgement.text,
            status=Status.OK if judgement.text is not None else Status.FALLBACK,
            reason=judgement.reason,
            scope=scope.span,
            key=key,
            output=attempts[-1].text,
            prompt_tokens=sum(attempt.prompt_tokens for attempt in attempts),
            cached_tokens=sum(attempt.cached_tokens for attempt in attempts),
            output_tokens=sum(attempt.output_tokens for attempt in attempts),
            attempts=len(attempts),
        )
        self._done(document, context)
        return context, True, attempts

    def _key(self, ids: np.ndarray) -> bytes:
        total = hashlib.sha256(f"{self._model_fingerprint}\0{self._sampling!r}\0".encode())
        total.update(ids.astype("<i8").tobytes())
        return total.digest()

    def _account(self, prompt: np.ndarray, attempts: Sequence[Completion]) -> Tokens:
        # At least the last token is always computed: its logits are the answer's beginning.
        shared = min(_common(self._last, prompt), len(prompt) - 1)
        self._last = prompt
        retries = attempts[1:]
        return Tokens(
            prompt=sum(attempt.prompt_tokens for attempt in attempts),
            cached=sum(attempt.cached_tokens for attempt in attempts),
            ideal=len(prompt) - shared,
            block_rounding=shared % self._block_tokens,
            retries=sum(attempt.prompt_tokens - attempt.cached_tokens for attempt in retries),
            output=sum(attempt.output_tokens for attempt in attempts),
        )


def _common(first: np.ndarray, second: np.ndarray) -> int:
    """The number of tokens that both begin with."""
    length = min(len(first), len(second))
    differ = np.flatnonzero(first[:length] != second[:length])
    return int(differ[0]) if len(differ) else length


def _skipped(document: Document, chunks: Sequence[Chunk], reason: str) -> Outcome:
    whole = Span(0, len(document.text))
    context = Context(None, Status.SKIPPED, reason, whole)
    return Outcome((context,) * len(chunks), (False,) * len(chunks), Tokens())
