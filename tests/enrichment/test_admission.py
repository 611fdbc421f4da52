"""Admission: never more in the engine than its cache holds, always in order, never a dead end."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enrichment.admission import Admission
from enrichment.engine import Capacity


class Watch:
    """Runs scopes of (prefix, tokens per request, requests) through an admission and notes what is in at once."""

    def __init__(self, capacity: Capacity) -> None:
        self.admission = Admission(capacity)
        self.order: list[tuple[int, int]] = []
        self.most_requests = self.most_tokens = self.requests = 0
        self.inside: dict[int, tuple[int, int, int]] = {}  # scope -> prefix, each, running

    def run(self, scopes: list[tuple[int, int, int]], work: Callable[[], Awaitable[None]]) -> None:
        async def all_of_them() -> None:
            await asyncio.wait_for(
                asyncio.gather(*(self._scope(n, *scope, work) for n, scope in enumerate(scopes))), timeout=20
            )

        asyncio.run(all_of_them())

    async def _scope(
        self, number: int, prefix: int, each: int, requests: int, work: Callable[[], Awaitable[None]]
    ) -> None:
        async def one(request: int) -> None:
            async with self.admission.request():
                self.order.append((number, request))
                self.requests += 1
                self.most_requests = max(self.most_requests, self.requests)
                self.inside[number] = (prefix, each, self.inside[number][2] + 1)
                if len(self.inside) > 1:
                    self.most_tokens = max(self.most_tokens, sum(p + e * r for p, e, r in self.inside.values()))
                await work()
                self.inside[number] = (prefix, each, self.inside[number][2] - 1)
                self.requests -= 1
            held.finished_one()

        async with self.admission.scope(prefix, each, requests) as held:
            self.inside[number] = (prefix, each, 0)
            await asyncio.gather(*(one(request) for request in range(requests)))
            del self.inside[number]


async def short() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=20),
    st.integers(1, 400),
    st.integers(1, 9),
)
@settings(deadline=None, max_examples=60)
def test_scopes_never_hold_more_than_the_cache_and_requests_come_in_order(
    scopes: list[tuple[int, int, int]], cache: int, places: int
) -> None:
    watch = Watch(Capacity(cache, places))
    watch.run(scopes, short)
    assert watch.order == [(n, r) for n, (_, _, requests) in enumerate(scopes) for r in range(requests)]
    assert watch.most_requests <= places
    assert watch.most_tokens <= cache
    assert watch.admission._held == 0


def test_a_scope_that_would_never_fit_is_let_in_alone() -> None:
    watch = Watch(Capacity(100, 4))
    watch.run([(20, 5, 3), (500, 5, 3), (20, 5, 3)], short)
    assert watch.most_tokens <= 100 and len(watch.order) == 9


def test_an_engine_whose_cache_is_not_known_takes_all_scopes_and_bounds_requests() -> None:
    watch = Watch(Capacity(None, 5))
    watch.run([(10_000, 50, 4)] * 10, short)
    assert watch.most_requests == 5


def test_the_next_scope_comes_in_while_the_last_answers_of_the_one_before_are_awaited() -> None:
    admission = Admission(Capacity(130, 4))
    entered = []

    async def main() -> None:
        async with admission.scope(20, 25, 4) as first:
            waiting = asyncio.create_task(enter())
            for finished in range(3):
                await asyncio.sleep(0)
                assert not entered, f"a second scope of 65 came in beside {first.tokens} after {finished}"
                first.finished_one()
            await asyncio.sleep(0)
            assert first.tokens == 45 and entered
            await waiting

    async def enter() -> None:
        async with admission.scope(40, 25, 1):
            entered.append(1)

    asyncio.run(main())


def test_a_cancelled_waiter_leaves_nothing_behind() -> None:
    admission = Admission(Capacity(10, 1))

    async def hold(seconds: float) -> None:
        async with admission.scope(10, 0, 1):
            await asyncio.sleep(seconds)

    async def main() -> None:
        first = asyncio.create_task(hold(0.01))
        await asyncio.sleep(0)
        second, third = asyncio.create_task(hold(5)), asyncio.create_task(hold(0))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait_for(asyncio.gather(first, third), 5)

    asyncio.run(main())
    assert admission._held == 0


def test_busy_seconds_count_the_time_with_a_request_in_work() -> None:
    admission = Admission(Capacity(None, 2))

    async def one() -> None:
        async with admission.request():
            await asyncio.sleep(0.05)

    async def main() -> None:
        await asyncio.sleep(0.05)
        await asyncio.gather(one(), one())

    asyncio.run(main())
    assert admission.busy_s == pytest.approx(0.05, abs=0.04)
