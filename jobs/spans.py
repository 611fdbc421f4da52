"""Given spans for `split.by: spans`: JSON lines of `document_id`, `start`, `end` in code points, any order of documents."""

import json

from enrichment.errors import ConfigError
from enrichment.split import SplitOptions
from indexing.storage import MissingObjectError, read_file

Spans = dict[str, list[tuple[int, int]]]


def read_spans(options: SplitOptions) -> Spans | None:
    """The table of spans by document id, each document's in the order of the file; None unless the split asks for one."""
    if options.by != "spans":
        return None
    uri = options.spans or ""
    try:
        data = read_file(uri)
    except (MissingObjectError, IsADirectoryError) as error:
        raise ConfigError(f"split.spans {uri!r} does not exist; name a file of JSON lines") from error
    found: Spans = {}
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            try:
                entry = json.loads(line)
                found.setdefault(str(entry["document_id"]), []).append((int(entry["start"]), int(entry["end"])))
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                raise ConfigError(f"{uri}:{number} needs document_id, start and end as one JSON object") from error
    return found
