"""What the sources hold against what the previous snapshot serves -> what a night has to do. What failed is in `retries.py`.

Ids and hashes only, in Arrow, never texts: documents.parquet of the previous snapshot and the references of the sources.
An id is a document wherever it lies: a line may move, a file be renamed. Of several records with one id the first is the
document, and each other one is a document of its own, known by its source.

Every reference and every live document of the previous snapshot is in exactly one of: new, changed, unchanged, stale
(changed, but given up for now), deleted, withheld (absent, but kept).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from indexing import live
from indexing.manifest import Manifest
from indexing.storage import Storage
from jobs import retries
from jobs.retries import Mask, Rows, Stale, integers, mask
from jobs.sampling import EVERYTHING, Sample
from jobs.sources import REFS, source_names
from jobs.stored import FORMAT

OLD_COLUMNS = (
    *("id", "source", "source_sha256", "text_sha256", "length", "first_row", "num_rows"),
    *("status", "reason", "tries", "chunks_failed", "chunks_fallback"),
)
_DUPLICATE = "duplicate_id"
_MANY = ("jsonl", "parquet")  # formats whose files hold several documents


@dataclass(frozen=True, slots=True)
class Asked:
    """What a person may ask of a refresh."""

    allow_deletes: bool = False
    retry_failed: bool = False
    max_tokens: float | None = None
    max_minutes: float | None = None
    force: str | None = None  # why to publish what the gate refuses
    sample: Sample = EVERYTHING  # of the listed documents: the others are taken as absent


NOTHING_ASKED = Asked()


@dataclass(frozen=True, slots=True)
class Changes:
    """Documents against the previous snapshot, by id. `renamed` are among the new and the deleted ones; the pending ones are
    new or changed too, but wait for a later night and are counted nowhere else.
    """

    new: int = 0
    changed: int = 0
    unchanged: int = 0
    deleted: int = 0
    renamed: int = 0
    withheld: int = 0
    pending_new: int = 0
    pending_changed: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A night's work.

    `work` are the references to enrich; `replaces[i]` is the row in `old` that `work[i]` takes the place of, or -1. `old` is
    the previous snapshot's table of live documents; `gone` are the rows in it that die whatever comes. With `settings`
    nothing of `old` is carried: all of it is worked on again, what its source does not give from its stored original.
    `stale` are the documents that keep their previous version without another try; `num_kept` counts the absent ones
    that are kept.
    """

    previous: Manifest | None
    old: pa.Table
    work: pa.Table
    replaces: Rows
    gone: Rows
    stale: tuple[Stale, ...]
    changes: Changes
    settings: bool
    num_listed: int
    num_kept: int

    @property
    def dying(self) -> Rows:
        """The rows of `old` that have no place in the next snapshot, if all the work succeeds."""
        return np.union1d(self.gone, self.replaces[self.replaces >= 0])

    @property
    def due(self) -> bool:
        """Whether there is anything to do."""
        known = self.previous.stale if self.previous else ()
        return self.previous is None or self.work.num_rows + len(self.gone) > 0 or self.stale != known


