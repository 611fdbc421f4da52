"""What a refresh would do with each document, counted by the refresh's own steps: prompts are built, nothing is asked.

References -> one row of counts per document, in their order (schema COUNTED). The model is not at work, the embedder only
for `semantic`, and nothing is written.
"""

import asyncio
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from enrichment.boilerplate import BOILERPLATE
from enrichment.engine import Engine, ModelOptions
from enrichment.fake_engine import FakeEngine
from enrichment.records import Context, Document, Status
from enrichment.strategies import Outcome
from indexing import staging
from jobs.embedding import unpaid
from jobs.retries import mask
from jobs.run import Report, Run
from jobs.steps import EnrichDocuments
from jobs.vectors import texts_of

NUMBERS = (
    *("chunks", "skipped", "boilerplate", "failed", "generated"),
    *("prompt", "ideal", "block_rounding"),  # tokens of the prompts to ask, first attempts
    *("texts", "embedded"),  # to have vectors, and of those to embed
    *("split_rows", "oversized"),  # rows of several texts; 1 for a document of several scopes
)
COUNTED = pa.schema([("id", pa.string()), ("status", pa.string()), *((name, pa.int64()) for name in NUMBERS)])


class CountDocuments(EnrichDocuments):
    """References -> counts. Equal texts of two calls are counted twice, as two workers would embed them."""

    attempts = 1  # what a made-up answer is worth says nothing of a model's
    records = False  # which chunks are alike has to be known to build a prompt, and is not paid for here

    def __init__(self, run: Run, report: Report) -> None:
        super().__init__(run, report, _no_model)

    def _done(self, document: Document, context: Context) -> None:
        """Nothing was written, so nothing is paid for."""

    def _record_reused(self, document: Document, outcome: Outcome) -> None:
        """Nothing is recorded."""

    async def counted(self, refs: pa.Table) -> pa.Table:
        """One row per reference."""
        units = await self(refs)
        rows = staging.rows_of(units)
        owners = np.repeat(np.arange(units.num_rows), pc.list_value_length(units["rows"]).to_numpy())
        texts, places = texts_of(rows, self._run.config.index.dense_text, self._vectors_of.embedder)
        rows_of_texts = np.array([row for row, _ in places], np.int64)
        _, to_embed = unpaid(texts, self._vectors_of.embedder, self._vectors_of.paid)

        def per_document(of_rows: np.ndarray) -> np.ndarray:
            return np.bincount(owners[of_rows], minlength=units.num_rows)

        statuses = np.array(rows["status"].to_pylist(), dtype=object)
        # A rewrite reads passages, not scopes.
        starts = rows["scope_start"].to_numpy()
        scopes = np.zeros_like(starts) if self._run.config.context.rewrites else starts
        found = {
            "chunks": per_document(np.arange(rows.num_rows)),
            "skipped": per_document(np.flatnonzero(statuses == Status.SKIPPED)),
            "boilerplate": per_document(np.flatnonzero(mask(pc.equal(rows["reason"], BOILERPLATE)))),
            "failed": per_document(np.flatnonzero(statuses == Status.FAILED)),
            "texts": per_document(rows_of_texts),
            "embedded": per_document(rows_of_texts[to_embed]),
            "split_rows": per_document(np.flatnonzero(np.bincount(rows_of_texts, minlength=rows.num_rows) > 1)),
            "oversized": np.minimum(1, per_document(np.flatnonzero(scopes > 0))),
        }
        columns = {name: pa.array(values, pa.int64()) for name, values in found.items()}
        columns |= {name: units[f"tokens_{name}"] for name in ("prompt", "ideal", "block_rounding")}
        columns |= {"id": units["id"], "status": units["status"], "generated": units["generated"].cast(pa.int64())}
        return pa.table([columns[field.name] for field in COUNTED], schema=COUNTED)


def count_blocks(run: Run, blocks: Sequence[pa.Table]) -> pa.Table:
    """Count the work on blocks of references, one after the other."""
    counting = CountDocuments(run, lambda counts: None)
    with asyncio.Runner() as runner:
        return pa.concat_tables([runner.run(counting.counted(block)) for block in blocks])


def _no_model(options: ModelOptions) -> Engine:
    return FakeEngine(options.max_model_len, options.block_tokens)
