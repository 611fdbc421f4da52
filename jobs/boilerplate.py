"""Which texts are boilerplate: counted over the night's work and what stays of the snapshot before, ahead of asking about any.

What stays keeps what was written about it: a text that becomes boilerplate tonight is spared from tonight on.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from enrichment.boilerplate import HASH_BYTES, text_hash
from enrichment.errors import DocumentError
from indexing import dead, layout, tables
from indexing.local_files import LocalFiles
from indexing.manifest import DeadEntry, SegmentEntry
from indexing.storage import Storage
from jobs.difference import Plan
from jobs.flow import plan_blocks
from jobs.models import open_tokenizer
from jobs.preparing import Preparing
from jobs.run import Run

COUNTS = pa.schema([("hash", pa.binary(HASH_BYTES)), ("documents", pa.int64())])
_SHARES = 32  # of the work, a task each: a task opens the tokenizers

Task = Callable[[Storage], pa.Table]


def known(run: Run, plan: Plan, carry_out: Callable[[Run, Sequence[Task]], list[pa.Table]]) -> Run:
    """The run with the hashes of texts that stand in more than `context.boilerplate` documents; the same if that is not set."""
    context = run.config.context
    if context.boilerplate is None or not context.asks_model or not plan.work.num_rows:
        return run
    blocks = plan_blocks(plan.work, 1)
    shares = [pa.concat_tables(blocks[first::_SHARES]) for first in range(min(_SHARES, len(blocks)))]
    found = _sum(carry_out(run, [partial(_in_work, run=run, refs=share) for share in shares]))
    if plan.previous is not None and not plan.settings:
        besides = plan.old["id"].take(pa.array(plan.dying)).combine_chunks()
        wanted = found["hash"].combine_chunks()
        older = [
            partial(
                _in_segment, segment=segment, gone=plan.previous.dead.get(segment.id), besides=besides, wanted=wanted
            )
            for segment in plan.previous.segments
        ]
        found = _sum([found, *carry_out(run, older)])
    many = found.filter(pc.greater(found["documents"], context.boilerplate))
    return replace(run, boilerplate=frozenset(many["hash"].to_pylist()))


def _sum(parts: Iterable[pa.Table]) -> pa.Table:
    table = pa.concat_tables([COUNTS.empty_table(), *parts])
    return table.group_by("hash").aggregate([("documents", "sum")]).rename_columns(["hash", "documents"])


def _in_work(storage: Storage, run: Run, refs: pa.Table) -> pa.Table:
    """In how many of the referenced documents each text stands."""
    assert run.config.model is not None
    preparing = Preparing(run, open_tokenizer(run.config.model)[0])
    counts: Counter[bytes] = Counter()
    for ref in refs.to_pylist():
        prepared = preparing(ref)
        if not isinstance(prepared, DocumentError):
            text = prepared.loaded.document.text
            counts.update({text_hash(text[chunk.start : chunk.end]) for chunk in prepared.chunks})
    return _table(counts)


def _in_segment(
    storage: Storage, segment: SegmentEntry, gone: DeadEntry | None, besides: pa.Array, wanted: pa.Array
) -> pa.Table:
    """In how many of a segment's live documents, `besides` some, each of the wanted texts stands."""
    alive = pa.array(~dead.read(storage, segment, gone).rows)
    hashes, pairs, first = set(wanted.to_pylist()), set[tuple[bytes, str]](), 0
    for batch in tables.batches(LocalFiles(storage).named(segment, layout.ROWS), tables.ROWS, ["document_id", "text"]):
        stays = pc.and_not(alive.slice(first, batch.num_rows), pc.is_in(batch["document_id"], besides))
        ids, texts = (column.to_pylist() for column in batch.filter(stays).columns)
        pairs |= {pair for pair in zip(map(text_hash, texts), ids, strict=True) if pair[0] in hashes}
        first += batch.num_rows
    return _table(Counter(text for text, _ in pairs))


def _table(counts: Counter[bytes]) -> pa.Table:
    return pa.table([list(counts), list(counts.values())], schema=COUNTS)
