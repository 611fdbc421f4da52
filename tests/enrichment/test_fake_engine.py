"""The fake engine: deterministic, counting, with the prefix cache of an engine of limited memory."""

import asyncio
from collections.abc import Sequence

import pytest

from enrichment.engine import Completion, PromptRefusedError, Sampling
from enrichment.fake_engine import FakeEngine
from enrichment.guards import Judge
from enrichment.records import Document, DocumentId
from enrichment.situating import WORDING

SAMPLING = Sampling(max_tokens=96)


def ask(engine: FakeEngine, *prompts: Sequence[int]) -> list[Completion]:
    async def all_of_them() -> list[Completion]:
        return [await engine.generate(prompt, SAMPLING) for prompt in prompts]

    return asyncio.run(all_of_them())


def test_an_answer_depends_on_the_prompt_alone() -> None:
    engine = FakeEngine()
    first, other, again = (answer.text for answer in ask(engine, range(100), range(1, 101), range(100)))
    assert first == again != other
    assert ask(FakeEngine(), range(100))[0].text == first
    assert engine.calls == 3


def test_every_answer_passes_the_guards() -> None:
    judge = Judge(Document(DocumentId("d"), "A document."), WORDING.own_words, WORDING.answer)
    for answer in ask(FakeEngine(), *(range(n, 2 * n) for n in range(1, 300))):
        assert judge(answer.text)[:2] == (WORDING.answer + answer.text, None)
        assert answer.finish_reason == "stop" and answer.output_tokens > 0


def test_whole_blocks_that_an_earlier_prompt_began_with_are_cached() -> None:
    engine = FakeEngine(block_tokens=16)
    branch = [*range(50), *range(900, 950)]
    answers = ask(engine, range(100), branch, range(100), range(96), range(97), range(1, 100), [*range(96), 7])
    # 100 tokens are 6 blocks; of 96 = 6 blocks the last is computed, because the last token must be.
    assert [answer.cached_tokens for answer in answers] == [0, 48, 96, 80, 96, 0, 96]
    assert [answer.prompt_tokens for answer in answers] == [100, 100, 100, 96, 97, 99, 97]


def test_a_cached_block_counts_only_behind_the_same_beginning() -> None:
    answers = ask(FakeEngine(block_tokens=4), range(12), [99, 98, 97, 96, *range(4, 12)])
    assert answers[1].cached_tokens == 0


def test_the_least_recently_used_blocks_are_forgotten_and_a_prompts_end_before_its_beginning() -> None:
    first, second, third = range(41), range(100, 141), range(200, 221)
    answers = ask(FakeEngine(block_tokens=10, cache_blocks=8), first, second, first, third, second, first)
    # The third pushes out the last two of the second's four blocks; the second, computed again, pushes out the first's.
    assert [answer.cached_tokens for answer in answers] == [0, 0, 40, 0, 20, 20]


def test_a_prompt_that_leaves_no_room_for_the_answer_is_refused_and_not_counted() -> None:
    engine = FakeEngine(max_model_len=200)
    ask(engine, range(200 - 96))
    with pytest.raises(PromptRefusedError, match="105 tokens"):
        ask(engine, range(200 - 95))
    assert engine.calls == 1


def test_a_closed_engine_has_forgotten_its_cache() -> None:
    engine = FakeEngine()
    ask(engine, range(100))
    engine.close()
    assert ask(engine, range(100))[0].cached_tokens == 0
