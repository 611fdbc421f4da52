"""A corpus opened by a serving system: one snapshot answers, and a newer one takes its place without a query being dropped.

`open(uri)` -> Corpus. A newer snapshot is loaded and warmed aside; a broken one is refused by name and the old one goes on
serving. What is replaced is closed when its last query has ended. No Ray, no vLLM.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from enrichment.errors import OperationError
from enrichment.records import Span
from indexing import layout, manifest
from indexing.expansion import Expansion
from indexing.local_files import LocalFiles
from indexing.manifest import Manifest
from indexing.passages import Passage
from indexing.search import Mode
from indexing.snapshot import Snapshot, open_snapshot
from indexing.storage import Storage, is_remote, open_storage


class Corpus:
    """A corpus open for reading. Any number of threads may use it, also while one of them calls `refresh`."""

    def __init__(self, storage: Storage, sequence: int | None = None) -> None:
        self.storage = storage
        self._pinned = sequence is not None
        self._files = LocalFiles(storage)
        self._current = open_snapshot(storage, sequence, self._files)
        self._modes: set[Mode] = set()
        self._users: Counter[Snapshot] = Counter()
        self._closed = False
        self._lock = threading.Lock()  # of the four above, held for a moment
        self._refreshing = threading.Lock()

    @property
    def manifest(self) -> Manifest:
        """The manifest of the snapshot that answers now."""
        return self._current.manifest

    @contextlib.contextmanager
    def using(self, mode: Mode | None = None) -> Iterator[Snapshot]:
        """The snapshot that answers now, for several questions to the same one; it stays open as long as it is used."""
        with self._lock:
            if self._closed:
                raise OperationError(f"{self.storage.uri} was closed; open it again")
            snapshot = self._current
            self._users[snapshot] += 1
            self._modes |= {mode} if mode else set()
        try:
            yield snapshot
        finally:
            with self._lock:
                self._users[snapshot] -= 1
            self._close_unused()

    def search(self, query: str, k: int = 10, mode: Mode = "hybrid", **how: Any) -> list[Passage]:
        """The passages of the k best rows; see `Snapshot.search`."""
        with self.using(mode) as snapshot:
            return snapshot.search(query, k, mode, **how)

    def search_many(
        self, queries: Sequence[str], k: int = 10, mode: Mode = "hybrid", **how: Any
    ) -> list[list[Passage]]:
        """The passages of each of many queries, from one snapshot; see `Snapshot.search_many`."""
        with self.using(mode) as snapshot:
            return snapshot.search_many(queries, k, mode, **how)

    def document(self, document_id: str) -> dict[str, Any]:
        """A document's stored record; see `Snapshot.document`."""
        with self.using() as snapshot:
            return snapshot.document(document_id)

    def rows(self, document_id: str) -> list[dict[str, Any]]:
        """The stored rows of a document; see `Snapshot.rows`."""
        with self.using() as snapshot:
            return snapshot.rows(document_id)

    def original(self, document_id: str, span: tuple[int, int] | None = None) -> str:
        """A document's text, or the bytes `[start, end)` of it; see `Snapshot.original`."""
        with self.using() as snapshot:
            return snapshot.original(document_id, span)

    def window(self, document_id: str, index: int, how: Expansion) -> tuple[Span, str]:
        """A document's chunk by number with what is around it; see `Snapshot.window`."""
        with self.using() as snapshot:
            return snapshot.window(document_id, index, how)

    def refresh(self) -> bool:
        """Take the newest snapshot if it is another one; whether it was. One that was opened by its number stays.

        Raises OperationError if the newest is broken or cannot be read: the one that answers now goes on.
        """
        if self._pinned:
            return False
        with self._refreshing:
            newest = manifest.require_latest(self.storage)
            if newest.nonce == self.manifest.nonce:
                return False
            fresh = self._loaded(newest)
            with self._lock:
                self._users[self._current] += 0  # known even if nobody has used it
                self._users[fresh] += 0
                self._current = fresh
        self._close_unused()
        return True

    def close(self) -> None:
        """Release the files once the last question is answered; later ones fail."""
        with self._lock:
            self._closed = True
            self._users[self._current] += 0
        self._close_unused()

    def _loaded(self, found: Manifest) -> Snapshot:
        """A snapshot whose files are all verified, with what was asked of the one before warm. Originals on S3 are read
        and verified document by document, when they are asked for.
        """
        for segment in found.segments:
            for entry in segment.files:
                if entry.name != layout.ORIGINALS or not is_remote(self.storage.uri):
                    self._files.verified(segment, entry)
        fresh = Snapshot(self.storage, found, self._files)
        try:
            fresh.warm("lexical")  # opens the indexes; an embedder is loaded only where one was needed before
            for mode in self._modes.copy():
                fresh.warm(mode)
        except BaseException:
            fresh.close()
            raise
        return fresh

    def _close_unused(self) -> None:
        with self._lock:
            unused = [s for s, n in self._users.items() if not n and (self._closed or s is not self._current)]
            for snapshot in unused:
                del self._users[snapshot]
        for snapshot in unused:
            snapshot.close()


def open(uri: str, snapshot: int | None = None) -> Corpus:
    """Open the newest snapshot of a corpus, or the one with the given sequence number. Raises ConfigError if there is none."""
    return Corpus(open_storage(uri), snapshot)
