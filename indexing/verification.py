"""Whether a store still holds what its manifests say: every file's size and hash, and that a segment's files agree.

All kept snapshots are looked at, because a rollback needs the older ones too; a segment that several list is read once. What is
found is named by file and by the snapshots that it breaks. Nothing is repaired and nothing is trusted that lies in a cache.
"""

import json
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from enrichment.errors import ConfigError, OperationError
from indexing import contents, dead, layout, ledger_parts, manifest, trained
from indexing.disk import file_sha256
from indexing.manifest import Manifest, SegmentEntry, TrainedEntry
from indexing.storage import MissingObjectError, Storage

_SUCCESSES = 5  # newest records of runs that are looked at


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that is not as it should be; `snapshots` list it."""

    file: str
    problem: str
    snapshots: tuple[int, ...] = ()


@dataclass(slots=True)
class _Tally:
    """What was looked at; `segments_read` of `segments` were read, all of them listed."""

    snapshots: int = 0
    segments: int = 0
    segments_read: int = 0
    files: int = 0
    bytes_read: int = 0
    ledger_parts: int = 0


def verify(storage: Storage, share: float = 1.0) -> dict[str, Any]:
    """Look at everything; of the segments and the ledger's parts read a random `share`, at least one of each.

    Returns what was looked at and `problems`. Raises ConfigError for a store without a snapshot.
    """
    if not 0 < share <= 1:
        raise ConfigError(f"--sample is {share}; it must be a share above 0 and at most 1")
    if not manifest.sequences(storage):
        raise ConfigError(f"{storage.uri} holds no snapshot; check the path")
    tally = _Tally()
    found = list(_problems(storage, share, tally))
    return {**asdict(tally), "problems": [asdict(problem) for problem in found], "ok": not found}


def _problems(storage: Storage, share: float, tally: _Tally) -> Iterator[Problem]:
    snapshots: list[Manifest] = []
    for sequence in manifest.sequences(storage):
        tally.snapshots += 1
        try:
            snapshots.append(manifest.load(storage, sequence))
        except OperationError as error:
            yield Problem(layout.manifest(sequence), str(error), (sequence,))
    yield from _missing_manifests(storage)
    listed: dict[str, tuple[SegmentEntry, int]] = {
        segment.id: (segment, snapshot.dimension) for snapshot in snapshots for segment in snapshot.segments
    }
    shared, damaged = _trained(storage, snapshots, tally)
    yield from damaged
    chosen = set(_sampled(sorted(listed), share))
    tally.segments, tally.segments_read = len(listed), len(chosen)
    for segment_id in sorted(listed):
        users = tuple(s.sequence for s in snapshots if any(each.id == segment_id for each in s.segments))
        for file, problem in _segment(storage, *listed[segment_id], shared, segment_id in chosen, tally):
            yield Problem(layout.segment(segment_id, file), problem, users)
    yield from _bitmaps(storage, snapshots, tally)
    yield from _ledger(storage, share, tally)


def _missing_manifests(storage: Storage) -> Iterator[Problem]:
    """Gaps, and snapshots behind the newest one that a run says it published; the oldest ones are dropped by `gc`."""
    there = manifest.sequences(storage)
    names = [entry.name for entry in storage.list(layout.RUNS) if entry.name.endswith(f"/{layout.SUCCESS}")]
    published: list[int] = []
    for name in names[-_SUCCESSES:]:
        try:
            published.append(int(json.loads(storage.get(name))["snapshot"]))
        except (ValueError, KeyError, TypeError):
            yield Problem(name, "is not the record of a run; remove it")
    for sequence in sorted(set(range(there[0], max([there[-1], *published]) + 1)) - set(there)):
        yield Problem(layout.manifest(sequence), "is missing", (sequence,))


def _segment(
    storage: Storage,
    segment: SegmentEntry,
    dimension: int,
    shared: Mapping[str, TrainedEntry],
    read: bool,
    tally: _Tally,
) -> Iterator[tuple[str, str]]:
    """The problems of one segment: by the listing alone, or also by all that its files hold."""
    folder = layout.segment(segment.id, "")
    sizes = {entry.name.removeprefix(folder): entry.size_bytes for entry in storage.list(folder)}
    sound = True
    for name in sorted(sizes.keys() - {file.name for file in segment.files}):
        sound = False  # Lucene takes the newest of its lists of files, whoever put it there
        yield name, "is listed by no manifest"
    with tempfile.TemporaryDirectory(prefix="situate-verify-") as work:
        directory = Path(work)
        for file in segment.files:
            tally.files += 1
            problem = None
            if file.name not in sizes:
                problem = "is missing"
            elif sizes[file.name] != file.size_bytes:
                problem = f"has {sizes[file.name]} bytes, the manifest says {file.size_bytes}"
            elif read:
                tally.bytes_read += file.size_bytes
                problem = _fetched(storage, folder + file.name, directory / file.name, file.sha256)
            if problem is not None:
                sound = False
                yield file.name, problem
        # What was built with a trained file that is damaged cannot be compared; that file is named already.
        if read and sound and (segment.trained is None or segment.trained in shared):
            lists = trained.fetched(storage, shared[segment.trained], directory) if segment.trained else None
            yield from contents.problems(directory, segment, dimension, lists)


def _trained(
    storage: Storage, snapshots: Sequence[Manifest], tally: _Tally
) -> tuple[Mapping[str, TrainedEntry], list[Problem]]:
    """The trained files that are sound, by id, and what is wrong: with the others, or with who lists them."""
    sound: dict[str, TrainedEntry] = {}
    problems = []
    for entry in {s.dense.trained for s in snapshots if s.dense.trained}:
        tally.files += 1
        users = tuple(s.sequence for s in snapshots if s.dense.trained == entry)
        with tempfile.TemporaryDirectory(prefix="situate-verify-") as work:
            try:
                trained.fetched(storage, entry, Path(work))
                sound[entry.id] = entry
                tally.bytes_read += entry.size_bytes
            except OperationError as error:
                sentence = "is missing" if isinstance(error, MissingObjectError) else str(error)
                problems.append(Problem(layout.trained(entry.id), sentence, users))
    for snapshot in snapshots:
        try:
            manifest.check_lists(snapshot)
        except OperationError as error:
            problems.append(Problem(layout.manifest(snapshot.sequence), str(error), (snapshot.sequence,)))
    return sound, sorted(problems, key=lambda problem: problem.file)


def _fetched(storage: Storage, name: str, path: Path, sha256: str) -> str | None:
    """Have a file in the work directory; what is wrong with it."""
    try:
        found = storage.fetch(name, path)
    except MissingObjectError:
        return "is missing"
    if found != path:  # on a local disk it is used where it lies
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(found.absolute())
    return None if file_sha256(path) == sha256 else "holds other bytes than the manifest says"


def _bitmaps(storage: Storage, snapshots: Sequence[Manifest], tally: _Tally) -> Iterator[Problem]:
    users: dict[str, list[int]] = {}
    sentences: dict[str, str] = {}
    for snapshot in snapshots:
        segments = {segment.id: segment for segment in snapshot.segments}
        for segment_id, entry in snapshot.dead.items():
            name = layout.dead(segment_id, entry.sha256)
            users.setdefault(name, []).append(snapshot.sequence)
            if len(users[name]) == 1:
                tally.files += 1
            try:
                if segment_id not in segments:
                    raise OperationError("is of a segment that its snapshot does not list")
                dead.read(storage, segments[segment_id], entry)
            except OperationError as error:
                sentences[name] = "is missing" if isinstance(error, MissingObjectError) else str(error)
    for name, sentence in sentences.items():
        yield Problem(name, sentence, tuple(users[name]))


def _ledger(storage: Storage, share: float, tally: _Tally) -> Iterator[Problem]:
    """What was paid for; no snapshot needs it, the next refresh does."""
    parts = [entry.name for entry in storage.list(layout.LEDGER)]
    for name in _sampled(parts, share):
        tally.ledger_parts += 1
        try:
            ledger_parts.read(storage, name)
        except OperationError as error:
            yield Problem(name, str(error))


def _sampled(names: Sequence[str], share: float) -> list[str]:
    return sorted(random.sample(names, max(1, round(len(names) * share)))) if names else []
