"""Sources -> references to documents: listed, read once for their ids and hashes, sorted, duplicates named.

`list_files` asks the store; `scan_file` runs on the workers; `resolve` runs in the driver on ids and hashes alone;
`SourceReader` reads one document by its reference. One row per reference (schema REFS), whatever becomes of it.
"""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from enrichment import documents
from enrichment.documents import FormatName, Loaded, Place, Record
from enrichment.errors import ConfigError, DocumentError
from enrichment.formats import jsonl, parquet
from indexing.storage import MissingObjectError, ShortObjectError, is_remote, open_storage
from jobs.config import DocumentsOptions

REFS = pa.schema(
    [
        ("id", pa.string()),
        ("file", pa.string()),  # relative to `Listing.root`
        ("format", pa.string()),
        ("number", pa.int64()),  # of the record in its file, from 1; null for a file that is one document
        ("first", pa.int64()),  # see documents.Place
        ("second", pa.int64()),
        ("num_bytes", pa.int64()),
        ("sha256", pa.string()),
        ("text_sha256", pa.string()),  # null where there is no usable text
        ("problem", pa.string()),  # "reason: message" for what is known to be unusable
        ("tries", pa.int32()),  # nights in which it will have been worked on after this one
    ]
)
# What one odd file or record can raise, in parsers and in the file system; a store that is down raises OperationError.
_UNREADABLE = (MissingObjectError, OSError, ValueError, TypeError, OverflowError, RecursionError, pa.ArrowException)
_WILDCARD = re.compile(r"[*?\[]")


class SourceFile(NamedTuple):
    """A file that holds documents."""

    name: str
    format: FormatName
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Listing:
    """What a source holds: its root, its files in order, and how many files were no documents."""

    root: str
    files: tuple[SourceFile, ...]
    num_ignored: int


def list_files(options: DocumentsOptions, besides: str | None = None) -> Listing:
    """List a file, a directory, a glob or a prefix, without what lies below `besides` (the corpus itself) or is hidden.

    Raises ConfigError if nothing there is a document.
    """
    root, pattern = _split_uri(options.uri)
    if besides and (_is_same(root, besides) or _below(besides, root) is not None):
        raise ConfigError(
            f"documents.uri {options.uri} lies in the corpus {besides}; give the corpus a folder of its own"
        )
    hidden = re.compile(r"(^|/)\.")
    files, ignored = [], 0
    own = _below(root, besides) if besides else None
    for entry in open_storage(root).list():
        if hidden.search(entry.name) or not pattern.fullmatch(entry.name):
            continue
        if own is not None and entry.name.startswith(own):
            continue
        format_name = documents.format_of(entry.name, options.format)
        if format_name is None:
            ignored += 1
        else:
            files.append(SourceFile(entry.name, format_name, entry.size_bytes))
    if not files:
        seen = f"{ignored} files of other kinds are there" if ignored else "it does not exist or is empty"
        raise ConfigError(
            f"documents.uri {options.uri} holds no documents: {seen}; a document ends in {documents.known_suffixes()},"
            " or set documents.format"
        )
    return Listing(root, tuple(files), ignored)


def scan_file(root: str, file: SourceFile, max_bytes: int) -> pa.Table:
    """Read one file once: a reference per record. A file that cannot be read is one reference with its problem."""
    try:
        if _printable(file.name) != file.name:
            raise DocumentError("unreadable", "the file's name is not UTF-8; rename it")
        data = open_storage(root).get(file.name)
        found = [_reference(record, file, max_bytes) for record in documents.scan(data, file.format)]
    except (DocumentError, *_UNREADABLE) as error:
        reason = error.reason if isinstance(error, DocumentError) else "unreadable"
        record = Record(Place(), None, None, b"", None)
        found = [_reference(record, file, max_bytes) | {"problem": f"{reason}: {error}"}]
    return pa.Table.from_pylist(found, schema=REFS)


def _reference(record: Record, file: SourceFile, max_bytes: int) -> dict[str, Any]:
    size = (
        record.place.second
        if record.fields is None
        else len(str(record.fields.get("text") or "").encode("utf-8", "replace"))
    )
    problem = f"unreadable: {record.problem}" if record.problem else None
    if size > max_bytes:
        problem = f"too_large: {size} bytes are over documents.max_bytes ({max_bytes}); raise it or split the document"
    return {
        "id": documents.record_id(record, file.name),
        "file": _printable(file.name),
        "format": file.format,
        "number": record.number,
        "first": record.place.first,
        "second": record.place.second,
        "num_bytes": size,
        "sha256": record.sha256(),
        "text_sha256": None if problem else documents.text_sha256(record),
        "problem": problem,
        "tries": 1,
    }


def resolve(refs: pa.Table) -> pa.Table:
    """Sort references by (id, file, number) and mark all but the first of an id as duplicates, naming both sources."""
    refs = refs.sort_by([("id", "ascending"), ("file", "ascending"), ("number", "ascending")])
    # Only duplicates become Python objects: there may be many millions of references.
    repeats = np.zeros(refs.num_rows, dtype=bool)
    repeats[1:] = pc.equal(refs["id"].slice(1), refs["id"].slice(0, max(0, refs.num_rows - 1))).to_numpy()
    problems, first = [], 0
    for row in np.flatnonzero(repeats).tolist():
        first = first if repeats[row - 1] else row - 1
        kept = source_name(refs["file"][first].as_py(), refs["number"][first].as_py())
        problems.append(f"duplicate_id: the id is taken by {kept}; give each document its own")
    if not problems:
        return refs
    replaced = pc.replace_with_mask(refs["problem"], pa.array(repeats), pa.array(problems, pa.string()))
    return refs.set_column(REFS.get_field_index("problem"), REFS.field("problem"), replaced)


