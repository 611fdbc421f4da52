"""Threads for questions that block, for an event loop that must not: so many at once, so many waiting, so long.

What comes when all places are taken is refused at once instead of queueing without end. A question that is given up still
holds its thread until it ends, because a thread cannot be stopped: its place is free again only then.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from enrichment.errors import OperationError

T = TypeVar("T")


class OverloadError(OperationError):
    """There is no thread for the question now, or it took too long. Asking again later may help."""


class Workers:
    """`threads` questions at once, `queue` more waiting, each answered within `timeout_s` seconds of being asked."""

    def __init__(self, threads: int, queue: int, timeout_s: float) -> None:
        self.threads, self.queue, self.timeout_s = threads, queue, timeout_s
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="answer")
        self._lock = threading.Lock()  # of the two below
        self._taken = 0
        self._given_up: set[Future[Any]] = set()

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises, from a thread. Raises OverloadError if there is no place, or no answer in time."""
        with self._lock:
            if self._taken >= self.threads + self.queue:
                raise OverloadError(f"{self._taken} requests are in work, which is all that fit; try again")
            self._taken += 1
        future = self._pool.submit(work)
        future.add_done_callback(self._release)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self.timeout_s)
        except TimeoutError as error:
            if future.done() and not future.cancelled():
                raise  # the work's own
            with self._lock:
                if not future.done():
                    self._given_up.add(future)
            raise OverloadError(
                f"the answer took longer than {self.timeout_s:g} s; ask for less or try again"
            ) from error

    @property
    def taken(self) -> int:
        """Questions in work and waiting, those that were given up but have not ended among them."""
        return self._taken

    @property
    def stuck(self) -> bool:
        """Whether every thread is held by a question that was given up, so that nothing can be answered."""
        with self._lock:
            return len(self._given_up) >= self.threads

    def close(self) -> None:
        """Take no more questions; what runs is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _release(self, future: Future[Any]) -> None:
        with self._lock:
            self._taken -= 1
            self._given_up.discard(future)
