"""Questions for a corpus that has none: `situate questions`. The corpus's own model writes them from sampled passages.

(configuration, its newest snapshot) -> JSON lines for `evaluate` and `check`, each with its golden span, marked as generated.
A third each of the passages are one chunk, lie across the boundary of two, or hold words that refer to something before. What
any keyword would find is dropped: it tells two indexes apart by nothing. Sampling is by hash, so the same snapshot gives the
same passages. These questions measure one index against another; how well people are served they do not say.
"""

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from enrichment.engine import Engine, ModelOptions, PromptRefusedError, Sampling, gather_in_order
from enrichment.errors import ConfigError
from enrichment.sentences import sentences
from indexing.passages import ChunkSpan
from indexing.snapshot import Snapshot, open_snapshot
from indexing.storage import open_storage
from jobs.config import Config
from jobs.golden import GoldenSpan
from jobs.models import checked_model, open_tokenizer
from jobs.progress import Progress
from jobs.steps import start_engine

Kind = Literal["inside", "boundary", "referent"]
KINDS: tuple[Kind, ...] = ("inside", "boundary", "referent")
MAX_OUTPUT_TOKENS = 48
_ASKED_PER_KEPT = 6  # passages that are tried at most for a question that is kept
_AT_ONCE = 64
_LEAST_PASSAGE = 120  # code points: less holds no fact to ask for
_SIDE = 240  # code points of each chunk in a passage across a boundary, to the nearest sentence
_COPIED_WORDS = 8
_INSTRUCTIONS = (
    "Read the passage and write one question that a person could ask who has not seen it and that the passage answers. Name"
    " what the question is about; never mention the passage.\n\n"
)
_ANSWER_PREFIX = "Question:"
_REFERENT = re.compile(
    r"\b(this|these|that|those|it|its|they|their|such|the (?:above|former|latter|said|same))\b", re.I
)
_OF_ITSELF = re.compile(r"\b(passage|excerpt|text above|document above|article|author|question)\b", re.I)
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Written:
    """A question as it stands in the file."""

    query_id: str
    query: str
    kind: Kind
    generated: bool
    model: str
    spans: tuple[GoldenSpan, ...]

    def line(self) -> str:
        """The stored form."""
        spans = [span._asdict() for span in self.spans]
        return json.dumps({**asdict(self), "spans": spans}, ensure_ascii=False) + "\n"


class Passage(NamedTuple):
    """A piece of an original to ask about."""

    kind: Kind
    span: GoldenSpan
    text: str
    title: str | None
    headings: str


def write(
    config: Config,
    number: int,
    path: Path,
    progress: Progress,
    start: Callable[[ModelOptions], Engine] = start_engine,
) -> dict[str, Any]:
    """Write up to `number` questions; the record says what became of the passages. Raises ConfigError."""
    if number < 1:
        raise ConfigError(f"-n is {number}; it must be at least 1")
    if config.model is None:
        raise ConfigError("questions needs a model to write them; add the section model with a name")
    checked_model(config.model)
    snapshot = open_snapshot(open_storage(config.corpus))
    fates: Counter[str] = Counter()
    kept: list[Written] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(_stdout_aside())
        engine = stack.enter_context(contextlib.closing(start(config.model)))
        stack.enter_context(progress.stage("questions", number))
        runner = stack.enter_context(asyncio.Runner())
        asking = _Asking(engine, config.model)
        waiting = itertools.islice(passages(snapshot), _ASKED_PER_KEPT * number)
        while batch := list(itertools.islice(waiting, _AT_ONCE)):
            for passage, answer in zip(batch, runner.run(asking.answers(batch)), strict=True):
                query, fate = judged(answer, passage, snapshot)
                fates["more than asked for" if query and len(kept) == number else fate] += 1
                if query is not None and len(kept) < number:
                    name = f"g{len(kept) + 1:04}"
                    kept.append(Written(name, query, passage.kind, True, config.model.name, (passage.span,)))
            progress.counts({"workers": 1, "generated": len(kept)})
            if len(kept) >= number:
                break
    path.write_text("".join(question.line() for question in kept), encoding="utf-8")
    return {
        "snapshot": snapshot.manifest.sequence,
        "file": str(path),
        "questions": len(kept),
        "kinds": dict(Counter(question.kind for question in kept)),
        "passages": dict(fates),
    }


