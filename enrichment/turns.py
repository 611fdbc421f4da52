"""Many at once, or one alone: who wants to be alone waits until the others have left, and keeps the door shut meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """A door for the tasks of one event loop, first come, first served."""

    def __init__(self) -> None:
        self._door = asyncio.Lock()
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    @asynccontextmanager
    async def beside_others(self) -> AsyncIterator[None]:
        """Be inside with others."""
        async with self._door:
            self._inside += 1
            self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if self._inside == 0:
                self._empty.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Be inside with nobody else."""
        async with self._door:
            await self._empty.wait()
            yield
