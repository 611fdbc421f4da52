"""Strategies: one context per chunk in chunk order, retried once, paid once, with exact accounts."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import pytest

from enrichment import models
from enrichment.engine import Capacity, Completion, Engine, PromptRefusedError, Sampling, gather_in_order, never
from enrichment.errors import ConfigError, OperationError
from enrichment.fake_engine import FakeEngine
from enrichment.generation import Generation
from enrichment.headings import headings
from enrichment.materials import Materials
from enrichment.prompts import PLAIN_CHAT, PromptKind, Prompts, chat_template
from enrichment.recipe import Recipe
from enrichment.recipes import recipe
from enrichment.records import Chunk, Context, Document, DocumentId, Span, Status
from enrichment.scopes import scopes
from enrichment.situating import WORDING
from enrichment.split import SplitOptions, split
from enrichment.strategies import ContextOptions, Free, Outcome, Tokens, Ungrounded
from enrichment.tokens import FakeTokenizer, FileTokenizer, Tokenizer

Enough = Callable[[str], bool]
GOOD, BAD = " is about the warranty.", " never ends"


def document(sections: int, name: str = "Handbook") -> Document:
    text = "".join(
        f"# {name} part {n}\n\nThe rule {n} of {name} holds for {'x y ' * (n % 5)}thing {n}.\n\n"
        for n in range(sections)
    )
    return Document(DocumentId(name), text, title=name)


def chunks_of(given: Document) -> list[Chunk]:
    """One chunk per section."""
    offsets = FakeTokenizer().encode(given.text).offsets
    found = split(given, headings(given.text), SplitOptions(size=60, min_size=1), offsets)
    assert len(found) == given.text.count("# ")
    return found


class Maker:
    """Builds a `Generation` around an engine and runs documents through it, one after the other."""

    def __init__(
        self,
        engine: Engine | None = None,
        *,
        paid: Mapping[bytes, Context] | None = None,
        kind: PromptKind = "causal",
        options: ContextOptions | None = None,
        max_model_len: int = 8192,
        block_tokens: int = 32,
        fingerprint: str = "model",
        tokenizer: Tokenizer | None = None,
        recipe: Recipe | None = None,
    ) -> None:
        self.tokenizer = tokenizer or FakeTokenizer()
        chat = PLAIN_CHAT if tokenizer is None else chat_template(str(models.resolve("smollm2-135m-instruct")))
        self.engine = engine or FakeEngine(max_model_len, block_tokens)
        self.generation = Generation(
            self.engine,
            recipe or Prompts(self.tokenizer, chat, kind, WORDING),
            options or ContextOptions(),
            max_model_len,
            block_tokens,
            fingerprint,
            paid or {},
        )

    def run(self, given: Document) -> Outcome:
        return asyncio.run(self.arun(given))

    async def arun(self, given: Document) -> Outcome:
        encoding = self.tokenizer.encode(given.text)
        return await self.generation.contexts(given, headings(given.text), chunks_of(given), encoding)


@dataclass
class Scripted:
    """Answers each prompt with the next of `answers`, the last one for ever; an exception is raised. Notes the calls."""

    answers: Sequence[str | Exception] = (GOOD,)
    only: int | None = None
    """The number of the prompt, in order of first calls, that gets `answers`; the others get a good one."""
    prompts: list[tuple[int, ...]] = field(default_factory=list)
    samplings: list[Sampling] = field(default_factory=list)
    capacity: Capacity = Capacity(None, 64)
    preemptions: int = 0

    async def generate(self, prompt: Sequence[int], sampling: Sampling, enough: Enough = never) -> Completion:
        ids = tuple(prompt)
        attempt = self.prompts.count(ids)
        self.prompts.append(ids)
        self.samplings.append(sampling)
        await asyncio.sleep(0)
        number = list(dict.fromkeys(self.prompts)).index(ids)
        answer = self.answers[min(attempt, len(self.answers) - 1)] if self.only in (None, number) else GOOD
        if isinstance(answer, Exception):
            raise answer
        return Completion(answer, "stop", len(ids), 3 * attempt, 7)

    def close(self) -> None:
        pass


class Backwards:
    """Waits until all prompts are there, then finishes them from the last to the first. Notes both orders."""

    capacity, preemptions = Capacity(None, 64), 0

    def __init__(self, expected: int) -> None:
        self.started: list[tuple[int, ...]] = []
        self.finished: list[tuple[int, ...]] = []
        self._expected = expected
        self._all_there = asyncio.Event()
        self._fake = FakeEngine()

    async def generate(self, prompt: Sequence[int], sampling: Sampling, enough: Enough = never) -> Completion:
        ids, turn = tuple(prompt), len(self.started)
        self.started.append(ids)
        if len(self.started) == self._expected:
            self._all_there.set()
        await asyncio.wait_for(self._all_there.wait(), 10)
        while len(self.finished) < self._expected - 1 - turn:
            await asyncio.sleep(0)
        self.finished.append(ids)
        return await self._fake.generate(prompt, sampling)

    def close(self) -> None:
        pass


def paid_from(outcome: Outcome) -> dict[bytes, Context]:
    return {context.key: context for context in outcome.contexts if context.key is not None}


# Order


def test_contexts_come_in_chunk_order_though_the_engine_finishes_in_reverse() -> None:
    given = document(12)
    engine = Backwards(12)
    outcome = Maker(engine).run(given)
    assert engine.finished == engine.started[::-1]
    expected = Maker().run(given)
    assert [context.text for context in outcome.contexts] == [context.text for context in expected.contexts]
    assert [context.key for context in outcome.contexts] == [context.key for context in expected.contexts]
    assert len({context.text for context in outcome.contexts}) == 12
    # Each text names the length of its prompt, and causal prompts grow with the chunk.
    lengths = [int(str(context.text).split(" tokens")[0].split()[-1]) for context in outcome.contexts]
    assert lengths == [context.prompt_tokens for context in outcome.contexts] == [len(ids) for ids in engine.started]


def test_requests_start_in_chunk_order_and_each_documents_are_contiguous() -> None:
    given = [document(9, "Handbook"), document(7, "Manual"), document(8, "Rules")]
    engine = Backwards(24)
    maker = Maker(engine)

    async def together() -> list[Outcome]:
        return list(await asyncio.gather(*(maker.arun(each) for each in given)))

    outcomes = asyncio.run(together())
    alone: list[tuple[int, ...]] = []
    for each, outcome in zip(given, outcomes, strict=True):
        single = Scripted()
        assert [c.key for c in Maker(single).run(each).contexts] == [c.key for c in outcome.contexts]
        alone += single.prompts
    assert engine.started == alone


def test_an_error_of_the_engine_is_raised_after_all_calls_have_ended() -> None:
    ended = []

    async def call(number: int) -> int:
        for _ in range(number):
            await asyncio.sleep(0)
        ended.append(number)
        if number == 2:
            raise OperationError("the engine is gone")
        return number

    with pytest.raises(OperationError, match="the engine is gone"):
        asyncio.run(gather_in_order([call(number) for number in (4, 2, 0, 9)]))
    assert sorted(ended) == [0, 2, 4, 9]
    assert asyncio.run(gather_in_order([call(number) for number in (4, 0, 9)])) == [4, 0, 9]


# Attempts


def test_a_good_first_answer_is_not_asked_for_twice() -> None:
    engine = Scripted()
    outcome = Maker(engine).run(document(3))
    assert len(engine.prompts) == 3
    for context, ids in zip(outcome.contexts, engine.prompts, strict=True):
        assert context.text == "This passage is about the warranty."
        assert (context.status, context.reason, context.attempts, context.output) == (Status.OK, None, 1, GOOD)
        assert (context.prompt_tokens, context.cached_tokens, context.output_tokens) == (len(ids), 0, 7)
    assert outcome.generated == (True,) * 3


def test_a_refused_answer_is_asked_for_once_more_with_the_same_prompt_and_other_sampling() -> None:
    engine = Scripted([BAD, GOOD], only=1)
    outcome = Maker(engine).run(document(3))
    assert [(c.status, c.attempts) for c in outcome.contexts] == [(Status.OK, 1), (Status.OK, 2), (Status.OK, 1)]
    assert outcome.contexts[1].text == "This passage is about the warranty." and outcome.contexts[1].reason is None
    assert len(engine.prompts) == 4 and engine.prompts[3] == engine.prompts[1]
    assert engine.samplings[3] != engine.samplings[1]
    retried = outcome.contexts[1]
    assert (retried.prompt_tokens, retried.cached_tokens) == (2 * len(engine.prompts[1]), 3)
    assert retried.output_tokens == 14
    assert outcome.tokens.retries == len(engine.prompts[1]) - 3


@pytest.mark.parametrize(("strategy", "penalties"), [("neighborhood", {1.0, 1.1}), ("situate", {1.1, 1.3})])
def test_only_what_is_said_again_is_not_penalised_for_the_words_of_the_prompt(
    strategy: str, penalties: set[float]
) -> None:
    engine, options = Scripted([""]), ContextOptions(strategy)
    made = Maker(engine, options=options, recipe=recipe(Materials(FakeTokenizer(), PLAIN_CHAT, options)))
    assert made.run(document(3)).contexts[0].attempts == 2
    assert {sampling.repetition_penalty for sampling in engine.samplings} == penalties


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([BAD], "no_sentence"),
        ([""], "empty"),
        (["!!!!!!!!"], "loop"),
        ([BAD, " says I'm sorry."], "refusal"),
        ([BAD, " has a <b>mark</b>."], "markup"),
    ],
)
def test_a_chunk_whose_answers_are_both_refused_falls_back_with_the_last_reason(
    answers: list[str], reason: str
) -> None:
    engine = Scripted(answers, only=1)
    outcome = Maker(engine).run(document(3))
    fallback = outcome.contexts[1]
    assert (fallback.text, fallback.status, fallback.reason) == (None, Status.FALLBACK, reason)
    assert (fallback.attempts, fallback.output) == (2, answers[-1])
    assert [context.status for context in outcome.contexts] == [Status.OK, Status.FALLBACK, Status.OK]
    assert outcome.generated == (True,) * 3 and len(engine.prompts) == 4


def test_one_refused_prompt_among_a_hundred_leaves_99_good_ones() -> None:
    engine = Scripted([PromptRefusedError("9999 tokens are too many")], only=41)
    outcome = Maker(engine).run(document(100))
    failed = outcome.contexts[41]
    assert (failed.text, failed.status) == (None, Status.FAILED)
    assert failed.reason == "prompt_refused: 9999 tokens are too many"
    assert [context.status for context in outcome.contexts].count(Status.OK) == 99
    assert outcome.generated == tuple(number != 41 for number in range(100))
    assert len(engine.prompts) == 100


def test_an_error_that_is_not_about_one_prompt_ends_the_work() -> None:
    with pytest.raises(OperationError):
        Maker(Scripted([OperationError("gone")], only=1)).run(document(3))


# What is skipped


@pytest.mark.parametrize("sections", [0, 1])
def test_a_document_with_one_chunk_is_skipped_without_a_call(sections: int) -> None:
    engine = Scripted()
    given = document(sections)
    outcome = Maker(engine).run(given)
    assert engine.prompts == []
    assert outcome.contexts == (Context(None, Status.SKIPPED, "single_chunk", Span(0, len(given.text))),) * sections
    assert outcome.generated == (False,) * sections and outcome.tokens == Tokens()


def test_the_free_strategies_generate_nothing() -> None:
    given = document(4)
    outcome = asyncio.run(Free().contexts(given, [], chunks_of(given), None))
    assert [(c.text, c.status, c.reason) for c in outcome.contexts] == [(None, Status.SKIPPED, "strategy")] * 4
    assert outcome.generated == (False,) * 4 and outcome.tokens == Tokens()


# Oversized documents


@pytest.mark.parametrize("kind", get_args(PromptKind))
def test_a_document_of_three_times_the_models_length_gets_every_context(kind: PromptKind) -> None:
    given, limit = document(130), 720
    assert len(FakeTokenizer().encode(given.text).ids) > 3 * limit
    engine = FakeEngine(limit, 32)
    outcome = Maker(engine, kind=kind, max_model_len=limit).run(given)
    assert {context.status for context in outcome.contexts} == {Status.OK}
    assert engine.calls == 130
    spans = list(dict.fromkeys(context.scope for context in outcome.contexts))
    assert len(spans) >= 3
    assert [spans[0].start, spans[-1].end] == [0, len(given.text)]
    assert [span.end for span in spans[:-1]] == [span.start for span in spans[1:]]
    for chunk, context in zip(chunks_of(given), outcome.contexts, strict=True):
        assert context.scope.start <= chunk.start and chunk.end <= context.scope.end
        assert context.prompt_tokens + 96 <= limit


def test_only_the_chunk_that_is_too_long_for_the_model_fails() -> None:
    pieces = ["# A\n\nShort.\n\n", "# B\n\n" + "long words " * 400 + "\n\n", "# C\n\nShort.\n\n"]
    given = Document(DocumentId("a"), "".join(pieces), title="Handbook")
    starts = [0, len(pieces[0]), len(pieces[0] + pieces[1]), len(given.text)]
    chunks = [Chunk(n, starts[n], starts[n + 1], starts[n], starts[n + 1]) for n in range(3)]
    maker = Maker(max_model_len=600)
    encoding = maker.tokenizer.encode(given.text)
    outcome = asyncio.run(maker.generation.contexts(given, headings(given.text), chunks, encoding))
    assert [context.status for context in outcome.contexts] == [Status.OK, Status.FAILED, Status.OK]
    assert str(outcome.contexts[1].reason).startswith("prompt_refused: ")


# What was paid for


def test_the_same_document_again_makes_no_call() -> None:
    given = document(8)
    first = Maker().run(given)
    engine = Scripted()
    again = Maker(engine, paid=paid_from(first)).run(given)
    assert engine.prompts == []
    assert again.contexts == first.contexts
    assert again.generated == (False,) * 8 and again.tokens == Tokens()


def test_a_fallback_that_was_paid_for_is_not_tried_again() -> None:
    given = document(3)
    first = Maker(Scripted([BAD])).run(given)
    engine = Scripted()
    again = Maker(engine, paid=paid_from(first)).run(given)
    assert engine.prompts == [] and again.contexts == first.contexts


def test_only_what_is_not_paid_for_is_generated() -> None:
    given = document(8)
    first = Maker().run(given)
    paid = paid_from(first)
    for number in (2, 5):
        del paid[first.contexts[number].key or b""]
    engine = Scripted()
    again = Maker(engine, paid=paid).run(given)
    assert len(engine.prompts) == 2
    assert again.generated == tuple(number in (2, 5) for number in range(8))
    assert [c.key for c in again.contexts] == [c.key for c in first.contexts]
    assert [c.text for n, c in enumerate(again.contexts) if n not in (2, 5)] == [
        c.text for n, c in enumerate(first.contexts) if n not in (2, 5)
    ]


def test_a_document_that_grew_pays_for_its_new_chunks_alone() -> None:
    first = Maker().run(document(8))
    engine = Scripted()
    again = Maker(engine, paid=paid_from(first)).run(document(10))
    assert again.generated == (False,) * 8 + (True,) * 2 and len(engine.prompts) == 2


def test_a_key_depends_on_model_sampling_prompt_and_text_and_on_nothing_else() -> None:
    given = document(4)

    def keys(other: Document = given, **settings: Any) -> tuple[bytes | None, ...]:
        return tuple(context.key for context in Maker(Scripted(), **settings).run(other).contexts)

    base = keys()
    assert len(set(base)) == 4 and all(key and len(key) == 32 for key in base)
    assert keys(block_tokens=16) == keys(max_model_len=4096) == base
    assert keys(replace(given, id=DocumentId("b"), metadata={"mtime": "12"})) == base
    changed = [
        keys(fingerprint="other"),
        keys(options=ContextOptions(max_output_tokens=64)),
        keys(kind="quote"),
        keys(replace(given, text=given.text.replace("The rule 0", "The role 0"))),
        keys(replace(given, title="Manual")),
        keys(replace(given, date="2024-05-01")),
    ]
    for one in changed:
        assert not set(one) & set(base)
    last = keys(replace(given, text=given.text.replace("The rule 3", "The role 3")))
    assert last[:3] == base[:3] and last[3] != base[3]


# Accounts


@pytest.mark.parametrize("kind", get_args(PromptKind))
@pytest.mark.parametrize("block_tokens", [3, 16, 32, 128])
def test_computed_tokens_are_ideal_plus_block_rounding(kind: PromptKind, block_tokens: int) -> None:
    for sections in range(1, 41):
        maker = Maker(kind=kind, block_tokens=block_tokens)
        tokens = maker.run(document(sections)).tokens
        assert tokens.computed == tokens.ideal + tokens.block_rounding
        assert tokens.retries == 0 and (tokens.prompt > 0) == (sections > 1)


@pytest.mark.parametrize("kind", get_args(PromptKind))
@pytest.mark.parametrize("block_tokens", [16, 32])
def test_accounts_are_exact_with_the_real_tokenizer_over_documents_and_scopes(
    kind: PromptKind, block_tokens: int
) -> None:
    tokenizer = FileTokenizer(models.resolve("smollm2-135m-instruct"))
    maker = Maker(kind=kind, block_tokens=block_tokens, tokenizer=tokenizer, max_model_len=900)
    total = Tokens()
    for number, sections in enumerate((2, 40, 1, 9)):
        total = total.plus(maker.run(document(sections, f"{number} Handbook")).tokens)
    assert total.computed == total.ideal + total.block_rounding
    assert total.cached > total.prompt // 3


def test_the_ideal_of_a_causal_document_reads_each_token_once() -> None:
    given = document(20)
    maker = Maker()
    tokens = maker.run(given).tokens
    prompts = Prompts(FakeTokenizer(), PLAIN_CHAT, "causal", WORDING)
    found = headings(given.text)
    read = len(prompts.prefix(given, found)) + len(FakeTokenizer().encode(given.text).ids)
    differing = sum(len(prompts.suffix(given, chunk)) for chunk in chunks_of(given))
    assert tokens.ideal == read + differing


def test_accounts_are_exact_where_a_part_was_paid_for() -> None:
    given = document(12)
    first = Maker().run(given)
    paid = {context.key or b"": context for number, context in enumerate(first.contexts) if number not in (3, 4, 9)}
    tokens = Maker(paid=paid).run(given).tokens
    assert tokens.computed == tokens.ideal + tokens.block_rounding
    assert tokens.ideal > len(FakeTokenizer().encode(given.text[: chunks_of(given)[9].end]).ids)


def test_accounts_are_exact_where_answers_are_retried_or_refused() -> None:
    @dataclass
    class Worse(FakeEngine):
        """Refuses the third prompt, and gives every fourth a bad answer first."""

        def __post_init__(self) -> None:
            super().__init__()
            self.seen: list[tuple[int, ...]] = []

        async def generate(self, prompt: Sequence[int], sampling: Sampling, enough: Enough = never) -> Completion:
            first = tuple(prompt) not in self.seen
            self.seen.append(tuple(prompt))
            if len(self.seen) == 3:
                raise PromptRefusedError("no")
            answer = await super().generate(prompt, sampling)
            return replace(answer, text=BAD) if first and len(self.seen) % 4 == 0 else answer

    outcome = Maker(Worse()).run(document(16))
    tokens = outcome.tokens
    assert [context.status for context in outcome.contexts].count(Status.FAILED) == 1
    assert tokens.retries > 0
    assert tokens.computed == tokens.ideal + tokens.block_rounding + tokens.retries
    assert tokens.prompt == sum(context.prompt_tokens for context in outcome.contexts)
    assert tokens.cached == sum(context.cached_tokens for context in outcome.contexts)
    assert tokens.output == sum(context.output_tokens for context in outcome.contexts)


def test_counts_add_up_field_by_field() -> None:
    assert Tokens(1, 2, 3, 4, 5, 6).plus(Tokens(10, 20, 30, 40, 50, 60)) == Tokens(11, 22, 33, 44, 55, 66)
    assert Tokens(prompt=10, cached=4).computed == 6


@pytest.mark.parametrize("tokens", [15, 1025, 0, -1])
def test_an_output_length_out_of_range_is_refused_by_its_key(tokens: int) -> None:
    with pytest.raises(ConfigError, match=rf"context\.max_output_tokens is {tokens}"):
        ContextOptions(max_output_tokens=tokens)


def test_the_scope_of_a_context_is_where_its_document_stands_now() -> None:
    given = document(4)
    first = Maker().run(given)
    paid = {key: replace(context, scope=Span(900, 901)) for key, context in paid_from(first).items()}
    assert Maker(Scripted(), paid=paid).run(given).contexts == first.contexts
    whole = scopes(given, headings(given.text), chunks_of(given), FakeTokenizer().encode(given.text).offsets, 8000)
    assert [scope.span for scope in whole] == [first.contexts[0].scope]


# Long documents, in bounded memory


@dataclass
class Inside(FakeEngine):
    """Counts the prompt tokens that are with the engine at once."""

    now: int = 0
    most: int = 0

    def __post_init__(self) -> None:
        super().__init__(2048)
        self.capacity = Capacity(6000, 12)

    async def generate(self, prompt: Sequence[int], sampling: Sampling, enough: Enough = never) -> Completion:
        self.now += len(prompt)
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= len(prompt)
        return await super().generate(prompt, sampling, enough)


def test_of_a_document_of_a_million_tokens_only_the_prompts_in_work_exist() -> None:
    text = "".join(f"# Part {n}\n\n{f'Rule {n} holds for each of them. ' * 60}\n\n" for n in range(2100))
    given = Document(DocumentId("long"), text, title="Long")
    engine = Inside()
    maker = Maker(engine, max_model_len=2048)
    encoding = maker.tokenizer.encode(text)
    assert len(encoding.ids) > 1_000_000
    chunks = split(given, headings(text), SplitOptions(size=200), encoding.offsets)
    outcome = asyncio.run(maker.generation.contexts(given, headings(text), chunks, encoding))
    assert len(outcome.contexts) == len(chunks) > 4000 and {c.status for c in outcome.contexts} == {Status.OK}
    assert engine.most <= 12 * 2048
    assert outcome.tokens.computed == outcome.tokens.ideal + outcome.tokens.block_rounding
    assert max(context.scope.end - context.scope.start for context in outcome.contexts) < 15_000


def test_a_prompt_is_built_when_its_turn_comes() -> None:
    engine = Inside()
    engine.capacity = Capacity(None, 3)
    prompts = Prompts(FakeTokenizer(), PLAIN_CHAT, "causal", WORDING)
    longest = max(len(ids) for ids in prompts.build(*_parts_of(document(60))))
    Maker(engine).run(document(60))
    assert longest < engine.most <= 3 * longest


def _parts_of(given: Document) -> Any:
    encoding = FakeTokenizer().encode(given.text)
    chunks = chunks_of(given)
    return given, headings(given.text), encoding, scopes(given, headings(given.text), chunks, encoding.offsets, 8000)[0]


@pytest.mark.parametrize("kind", get_args(PromptKind))
def test_the_longest_public_document_gets_every_context_in_a_window_of_4096(kind: PromptKind) -> None:
    path = Path(__file__).resolve().parents[3] / "shared/data/codebases/documents.jsonl"
    if not path.is_file():
        pytest.skip(f"the public benchmark is not at {path}")
    longest = max((json.loads(line) for line in path.read_text().splitlines()), key=lambda entry: len(entry["text"]))
    given = Document(DocumentId(longest["id"]), longest["text"], title=longest["title"])
    assert len(given.text) == 54_328
    tokenizer = FileTokenizer(models.resolve("smollm2-135m-instruct"))
    maker = Maker(FakeEngine(4096), kind=kind, max_model_len=4096, tokenizer=tokenizer)
    encoding = tokenizer.encode(given.text)
    chunks = split(given, headings(given.text), SplitOptions(), encoding.offsets, encoding.offsets)
    outcome = asyncio.run(maker.generation.contexts(given, headings(given.text), chunks, encoding))
    assert len(encoding.ids) > 3 * 4096 and len({context.scope for context in outcome.contexts}) > 3
    assert {context.status for context in outcome.contexts} == {Status.OK}
    for chunk, context in zip(chunks, outcome.contexts, strict=True):
        assert context.scope.start <= chunk.start and chunk.end <= context.scope.end
        assert context.prompt_tokens <= 4096 - 96


# Names and numbers that the document lacks

INVENTED = " is about the warranty that Brennick signed in 1987."


@pytest.mark.parametrize(
    ("policy", "answers", "calls", "text", "status"),
    [
        ("keep", [INVENTED], 1, INVENTED, Status.OK),
        ("retry", [INVENTED, GOOD], 2, GOOD, Status.OK),
        ("retry", [INVENTED, INVENTED], 2, INVENTED, Status.OK),
        ("retry", [INVENTED, BAD], 2, INVENTED, Status.OK),
        ("refuse", [INVENTED, GOOD], 2, GOOD, Status.OK),
        ("refuse", [INVENTED, INVENTED], 2, None, Status.FALLBACK),
        ("refuse", [GOOD], 1, GOOD, Status.OK),
    ],
)
def test_what_becomes_of_an_ungrounded_answer_is_a_policy(
    policy: Ungrounded, answers: list[str], calls: int, text: str | None, status: Status
) -> None:
    engine = Scripted(answers, only=1)
    outcome = Maker(engine, options=ContextOptions(ungrounded=policy)).run(document(3))
    context = outcome.contexts[1]
    assert engine.prompts.count(engine.prompts[1]) == calls == context.attempts
    assert (context.text, context.status) == (f"This passage{text}" if text else None, status)
    assert context.reason == (None if text == GOOD else "ungrounded: 1987, Brennick")


def test_what_was_paid_for_is_judged_by_the_guards_and_the_policy_of_today() -> None:
    given = document(3)
    first = Maker(Scripted([INVENTED], only=1)).run(given)
    assert first.contexts[1].status is Status.OK
    engine = Scripted()
    strict = Maker(engine, paid=paid_from(first), options=ContextOptions(ungrounded="refuse")).run(given)
    assert engine.prompts == [] and strict.generated == (False,) * 3
    assert (strict.contexts[1].text, strict.contexts[1].status) == (None, Status.FALLBACK)
    lax = Maker(engine, paid=paid_from(strict)).run(given)
    assert engine.prompts == [] and lax.contexts == first.contexts


def test_documents_that_begin_alike_are_judged_each_by_its_own_words() -> None:
    """The same prompt, while the first document is in work: only the second goes on to name what the answer names."""

    class SlowAfterTheFirst(Scripted):
        async def generate(self, prompt: Sequence[int], sampling: Sampling, enough: Enough = never) -> Completion:
            await asyncio.sleep(0.05 if self.prompts else 0)
            return await super().generate(prompt, sampling, enough)

    alike = document(2)
    knows = replace(alike, id=DocumentId("knows"), text=alike.text + "# End\n\nAll of this is Vantor's rule.\n\n")
    maker = Maker(SlowAfterTheFirst([" is about the rule of Vantor."], capacity=Capacity(None, 2)))

    async def both() -> list[Outcome]:
        return list(await asyncio.gather(maker.arun(alike), maker.arun(knows)))

    plain, named = asyncio.run(both())
    assert plain.contexts[0].key == named.contexts[0].key
    assert [context.reason for context in plain.contexts] == ["ungrounded: Vantor"] * 2
    assert [context.reason for context in named.contexts] == [None] * 3


def test_needed_alone_are_asked_about_and_rows_say_by_which_rule() -> None:
    rules = ["The roof of the mill is sound.", "This costs nothing at the mill.", "The gate of the mill is shut."]
    text = "".join(f"# The mill\n\n{rule}\n\n" for rule in rules)
    given = Document(DocumentId("mill"), text, title="The mill")
    engine = Scripted()
    outcome = Maker(engine, options=ContextOptions(only="needed")).run(given)
    assert [context.status for context in outcome.contexts] == [Status.SKIPPED, Status.OK, Status.SKIPPED]
    assert [context.reason for context in outcome.contexts] == [
        "stands_alone",
        "needed: referent 'this'",
        "stands_alone",
    ]
    assert len(engine.prompts) == 1 and sum(outcome.generated) == 1
    always = Maker(Scripted()).run(given)
    assert always.contexts[1].key == outcome.contexts[1].key, "the prompt is the same: nothing is paid for again"


def test_a_prompt_that_two_documents_have_alike_is_asked_once_and_judged_for_each() -> None:
    engine = Scripted((" is about the Selby Mill.",))
    maker = Maker(engine)
    first, second = (replace(document(3), id=DocumentId(name)) for name in ("first", "second"))

    async def both() -> list[Outcome]:
        return await gather_in_order([maker.arun(given) for given in (first, second)])

    outcomes = asyncio.run(both())
    assert len(engine.prompts) == 3 and [sum(outcome.generated) for outcome in outcomes] == [3, 0]
    assert [c.text for c in outcomes[0].contexts] == [c.text for c in outcomes[1].contexts]
    assert outcomes[1].tokens == Tokens()


def test_who_waits_for_another_documents_prompt_asks_itself_if_that_fails() -> None:
    engine = Scripted((OperationError("gone"), GOOD))
    maker = Maker(engine)
    first, second = (replace(document(2), id=DocumentId(name)) for name in ("first", "second"))

    async def both() -> list[Any]:
        return await asyncio.gather(*(maker.arun(given) for given in (first, second)), return_exceptions=True)

    failed, outcome = asyncio.run(both())
    assert isinstance(failed, OperationError)
    assert {context.status for context in outcome.contexts} == {Status.OK}


def test_a_reused_context_forgets_by_which_rule_it_was_asked_for() -> None:
    """Rows of an older version tell the rule; the prompt, and so the key, is the same under any."""
    text = "# The mill\n\nThe roof of the mill.\n\n# The mill\n\nThis costs nothing at the mill.\n"
    given = Document(DocumentId("mill"), text, title="The mill")
    needed = ContextOptions(only="needed")
    first = Maker(Scripted(), options=needed).run(given).contexts[1]
    assert first.key is not None and first.reason == "needed: referent 'this'"
    older = {first.key: replace(first, output=None)}
    assert Maker(Scripted(), options=needed, paid=older).run(given).contexts[1].reason == first.reason
    assert Maker(Scripted(), paid=older).run(given).contexts[1].reason is None
