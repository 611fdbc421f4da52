"""Which segments are worth rewriting, and their live documents as parts of new ones. No model and no embedder is asked.

A segment is due when more than `dead_share` of it is dead, or when `pile` segments of like size have piled up; larger ones
pile up more slowly, so a document is rewritten a few times in all and the number of segments grows with the logarithm of the
nights. What falls due is done within `max_share` of the corpus's bytes a night, the most urgent first, and always at
least one of it: a segment that is larger than the share would else never be done.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from enrichment.errors import ConfigError
from indexing import layout, tables
from indexing.dead import Dead
from indexing.local_files import LocalFiles
from indexing.manifest import SegmentEntry, TrainedEntry
from indexing.segments import IndexOptions, Part, build_from
from indexing.staging import STAGED_DOCUMENTS
from indexing.storage import Storage

ALIKE = 4
"""Segments up to so many times larger than the smallest of a pile are like it: nightly ones, but not what they became."""
REWRITTEN_FROM = (layout.DOCUMENTS, layout.ROWS, layout.VECTORS, layout.ORIGINALS)
"""The files of a segment that hold all of it: indexes are built from them."""
_BATCH_DOCUMENTS = 1000


@dataclass(frozen=True, slots=True)
class CompactionOptions:
    """The `compaction` section of the configuration.

    With 1 % of the documents changing a night, the defaults rewrite 3 % of the corpus a night on average and leave about
    20 segments: 0.3 lets a segment live for 36 nights, and one document in three that a search skips costs it little.
    """

    dead_share: float = 0.3
    pile: int = 10
    max_share: float = 0.1

    def __post_init__(self) -> None:
        for name in ("dead_share", "max_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"compaction.{name} is {getattr(self, name)}; it must be a share above 0, at most 1")
        if self.pile < 2:
            raise ConfigError(f"compaction.pile is {self.pile}; it must be at least 2 segments")


def choose(
    segments: Sequence[SegmentEntry], dead: Mapping[str, Dead], rows_per_segment: int, options: CompactionOptions
) -> list[SegmentEntry]:
    """The segments to rewrite tonight, in their order; `dead` has what is dead in each, tonight's included."""
    live = {segment.id: _live_share(segment, dead[segment.id]) for segment in segments}
    cost = {segment.id: live[segment.id] * sum(file.size_bytes for file in segment.files) for segment in segments}
    mostly_dead = sorted((s for s in segments if 1 - live[s.id] > options.dead_share), key=lambda s: live[s.id])
    rest = [segment for segment in segments if segment not in mostly_dead]
    rows = {segment.id: segment.num_rows - int(dead[segment.id].rows.sum()) for segment in rest}
    due = [[segment] for segment in mostly_dead] + _piles(rest, rows, rows_per_segment, options.pile)
    left_bytes, chosen = options.max_share * sum(cost.values()), set[str]()
    for group in due:
        wanted = sum(cost[segment.id] for segment in group)
        if chosen and wanted > left_bytes:
            break
        chosen |= {segment.id for segment in group}
        left_bytes -= wanted
    return [segment for segment in segments if segment.id in chosen]


def _live_share(segment: SegmentEntry, dead: Dead) -> float:
    """Of rows and documents together: a segment of nothing but empty documents has a share too."""
    gone = int(dead.rows.sum()) + int(dead.documents.sum())
    return 1 - gone / max(1, segment.num_rows + segment.num_documents)


def _piles(
    segments: Sequence[SegmentEntry], rows: Mapping[str, int], rows_per_segment: int, pile: int
) -> list[list[SegmentEntry]]:
    """Groups of at least `pile` segments of like size, the smallest first; segments that are half full are left alone."""
    small = sorted((s for s in segments if rows[s.id] * 2 < rows_per_segment), key=lambda s: rows[s.id])
    groups: list[list[SegmentEntry]] = []
    for segment in small:
        if groups and rows[segment.id] <= ALIKE * max(1, rows[groups[-1][0].id]):
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return [group for group in groups if len(group) >= pile]


def rewrite(
    storage: Storage,
    sources: Sequence[tuple[SegmentEntry, Dead]],
    first_id: str,
    last_id: str,
    dimension: int,
    options: IndexOptions,
    lists: TrainedEntry | None = None,
) -> SegmentEntry:
    """Build and upload the segment of the documents with ids in `[first_id, last_id]` that live in older segments."""
    parts = (live_part(storage, segment, dead, dimension) for segment, dead in sources)
    return build_from(storage, parts, (first_id, last_id), dimension, options, lists)


def live_part(storage: Storage, segment: SegmentEntry, dead: Dead, dimension: int) -> Part:
    """A segment's live documents with texts, rows and vectors, as they were staged once."""
    files = LocalFiles(storage)
    return part({name: files.named(segment, name) for name in REWRITTEN_FROM}, dead, dimension)


def part(files: Mapping[str, Path], dead: Dead, dimension: int) -> Part:
    """The same from the segment's files REWRITTEN_FROM, wherever they lie."""
    documents = tables.read(files[layout.DOCUMENTS], tables.DOCUMENTS).filter(pa.array(~dead.documents))
    texts = _texts(files[layout.ORIGINALS], documents)
    columns = [texts if field.name == "text" else documents[field.name] for field in STAGED_DOCUMENTS]
    rows = tables.read(files[layout.ROWS], tables.ROWS).filter(pa.array(~dead.rows))
    vectors = _live_vectors(files[layout.VECTORS], dead, dimension)
    places = np.cumsum(~dead.rows) - 1  # of a live row among the live ones
    vectors = vectors.set_column(0, vectors.schema.field("row"), pa.array(places[vectors["row"].to_numpy()]))
    return Part(pa.table(columns, schema=STAGED_DOCUMENTS), rows, vectors)


def live_vectors(storage: Storage, segment: SegmentEntry, dead: Dead, dimension: int) -> pa.Table:
    """The vectors of a segment's live rows, as they are stored."""
    return _live_vectors(LocalFiles(storage).named(segment, layout.VECTORS), dead, dimension)


def _live_vectors(path: Path, dead: Dead, dimension: int) -> pa.Table:
    vectors = tables.read(path, tables.vectors(dimension))
    return vectors.filter(pa.array(~dead.rows[vectors["row"].to_numpy()]))


def _texts(originals: Path, documents: pa.Table) -> pa.ChunkedArray:
    """The documents' originals, in pieces: an Arrow string array holds no more than 2 GB."""
    found = []
    with originals.open("rb") as file:
        for batch in documents.select(["offset", "length"]).to_batches(max_chunksize=_BATCH_DOCUMENTS):
            texts = []
            for offset, length in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                file.seek(offset)
                texts.append(file.read(length).decode())
            found.append(pa.array(texts, pa.string()))
    return pa.chunked_array(found, pa.string())
