"""Engines that die: started again, and the documents that were in work tried alone until the one is found that kills.

Nobody can tell which of the documents in an engine killed it. Each of them is tried again with the engine to itself; one
that kills it twice more is given up by name. What was answered before is not asked again: the strategy keeps it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

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
    """A strategy that outlives its engine."""

    def __init__(self, engine: RestartableEngine, strategy: Generation, loading: Callable[[bool], None]) -> None:
        self._engine, self._strategy = engine, strategy
        self._loading = loading  # told when a model load begins and ends
        self._turns = Turns()
        self._given_up = 0

    async def contexts(
        self, document: Document, headings: Sequence[Heading], chunks: Sequence[Chunk], encoding: Encoding | None
    ) -> Outcome:
        """As the strategy's. Raises DocumentError for a document that kills the engine."""
        death: EngineDiedError | None = None
        for attempt in range(1 + _TRIES_ALONE):
            alone = attempt > 0 or self._engine.is_dead
            try:
                async with self._turns.alone() if alone else self._turns.beside_others():
                    if alone:
                        await self._revive()
                    outcome = await self._strategy.contexts(document, headings, chunks, encoding)
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

    async def _revive(self) -> None:
        """Start the engine again if it died; only where nothing is in work."""
        if self._engine.is_dead:
            self._loading(True)
            try:
                await self._engine.revive()
            finally:
                self._loading(False)
            self._strategy.forget()
