"""Golden questions asked of a snapshot: `situate check`, and what decides at the gate of a refresh.

(snapshot, questions, how they are asked) -> Answered. A question holds the text that its passages must contain, or spans of
originals that they must cover, within a budget; a piece counts as found if one passage holds all of it. Text stays true when
a document is edited elsewhere, spans do not.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from enrichment.errors import ConfigError, OperationError
from indexing.expansion import Expand, Expansion, WindowBy
from indexing.passages import Passage
from indexing.search import Mode
from indexing.snapshot import Snapshot, open_snapshot
from indexing.storage import open_storage, read_file
from jobs import golden
from jobs.golden import GoldenSpan

_NAMED = 5  # questions in a sentence


@dataclass(frozen=True, slots=True)
class GateOptions:
    """The `gate` section of the configuration: what a snapshot must be like to be published, and how its questions are asked.

    `golden` is a file of questions; their recall must be at least `min_recall`, and at most `max_drop` below what the snapshot
    before has. At most the shares `fallback` of the chunks and `quarantined` of the documents; at least the share `documents`
    of those that the snapshot before holds.
    """

    golden: str | None = None
    k: int = 10
    mode: Mode = "hybrid"
    window: int = 0
    within_section: bool = False
    budget: int | None = None
    window_by: WindowBy = "chunks"
    expand: Expand = "window"
    min_recall: float = 0.0
    max_drop: float = 0.05
    fallback: float = 1.0
    quarantined: float = 1.0
    documents: float = 0.0

    def __post_init__(self) -> None:
        for name in ("min_recall", "max_drop", "fallback", "quarantined", "documents"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"gate.{name} is {getattr(self, name)}; it must be a share from 0 to 1")
        for name, least in (("k", 1), ("window", 0), ("budget", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"gate.{name} is {value}; it must be at least {least}")
        try:
            Expansion(self.expand, self.window, self.window_by, self.within_section)
        except ConfigError as error:
            raise ConfigError(f"gate: {error}") from None

    @property
    def how(self) -> dict[str, Any]:
        """How the questions are asked; what later versions brought is named only where it is used."""
        names = ("k", "mode", "window", "within_section", "budget")
        later = {"window_by": "chunks", "expand": "window"}
        used = [name for name, usual in later.items() if getattr(self, name) != usual]
        return {name: getattr(self, name) for name in (*names, *used)}


@dataclass(frozen=True, slots=True)
class GoldenQuestion:
    """A question and the pieces that answer it."""

    id: str
    query: str
    contains: tuple[str, ...]
    spans: tuple[GoldenSpan, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """How the questions were answered. `recall` is the mean over questions of the share of their pieces that were found;
    `missed` names the questions with less than all, with the first missing piece of each.
    """

    snapshot: int
    questions: int
    recall: float
    characters: int
    missed: tuple[dict[str, Any], ...]

    def as_dict(self) -> dict[str, Any]:
        """The stable JSON form."""
        return {name: getattr(self, name) for name in self.__slots__} | {"missed": list(self.missed)}

    def names(self) -> str:
        """The questions that miss something, some of them by their ids."""
        ids = [str(missed["question"]) for missed in self.missed]
        more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
        return f"{', '.join(ids[:_NAMED])}{more}"


def read_questions(uri: str | None) -> list[GoldenQuestion]:
    """Read a file of JSON lines, local or remote; none of no file. Raises ConfigError that names file and line."""
    if uri is None:
        return []
    try:
        text = read_file(uri).decode()
    except (OperationError, OSError, ValueError) as error:
        raise ConfigError(f"the golden questions {uri} cannot be read: {error}") from error
    found: dict[str, GoldenQuestion] = {}
    for place, record in golden.json_records(uri, text):
        question = _question(place, record, str(len(found)))
        if question.id in found:
            raise ConfigError(f"{place} has the query_id {question.id}, which an earlier line has; give each its own")
        found[question.id] = question
    if not found:
        raise ConfigError(f"{uri} holds no question; write JSON lines with query and contains, or spans")
    return list(found.values())


def ask(snapshot: Snapshot, questions: Sequence[GoldenQuestion], options: GateOptions) -> Answered:
    """Ask every question and see what the passages hold."""
    answers = snapshot.search_many([question.query for question in questions], **options.how)
    shares, missed, characters = [], [], 0
    for question, passages in zip(questions, answers, strict=True):
        characters += sum(passage.end - passage.start for passage in passages)
        lacking = _lacking(question, passages)
        shares.append(1 - len(lacking) / (len(question.contains) + len(question.spans)))
        if lacking:
            missed.append({"question": question.id, "query": question.query, "missing": lacking[0]})
    recall = round(sum(shares) / len(shares), 6)
    return Answered(
        snapshot.manifest.sequence, len(questions), recall, round(characters / len(questions)), tuple(missed)
    )


def run(options: argparse.Namespace) -> tuple[dict[str, Any], str | None]:
    """The command: the record, and what is wrong."""
    snapshot = open_snapshot(open_storage(options.corpus), options.snapshot)
    configured = options_of(snapshot.manifest.config)
    given = {"k": options.k, "mode": options.mode, "window": options.window, "budget": options.budget}
    given |= {"within_section": True if options.within == "section" else None, "min_recall": options.min_recall}
    given |= {"window_by": options.window_by, "expand": options.expand}
    base = configured
    if options.expand is not None:  # in the place of the gate's own way, with all that belongs to it
        base = replace(configured, window=0, window_by="chunks", within_section=False, expand="window")
    asked = replace(base, **{name: value for name, value in given.items() if value is not None})
    file = options.golden or configured.golden
    if file is None:
        raise ConfigError("no golden questions: give --golden FILE, or set gate.golden in the configuration")
    least = asked.min_recall if options.min_recall is not None or configured.golden else 1.0
    found = ask(snapshot, read_questions(file), asked)
    record = found.as_dict() | {"min_recall": least}
    return record, None if found.recall >= least else too_low(found, least)


def options_of(config: Any) -> GateOptions:
    """The `gate` section of a snapshot's configuration; the defaults for one that is older than the section."""
    return GateOptions(**config.get("gate", {}))


def too_low(found: Answered, least: float) -> str:
    """Says so, without a full stop."""
    told = f"the golden questions find {found.recall:.3f} of what answers them, less than {least:g}"
    return f"{told}: {found.names()} not all of it"


def _lacking(question: GoldenQuestion, passages: Sequence[Passage]) -> list[str]:
    texts = [text for text in question.contains if not any(text in passage.text for passage in passages)]
    spans = [
        f"{span.document_id} [{span.start}:{span.end}]"
        for span in question.spans
        if not any(p.document_id == span.document_id and p.start <= span.start and span.end <= p.end for p in passages)
    ]
    return texts + spans


def _question(place: str, record: dict[str, Any], number: str) -> GoldenQuestion:
    name, query = golden.question(place, record, number)
    contains = record.get("contains", [])
    contains = [contains] if isinstance(contains, str) else contains
    if not isinstance(contains, list) or not all(isinstance(text, str) and text for text in contains):
        raise ConfigError(f"{place} has a contains that is no text; write one text or a list of them")
    spans = tuple(golden.span(place, span) for span in record.get("spans", ()))
    if not contains and not spans:
        raise ConfigError(f"{place} says neither contains nor spans; say what answers the question")
    return GoldenQuestion(name, query, tuple(contains), spans)
