"""The night that is killed, starved of disk and run again: its documents, its processes, and what must be the same after it.

Tonight's sources change two documents, add one, delete one and rename one; one of yesterday's two segments is due for
compaction, in the other a document dies. Every process runs the command `situate` itself. No document fails: what failed is
tried again by whatever run comes next, so a run after the commit would not be one that finds nothing to do.
"""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from indexing import dead, ledger_parts, manifest, tables
from indexing.manifest import Manifest
from indexing.snapshot import Snapshot
from indexing.storage import DirectoryStorage, Storage

TESTS = Path(__file__).parent
NAMES = ("ash", "birch", "cedar", "elm", "fir", "hazel", "larch", "maple", "oak", "pine")
RULES = [f"Rule {number} of the {word} holds." for number, word in enumerate(["roof", "garden", "boiler", "gate"])]
QUESTIONS = ["the garden rule of ash", "boiler", "what holds for the gate of yew", "a rowan in the attic", "oak"]
MOST_CHUNKS = 7  # of one document
# Java's start is most of what a segment of this size costs; compiled less, it starts sooner.
ENVIRONMENT = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -Xshare:auto"}


def text(name: str, *sentences: str) -> str:
    return f"---\ntitle: {name}\n---\n# Of the {name}\n\n" + " ".join(sentences) + "\n"


YESTERDAY: Mapping[str, bytes] = {f"{name}.md": text(name, *RULES).encode() for name in NAMES}
_CHANGED = {
    "ash.md": text("ash", *RULES, "The attic is new.").encode(),
    "fir.md": text("fir", RULES[0], "The garden is gone.", *RULES[2:]).encode(),
    "rowan.md": text("rowan", "It is in the attic.", *RULES).encode(),
    "yew.md": YESTERDAY["hazel.md"],
}
TONIGHT: Mapping[str, bytes] = {
    name: data for name, data in (YESTERDAY | _CHANGED).items() if name not in ("birch.md", "hazel.md")
}


def configure(directory: Path, corpus: str, sources: Mapping[str, bytes]) -> None:
    """Write sources and configuration into a directory; replaces the sources that are there."""
    shutil.rmtree(directory / "docs", ignore_errors=True)
    (directory / "docs").mkdir(parents=True)
    for name, data in sources.items():
        (directory / "docs" / name).write_bytes(data)
    settings = {
        "corpus": corpus,
        "documents": {"uri": "docs"},
        "model": {"name": "fake"},
        "embedding": {"name": "fake"},
        "split": {"by": "sentences"},
        "index": {"rows_per_segment": 26},
        "compaction": {"dead_share": 0.3, "pile": 1000},
    }
    (directory / "night.yaml").write_text(json.dumps(settings))


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended: negative for a signal. `calls` are the models' answers that it was given, in order."""

    status: int
    seconds: float
    stderr: str
    calls: tuple[str, ...]


class Nursery:
    """Runs nights in processes of their own; see `nursery.py`."""

    def __init__(self) -> None:
        self._process = _started("nursery.py")
        self._number = 0

    def run(
        self,
        directory: Path,
        moment: str = "",
        action: str = "kill",
        kill_after_s: float | None = None,
        logs: Path | None = None,
        limit: int | None = None,
        **environment: str,
    ) -> Ended:
        """One refresh of `directory`/night.yaml, to its end or its kill, with all that it started."""
        self._number += 1
        log = (logs or directory) / f"process-{self._number}"
        request = {
            "directory": str(directory),
            "environment": {**ENVIRONMENT, "TMPDIR": str(directory), **environment},
            "arguments": ["refresh", "night.yaml"],
            "moment": moment,
            "action": action,
            "log": str(log),
            "limit": limit,
        }
        begun = time.monotonic()
        group = int(_ask(self._process, json.dumps(request)))
        if kill_after_s is not None:
            time.sleep(kill_after_s)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        status = int(_line(self._process))
        seconds = time.monotonic() - begun
        return Ended(status, seconds, Path(f"{log}.err").read_text(), tuple(log.read_text().splitlines()))

    def close(self) -> None:
        _end(self._process)


