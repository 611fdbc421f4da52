"""Which documents a search may find: by metadata, by title, by the beginning of their ids.

(filter, documents.parquet of a segment) -> a mask of its rows. The indexes leave out what the mask refuses inside the search,
so that a filtered search is as full as any other.
"""

import json
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from enrichment.errors import ConfigError

_SURROGATE = re.compile("[\ud800-\udfff]")

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Filter:
    """All that is given must hold. `where` are (key, value) pairs of the metadata, exact; `title` is a part of the title in any
    case of letters; `id_prefix` is exact.
    """

    where: tuple[tuple[str, str], ...] = ()
    title: str | None = None
    id_prefix: str | None = None

    def __bool__(self) -> bool:
        return bool(self.where or self.title or self.id_prefix)

    def rows(self, documents: pa.Table, num_rows: int) -> Mask:
        """`(num_rows,) bool`: the rows of the documents that the filter lets through."""
        admitted = self._documents(documents)
        counts = documents["num_rows"].to_numpy()
        if int(counts.sum()) != num_rows:
            raise ValueError(f"the documents have {counts.sum()} rows, their segment has {num_rows}")
        return np.repeat(admitted, counts)  # documents stand in the order of their rows

    def _documents(self, documents: pa.Table) -> Mask:
        admitted = np.ones(documents.num_rows, np.bool_)
        if self.id_prefix:
            admitted &= _mask(pc.starts_with(documents["id"], _sound(self.id_prefix)))
        if self.title:
            admitted &= _mask(pc.match_substring(documents["title"], _sound(self.title), ignore_case=True))
        for key, value in self.where:
            admitted &= _having(documents["metadata"], _sound(key), _sound(value))
        return admitted


NO_FILTER = Filter()


def parse_pairs(pairs: list[str]) -> tuple[tuple[str, str], ...]:
    """`key=value` as written on a command line, in one order whatever the order given. Raises ConfigError."""
    found = []
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise ConfigError(f"{pair!r} is no condition on metadata; write key=value")
        found.append((key, value))
    return tuple(sorted(found))


def _sound(text: str) -> str:
    """What was asked for as stored texts have it: lone surrogates, which no Arrow string holds, are U+FFFD there."""
    return _SURROGATE.sub("\ufffd", text)


def _mask(found: pa.ChunkedArray) -> Mask:
    """Null (no title) is no match."""
    bits: Mask = pc.fill_null(found, False).to_numpy(zero_copy_only=False).astype(np.bool_)
    return bits


def _having(metadata: pa.ChunkedArray, key: str, value: str) -> Mask:
    """Which JSON objects of strings have `value` under `key`.

    Only those that hold both as words of JSON are parsed: a segment may have as many objects as documents.
    """
    candidates = np.ones(len(metadata), np.bool_)
    for word in (key, value):
        candidates &= _mask(pc.match_substring(metadata, json.dumps(word, ensure_ascii=False)))
    places = np.flatnonzero(candidates)
    for place, text in zip(places, metadata.take(pa.array(places)).to_pylist(), strict=True):
        candidates[place] = json.loads(text).get(key) == value
    return candidates
