"""The life of an engine: it is started when a document first needs it, and again when it dies.

What is paid for needs no engine, so a night without a new prompt never loads the model. Nobody can tell which of the documents
in an engine killed it: each of them is tried again with a new one to itself, and one that kills it twice more is given up by
name. What was answered before is not asked again: the strategy keeps it.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence

from enrichment.engine import Capacity, Completion, Engine, EngineDiedError, Sampling, never
from enrichment.errors import DocumentError, OperationError
from enrichment.generation import Generation
from enrichment.records import Chunk, Document, Heading
from enrichment.strategies import Outcome
from enrichment.tokens import Encoding
from enrichment.turns import Turns

logger = logging.getLogger(__name__)

_TRIES_ALONE = 2
_GIVEN_UP_IN_A_ROW = 3  # so many documents without one that passes: it is the engine, not the documents


class _NeededError(Exception):
    """A document asks for what only an engine can say."""


class _Absent:
    """Stands where no engine is yet."""

    capacity = Capacity(None, 1)
    preemptions = 0

    async def generate(
        self, prompt: Sequence[int], sampling: Sampling, enough: Callable[[str], bool] = never
    ) -> Completion:
        raise _NeededError

    def close(self) -> None:
        """There is nothing to close."""


class RestartableEngine:
    """An engine that `revive` starts again after it died."""

    def __init__(self, start: Callable[[], Engine]) -> None:
        self._start = start
        self._engine = start()
        self._dead = False
        self._preemptions_before = 0

    @property
    def capacity(self) -> Capacity:
        return self._engine.capacity

    @property
    def preemptions(self) -> int:
        return self._preemptions_before + self._engine.preemptions

    async def generate(
        self, prompt: Sequence[int], sampling: Sampling, enough: Callable[[str], bool] = never
    ) -> Completion:
        engine = self._engine
        try:
            return await engine.generate(prompt, sampling, enough)
        except EngineDiedError:
            self._dead = self._dead or engine is self._engine
            raise

    @property
    def is_dead(self) -> bool:
        """Whether it waits to be revived."""
        return self._dead

    async def revive(self) -> None:
        """Start a new engine in the place of the dead one. Nothing may be in work."""
        self._preemptions_before += self._engine.preemptions
        try:
            await asyncio.to_thread(self._engine.close)
            self._engine = await asyncio.to_thread(self._start)
        except Exception as error:
            raise OperationError(f"the engine died and could not be started again: {error}") from error
        self._dead = False

    def close(self) -> None:
        self._engine.close()


class Supervised:
    """A strategy that outlives its engine, and does without one as long as it can."""

    def __init__(
        self,
        start: Callable[[], Engine],
        strategy: Callable[[Engine], Generation],
        loading: Callable[[bool], None],
    ) -> None:
        self._start, self._strategy_on = start, strategy
        self._loading = loading  # told when a model load begins and ends
        self._without = strategy(_Absent())
        self._engine: RestartableEngine | None = None
        self._strategy: Generation | None = None
        self._starting = asyncio.Lock()
        self._failure: Exception | None = None  # of the first start: those who wait for it need not try again
        self._turns = Turns()
        self._given_up = 0
        self.ready_at = time.time()
        """When the engine was there; before it is, when this was made."""

    @property
    def busy_s(self) -> float:
        """Seconds so far with at least one request in the engine."""
        return self._strategy.admission.busy_s if self._strategy else 0.0

    @property
    def preemptions(self) -> int:
        return self._engine.preemptions if self._engine else 0

    async def contexts(
        self, document: Document, headings: Sequence[Heading], chunks: Sequence[Chunk], encoding: Encoding | None
    ) -> Outcome:
        """As the strategy's. Raises DocumentError for a document that kills the engine."""
        if self._strategy is None:
            with contextlib.suppress(_NeededError):
                return await self._without.contexts(document, headings, chunks, encoding)
        engine, strategy = await self._begun()
        death: EngineDiedError | None = None
        for attempt in range(1 + _TRIES_ALONE):
            alone = attempt > 0 or engine.is_dead
            try:
                async with self._turns.alone() if alone else self._turns.beside_others():
                    if alone:
                        await self._revive(engine, strategy)
                    outcome = await strategy.contexts(document, headings, chunks, encoding)
            except EngineDiedError as error:
                logger.warning("the engine died, attempt %d at %s: %s", attempt + 1, document.id, error)
                death = error
            else:
                self._given_up = 0
                return outcome
        self._given_up += 1
        if self._given_up >= _GIVEN_UP_IN_A_ROW:
            raise OperationError(
                f"the engine died under {self._given_up} documents in a row, {document.id} the last ({death}): it is not the"
                " documents; the engine's log says why"
            )
        raise DocumentError("kills_engine", f"the engine died of {document.id} {_TRIES_ALONE} times ({death})")

    async def _begun(self) -> tuple[RestartableEngine, Generation]:
        """The engine, started if it is not there yet, and the strategy on it."""
        async with self._starting:
            if self._failure is not None:
                raise self._failure
            if self._engine is None or self._strategy is None:
                try:
                    with self._told():
                        self._engine = await asyncio.to_thread(RestartableEngine, self._start)
                except Exception as error:
                    self._failure = error
                    raise
                self._strategy = self._strategy_on(self._engine)
                self.ready_at = time.time()
        return self._engine, self._strategy

    async def _revive(self, engine: RestartableEngine, strategy: Generation) -> None:
        """Start the engine again if it died; only where nothing is in work."""
        if engine.is_dead:
            with self._told():
                await engine.revive()
            strategy.forget()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        self._loading(True)
        try:
            yield
        finally:
            self._loading(False)