class Reader:
    """Reads in a process of its own; see `reader.py`."""

    def __init__(self) -> None:
        self._process = _started("reader.py")

    @contextlib.contextmanager
    def watching(self, corpus: str, cache: Path) -> Iterator[dict[str, Any]]:
        """Read while this lasts, and once more; what was seen is in the mapping afterwards."""
        seen: dict[str, Any] = {}
        _say(self._process, json.dumps({"corpus": corpus, "questions": QUESTIONS, "cache": str(cache)}))
        try:
            yield seen
        finally:
            seen.update(json.loads(_ask(self._process, "")))

    def close(self) -> None:
        _end(self._process)


def _started(script: str) -> "subprocess.Popen[str]":
    paths = os.pathsep.join([str(TESTS.parent.parent), str(TESTS)])
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": paths}
    process = subprocess.Popen(
        [sys.executable, str(TESTS / script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert _line(process) == "ready"
    return process


def _say(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the process has ended: see its stderr"
    return line.rstrip("\n")


def _ask(process: "subprocess.Popen[str]", line: str) -> str:
    _say(process, line)
    return _line(process)


def _end(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait(10)


@dataclass(frozen=True)
class State:
    """What a snapshot is, without what two runs may differ in: names of runs, nonces, times, what was generated or reused
    tonight, and the counts of tokens that a prefix cache happened to hold (`cached_tokens`)."""

    sequence: int
    rows: list[dict[str, Any]]
    answers: str
    account: dict[str, Any] = field(repr=False)


def state(storage: Storage, sequence: int | None = None) -> State:
    """The newest snapshot, or the given one: opened, read whole, searched."""
    found = manifest.require_latest(storage) if sequence is None else manifest.load(storage, sequence)
    rows = [row for segment in found.segments for row in _rows(storage, found, segment)]
    snapshot = Snapshot(storage, found)
    answers = [[passage.as_dict() for passage in snapshot.search(question, 5)] for question in QUESTIONS]
    digests = {segment.id: segment.digest for segment in found.segments}
    chunks = {name: number for name, number in found.counts["chunks"].items() if name not in ("generated", "reused")}
    account = {
        "digests": list(digests.values()),
        "dead": {digests[segment]: entry for segment, entry in found.dead.items()},
        "counts": [found.counts["documents"], chunks, found.counts["reasons"]],
        "settings": [found.fingerprints, {**found.config, "corpus": ""}, found.dimension],
        "parent": found.parent,
        "rejected": found.rejected,
        "stale": found.stale,
    }
    return State(found.sequence, sorted(rows, key=_address), json.dumps(answers), account)


def _address(row: Mapping[str, Any]) -> tuple[str, int]:
    return row["document_id"], row["chunk_index"]


def _rows(storage: Storage, found: Manifest, segment: manifest.SegmentEntry) -> Iterator[dict[str, Any]]:
    """The live rows of a segment with their vectors."""
    folder = f"segments/{segment.id}"
    rows = tables.read(storage.get(f"{folder}/rows.parquet"), tables.ROWS).to_pylist()
    vectors = tables.read(storage.get(f"{folder}/vectors.parquet"), tables.vectors(found.dimension)).to_pylist()
    gone = dead.read(storage, segment, found.dead.get(segment.id)).rows
    for place, row in enumerate(rows):
        if not gone[place]:
            del row["cached_tokens"]
            yield {**row, "vectors": [v["vector"] for v in vectors if v["row"] == place]}


def paid(storage: Storage) -> set[str]:
    """What the ledger durably holds, named as a process logs its calls."""
    found = set()
    for name in ledger_parts.names(storage):
        table = ledger_parts.read(storage, name)
        if "output" in table.schema.names:
            found |= {f"context {hashlib.sha256(o.encode()).hexdigest()}" for o in table["output"].to_pylist()}
        else:
            found |= {f"vector {key.hex()}" for key in table["key"].to_pylist()}
    return found


def copy(source: DirectoryStorage, target: Storage) -> None:
    """Every object of a store, in another."""
    for entry in source.list():
        target.put(entry.name, source.get(entry.name))


def once(calls: Sequence[str]) -> bool:
    """Whether no call was made twice."""
    return len(calls) == len(set(calls))
