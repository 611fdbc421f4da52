"""The stored texts of a snapshot's documents, read by range and verified: each once, in as few reads as possible.

(segment, document, byte span) -> original text. A local file is verified whole at its first
use, and again when it changed. Of a remote one whole documents are read and compared with their hashes, those of one file
that lie near each other in one read; the last ones are kept.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from enrichment.errors import OperationError
from indexing import layout
from indexing.local_files import LocalFiles
from indexing.manifest import SegmentEntry
from indexing.storage import Storage, is_remote

MERGED_GAP_BYTES = 1 << 20
"""Read along rather than asked for again: a request to S3 takes some 20 ms until its first byte, in which 1 to 2 MB pass."""
MERGED_BYTES = 16 << 20
"""The most that one read of several documents takes into memory."""
KEPT_BYTES = 32 << 20
"""Of remote documents, those that were asked for last: neighbours' windows and the next questions often want the same."""


class Slice(NamedTuple):
    """Bytes `[start, end)` of the original of the document at `place` in the segment `segment`, both by their places."""

    segment: int
    place: int
    start: int
    end: int


Key = tuple[int, int]


class Originals:
    """The originals of the segments of one snapshot; `documents[s]` are their tables. Any number of threads may read."""

    def __init__(
        self, storage: Storage, segments: Sequence[SegmentEntry], documents: Sequence[pa.Table], files: LocalFiles
    ) -> None:
        self._storage, self._segments, self._documents, self._files = storage, segments, documents, files
        self._kept: OrderedDict[Key, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._lock = threading.Lock()  # of what is kept

    def read(self, slices: Sequence[Slice]) -> list[str]:
        """The text of each slice. Raises OperationError, naming the file, where it is not what was stored."""
        if not is_remote(self._storage.uri):
            return [self._local(wanted) for wanted in slices]
        by_document: dict[Key, list[Slice]] = {}
        for wanted in slices:
            by_document.setdefault((wanted.segment, wanted.place), []).append(wanted)
        found: dict[Slice, str] = {}
        for key, text in self._texts(by_document):
            found |= {wanted: text[wanted.start : wanted.end].decode() for wanted in by_document[key]}
        return [found[wanted] for wanted in slices]

    def _texts(self, keys: Iterable[Key]) -> Iterator[tuple[Key, bytes]]:
        """Whole documents, in any order: one after the other, so that a result of large ones is never in memory at once."""
        missing: dict[int, list[int]] = {}
        for segment, place in sorted(keys):
            text = self._recall((segment, place))
            if text is None:
                missing.setdefault(segment, []).append(place)
            else:
                yield (segment, place), text
        for segment, places in missing.items():
            yield from self._fetched(segment, places)

    def _local(self, wanted: Slice) -> str:
        self._files.named(self._segments[wanted.segment], layout.ORIGINALS)  # hashed once, unless it changes
        offset = self._documents[wanted.segment]["offset"][wanted.place].as_py()
        length = wanted.end - wanted.start
        return self._storage.get_range(self._name(wanted.segment), offset + wanted.start, length).decode()

    def _fetched(self, segment: int, places: Sequence[int]) -> Iterator[tuple[Key, bytes]]:
        """Documents of one segment, which lie in its file in order of their places."""
        columns = ("offset", "length", "id", "text_sha256")
        table = self._documents[segment].select(columns).take(pa.array(places)).to_pylist()
        for group in _groups([(row["offset"], row["offset"] + row["length"]) for row in table]):
            first, last = table[group[0]]["offset"], max(table[n]["offset"] + table[n]["length"] for n in group)
            data = self._storage.get_range(self._name(segment), first, last - first)
            for number in group:
                row = table[number]
                text = data[row["offset"] - first : row["offset"] - first + row["length"]]
                if hashlib.sha256(text).hexdigest() != row["text_sha256"]:
                    where = f"{self._storage.uri}/{self._name(segment)}"
                    raise OperationError(
                        f"{where} does not hold the text of {row['id']}: it is damaged; restore it or roll back"
                    )
                self._keep((segment, places[number]), text)
                yield (segment, places[number]), text

    def _name(self, segment: int) -> str:
        return layout.segment(self._segments[segment].id, layout.ORIGINALS)

    def _recall(self, key: Key) -> bytes | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def _keep(self, key: Key, text: bytes) -> None:
        with self._lock:
            if key not in self._kept:
                self._kept[key] = text
                self._kept_bytes += len(text)
            while self._kept_bytes > KEPT_BYTES:
                self._kept_bytes -= len(self._kept.popitem(last=False)[1])


def _groups(ranges: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """The places of ranges, which come in order, that one read takes together."""
    group: list[int] = []
    for place, (start, end) in enumerate(ranges):
        if group:
            first, last = ranges[group[0]][0], ranges[group[-1]][1]
            if start - last > MERGED_GAP_BYTES or end - first > MERGED_BYTES:
                yield group
                group = []
        group.append(place)
    if group:
        yield group
