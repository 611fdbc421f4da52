"""A refresh that is killed at any instant: the same command finishes, as if nothing had been. P4, P5, P6, P13, P34.

A real process runs the command, on a night that changes, adds, deletes, renames and compacts, and is gone with all that it
started; then the same command runs again. A reader in a process of its own reads all the while. In the end rows, vectors and
answers are those of a run that nobody killed.

What may be paid twice, exactly: what was being worked on, which is one block of documents per worker, and one document here.
What had reached the ledger is never paid again, and nothing is paid twice by one process.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import moments
import night
import pytest

from indexing import manifest, verification
from indexing.storage import DirectoryStorage, Storage, open_storage

MOMENTS = [
    *(f"after {kind}" for kind in (*moments.STORE, *moments.REMOVED)),
    "before local lexical",
    "after local lexical",
]
BEFORE = [f"before {kind}" for kind in (*moments.STORE, *moments.LOCAL)]
SEEDS = range(5)
PAID_AGAIN_AT_MOST = night.MOST_CHUNKS


@dataclass(frozen=True)
class Calm:
    """What an uncrashed run does: the states before and after it, what it pays for, and how long it takes."""

    yesterday: DirectoryStorage
    before: night.State
    after: night.State
    calls: frozenset[str]
    seconds: float


@pytest.fixture(scope="module")
def reader(s3_server: object) -> Iterator[night.Reader]:
    found = night.Reader()
    yield found
    found.close()


@pytest.fixture(scope="module")
def calm(nursery: night.Nursery, yesterday: DirectoryStorage, tmp_path_factory: pytest.TempPathFactory) -> Calm:
    root = tmp_path_factory.mktemp("calm")
    storage = DirectoryStorage(root / "corpus")
    before = night.state(yesterday)
    night.copy(yesterday, storage)
    night.configure(root, "corpus", night.TONIGHT)
    ended = nursery.run(root)
    assert ended.status == 0, ended.stderr
    after = night.state(storage)
    assert (before.sequence, after.sequence) == (1, 2) and before.answers != after.answers
    counts = after.account["counts"][0]
    assert {n: counts[n] for n in ("new", "changed", "deleted", "renamed")} == {
        "new": 2,
        "changed": 2,
        "deleted": 2,
        "renamed": 1,
    }
    digests = [entry["digests"] for entry in (before.account, after.account)]
    assert [len(found) for found in digests] == [2, 3] and len({*digests[0]} & {*digests[1]}) == 1, "one is rewritten"
    assert after.account["dead"], "one has a dead document"
    assert set(ended.calls) <= night.paid(storage) and night.once(ended.calls)
    return Calm(yesterday, before, after, frozenset(ended.calls), ended.seconds)


@dataclass(frozen=True)
class Stage:
    """Where a night is run: its directory, and the store, which is in it or on S3."""

    directory: Path
    storage: Storage
    corpus: str


@pytest.fixture
def place(request: pytest.FixtureRequest, calm: Calm, tmp_path: Path) -> Callable[[str], Stage]:
    """`place("directory" | "s3")`: yesterday's corpus in a store of that kind, and tonight's sources."""

    def prepared(kind: str) -> Stage:
        corpus = request.getfixturevalue("s3_bucket")() if kind == "s3" else "corpus"
        night.configure(tmp_path, corpus, night.TONIGHT)
        storage = open_storage(corpus if kind == "s3" else str(tmp_path / "corpus"))
        night.copy(calm.yesterday, storage)
        return Stage(tmp_path, storage, corpus)

    return prepared


def environment(server: object) -> dict[str, str]:
    url = server.url  # type: ignore[attr-defined]
    keys = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "dummy")
    return {"AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": "us-east-1", **keys}


@pytest.fixture
def crash(
    nursery: night.Nursery, reader: night.Reader, calm: Calm, place: Callable[[str], Stage], s3_server: object
) -> Callable[..., bool]:
    """`crash(kind, moment=... | kill_after_s=...)`: kill, run again, compare; whether the kill came before the end."""

    def crash_and_finish(kind: str, moment: str = "", kill_after_s: float | None = None) -> bool:
        stage = place(kind)
        known = night.paid(stage.storage)
        environ = environment(s3_server) | {"SITUATE_CACHE": str(stage.directory / "cache")}
        with reader.watching(stage.storage.uri, stage.directory) as seen:
            first = nursery.run(stage.directory, moment, kill_after_s=kill_after_s, **environ)
            durable = night.paid(stage.storage)
            assert first.status in ((-9,) if moment else (-9, 0)), first.stderr
            second = nursery.run(stage.directory, **environ)
            assert second.status == 0, second.stderr
        check_payments(calm, known, durable, first, second)
        check_reads(calm, seen)
        assert manifest.sequences(stage.storage) == [1, 2]
        found = night.state(stage.storage)
        addresses = [(row["document_id"], row["chunk_index"]) for row in found.rows]
        assert len(addresses) == len(set(addresses)), "one row per chunk"
        assert found == calm.after and night.state(stage.storage, 1) == calm.before
        assert verification.verify(stage.storage)["problems"] == []
        return first.status != 0

    return crash_and_finish


def check_payments(calm: Calm, known: set[str], durable: set[str], first: night.Ended, second: night.Ended) -> None:
    assert known <= durable, "the ledger only grows"
    assert night.once(first.calls) and night.once(second.calls)
    assert not {*first.calls} & known and not {*second.calls} & durable, "what the ledger had was paid again"
    assert {*first.calls} | {*second.calls} == calm.calls, "nothing else is asked for"
    again = {*first.calls} & {*second.calls}
    for what in ("context", "vector"):
        number = sum(call.startswith(what) for call in again)
        assert number <= PAID_AGAIN_AT_MOST, f"{number} of one kind were paid again"


def check_reads(calm: Calm, seen: dict[str, object]) -> None:
    assert seen["errors"] == []
    answers: dict[str, list[str]] = seen["answers"]  # type: ignore[assignment]
    expected = {str(state.sequence): [state.answers] for state in (calm.before, calm.after)}
    assert {"2"} <= answers.keys() <= expected.keys()
    assert answers == {sequence: expected[sequence] for sequence in answers}


@pytest.mark.parametrize("moment", [*MOMENTS, "before manifest", "before segment documents.parquet"])
def test_after_a_crash_at_a_named_moment_the_same_command_finishes(crash: Callable[..., bool], moment: str) -> None:
    assert crash("directory", moment)


@pytest.mark.parametrize("seed", SEEDS)
def test_after_a_crash_at_a_random_moment_the_same_command_finishes(
    crash: Callable[..., bool], calm: Calm, seed: int
) -> None:
    crash("directory", kill_after_s=random.Random(seed).uniform(0, calm.seconds))


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["directory", "s3"])
@pytest.mark.parametrize("moment", [*MOMENTS, *BEFORE])
def test_every_named_moment_on_every_store(crash: Callable[..., bool], kind: str, moment: str) -> None:
    assert crash(kind, moment)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["directory", "s3"])
@pytest.mark.parametrize("seed", range(50))
def test_fifty_random_moments_on_every_store(crash: Callable[..., bool], calm: Calm, kind: str, seed: int) -> None:
    longer = 1.0 if kind == "directory" else 2.5  # the server here is slower than a disk
    crash(kind, kill_after_s=random.Random(1000 + seed).uniform(0, longer * calm.seconds))
