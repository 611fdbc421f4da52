"""The steps of a run in this process, one after the other: what `jobs/flow.py` does on Ray, for tests and benchmarks.

Rows, ledger and segments come out the same; only who does the work, and when, differs.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pyarrow as pa

from indexing.storage import Storage, open_storage
from jobs.counting import count_blocks
from jobs.flow import Enrichment, plan_blocks
from jobs.run import Run
from jobs.sources import Listing, scan_file
from jobs.steps import EnrichDocuments
from jobs.vectors import StageVectors

T = TypeVar("T")


def scan(listing: Listing, max_bytes: int) -> pa.Table:
    """References to all records of all files."""
    return pa.concat_tables([scan_file(listing.root, file, max_bytes) for file in listing.files])


def enrich_and_stage(run: Run, refs: pa.Table, report: Callable[[Mapping[str, int]], None]) -> Enrichment:
    """Run all references through both steps, block by block."""
    counted: dict[str, int] = {}

    def add(counts: Mapping[str, int]) -> None:
        for name, number in counts.items():
            counted[name] = counted.get(name, 0) + number
        report(counted)

    enrich, stage = EnrichDocuments(run, add), StageVectors(run, add)
    with asyncio.Runner() as runner:
        summaries = [stage(runner.run(enrich(block))) for block in plan_blocks(refs, 1)]
    return Enrichment(pa.concat_tables(summaries), [enrich.facts()], {})


def count(run: Run, refs: pa.Table, report: Callable[[Mapping[str, int]], None]) -> pa.Table:
    """Count the work on all references."""
    return count_blocks(run, plan_blocks(refs, 1))


def build_segments(run: Run, tasks: Sequence[Callable[[Storage], T]]) -> list[T]:
    """Carry out the tasks, two at a time: Lucene's part of each is a process of its own."""
    storage = open_storage(run.config.corpus)
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda task: task(storage), tasks))
