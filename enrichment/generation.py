"""A recipe carried out on one engine: one answer per chunk, in chunk order, none of them paid for twice.

All of a document's requests go back to back, so that the shared prefix is computed once. What was paid for before is taken
from `paid` by its key: the exact prompt tokens, sampling and model. A prompt that two documents have alike is asked once, and
each document judges the answer by its own words.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Container, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from enrichment import extraction
from enrichment.accounts import account
from enrichment.admission import Admission, Held
from enrichment.boilerplate import BOILERPLATE, text_hash
from enrichment.engine import Completion, Engine, PromptRefusedError, Sampling, gather_in_order
from enrichment.extraction import Extraction
from enrichment.guards import Judgement
from enrichment.needs import STANDS_ALONE, needs
from enrichment.recipe import IN_OWN_WORDS, AskOnce, Given, Penalties, Questions, Recipe, Verdict
from enrichment.records import Chunk, Context, Document, DocumentId, Heading, Span, Status
from enrichment.scopes import Scope
from enrichment.strategies import UNGROUNDED, ContextOptions, Outcome, Tokens, Ungrounded, skipped
from enrichment.tokens import Encoding

ALWAYS = "always"  # the rule by which all chunks are asked about
_NEEDED = "needed: "
_PROMPTS_REMEMBERED = 10_000  # documents of one size, and so all copies of one, are worked on soon after each other


@dataclass(frozen=True, slots=True)
class Answer:
    """One chunk's context, whether the model wrote it just now, and what that took."""

    context: Context
    generated: bool
    tokens: Tokens


