"""Supervision: an engine that dies costs its killer, bounded tries, and nothing that was answered."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from enrichment.engine import Completion, EngineDiedError, Sampling, never
from enrichment.errors import DocumentError, OperationError
from enrichment.fake_engine import FakeEngine
from enrichment.generation import Generation
from enrichment.headings import headings
from enrichment.prompts import PLAIN_CHAT, Prompts
from enrichment.records import Chunk, Context, Document, DocumentId, Status
from enrichment.situating import WORDING
from enrichment.split import SplitOptions, split
from enrichment.strategies import ContextOptions, Outcome
from enrichment.supervision import Supervised
from enrichment.tokens import FakeTokenizer

TOKENIZER = FakeTokenizer()
NOTHING: Mapping[bytes, Context] = {}
POISON = int(TOKENIZER.encode("poison").ids[0])


class Mortal(FakeEngine):
    """Dies, with all that is in work, of a prompt with the poison; `asked` are the prompts that it answered."""

    def __init__(self) -> None:
        super().__init__()
        self.dead, self.closed = False, False
        self.asked: list[tuple[int, ...]] = []

    async def generate(
        self, prompt: Sequence[int], sampling: Sampling, enough: Callable[[str], bool] = never
    ) -> Completion:
        for _ in range(12 if POISON in prompt else 0):  # what was asked before is answered first
            await asyncio.sleep(0)
        self.dead = self.dead or POISON in prompt
        for _ in range(3):
            if self.dead:
                raise EngineDiedError("gone")
            await asyncio.sleep(0)
        self.asked.append(tuple(prompt))
        return await super().generate(prompt, sampling, enough)

    def close(self) -> None:
        self.closed = True


class Ward:
    """A supervised strategy and all the engines that it started."""

    def __init__(self, start: Callable[[], Mortal] = Mortal, paid: Mapping[bytes, Context] = NOTHING) -> None:
        self.engines: list[Mortal] = []
        self.loads: list[bool] = []
        self.done: list[Context] = []

        def started() -> Mortal:
            self.engines.append(start())
            return self.engines[-1]

        strategy = partial(
            Generation,
            recipe=Prompts(TOKENIZER, PLAIN_CHAT, "causal", WORDING),
            options=ContextOptions(),
            max_model_len=8192,
            block_tokens=32,
            model_fingerprint="model",
            paid=paid,
            done=lambda document, context: self.done.append(context),
        )
        self.supervised = Supervised(started, strategy, self.loads.append)

    def run(self, *documents: Document) -> list[Outcome | BaseException]:
        async def main() -> list[Outcome | BaseException]:
            return await asyncio.gather(*(self._one(document) for document in documents), return_exceptions=True)

        return asyncio.run(main())

    async def _one(self, document: Document) -> Outcome:
        encoding = TOKENIZER.encode(document.text)
        return await self.supervised.contexts(document, headings(document.text), chunks_of(document), encoding)


def chunks_of(document: Document) -> list[Chunk]:
    offsets = TOKENIZER.encode(document.text).offsets
    return split(document, headings(document.text), SplitOptions(size=60, min_size=1), offsets)


def document(name: str, sections: int = 6, poison: int | None = None) -> Document:
    text = "".join(
        f"# {name} {n}\n\nRule {n} of {name} holds{' for poison' if n == poison else ''}.\n\n" for n in range(sections)
    )
    return Document(DocumentId(name), text, title=name)


def test_a_document_that_kills_is_tried_thrice_and_named_and_the_others_finish() -> None:
    ward = Ward()
    names = ("one", "two", "killer", "three", "four")
    found = ward.run(*(document(name, poison=4 if name == "killer" else None) for name in names))
    for name, outcome in zip(names, found, strict=True):
        if name == "killer":
            assert isinstance(outcome, DocumentError) and outcome.reason == "kills_engine" and name in str(outcome)
        else:
            assert isinstance(outcome, Outcome) and {c.status for c in outcome.contexts} == {Status.OK}
    assert len(ward.engines) <= 4 and all(engine.closed for engine in ward.engines[:-1])
    assert sum(engine.dead for engine in ward.engines) == 3  # among the others, and twice alone
    assert ward.loads == [True, False] * len(ward.engines)


def test_what_was_answered_before_the_death_is_not_asked_again() -> None:
    ward = Ward()
    ward.run(*(document(name, poison=5 if name == "killer" else None) for name in ("one", "two", "killer")))
    asked = [prompt for engine in ward.engines for prompt in engine.asked]
    assert len(ward.engines[0].asked) > 10
    assert len(asked) == len(set(asked))
    assert len(ward.done) == len({context.key for context in ward.done}) == len(asked)


def test_answers_kept_over_a_death_count_as_generated_once() -> None:
    class Once(Mortal):
        """Only the first life dies of the poison."""

        born = 0

        def __init__(self) -> None:
            super().__init__()
            Once.born += 1
            self.number = Once.born

        async def generate(
            self, prompt: Sequence[int], sampling: Sampling, enough: Callable[[str], bool] = never
        ) -> Completion:
            if self.number > 1:
                return await FakeEngine.generate(self, prompt, sampling, enough)
            return await super().generate(prompt, sampling, enough)

    ward = Ward(Once)
    (outcome,) = ward.run(document("killer", 9, poison=8))
    assert isinstance(outcome, Outcome)
    assert outcome.generated == (True,) * 9 and len(ward.engines) == 2
    assert outcome.tokens.computed <= outcome.tokens.ideal + outcome.tokens.block_rounding + 9 * 32


def test_later_documents_meet_a_living_engine() -> None:
    ward = Ward()
    ward.run(document("killer", poison=1))
    (outcome,) = ward.run(document("next"))
    assert isinstance(outcome, Outcome) and not ward.engines[-1].dead


def test_an_engine_that_dies_of_every_document_ends_the_run() -> None:
    ward = Ward()
    found = ward.run(*(document(f"killer {n}", poison=0) for n in range(5)))
    assert [type(error) for error in found].count(DocumentError) <= 4
    errors = [error for error in found if isinstance(error, OperationError)]
    assert errors and "it is not the documents" in str(errors[0])


def test_an_engine_that_cannot_be_started_again_ends_the_run() -> None:
    starts = iter([Mortal])

    def start() -> Mortal:
        for kind in starts:
            return kind()
        raise RuntimeError("no memory left")

    (error,) = Ward(start).run(document("killer", poison=0))
    assert isinstance(error, OperationError) and "no memory left" in str(error)


def test_what_is_paid_for_starts_no_engine() -> None:
    first = Ward()
    (before,) = first.run(document("one"))
    ward = Ward(paid={context.key: context for context in first.done if context.key})
    (outcome, nothing) = ward.run(document("one"), document("empty", sections=1))
    assert isinstance(before, Outcome) and isinstance(outcome, Outcome) and isinstance(nothing, Outcome)
    assert outcome.contexts == before.contexts and outcome.generated == (False,) * 6 and outcome.tokens.prompt == 0
    assert ward.engines == [] and ward.loads == [] and ward.done == []
    assert ward.supervised.busy_s == 0 and ward.supervised.preemptions == 0


def test_the_first_new_chunk_starts_the_engine_once_and_only_new_ones_are_asked() -> None:
    """Documents go on together: those before it that are paid for, it, and the others that need the engine."""
    first = Ward()
    first.run(document("one"), document("two"))
    paid = {context.key: context for context in first.done if context.key}
    ward = Ward(paid=paid)
    found = ward.run(document("one"), document("two", sections=8), document("three"), document("two"))
    assert [outcome.generated.count(True) for outcome in found if isinstance(outcome, Outcome)] == [0, 2, 6, 0]
    assert len(ward.engines) == 1 and ward.loads == [True, False] and len(ward.engines[0].asked) == 8
    (again,) = ward.run(document("three"))
    assert isinstance(again, Outcome) and len(ward.engines) == 1


def test_a_replica_is_ready_when_its_engine_is_there_and_stays_so() -> None:
    ward = Ward()
    ward.supervised.ready_at = 0.0
    ward.run(document("one"))
    ready_at = ward.supervised.ready_at
    ward.run(document("two"))
    assert 0 < ready_at == ward.supervised.ready_at


def test_an_engine_that_cannot_be_started_says_why_to_every_document_that_needs_it() -> None:
    starts: list[int] = []

    def start() -> Mortal:
        starts.append(1)
        raise OperationError("no such model")

    first = Ward()
    first.run(document("one"))
    ward = Ward(start, paid={context.key: context for context in first.done if context.key})
    found = ward.run(document("one"), document("two"), document("three"))
    assert isinstance(found[0], Outcome) and [str(error) for error in found[1:]] == ["no such model"] * 2
    assert len(starts) == 1


def test_a_document_that_is_not_asked_about_starts_no_engine() -> None:
    ward = Ward()
    (outcome,) = ward.run(document("short", sections=1))
    assert isinstance(outcome, Outcome) and outcome.contexts[0].status == Status.SKIPPED and ward.engines == []