def plan(
    storage: Storage,
    previous: Manifest | None,
    refs: pa.Table,
    fingerprints: Mapping[str, str],
    max_deleted: float,
    asked: Asked = NOTHING_ASKED,
) -> Plan:
    """Compare what the sources hold with the previous snapshot, by the hashes of the sources."""
    segments, dead = (previous.segments, previous.dead) if previous else ((), {})
    old = live.documents(storage, segments, dead, OLD_COLUMNS)
    settings = previous is not None and dict(previous.fingerprints) != dict(fingerprints)
    ref_of, old_of = _matched(refs, old)
    both = (ref_of >= 0) & (old_of >= 0)
    same = both.copy()
    same[both] = retries.equal(refs["sha256"], ref_of[both], old["source_sha256"], old_of[both])
    absent, new = old_of[ref_of < 0], ref_of[old_of < 0]
    fate = _of_absent(refs, new, old, absent, max_deleted, asked)

    again = retries.due_again(refs, old, ref_of, old_of, same, asked.retry_failed)
    tries = np.where(again, integers(old["tries"])[old_of] + 1, 1) if old.num_rows else np.ones(len(ref_of), np.int64)
    failed = retries.before(previous, refs, ref_of, (both & ~same) | again)
    tries = np.where(failed > 0, failed + 1, tries)
    given_up = (failed >= retries.TRIES) & np.bool_(not asked.retry_failed and not settings)
    wanted = (ref_of >= 0) & (~same | again | settings) & ~given_up
    work = with_tries(refs.take(pa.array(ref_of[wanted])), tries[wanted])
    replaces = old_of[wanted]
    if settings and len(fate.kept):
        work, replaces = pa.concat_tables([work, stored(old, fate.kept)]), np.concatenate([replaces, fate.kept])
    stale = retries.still_stale(previous, refs, ref_of[given_up], old, fate.sheltered)
    changes = Changes(
        new=len(new),
        changed=int((both & ~same & ~given_up).sum()),
        unchanged=int((same & ~given_up).sum()),
        deleted=len(fate.gone),
        renamed=fate.num_renamed,
        withheld=len(fate.kept) - len(fate.sheltered),
    )
    return Plan(previous, old, work, replaces, fate.gone, stale, changes, settings, refs.num_rows, len(fate.kept))


@dataclass(frozen=True, slots=True)
class _Fate:
    """Of the absent documents, by row: those that die and those that are kept, for want of a complete listing or by limit."""

    gone: Rows
    kept: Rows
    sheltered: Rows
    num_renamed: int


def _of_absent(refs: pa.Table, new: Rows, old: pa.Table, absent: Rows, max_deleted: float, asked: Asked) -> _Fate:
    """So many losses that the source is more likely at fault than its owner delete nothing; one document may always go, unless
    the limit is 0. What was quarantined is no loss: nobody was served by it.
    """
    is_served = mask(pc.not_equal(old["status"], "quarantined"))
    is_sheltered = _in_unreadable_files(refs, old, absent) & is_served[absent]
    lost = absent[~is_sheltered]
    served = lost[is_served[lost]]
    num_renamed = _num_renamed(old, served, refs, new)
    allowed = max(1.0, max_deleted * is_served.sum()) if max_deleted else 0.0
    if len(served) - num_renamed > allowed and not asked.allow_deletes:
        unserved = lost[~is_served[lost]]
        return _Fate(unserved, np.setdiff1d(absent, unserved), absent[is_sheltered], 0)
    return _Fate(lost, absent[is_sheltered], absent[is_sheltered], num_renamed)


def ids_to_look_up(found: Plan) -> pa.Array | None:
    """The ids under which the ledger may hold what a night needs, None for all: of the documents themselves, of those that
    have or had the same text, and of those that go tonight. What was renamed is found under its old name so, changed or
    not, and of two equal ones the other's.
    """
    if found.settings or found.previous is None:
        return None
    before = found.old.take(pa.array(found.replaces[found.replaces >= 0]))
    texts = pa.chunked_array([*found.work["text_sha256"].chunks, *before["text_sha256"].chunks], pa.string())
    twins = found.old["id"].filter(pc.is_in(found.old["text_sha256"], texts.drop_null().unique()))
    gone = found.old["id"].take(pa.array(found.gone))
    return pa.chunked_array([*found.work["id"].chunks, *twins.chunks, *gone.chunks], pa.string()).unique()


def ids_replaced(found: Plan) -> pa.Array:
    """The ids of changed documents, whose older rows may hold what their new version needs."""
    changed = found.replaces >= 0
    if found.settings:  # what did not change is found by its exact keys
        changed &= ~unchanged(found)
    return found.work["id"].filter(pa.array(changed)).combine_chunks()


def unchanged(found: Plan) -> Mask:
    """Rows of the work whose source is the old one: they are due for a setting, or because they failed before."""
    same: Mask = np.zeros(found.work.num_rows, np.bool_)
    rows = np.flatnonzero(found.replaces >= 0)
    same[rows] = retries.equal(found.work["sha256"], rows, found.old["source_sha256"], found.replaces[rows])
    return same


