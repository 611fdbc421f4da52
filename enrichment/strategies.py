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

from enrichment.admission import Admission, Held
from enrichment.engine import Completion, Engine, PromptRefusedError, Sampling, gather_in_order
from enrichment.errors import ConfigError
from enrichment.guards import Judge, Judgement
from enrichment.prompts import ANSWER_PREFIX, OWN_WORDS, DocumentPrompts, PromptKind, Prompts, Scope
from enrichment.records import Chunk, Context, Document, DocumentId, Heading, Span, Status
from enrichment.scopes import scopes
from enrichment.tokens import Encoding

RETRY_PENALTY = 1.3  # a refused output is most often a loop or a list without end: press harder against both
StrategyName = Literal["none", "header", "situate"]
Ungrounded = Literal["keep", "retry", "refuse"]
UNGROUNDED = "ungrounded"  # the reason on such a row


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """The `context` section of the configuration."""

    strategy: StrategyName = "situate"
    prompt: PromptKind = "causal"
    max_output_tokens: int = 96
    reuse: Literal["exact", "chunk"] = "exact"
    """`chunk` also takes the older version's context of a chunk whose own text and headings are unchanged: it was written
    with another text before it, which is mostly as good and costs nothing."""
    ungrounded: Ungrounded = "keep"
    """What becomes of an output with a name or a number that the document lacks: `keep` only counts it, `retry` asks once
    more and takes what comes, `refuse` asks once more and then falls back."""

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
class Answer:
    """One chunk's context, whether the model wrote it just now, and what that took."""

    context: Context
    generated: bool
    tokens: Tokens


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
        older: Callable[[Document, Chunk], Context | None] = lambda document, chunk: None,
        done: Callable[[Document, Context], None] = lambda document, context: None,
    ) -> None:
        self._engine = engine
        self.admission = Admission(engine.capacity)
        self._prompts = prompts
        self._options = options
        self._sampling = Sampling(max_tokens=options.max_output_tokens)
        self._max_prompt_tokens = max_model_len - options.max_output_tokens
        self._block_tokens = block_tokens
        self._model_fingerprint = model_fingerprint
        self._paid = paid
        self._older = older  # what the document's older version has for a chunk, whatever its prompt
        self._done = done  # called with every context that the model wrote, as it is written
        # Of documents in work: an engine that dies takes no answer with it. Each document's own, since what is known
        # to be grounded differs between two documents that begin alike.
        self._kept: dict[tuple[DocumentId, bytes], Answer] = {}
        self.forget()

    def forget(self) -> None:
        """Expect nothing in the engine's cache: it is a new one."""
        self._last = np.zeros(0, dtype=np.int64)  # the prompt before, also of the document before

    async def contexts(
        self, document: Document, headings: Sequence[Heading], chunks: Sequence[Chunk], encoding: Encoding | None
    ) -> Outcome:
        if len(chunks) < 2:
            return _skipped(document, chunks, "single_chunk")
        assert encoding is not None
        work = self._prompts.of(document, headings, chunks, encoding)
        cuts = scopes(document, headings, chunks, encoding.offsets, max(1, self._max_prompt_tokens - work.around))
        judge = Judge(document, OWN_WORDS, ANSWER_PREFIX)
        # Scopes come in in their order, and the prompts of one are built as their turns come.
        answered = await gather_in_order([self._scope(work, scope, judge) for scope in cuts])
        answers = [answer for scope in answered for answer in scope]
        for answer in answers:
            self._kept.pop((document.id, answer.context.key or b""), None)
        tokens = Tokens()
        for answer in answers:
            tokens = tokens.plus(answer.tokens)
        return Outcome(tuple(a.context for a in answers), tuple(a.generated for a in answers), tokens)

    async def _scope(self, work: DocumentPrompts, scope: Scope, judge: Judge) -> list[Answer]:
        own = work.longest_suffix + self._options.max_output_tokens
        async with self.admission.scope(work.shared_tokens(scope), own, len(scope.chunks)) as held:
            return await gather_in_order([self._one(work, scope, chunk, judge, held) for chunk in scope.chunks])

    async def _one(self, work: DocumentPrompts, scope: Scope, chunk: Chunk, judge: Judge, held: Held) -> Answer:
        async with self.admission.request():
            prompt = work.prompt(scope, chunk)
            key = self._key(prompt)
            kept = self._kept.get((work.document.id, key))
            if kept is not None:
                answer = kept
            elif key in self._paid:
                answer = Answer(self._judged_again(self._paid[key], judge), False, Tokens())
            elif (before := self._older(work.document, chunk)) is not None:
                answer = Answer(before, False, Tokens())
            else:
                answer = await self._ask(prompt, key, judge)
                if answer.generated:
                    self._kept[work.document.id, key] = answer
                    self._done(work.document, answer.context)
        held.finished_one()
        return replace(answer, context=replace(answer.context, scope=scope.span))

    async def _ask(self, prompt: np.ndarray, key: bytes, judge: Judge) -> Answer:
        ids = prompt.tolist()
        attempts: list[Completion] = []
        before, self._last = self._last, prompt
        judgement, output = Judgement(None, None), ""
        for sampling in (self._sampling, replace(self._sampling, repetition_penalty=RETRY_PENALTY, urgent=True)):
            try:
                attempts.append(await self._engine.generate(ids, sampling, judge.enough))
            except PromptRefusedError as error:
                if self._last is prompt:  # what was refused is in no cache
                    self._last = before
                failed = Context(None, Status.FAILED, f"prompt_refused: {error}", key=key)
                return Answer(failed, False, self._account(before, prompt, attempts))
            found = _under(self._options.ungrounded, judge(attempts[-1].text))
            if _goodness(found) >= _goodness(judgement):
                judgement, output = found, attempts[-1].text
            if found.text is not None and not (found.ungrounded and self._options.ungrounded == "retry"):
                break
        context = Context(
            *_verdict(judgement),
            key=key,
            output=output,
            prompt_tokens=sum(attempt.prompt_tokens for attempt in attempts),
            cached_tokens=sum(attempt.cached_tokens for attempt in attempts),
            output_tokens=sum(attempt.output_tokens for attempt in attempts),
            attempts=len(attempts),
        )
        return Answer(context, True, self._account(before, prompt, attempts))

    def _judged_again(self, paid: Context, judge: Judge) -> Context:
        """What was paid for before, by the guards of today."""
        if paid.output is None:
            return paid
        text, status, reason = _verdict(_under(self._options.ungrounded, judge(paid.output)))
        return replace(paid, text=text, status=status, reason=reason)

    def _key(self, ids: np.ndarray) -> bytes:
        total = hashlib.sha256(f"{self._model_fingerprint}\0{self._sampling!r}\0".encode())
        total.update(ids.astype("<i8").tobytes())
        return total.digest()

    def _account(self, before: np.ndarray, prompt: np.ndarray, attempts: Sequence[Completion]) -> Tokens:
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
            block_rounding=shared % self._block_tokens,
            retries=sum(attempt.prompt_tokens - attempt.cached_tokens for attempt in retries),
            output=sum(attempt.output_tokens for attempt in attempts),
        )