@contextlib.contextmanager
def _stdout_aside() -> Iterator[None]:
    """What an engine in this process and its children write to stdout goes to stderr: stdout is for the result."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)


def passages(snapshot: Snapshot) -> Iterator[Passage]:
    """Passages of every kind in turn, in an order that is the same for the same chunks."""
    rows = snapshot.live_rows(ChunkSpan._fields)
    chunks = sorted(ChunkSpan(*row.values()) for row in rows.to_pylist())
    order = sorted(range(len(chunks)), key=lambda place: hashlib.sha256(repr(chunks[place]).encode()).digest())
    kinds = itertools.cycle(KINDS)
    kind = next(kinds)
    for place in order:
        chunk = chunks[place]
        follows = chunks[place + 1] if place + 1 < len(chunks) else None
        found = _passage(snapshot, kind, chunk, follows if follows and follows[0] == chunk.document_id else None)
        if found is not None:
            yield found
            kind = next(kinds)


def judged(answer: str | None, passage: Passage, snapshot: Snapshot) -> tuple[str | None, str]:
    """The question in an answer, or None; and what became of it."""
    if answer is None:
        return None, "refused by the engine"
    question, mark, _ = answer.strip().partition("?")
    query = f"{' '.join(question.split())}?"
    words = _WORD.findall(query.lower())
    if not mark or not 4 <= len(words) <= 40:
        return None, "no question"
    if _OF_ITSELF.search(query):
        return None, "about the passage"
    text = " ".join(_WORD.findall(passage.text.lower()))
    runs = (" ".join(words[start : start + _COPIED_WORDS]) for start in range(len(words) - _COPIED_WORDS + 1))
    if any(run in text for run in runs):
        return None, "copied"
    (best,) = snapshot.open_indexes("lexical").search(query, 1, "lexical") or (None,)
    if best is not None:
        found = snapshot.span_of(best)
        span = passage.span
        if found.document_id == span.document_id and found.start < span.end and span.start < found.end:
            return None, "found by keywords"
    return query, "kept"


class _Asking:
    """Asks the model about passages, many at once."""

    def __init__(self, engine: Engine, options: ModelOptions) -> None:
        self._engine = engine
        self._limit = options.max_model_len - MAX_OUTPUT_TOKENS
        self._tokenizer, self._chat = open_tokenizer(options)

    async def answers(self, batch: Sequence[Passage]) -> list[str | None]:
        """An answer per passage; None where the engine refuses it."""
        return await gather_in_order([self._answer(passage) for passage in batch])

    async def _answer(self, passage: Passage) -> str | None:
        try:
            sampling = Sampling(MAX_OUTPUT_TOKENS)
            return (await self._engine.generate(self._prompt(passage), sampling, lambda text: "?" in text)).text
        except PromptRefusedError:
            return None

    def _prompt(self, passage: Passage) -> list[int]:
        """Only our own words may be control tokens."""
        lead = "".join(
            f"{name}: {value}\n" for name, value in (("Title", passage.title), ("Under", passage.headings)) if value
        )
        ids = self._tokenizer.encode(f"{lead}Passage: {passage.text}").ids.tolist()
        before = self._tokenizer.encode_template(self._chat.before + _INSTRUCTIONS)
        return [*before, *ids[: self._limit // 2], *self._tokenizer.encode_template(self._chat.after + _ANSWER_PREFIX)]


def _passage(snapshot: Snapshot, kind: Kind, chunk: ChunkSpan, follows: ChunkSpan | None) -> Passage | None:
    """The passage of a kind that begins in a chunk; None if there is none."""
    text = snapshot.original(chunk.document_id)
    start, end = chunk.start, chunk.end
    if kind == "boundary":
        if follows is None or follows.start != chunk.end:
            return None
        start = _begin(text, chunk)
        end = min(follows.end, _end(text, follows))
    if len(text[start:end].strip()) < _LEAST_PASSAGE:
        return None
    if kind == "referent" and not _REFERENT.search(text[start:end]):
        return None
    headings = " > ".join(snapshot.rows(chunk.document_id)[chunk.chunk_index]["heading_path"])
    title = snapshot.document(chunk.document_id)["title"]
    return Passage(kind, GoldenSpan(chunk.document_id, start, end), text[start:end], title, headings)


def _begin(text: str, chunk: ChunkSpan) -> int:
    """Where the last sentences of a chunk begin, about `_SIDE` code points before its end."""
    begins = [chunk.start + start for start, _ in sentences(text[chunk.start : chunk.end])]
    return next((begin for begin in begins if chunk.end - begin <= _SIDE), begins[-1] if begins else chunk.start)


def _end(text: str, chunk: ChunkSpan) -> int:
    """Where the first sentences of a chunk end, about `_SIDE` code points behind its start."""
    ends = [chunk.start + end for _, end in sentences(text[chunk.start : chunk.end])]
    within = [end for end in ends if end - chunk.start <= _SIDE]
    return within[-1] if within else (ends[0] if ends else chunk.end)
