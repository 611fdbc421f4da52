"""Questions and what answers them: read from JSON lines or TREC files, and written as TREC files.

file -> Golden. JSON lines hold `query_id` (or `id`), `query` and `spans`, pieces of originals that answer it: they stay true
whatever the splitter does. TREC topics (`<top>` or tab-separated) come with qrels, whose document numbers are document ids or
chunks, `<document id>#<chunk index>`; white space, `%` and `#` in an id are written as in a URL, since TREC's files know no
quoting.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from enrichment.errors import ConfigError

_NOT_IN_NUMBERS = re.compile(r"[\s%#]")
_TOPIC = re.compile(r"<top>(.*?)</top>", re.DOTALL)
_NUMBER = re.compile(r"<num>\s*(?:Number:)?\s*([^<\s]+)")
_TITLE = re.compile(r"<title>\s*(?:Topic:)?\s*([^<]+)")


class GoldenSpan(NamedTuple):
    """A piece of a document's original, in code points, that answers a question or a part of it."""

    document_id: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Golden:
    """Questions by their ids, in the order of the file; of each either golden spans or judged documents or chunks.

    `judged` maps TREC's document numbers to relevance; those of 0 or less are judged not to answer.
    """

    queries: Mapping[str, str]
    spans: Mapping[str, tuple[GoldenSpan, ...]] = field(default_factory=dict)
    judged: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def document_ids(self) -> frozenset[str]:
        """The documents that hold answers; of a judged number all that it may name."""
        numbers = {number for judged in self.judged.values() for number, value in judged.items() if value > 0}
        named = {unquote(part) for number in numbers for part in (number, number.rpartition("#")[0])}
        return frozenset({span.document_id for spans in self.spans.values() for span in spans} | named)


def chunk_number(document_id: str, chunk_index: int) -> str:
    """What TREC's files call a chunk."""
    return f"{document_number(document_id)}#{chunk_index}"


def document_number(document_id: str) -> str:
    """What TREC's files call a document."""
    return _NOT_IN_NUMBERS.sub(lambda match: quote(match[0]), document_id)


def read(queries: Path, qrels: Path | None = None) -> Golden:
    """Read questions, and their judgements from qrels if those are given. Raises ConfigError that names file and line."""
    text = _text(queries)
    if text.lstrip().startswith("{"):
        found, spans = _json_lines(queries, text)
    else:
        found, spans = _topics(queries, text), {}
    if not found:
        raise ConfigError(
            f"{queries} holds no question; write JSON lines with query_id, query and spans, or TREC topics"
        )
    if qrels is None:
        if missing := [name for name in found if not spans.get(name)]:
            raise ConfigError(f"{queries} gives question {missing[0]} no spans; add them, or give --qrels")
        return Golden(found, spans=spans)
    judged = _qrels(qrels, _text(qrels))
    if missing := [name for name in found if not any(value > 0 for value in judged.get(name, {}).values())]:
        raise ConfigError(f"{qrels} judges nothing relevant for question {missing[0]} of {queries}; add it or drop it")
    return Golden(found, judged={name: judged[name] for name in found})


def write_topics(golden: Golden, path: Path) -> None:
    """The questions as tab-separated topics."""
    lines = (f"{name}\t{' '.join(query.split())}\n" for name, query in golden.queries.items())
    path.write_text("".join(lines), encoding="utf-8")


def write_qrels(judged: Mapping[str, Mapping[str, int]], path: Path) -> None:
    """Judgements by question and number, as trec_eval reads them."""
    lines = (f"{name} 0 {number} {value}\n" for name, of in judged.items() for number, value in of.items())
    path.write_text("".join(lines), encoding="utf-8")


def write_run(run: Mapping[str, Mapping[str, float]], tag: str, path: Path) -> None:
    """Rankings by question and number, best first, as trec_eval reads them."""
    lines = (
        f"{name} Q0 {number} {rank} {score:.6f} {tag}\n"
        for name, ranking in run.items()
        for rank, (number, score) in enumerate(ranking.items(), 1)
    )
    path.write_text("".join(lines), encoding="utf-8")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _json_lines(path: Path, text: str) -> tuple[dict[str, str], dict[str, tuple[GoldenSpan, ...]]]:
    queries: dict[str, str] = {}
    spans: dict[str, tuple[GoldenSpan, ...]] = {}
    for place, record in json_records(path, text):
        name, query = question(place, record, str(len(queries)))
        if name in queries or not name or re.search(r"\s", name):
            raise ConfigError(f"{place} has the query_id {name!r}; it must be a word that no other line has")
        queries[name] = query
        spans[name] = tuple(span(place, each) for each in record.get("spans", ()))
    return queries, spans


def json_records(path: Path | str, text: str) -> list[tuple[str, dict[str, Any]]]:
    """The objects of a file of JSON lines, each with where it stands."""
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}:{number} is not JSON ({error})") from error
        if not isinstance(record, dict):
            raise ConfigError(f"{path}:{number} is no JSON object; each line is one question")
        found.append((f"{path}:{number}", record))
    return found


def question(place: str, record: Mapping[str, Any], number: str) -> tuple[str, str]:
    """The id of a record's question, its number where it has none, and its words. Raises ConfigError that names the place."""
    query = record.get("query")
    if not isinstance(query, str) or not query.strip():
        raise ConfigError(f"{place} has no query; give it one")
    return str(record.get("query_id", record.get("id", number))), query


def span(place: str, record: Any) -> GoldenSpan:
    """A span as JSON has it. Raises ConfigError that names the place."""
    try:
        found = GoldenSpan(str(record["document_id"]), int(record["start"]), int(record["end"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"{place} has a span without document_id, start and end") from error
    if not 0 <= found.start < found.end:
        raise ConfigError(f"{place} has the span {found.start} to {found.end}; it must hold a character")
    return found


def _topics(path: Path, text: str) -> dict[str, str]:
    if "<top>" in text:
        pairs = []
        for number, topic in enumerate(_TOPIC.findall(text), 1):
            number_found, title = _NUMBER.search(topic), _TITLE.search(topic)
            if not number_found or not title:
                raise ConfigError(f"{path}: topic {number} has no <num> or no <title>")
            pairs.append((number_found[1], " ".join(title[1].split())))
    else:
        pairs = []
        for number, line in enumerate(text.splitlines(), 1):
            name, tab, query = line.partition("\t")
            if line.strip() and not (tab and name.strip() and query.strip()):
                raise ConfigError(f"{path}:{number} is no question; write its id, a tab and its words")
            if line.strip():
                pairs.append((name.strip(), query.strip()))
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ConfigError(f"{path} has two questions with one id; give each its own")
    return found


def _qrels(path: Path, text: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            name, _, document, relevance = line.split()
            found.setdefault(name, {})[document] = int(relevance)
        except ValueError as error:
            raise ConfigError(f"{path}:{number} is no judgement; write: question 0 document relevance") from error
    return found
