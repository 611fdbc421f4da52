"""A full disk, or a limit on file sizes, at each kind of file that a night writes: yesterday serves as before. P19, P23.

The system itself refuses the write: a small file system that is filled to its last page at that moment (ENOSPC), or a limit
on file sizes that begins to hold there (EFBIG). The command ends non-zero with one sentence that names a file or folder and
says what to do, and nothing is damaged. Every attempt goes on from the one before, so each also gets past what stopped that
one; the last has room and ends well.
"""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import moments
import night
import pytest

from indexing import layout, manifest, verification
from indexing.storage import DirectoryStorage

COMMIT = moments.STORE.index("manifest")
BEFORE_COMMIT = (
    *("heartbeat.json", "probe", "progress.json", "ledger contexts", "ledger vectors"),
    *(kind for kind in moments.LOCAL if "staged" in kind),
    *(kind for kind in moments.STORE if kind.startswith("staged")),
    *(kind for kind in moments.LOCAL if "staged" not in kind),
    *(kind for kind in moments.STORE[:COMMIT] if kind.startswith(("segment", "compacted"))),
    *("dead", "manifest"),
)
"""In the order of a night; a context that is in the ledger is not written there again."""
AFTER_COMMIT = moments.STORE[COMMIT + 1 :]
ACTIONS = ["fill", pytest.param("limit", marks=pytest.mark.soak)]  # the shorter suite has the limit from the start
ADVICE = {"fill": "make room", "limit": "raise the limit"}
SENTENCE = re.compile(r"situate: (?P<file>\S+) cannot be written: .+; .+ and run the same command again")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system of its own can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


Attempt = Callable[..., night.Ended]


@pytest.fixture
def attempt(nursery: night.Nursery, yesterday: DirectoryStorage, tmp_path: Path) -> Attempt:
    """`attempt(folder, ...)`: run tonight there on yesterday's corpus, or on what the attempt before left."""

    def run(folder: Path, **given: object) -> night.Ended:
        if not (folder / "docs").exists():
            night.copy(yesterday, DirectoryStorage(folder / "corpus"))
        night.configure(folder, "corpus", night.TONIGHT)
        return nursery.run(folder, logs=tmp_path, **given)  # type: ignore[arg-type]

    return run


def kind_of(named: str, folder: Path) -> str:
    """What kind of file a sentence names, as `moments` calls it."""
    if named.startswith("corpus/"):
        return moments.kind_of(named.removeprefix("corpus/"))
    path = Path(named)
    assert path.is_relative_to(folder)
    return moments.local_kind_of(path)


def check_failure(ended: night.Ended, folder: Path, advice: str) -> str:
    """Non-zero, and one sentence about a file or folder of this night, with what to do; which file."""
    assert ended.status == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    *before, last = ended.stderr.splitlines()
    assert not any(line.startswith("situate:") for line in before)
    found = SENTENCE.fullmatch(last)
    assert found and advice in last, ended.stderr
    assert found["file"].startswith(("corpus/", str(folder))), last
    left = [path.name for path in (folder / "corpus").rglob("*") if path.name.endswith(".situate-tmp")]
    assert left == [], "half a file was left behind"
    return found["file"]


def check_yesterday(folder: Path, before: night.State) -> None:
    storage = DirectoryStorage(folder / "corpus")
    assert manifest.sequences(storage) == [1]
    assert night.state(storage) == before
    assert verification.verify(storage)["problems"] == []


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where the night is: on a disk of its own if it is to be filled."""
    if request.node.callspec.params["action"] == "fill":
        return Path(request.getfixturevalue("disk"))
    (tmp_path / "night").mkdir()
    return tmp_path / "night"


@pytest.mark.parametrize("action", ACTIONS)
def test_no_room_at_any_write_leaves_yesterday(
    attempt: Attempt, yesterday: DirectoryStorage, folder: Path, action: str
) -> None:
    before = night.state(yesterday)
    dense = next(file for file in manifest.require_latest(yesterday).segments[0].files if file.name == layout.DENSE)
    assert dense.size_bytes < 4096, "FAISS itself calls such a file written on a full disk"
    for kind in BEFORE_COMMIT:
        ended = attempt(folder, moment=f"before {kind}" if kind.startswith("local") else f"at {kind}", action=action)
        (folder / "ballast").unlink(missing_ok=True)
        try:
            named = check_failure(ended, folder, ADVICE[action])
            assert kind_of(named, folder) == kind.replace("compacted", "segment"), named
            check_yesterday(folder, before)
        except AssertionError as error:
            raise AssertionError(f"{kind}: {error}") from error
    ended = attempt(folder)
    assert ended.status == 0, ended.stderr
    assert manifest.sequences(DirectoryStorage(folder / "corpus")) == [1, 2]
    assert verification.verify(DirectoryStorage(folder / "corpus"))["problems"] == []


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("kind", AFTER_COMMIT)
def test_no_room_for_a_record_after_the_commit_leaves_tonight(
    attempt: Attempt, folder: Path, action: str, kind: str
) -> None:
    """What is published stays published; nobody is told that it was not, and the same command says so."""
    ended = attempt(folder, moment=f"at {kind}", action=action)
    (folder / "ballast").unlink(missing_ok=True)
    named = check_failure(ended, folder, ADVICE[action])
    assert kind_of(named, folder) == kind, named
    storage = DirectoryStorage(folder / "corpus")
    assert manifest.sequences(storage) == [1, 2]
    tonight = night.state(storage)
    assert attempt(folder).status == 0
    assert manifest.sequences(storage) == [1, 2] and night.state(storage) == tonight
    assert verification.verify(storage)["problems"] == []


def test_a_disk_that_fills_up_by_itself(attempt: Attempt, yesterday: DirectoryStorage, disk: Path) -> None:
    """From no room to enough, a few pages more each time."""
    before, statuses = night.state(yesterday), []
    attempt(disk, moment="at heartbeat.json", action="fill")
    ballast = disk / "ballast"
    for pages in (0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128):
        os.truncate(ballast, ballast.stat().st_size - 4096 * pages)
        ended = attempt(disk)
        statuses.append(ended.status)
        if ended.status == 0:
            break
        check_failure(ended, disk, ADVICE["fill"])
        check_yesterday(disk, before)
    assert statuses[-1] == 0 and len(statuses) > 4, statuses
    assert verification.verify(DirectoryStorage(disk / "corpus"))["problems"] == []


def test_a_limit_on_file_sizes_from_the_start(attempt: Attempt, yesterday: DirectoryStorage, tmp_path: Path) -> None:
    before, statuses = night.state(yesterday), []
    (tmp_path / "night").mkdir()
    for limit in (0, 100, 300, 1000, 2000, 3000, 4500, 6000, 7000, 8000, 9000, 64_000):
        ended = attempt(tmp_path / "night", limit=limit)
        statuses.append(ended.status)
        if ended.status == 0:
            break
        check_failure(ended, tmp_path / "night", ADVICE["limit"])
        check_yesterday(tmp_path / "night", before)
    assert statuses[-1] == 0 and len(statuses) > 8, statuses
