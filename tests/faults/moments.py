"""The named moments of a night, made from outside by wrapping what the package calls: nothing in the package knows of them.

Each write of an object of the store has three, by the object's kind (`manifest`, `segment dense.faiss`): `at X` when the write
begins, `before X` when its temporary file is durable and not yet in place (on S3: when the
write begins), `after X`. Of a file of this machine X begins with `local`, and there is no `at`. What compaction does begins
with `compacted`. A log of what was paid goes to a file outside the corpus.
"""

import functools
import hashlib
import os
import resource
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from enrichment import embed
from enrichment.embed import FakeEmbedder
from enrichment.fake_engine import FakeEngine
from indexing import compaction, dense_files, lexical_build, segments, tables
from indexing.s3 import S3Storage
from indexing.storage import DirectoryStorage

STORE = (
    *("heartbeat.json", "probe", "progress.json", "ledger contexts", "ledger vectors"),
    *("staged rows.parquet", "staged vectors.parquet", "staged documents.parquet"),
    *("segment dense.faiss", "segment documents.parquet", "segment lexical", "segment originals.bin"),
    *("segment rows.parquet", "segment vectors.parquet"),
    *("compacted dense.faiss", "compacted lexical", "compacted vectors.parquet"),
    *("dead", "manifest", "events.jsonl", "documents.parquet", "report.json", "success.json"),
)
"""The kinds of objects that a night writes, in about this order."""
REMOVED = ("removed probe", "removed staged", "removed heartbeat.json")
LOCAL = (
    *("local staged rows.parquet", "local staged vectors.parquet", "local staged documents.parquet"),
    *("local originals.bin", "local documents.parquet", "local rows.parquet", "local vectors.parquet"),
    *("local dense.faiss", "local lexical"),
)
"""The files that a night writes beside the store, in the folder for temporary ones."""

_work = threading.local()


def kind_of(name: str) -> str:
    """What kind of object a name is."""
    folder, _, rest = name.partition("/")
    if folder == "manifests":
        return "manifest"
    if folder == "ledger":
        return f"ledger {rest.partition('/')[2].partition('-')[0]}"
    if folder == "segments":
        file = rest.split("/")[1]
        return f"{'compacted' if getattr(_work, 'compacts', False) else 'segment'} {file}"
    if folder == "runs":
        parts = rest.split("/")
        return f"staged {parts[3]}" if parts[1] == "staged" else "probe" if parts[1].startswith("probe-") else parts[1]
    return folder


def local_kind_of(path: Path) -> str:
    """What kind of table or index a file of this machine is."""
    return f"local {'staged ' if path.parent.name.startswith('situate-part-') else ''}{path.name}"


def install(moment: str, action: str, log: int) -> None:
    """Do `action` at the first time of `moment` in this process; log each call of a model to the descriptor `log`."""
    actions: dict[str, Callable[[], None]] = {"kill": kill, "fill": fill_disk, "limit": limit_files}
    waiting = [(moment, actions[action])] if moment else []

    def reached(name: str) -> None:
        if waiting and waiting[0][0] == name:
            waiting.pop()[1]()

    _announce_store(reached)
    _announce_local(reached)
    _log_calls(log)


def kill() -> None:
    """The machine is gone: this process and all that it started."""
    os.killpg(0, signal.SIGKILL)
    signal.pause()  # the signal may come a little later than the next line would


def fill_disk() -> None:
    """Take what is left of the file system of the current directory, to the last page."""
    with open("ballast", "ab", buffering=0) as file:  # noqa: SIM115
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def limit_files() -> None:
    """Let no file grow any more, in this process or in what it starts."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def _announce_store(reached: Callable[[str], None]) -> None:
    for store in (DirectoryStorage, S3Storage):
        for method in ("put", "put_file", "create", "replace"):
            _around(
                store, method, lambda self, name, *_: kind_of(name), reached, "before" if store is S3Storage else None
            )
            _around(store, method, lambda self, name, *_: kind_of(name), reached, "at", None)
        _around(store, "delete", lambda self, name: f"removed {kind_of(name).partition(' ')[0]}", reached)
    for move in ("replace", "link"):
        _move(move, reached)


def _move(call: str, reached: Callable[[str], None]) -> None:
    """A directory's object comes into its place by a move of its temporary file."""
    original = getattr(os, call)

    def moved(source: Any, target: Any, *rest: Any, **named: Any) -> Any:
        if str(source).endswith(".situate-tmp"):
            folders = Path(target).parts
            top = next(
                i
                for i, part in enumerate(folders)
                if part in ("manifests", "ledger", "segments", "runs", "dead", "trained")
            )
            reached(f"before {kind_of('/'.join(folders[top:]))}")
        return original(source, target, *rest, **named)

    setattr(os, call, moved)


def _announce_local(reached: Callable[[str], None]) -> None:
    _around(tables, "write", lambda _, path: local_kind_of(path), reached, "before")
    _around(segments, "_place", lambda *_: "local originals.bin", reached, "before")
    _around(dense_files, "build", lambda *_: "local dense.faiss", reached, "before")
    _around(lexical_build, "run_java", lambda *_: "local lexical", reached, "before")
    rewrite = compaction.rewrite

    @functools.wraps(rewrite)
    def compacts(*given: Any, **named: Any) -> Any:
        _work.compacts = True
        try:
            return rewrite(*given, **named)
        finally:
            _work.compacts = False

    compaction.rewrite = compacts


def _around(
    owner: Any,
    name: str,
    kind: Callable[..., str],
    reached: Callable[[str], None],
    first: str | None = None,
    last: str | None = "after",
) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*given: Any, **named: Any) -> Any:
        found = kind(*given)
        reached(f"{first} {found}")
        result = original(*given, **named)
        reached(f"{last} {found}")
        return result

    setattr(owner, name, call)


def _log_calls(descriptor: int) -> None:
    """A line per context asked for (by its answer, which names its prompt) and per vector (by its key), before it is given."""
    generate, passages = FakeEngine.generate, FakeEmbedder.embed_passages

    async def logged(self: Any, *given: Any) -> Any:
        completion = await generate(self, *given)
        os.write(descriptor, f"context {hashlib.sha256(completion.text.encode()).hexdigest()}\n".encode())
        return completion

    def embedded(self: Any, texts: Any) -> Any:
        for text in texts:
            os.write(descriptor, f"vector {embed.vector_key(self.passage_fingerprint, text).hex()}\n".encode())
        return passages(self, texts)

    FakeEngine.generate = logged  # type: ignore[method-assign]
    FakeEmbedder.embed_passages = embedded  # type: ignore[method-assign]