class Generation:
    """A strategy that has a language model write something about every chunk."""

    def __init__(
        self,
        engine: Engine,
        recipe: Recipe,
        options: ContextOptions,
        max_model_len: int,
        block_tokens: int,
        model_fingerprint: str,
        paid: Mapping[bytes, Context],
        older: Callable[[Document, Chunk], Context | None] = lambda document, chunk: None,
        done: Callable[[Document, Context], None] = lambda document, context: None,
        language: str = "en",
        extracting: Extraction | None = None,
        attempts: int = 2,
        boilerplate: Container[bytes] = frozenset(),
    ) -> None:
        self._engine = engine
        self.admission = Admission(engine.capacity)
        self._recipe = recipe
        self._options = options
        self._attempts = attempts
        self._max_prompt_tokens = max_model_len - options.max_output_tokens
        self._block_tokens = block_tokens
        self._model_fingerprint = model_fingerprint
        self._paid = paid
        self._older = older  # what the document's older version has for a chunk, whatever its prompt
        self._language = language  # of the documents, for the rules of `only: needed`
        self._extraction = extracting
        self._boilerplate = boilerplate  # hashes of texts that are not asked about
        self._done = done  # called with every context that the model wrote, as it is written
        # Of documents in work: an engine that dies takes no answer with it. Each document's own, since what is known
        # to be grounded differs between two documents that begin alike.
        self._kept: dict[tuple[DocumentId, bytes], Answer] = {}
        self._asked: OrderedDict[bytes, asyncio.Future[Context | None]] = OrderedDict()
        self.forget()

    def forget(self) -> None:
        """Expect nothing in the engine's cache: it is a new one."""
        self._last = np.zeros(0, dtype=np.int64)  # the prompt before, also of the document before

    async def contexts(
        self, document: Document, headings: Sequence[Heading], chunks: Sequence[Chunk], encoding: Encoding | None
    ) -> Outcome:
        assert encoding is not None
        given = Given(document, headings, chunks, encoding, self._max_prompt_tokens)
        once: list[Answer] = []

        async def ask_once(prompt: np.ndarray, judge: Verdict) -> str | None:
            async with self.admission.scope(len(prompt), self._options.max_output_tokens, 1), self.admission.request():
                once.append(await self._answer(document, prompt, judge, IN_OWN_WORDS))
            return once[-1].context.text

        found = await ask_once(*self._extraction.question(given)) if self._extraction else None
        answers = await self._answers(given, ask_once)
        tokens = Tokens()
        for answer in [*once, *answers]:
            self._kept.pop((document.id, answer.context.key or b""), None)
            tokens = tokens.plus(answer.tokens)
        return Outcome(
            tuple(answer.context for answer in answers),
            tuple(answer.generated for answer in answers),
            tokens,
            tuple(answer.context for answer in once if not answer.generated),
            extraction.read(found or ""),
        )

    async def _answers(self, given: Given, ask_once: AskOnce) -> list[Answer]:
        """One for each chunk, in order."""
        chunks, document = given.chunks, given.document
        if len(chunks) < self._recipe.least_chunks:
            return [Answer(c, False, Tokens()) for c in skipped(document, chunks, "single_chunk").contexts]
        needed = self._needed(document, chunks)
        if not any(needed):
            whole = Span(0, len(document.text))
            return [self._spared(document, chunk, whole) for chunk in chunks]
        work = await self._recipe.questions(given, ask_once)
        # Scopes come in in their order, and the prompts of one are built as their turns come.
        cuts = work.scopes(given.max_tokens)
        answered = await gather_in_order([self._scope(work, scope, needed) for scope in cuts])
        return [answer for scope in answered for answer in scope]

    def _needed(self, document: Document, chunks: Sequence[Chunk]) -> list[str | None]:
        """For each chunk the rule by which it is asked about, or None."""
        found: Sequence[str | None] = [ALWAYS] * len(chunks)
        if self._options.only == "needed":
            found = needs(document, chunks, self._language)
        return [
            None if self._is_boilerplate(document, chunk) else rule for chunk, rule in zip(chunks, found, strict=True)
        ]

    def _is_boilerplate(self, document: Document, chunk: Chunk) -> bool:
        return bool(self._boilerplate) and text_hash(document.text[chunk.start : chunk.end]) in self._boilerplate

    def _spared(self, document: Document, chunk: Chunk, read: Span) -> Answer:
        """What a chunk has that is not asked about."""
        reason = BOILERPLATE if self._is_boilerplate(document, chunk) else STANDS_ALONE
        return Answer(Context(None, Status.SKIPPED, reason, read), False, Tokens())

    async def _scope(self, work: Questions, scope: Scope, needed: Sequence[str | None]) -> list[Answer]:
        """The scope's answers; by `needed`, of all the document's chunks, one without a rule is not asked about."""
        asked = [chunk for chunk in scope.chunks if needed[chunk.index] is not None]
        if work.is_one:
            asked = asked[:1]
        own = work.longest_suffix + self._options.max_output_tokens
        async with self.admission.scope(work.shared_tokens(scope) if asked else 0, own, len(asked)) as held:
            found = await gather_in_order([self._one(work, scope, chunk, held) for chunk in asked])
        answers = {chunk.index: answer for chunk, answer in zip(asked, found, strict=True)}
        return [self._of_chunk(work, scope, chunk, answers, needed[chunk.index]) for chunk in scope.chunks]

    def _of_chunk(
        self, work: Questions, scope: Scope, chunk: Chunk, answers: Mapping[int, Answer], rule: str | None
    ) -> Answer:
        """The chunk's own answer, with its rule; the one that all have, which was paid for with the first; or none."""
        read = work.read(scope, chunk)
        if rule is None:
            return self._spared(work.document, chunk, read)
        answer = answers.get(chunk.index)
        if answer is None:
            shared = next(iter(answers.values())).context
            answer = Answer(
                replace(shared, prompt_tokens=0, cached_tokens=0, output_tokens=0, attempts=0), False, Tokens()
            )
        return replace(answer, context=replace(answer.context, scope=read, reason=_told(answer.context, rule)))

    async def _one(self, work: Questions, scope: Scope, chunk: Chunk, held: Held) -> Answer:
        async with self.admission.request():
            about = None if work.is_one else chunk  # what an older version has for one chunk is not for all of them
            prompt, judge = work.prompt(scope, chunk), work.judge(chunk)
            answer = await self._answer(work.document, prompt, judge, work.penalties, about)
        held.finished_one()
        return answer

    async def _answer(
        self, document: Document, prompt: np.ndarray, judge: Verdict, penalties: Penalties, chunk: Chunk | None = None
    ) -> Answer:
        """What is known already, else what the model writes. What a prompt is about, if not a chunk, is the document."""
        samplings = self._samplings(penalties)
        key = self._key(prompt, samplings[0])
        if (kept := self._kept.get((document.id, key))) is not None:
            return kept
        if key in self._paid:
            return Answer(self._judged_again(self._paid[key], judge), False, Tokens())
        if chunk is not None and (before := self._older(document, chunk)) is not None:
            return Answer(before, False, Tokens())
        while (asked := self._asked.get(key)) is not None:
            if (context := await asyncio.shield(asked)) is not None:
                return Answer(self._judged_again(context, judge), False, Tokens())
        answer = await self._asking(key, self._ask(prompt, key, judge, samplings))
        if answer.generated:
            self._kept[document.id, key] = answer
            self._done(document, answer.context)
        return answer

    async def _asking(self, key: bytes, ask: Coroutine[Any, Any, Answer]) -> Answer:
        """Let others who have the same prompt wait for this answer; of one that failed they hear, and ask themselves."""
        asked = self._asked[key] = asyncio.get_running_loop().create_future()
        written: Context | None = None
        try:
            answer = await ask
            written = answer.context if answer.generated else None
        finally:
            if written is None:
                self._asked.pop(key, None)
            asked.set_result(written)
        if len(self._asked) > _PROMPTS_REMEMBERED:
            self._asked.popitem(last=False)
        return answer

    async def _ask(self, prompt: np.ndarray, key: bytes, judge: Verdict, samplings: Sequence[Sampling]) -> Answer:
        ids = prompt.tolist()
        attempts: list[Completion] = []
        before, self._last = self._last, prompt
        judgement, output = Judgement(None, None), ""
        for sampling in samplings:
            try:
                attempts.append(await self._engine.generate(ids, sampling, judge.enough))
            except PromptRefusedError as error:
                if self._last is prompt:  # what was refused is in no cache
                    self._last = before
                failed = Context(None, Status.FAILED, f"prompt_refused: {error}", key=key)
                return Answer(failed, False, account(before, prompt, attempts, self._block_tokens))
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
        return Answer(context, True, account(before, prompt, attempts, self._block_tokens))

    def _judged_again(self, paid: Context, judge: Verdict) -> Context:
        """What was paid for before, by the guards of today."""
        if paid.output is None:
            return paid
        text, status, reason = _verdict(_under(self._options.ungrounded, judge(paid.output)))
        return replace(paid, text=text, status=status, reason=reason)

    def _samplings(self, penalties: Penalties) -> Sequence[Sampling]:
        first = Sampling(self._options.max_output_tokens, penalties.first)
        return (first, replace(first, repetition_penalty=penalties.second, urgent=True))[: self._attempts]

    def _key(self, ids: np.ndarray, sampling: Sampling) -> bytes:
        total = hashlib.sha256(f"{self._model_fingerprint}\0{sampling!r}\0".encode())
        total.update(ids.astype("<i8").tobytes())
        return total.digest()


def _told(context: Context, rule: str) -> str | None:
    """The reason on a context's row, with the rule by which it was asked for; what an older row says of that is forgotten."""
    if context.status != Status.OK:
        return context.reason
    own = (context.reason or "").partition(_NEEDED)[0].removesuffix("; ")
    return "; ".join(filter(None, [own, _NEEDED + rule if rule is not ALWAYS else ""])) or None


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