def source_name(file: str, number: int | None) -> str:
    """What a person would call the place: the file, with the record's number where it holds several."""
    return file if number is None else f"{file}:{number}"


def source_names(refs: pa.Table) -> pa.ChunkedArray:
    """`source_name` of every reference."""
    numbered = pc.binary_join_element_wise(refs["file"], pc.cast(refs["number"], pa.string()), ":")
    return pc.if_else(pc.is_null(refs["number"]), refs["file"], numbered)


class SourceReader:
    """Reads documents by reference; keeps the last few row groups, because neighbours share them."""

    def __init__(self, root: str) -> None:
        self._storage = open_storage(root)
        self._group = functools.lru_cache(maxsize=4)(self._read_group)

    def load(self, ref: dict[str, Any]) -> tuple[Loaded, str]:
        """The document and the sha256 of its source as it was read now. Raises DocumentError with its reason."""
        if ref["problem"]:
            reason, _, message = ref["problem"].partition(": ")
            raise DocumentError(reason, message)
        try:
            record = self._record(ref)
            if (
                ref["number"] is not None and record.sha256() != ref["sha256"]
            ):  # another record may lie in its place now
                raise DocumentError("unreadable", f"{ref['file']} changed after it was listed; refresh again")
            return documents.load(record, ref["file"], ref["format"]), record.sha256()
        except (ShortObjectError, *_UNREADABLE) as error:
            raise DocumentError("unreadable", str(error)) from error

    def _record(self, ref: dict[str, Any]) -> Record:
        place = Place(ref["first"], ref["second"])
        if ref["format"] == "parquet":
            group = self._group(ref["file"], place.first)
            return Record(place, ref["number"], group[place.second] if place.second < len(group) else {})
        if ref["format"] == "jsonl":
            line = self._storage.get_range(ref["file"], place.first, place.second)
            problem, parsed = jsonl.parse(line)
            return Record(place, ref["number"], parsed, line, problem)
        return Record(place, None, None, self._storage.get(ref["file"]))

    def _read_group(self, name: str, group: int) -> Sequence[dict[str, Any]]:
        return parquet.read_group(self._storage.get(name), group)


def _split_uri(uri: str) -> tuple[str, re.Pattern[str]]:
    """A source -> the root to list and the pattern of names below it."""
    exists = not is_remote(uri) and Path(uri).exists()  # then a bracket is only a bracket
    wildcard = None if exists else _WILDCARD.search(uri)
    if wildcard:
        root, slash, _ = uri[: wildcard.start()].rpartition("/")
        try:
            return root or slash or ".", re.compile(_glob_pattern(uri[len(root + slash) :]))
        except re.error as error:
            raise ConfigError(f"documents.uri {uri} is no glob: {error}; [a-z] is a set of characters") from error
    root, slash, name = uri.rstrip("/").rpartition("/")
    if Path(uri).is_file() if exists else documents.format_of(name, "auto") is not None:
        return root or slash or ".", re.compile(re.escape(name))
    return uri.rstrip("/") or "/", re.compile(r".*", re.DOTALL)


def _below(root: str, uri: str) -> str | None:
    """The prefix of names below `root` that lie in `uri`; None if none do."""
    if is_remote(root) or is_remote(uri):
        prefix = uri.rstrip("/") + "/"
        return prefix.removeprefix(root.rstrip("/") + "/") if prefix.startswith(root.rstrip("/") + "/") else None
    inner, outer = Path(uri).resolve(), Path(root).resolve()
    return f"{inner.relative_to(outer).as_posix()}/" if inner.is_relative_to(outer) and inner != outer else None


def _is_same(root: str, uri: str) -> bool:
    if is_remote(root) or is_remote(uri):
        return root.rstrip("/") == uri.rstrip("/")
    return Path(root).resolve() == Path(uri).resolve()


def _printable(name: str) -> str:
    """A file's name as text: bytes that are not UTF-8 become U+FFFD."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _glob_pattern(glob: str) -> str:
    """`**/` is any number of directories, `*` and `?` stay inside one, `[...]` is a set."""
    pattern = ""
    for piece in re.findall(r"\*\*/|\*\*|\*|\?|\[[^\]]*\]|.", glob, re.DOTALL):
        match piece:
            case "**/":
                pattern += "(?:.*/)?"
            case "**":
                pattern += ".*"
            case "*":
                pattern += "[^/]*"
            case "?":
                pattern += "[^/]"
            case _ if piece.startswith("[") and len(piece) > 1:
                inner = piece[1:-1].replace("\\", "\\\\").replace("[", "\\[")
                pattern += "[" + ("^" + inner[1:] if inner.startswith("!") else inner) + "]"
            case _:
                pattern += re.escape(piece)
    return pattern