def _under(policy: Ungrounded, judgement: Judgement) -> Judgement:
    if policy == "refuse" and judgement.text is not None and judgement.ungrounded:
        return Judgement(None, _ungrounded_reason(judgement))
    return judgement


def _goodness(judgement: Judgement) -> tuple[bool, bool]:
    return judgement.text is not None, not judgement.ungrounded


def _verdict(judgement: Judgement) -> tuple[str | None, Status, str | None]:
    """Text, status and reason of a context."""
    if judgement.text is None:
        return None, Status.FALLBACK, judgement.reason
    return judgement.text, Status.OK, _ungrounded_reason(judgement) if judgement.ungrounded else None


def _ungrounded_reason(judgement: Judgement) -> str:
    return f"{UNGROUNDED}: {', '.join(judgement.ungrounded)}"


def _common(first: np.ndarray, second: np.ndarray) -> int:
    """The number of tokens that both begin with."""
    length = min(len(first), len(second))
    differ = np.flatnonzero(first[:length] != second[:length])
    return int(differ[0]) if len(differ) else length


def _skipped(document: Document, chunks: Sequence[Chunk], reason: str) -> Outcome:
    whole = Span(0, len(document.text))
    context = Context(None, Status.SKIPPED, reason, whole)
    return Outcome((context,) * len(chunks), (False,) * len(chunks), Tokens())