def stored(old: pa.Table, rows: Rows) -> pa.Table:
    """References to documents of the previous snapshot by what is stored of them."""
    picked = old.take(pa.array(rows))
    count = picked.num_rows
    columns = {
        "id": picked["id"],
        "file": picked["source"],
        "format": pa.array([FORMAT] * count, pa.string()),
        "num_bytes": picked["length"],
        "sha256": picked["source_sha256"],
        "text_sha256": picked["text_sha256"],
        "tries": picked["tries"],
        "first": pa.array([0] * count, pa.int64()),
        "second": pa.array([0] * count, pa.int64()),
        "number": pa.nulls(count, pa.int64()),
        "problem": pa.nulls(count, pa.string()),
    }
    return pa.table([columns[field.name] for field in REFS], schema=REFS)


def _matched(refs: pa.Table, old: pa.Table) -> tuple[Rows, Rows]:
    """Pairs of rows of both tables that are one document, -1 where there is none; by reference, then by old row."""
    is_twin = pc.starts_with(pc.fill_null(refs["problem"], ""), _DUPLICATE)
    was_twin = pc.starts_with(pc.fill_null(old["reason"], ""), _DUPLICATE)
    listed = {"id": refs["id"], "twin": pc.if_else(is_twin, source_names(refs), ""), "ref": _counted(refs)}
    before = {"id": old["id"], "twin": pc.if_else(was_twin, old["source"], ""), "old": _counted(old)}
    joined = pa.table(listed).join(pa.table(before), ["id", "twin"], join_type="full outer")
    ref_of, old_of = (integers(pc.fill_null(joined[name], -1)) for name in ("ref", "old"))
    order = np.lexsort((old_of, ref_of))
    return ref_of[order], old_of[order]


def _counted(table: pa.Table) -> pa.Array:
    return pa.array(np.arange(table.num_rows), pa.int64())


def with_tries(refs: pa.Table, tries: Rows) -> pa.Table:
    """References with the nights in which they will have been worked on after this one."""
    place = REFS.get_field_index("tries")
    return refs.set_column(place, REFS.field(place), pa.array(tries, pa.int32()))


def _in_unreadable_files(refs: pa.Table, old: pa.Table, rows: Rows) -> Mask:
    """Which old documents may lie where nobody could read: nobody saw that they are gone.

    A line that is not JSON may be any document of its file. A file of several that cannot be read may hold any document
    that came from such a file, since documents move from one to the other without a change.
    """
    unread = pc.and_(pc.is_valid(refs["problem"]), pc.is_in(refs["format"], pa.array(_MANY)))
    is_whole = pc.is_null(refs["number"])
    is_unreadable = pc.starts_with(pc.fill_null(refs["problem"], ""), "unreadable")
    files = refs["file"].filter(pc.and_(unread, pc.or_(is_whole, is_unreadable)))
    if not len(files) or not len(rows):
        return np.zeros(len(rows), np.bool_)
    sources = old["source"].take(pa.array(rows))
    if pc.any(pc.and_(pc.and_(unread, is_whole), is_unreadable)).as_py():
        return mask(pc.match_substring_regex(sources, r":\d+$"))
    return mask(pc.is_in(pc.replace_substring_regex(sources, r":\d+$", ""), files.combine_chunks()))


def _num_renamed(old: pa.Table, lost: Rows, refs: pa.Table, new: Rows) -> int:
    """How many of the lost documents have the text of a new one, each of its own: those were renamed."""
    before = _texts_counted(old["text_sha256"].take(pa.array(lost)), "before")
    after = _texts_counted(refs["text_sha256"].take(pa.array(new)), "after")
    both = before.join(after, "text", join_type="inner")
    return int(pc.sum(pc.min_element_wise(both["before"], both["after"])).as_py() or 0)


def _texts_counted(texts: pa.ChunkedArray, name: str) -> pa.Table:
    counted = pc.value_counts(texts.drop_null())
    return pa.table({"text": counted.field("values"), name: counted.field("counts")})
