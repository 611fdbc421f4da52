"""Turns: many inside together, or one alone, in the order of coming."""

import asyncio
import random

from enrichment.turns import Turns


def test_who_is_alone_is_alone_and_nobody_waits_for_ever() -> None:
    turns = Turns()
    inside: list[str] = []
    together = 0

    async def beside(number: int) -> None:
        nonlocal together
        async with turns.beside_others():
            inside.append("beside")
            assert "alone" not in inside
            for _ in range(number % 5):
                await asyncio.sleep(0)
            together = max(together, len(inside))
            inside.remove("beside")

    async def alone() -> None:
        async with turns.alone():
            assert not inside
            inside.append("alone")
            await asyncio.sleep(0)
            assert inside == ["alone"]
            inside.remove("alone")

    async def main() -> None:
        chosen = random.Random(7)
        tasks = [alone() if chosen.random() < 0.2 else beside(number) for number in range(200)]
        await asyncio.wait_for(asyncio.gather(*tasks), 10)

    asyncio.run(main())
    assert together > 1


def test_an_error_inside_opens_the_door_again() -> None:
    turns = Turns()

    async def main() -> None:
        for enter in (turns.alone, turns.beside_others, turns.alone):
            try:
                async with enter():
                    raise ValueError
            except ValueError:
                pass
        async with turns.alone():
            pass

    asyncio.run(asyncio.wait_for(main(), 5))
