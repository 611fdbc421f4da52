"""Texts -> the Lucene directory of a segment, built by Anserini's IndexCollection in a process beside this one.

Invariants:
* One index row per text, in order: Lucene's document number is the row number. The build gets this from one thread and
  one flush, and refuses anything else; so a hit needs no lookup, and dead rows become a bitmap of Lucene's.
* What went in is counted, and what CheckIndex finds in the result must be as much.
* Texts go to Java's standard input while it indexes: they are on no disk twice, and writing them takes no time of its own.
  What it is given as its collection is a link to that input.
* Text without content is a row too. Anserini drops what Java's `trim` empties, so such a text is indexed as one space
  that Java does not trim: a row that no query matches and that BM25's statistics do not see.
"""

import json
import logging
import re
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import IO

from enrichment.errors import OperationError
from indexing import disk
from indexing.analyzers import CODE, ENGLISH, check_language, prepared
from indexing.jvm import heap_megabytes, run_java

logger = logging.getLogger(__name__)

FIELD = "contents"
CONTENTLESS = "\u2003"
_WRITTEN_AT_ONCE = 1000  # rows
_JAVA_TRIMMED = "".join(map(chr, range(0x21)))


def build(texts: Iterable[str], segment_id: str, directory: Path, language: str) -> int:
    """Write the index of a segment into `directory` and return the number of its rows. Row i is the i-th text.

    The result is verified: checksums of all files, one row per text, rows in order; else OperationError.
    """
    check_language(language)
    started = time.monotonic()
    purpose = f"Building the lexical index of segment {segment_id}"
    directory.mkdir(parents=True, exist_ok=True)
    rows = _Rows((prepared(text, language) for text in texts), segment_id)
    try:
        output = _index(rows, directory, language, purpose)
        report = _checked(directory, rows.number, output, purpose)
    except OperationError:
        disk.check_room(directory)  # Java says in many ways that a disk is full, or only that its index is bad
        raise
    num_texts = rows.number
    (directory / "write.lock").unlink(missing_ok=True)
    if num_texts and not (report.count("maxDoc=") == 1 and "source=flush" in report):
        raise OperationError(
            f"{purpose}: {num_texts} rows do not fit in Java's buffer at once, so their order is lost: "
            "raise SITUATE_JVM_HEAP or lower index.rows_per_segment."
        )
    seconds = time.monotonic() - started
    logger.info("%s: %d rows, %.1f s, %.0f rows/s", purpose, num_texts, seconds, num_texts / seconds)
    return num_texts


def _index(rows: "_Rows", directory: Path, language: str, purpose: str) -> str:
    """Build the index; what Java said."""
    with disk.temporary("situate-texts-") as source:
        with disk.writing(source):
            (source / "rows.jsonl").symlink_to("/dev/stdin")
        return run_java(
            "io.anserini.index.IndexCollection",
            ["-collection", "JsonCollection", "-input", str(source), "-index", str(directory)]
            + ["-language", ENGLISH if language == CODE else language, "-threads", "1"]
            + ["-memoryBuffer", str(heap_megabytes() // 2), "-optimize", "-quiet"],
            purpose,
            rows.write,
        )


def _checked(directory: Path, num_texts: int, output: str, purpose: str) -> str:
    """Have the index checked; what the check reported. Raises OperationError unless it has `num_texts` rows."""
    report = run_java("org.apache.lucene.index.CheckIndex", ["-fast", str(directory)], purpose)
    found = re.search(r"(\d+) documents;", report)
    num_rows = int(found[1]) if found else 0
    if num_rows != num_texts:
        raise OperationError(f"{purpose}: {num_texts} texts went in, {num_rows} are in the index. {output.strip()}")
    return report


class _Rows:
    """Texts as JSON objects, one on a line, in pure ASCII: no character of a text can end a line or break the encoding."""

    def __init__(self, texts: Iterable[str], segment_id: str) -> None:
        self._texts, self._segment_id = texts, segment_id
        self.number = 0
        """Written so far."""

    def write(self, pipe: IO[str]) -> None:
        """Write all of them, or as many as are read."""
        left, encode = iter(self._texts), json.JSONEncoder().encode
        while some := list(islice(left, _WRITTEN_AT_ONCE)):
            contents = [text if text.strip(_JAVA_TRIMMED) else CONTENTLESS for text in some]
            # The text alone through json: in one object with its id it would take twice as long.
            lines = [
                f'{{"id": "{self._segment_id}-{row}", "{FIELD}": {encode(content)}}}\n'
                for row, content in enumerate(contents, self.number)
            ]
            self.number += len(some)
            pipe.write("".join(lines))
