"""What is in the engine at once: scopes by the tokens that its cache must hold for them, requests by number, both in order.

A scope is let in when its prefix and its running requests fit beside those that are in; one that would never fit is let
in alone. A request waits here, not in the engine, so that its prompt is built when its turn comes: memory is bounded
however long the document, and the engine's queue stays short.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from enrichment.engine import Capacity


class Held:
    """The tokens that one scope holds; they shrink as its last requests finish."""

    def __init__(self, admission: "Admission", prefix_tokens: int, request_tokens: int, requests: int) -> None:
        self._admission, self._prefix = admission, prefix_tokens
        self._each, self._left = request_tokens, requests
        self.tokens = self._needed()

    def finished_one(self) -> None:
        """One request less to come."""
        self._left -= 1
        freed = self.tokens - self._needed()
        self.tokens -= freed
        self._admission.release(freed)

    def _needed(self) -> int:
        return self._prefix + self._each * min(self._left, self._admission.capacity.requests)


class Admission:
    """The door in front of one engine. Not for several event loops at once."""

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self._busy_s = 0.0
        self._held = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._places = asyncio.Semaphore(capacity.requests)
        self._running = 0
        self._running_since = 0.0

    @property
    def busy_s(self) -> float:
        """Seconds so far with at least one request in the engine."""
        return self._busy_s + (time.monotonic() - self._running_since if self._running else 0.0)

    @asynccontextmanager
    async def scope(self, prefix_tokens: int, request_tokens: int, requests: int) -> AsyncIterator[Held]:
        """Hold the cache for a scope of `requests` requests that share a prefix and need `request_tokens` more each."""
        held = Held(self, prefix_tokens, request_tokens, requests)
        await self._enter(held.tokens)
        try:
            yield held
        finally:
            self.release(held.tokens)

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Hold a place for one request, first come, first served."""
        async with self._places:
            if self._running == 0:
                self._running_since = time.monotonic()
            self._running += 1
            try:
                yield
            finally:
                self._running -= 1
                if self._running == 0:
                    self._busy_s += time.monotonic() - self._running_since

    def release(self, tokens: int) -> None:
        """Give tokens back; those who wait come in, in order, as far as they fit."""
        self._held -= tokens
        while self._waiting and self._fits(self._waiting[0][0]):
            wanted, turn = self._waiting.popleft()
            if not turn.done():  # else it was cancelled
                self._held += wanted
                turn.set_result(None)

    async def _enter(self, tokens: int) -> None:
        if not self._waiting and self._fits(tokens):
            self._held += tokens
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((tokens, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(tokens)
            raise

    def _fits(self, tokens: int) -> bool:
        most = self.capacity.cache_tokens
        return most is None or self._held == 0 or self._held + tokens <= most
