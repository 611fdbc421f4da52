"""Texts -> the Lucene directory of a segment, built by Anserini's IndexCollection in a process beside this one.

Invariants:
* One index row per text, in order: Lucene's document number is the row number. The build gets this from one thread and
  one flush, and refuses anything else; so a hit needs no lookup, and dead rows become a bitmap of Lucene's.
* What went in is counted, and what CheckIndex finds in the result must be as much.
* Texts go to Java through a pipe, while it indexes: they are on no disk twice, and writing them takes no time of its own.
* Text without content is a row too. Anserini drops what Java's `trim` empties, so such a text is indexed as one space
  that Java does not trim: a row that no query matches and that BM25's statistics do not see.
"""

import errno
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from enrichment.errors import OperationError
from indexing import disk
from indexing.analyzers import CODE, ENGLISH, check_language, prepared
from indexing.jvm import heap_megabytes, run_java

logger = logging.getLogger(__name__)

FIELD = "contents"
CONTENTLESS = "\u2003"
_POLL_S = 0.01
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
    with disk.temporary("situate-texts-") as source:
        rows = _rows((prepared(text, language) for text in texts), segment_id)
        try:
            with _piped(rows, source / "rows.jsonl", purpose) as written:
                output = _index(source, directory, language, purpose)
            num_texts = written.result()
            report = _checked(directory, num_texts, output, purpose)
        except OperationError:
            disk.check_room(directory)  # Java says in many ways that a disk is full, or only that its index is bad
            raise
    (directory / "write.lock").unlink(missing_ok=True)
    if num_texts and not (report.count("maxDoc=") == 1 and "source=flush" in report):
        raise OperationError(
            f"{purpose}: {num_texts} rows do not fit in Java's buffer at once, so their order is lost: "
            "raise SITUATE_JVM_HEAP or lower index.rows_per_segment."
        )
    seconds = time.monotonic() - started
    logger.info("%s: %d rows, %.1f s, %.0f rows/s", purpose, num_texts, seconds, num_texts / seconds)
    return num_texts


def _index(source: Path, directory: Path, language: str, purpose: str) -> str:
    """Build the index; what Java said."""
    return run_java(
        "io.anserini.index.IndexCollection",
        ["-collection", "JsonCollection", "-input", str(source), "-index", str(directory)]
        + ["-language", ENGLISH if language == CODE else language, "-threads", "1"]
        + ["-memoryBuffer", str(heap_megabytes() // 2), "-optimize", "-quiet"],
        purpose,
    )


def _checked(directory: Path, num_texts: int, output: str, purpose: str) -> str:
    """Have the index checked; what the check reported. Raises OperationError unless it has `num_texts` rows."""
    report = run_java("org.apache.lucene.index.CheckIndex", ["-fast", str(directory)], purpose)
    found = re.search(r"(\d+) documents;", report)
    num_rows = int(found[1]) if found else 0
    if num_rows != num_texts:
        raise OperationError(f"{purpose}: {num_texts} texts went in, {num_rows} are in the index. {output.strip()}")
    return report


def _rows(texts: Iterable[str], segment_id: str) -> Iterator[list[str]]:
    """One JSON object per text, many at a time, in pure ASCII: no character of a text can end a line or break the encoding."""
    left, first, encode = iter(texts), 0, json.JSONEncoder().encode
    while some := list(islice(left, _WRITTEN_AT_ONCE)):
        contents = [text if text.strip(_JAVA_TRIMMED) else CONTENTLESS for text in some]
        # The text alone through json: in one object with its id it would take twice as long.
        yield [
            f'{{"id": "{segment_id}-{row}", "{FIELD}": {encode(content)}}}\n'
            for row, content in enumerate(contents, first)
        ]
        first += len(some)


@contextmanager
def _piped(rows: Iterable[list[str]], path: Path, purpose: str) -> Iterator[Future[int]]:
    """A pipe named `path` from which the rows come while the block runs; how many were written, once it is over.

    What goes wrong in making the rows is raised at the end, whatever their reader made of it.
    """
    with disk.writing(path):
        os.mkfifo(path)
    over = threading.Event()
    with ThreadPoolExecutor(1, "rows") as pool:
        written = pool.submit(_write, rows, path, purpose, over)
        try:
            yield written
        finally:
            over.set()
            error = written.exception()
            if error is not None and not isinstance(error, _UnreadError):
                raise error


class _UnreadError(OperationError):
    """The rows' reader left before their end; it has said why, if it was one that failed."""


def _write(rows: Iterable[list[str]], path: Path, purpose: str, over: threading.Event) -> int:
    """Write the rows into the pipe as soon as it has a reader, unless it is `over` before; how many they were."""
    number = 0
    try:
        with os.fdopen(_opened(path, over), "w", encoding="ascii") as pipe:
            for some in rows:
                number += len(some)
                pipe.write("".join(some))
    except BrokenPipeError:
        raise _UnreadError(
            f"{purpose}: Java stopped reading within the first {number} rows; run the same command again"
        ) from None
    return number


def _opened(pipe: Path, over: threading.Event) -> int:
    """The pipe, open for writing. Raises BrokenPipeError if nobody comes to read."""
    while not over.wait(_POLL_S):
        try:
            descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)  # refused, not waiting, while there is no reader
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        else:
            os.set_blocking(descriptor, True)
            return descriptor
    raise BrokenPipeError
