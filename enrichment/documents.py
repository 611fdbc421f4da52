"""The door: source bytes -> documents. What cannot be used is rejected by name and reason, never dropped.

bytes of a file -> records (`formats/`) -> Document, or DocumentError. The text of a document is what was stored, decoded,
with a byte order mark stripped and lone surrogates replaced by U+FFFD; nothing else changes. NUL, control characters, line
separators and carriage returns are kept as they are.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from enrichment.errors import ConfigError, DocumentError
from enrichment.formats import jsonl, markdown, parquet, text
from enrichment.headings import headings
from enrichment.records import Document, DocumentId, Heading

FormatName = Literal["auto", "markdown", "text", "jsonl", "parquet"]
_SUFFIXES: Mapping[str, FormatName] = {
    ".md": "markdown",
    ".markdown": "markdown",
    ".txt": "text",
    ".text": "text",
    ".rst": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
_SURROGATE = re.compile("[\ud800-\udfff]")
_BLANKS = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record lies in its file: bytes for lines, row group and row for Parquet, the whole file otherwise."""

    first: int = 0
    second: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """One record as its format gives it: `fields` of a file with named columns, or `data` of a whole file."""

    place: Place
    number: int | None = None
    fields: Mapping[str, Any] | None = None
    data: bytes | None = None
    problem: str | None = None

    def sha256(self) -> str:
        """The record's content, whatever its place."""
        data = self.data
        if data is None:
            data = json.dumps(self.fields, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
        return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class Loaded:
    """A document with its headings, and how many code points were replaced in it."""

    document: Document
    headings: tuple[Heading, ...]
    replaced: int


def format_of(name: str, chosen: FormatName) -> FormatName | None:
    """The format of a file by its name, or the one chosen for all; None for a file that is not a document."""
    if chosen != "auto":
        return chosen
    suffix = f".{name.rpartition('.')[2].lower()}" if "." in name.rpartition("/")[2] else ""
    return _SUFFIXES.get(suffix)


def known_suffixes() -> str:
    """For messages."""
    return ", ".join(sorted(_SUFFIXES))


def scan(data: bytes, format_name: FormatName) -> Iterator[Record]:
    """All records of a file. A record that cannot be parsed carries its problem."""
    match format_name:
        case "jsonl":
            for line in jsonl.lines(data):
                problem, fields = jsonl.parse(line.data)
                yield Record(Place(line.offset, len(line.data)), line.number, fields, line.data, problem)
        case "parquet":
            for group, row, number, fields in parquet.rows(data):
                yield Record(Place(group, row), number, fields)
        case "markdown" | "text":
            yield Record(Place(0, len(data)), None, None, data)
        case _:
            raise ConfigError(f"{format_name} is not a document format")


def load(record: Record, name: str, format_name: FormatName) -> Loaded:
    """One record -> Document. `name` is the file, relative to the source. Raises DocumentError with a reason code."""
    if record.problem:
        raise DocumentError("unreadable", record.problem)
    if record.fields is None:
        assert record.data is not None
        return _from_file(record.data, name, format_name)
    return _from_fields(record.fields, record_id(record, name))


def text_sha256(record: Record) -> str | None:
    """The sha256 of the text that `load` would give, in UTF-8: two documents with the same are the same to every prompt but
    for their titles. None for a record without a usable text.
    """
    try:
        if record.fields is None:
            content = text.decode(record.data or b"")
        else:
            given = record.fields.get("text")
            if not isinstance(given, str):
                return None
            content = _without_surrogates(given.removeprefix("\ufeff"))[0]
    except DocumentError:
        return None
    return hashlib.sha256(content.encode()).hexdigest()


def restored(
    name: str, content: str, title: str | None, date: str | None, metadata: Mapping[str, str], format_name: FormatName
) -> Loaded:
    """A document from what was stored of it."""
    is_markdown = format_of(name, format_name) == "markdown"
    body_start = markdown.front_matter(content).body_start if is_markdown else 0
    found = tuple(headings(content, body_start)) if is_markdown else ()
    return Loaded(Document(DocumentId(name), content, title, date, metadata, body_start), found, 0)


def record_id(record: Record, name: str) -> DocumentId:
    """A record's own id; else the file's relative path, with the record's number where a file holds several."""
    given = (record.fields or {}).get("id")
    if given is not None and not isinstance(given, (str, int)):
        given = json.dumps(given, sort_keys=True, default=str)
    if given is not None and str(given) != "":
        return DocumentId(_without_surrogates(str(given))[0])
    path = _without_surrogates(name)[0]
    return DocumentId(path if record.number is None else f"{path}#{record.number}")


def _from_file(data: bytes, name: str, format_name: FormatName) -> Loaded:
    content = text.decode(data)
    document_id = DocumentId(_without_surrogates(name)[0])
    if format_name != "markdown":
        return Loaded(Document(document_id, content, title=_one_line(document_id)), (), 0)
    matter = markdown.front_matter(content)
    found = tuple(headings(content, matter.body_start))
    title = matter.fields.pop("title", None) or _first_heading(found) or document_id
    document = Document(
        id=document_id,
        text=content,
        title=_one_line(title),
        date=matter.fields.pop("date", None),
        metadata=matter.fields,
        body_start=matter.body_start,
    )
    return Loaded(document, found, 0)


def _from_fields(fields: Mapping[str, Any], document_id: DocumentId) -> Loaded:
    given = fields.get("text")
    if not isinstance(given, str):
        raise DocumentError("no_text", f"the record has no text but {type(given).__name__}")
    content, replaced = _without_surrogates(given.removeprefix("\ufeff"))
    metadata = {
        _without_surrogates(str(key))[0]: _without_surrogates(
            value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
        )[0]
        for key, value in _metadata(fields).items()
        if value is not None
    }
    found = tuple(headings(content)) if document_id.lower().endswith((".md", ".markdown")) else ()
    title = str(fields.get("title") or "") or _first_heading(found) or document_id
    document = Document(
        id=document_id,
        text=content,
        title=_one_line(_without_surrogates(title)[0]),
        date=metadata.get("date"),
        metadata=metadata,
    )
    return Loaded(document, found, replaced)


def _metadata(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    given = fields.get("metadata")
    if isinstance(given, str):  # Parquet writers often keep an object as its JSON
        try:
            given = json.loads(given)
        except ValueError:
            return {"metadata": given}
    return given if isinstance(given, Mapping) else {}


def _first_heading(found: tuple[Heading, ...]) -> str | None:
    return next((heading.title for heading in found if heading.level == 1), None)


def _one_line(title: str) -> str:
    return _BLANKS.sub(" ", title).strip()


def _without_surrogates(value: str) -> tuple[str, int]:
    return _SURROGATE.subn("\ufffd", value)
