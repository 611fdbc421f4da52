"""JSON lines: one object with `id`, `title`, `text`, `metadata` per line. Lines end at line feeds only."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple


class Line(NamedTuple):
    """A line that is not blank, with its byte offset and its number from 1."""

    number: int
    offset: int
    data: bytes


def lines(data: bytes) -> Iterator[Line]:
    """The lines of a file."""
    number, offset = 0, 0
    while offset < len(data):
        end = data.find(b"\n", offset)
        end = len(data) if end < 0 else end
        number += 1
        line = data[offset:end]
        if line.strip():
            yield Line(number, offset, line)
        offset = end + 1


def parse(line: bytes) -> tuple[str | None, dict[str, Any] | None]:
    """A line's problem, or its object."""
    try:
        found = json.loads(line.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError) as error:
        return f"the line is not JSON: {error}", None
    if not isinstance(found, dict):
        return f"the line holds {type(found).__name__}, not an object", None
    return None, found
