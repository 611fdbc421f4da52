"""The main job, in the order of its picture: sources -> documents -> chunks -> contexts -> vectors -> segments -> snapshot.

(configuration, sources, previous snapshot, ledger) -> the next snapshot, or none if nothing changed. The commit is the
creation of the manifest, last; whatever happens before it, readers see the previous snapshot.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from enrichment import extraction, recipes
from enrichment.embed import embedder_fingerprint, open_embedder
from enrichment.errors import ConfigError
from indexing import dense_kind, layout, live, manifest, staging
from indexing.manifest import Manifest
from indexing.storage import Storage, open_storage
from jobs import (
    boilerplate,
    caps,
    carrying,
    counts,
    defaults,
    difference,
    earlier_runs,
    flow,
    gate,
    indexes,
    memory,
    publication,
    retries,
    sources,
)
from jobs.check import GoldenQuestion, read_questions
from jobs.config import Config
from jobs.difference import NOTHING_ASKED, Asked, Plan
from jobs.flow import Enrichment
from jobs.models import checked_model, resolve_model
from jobs.progress import Progress
from jobs.result import Result, unchanged
from jobs.retries import Settled
from jobs.run import Reuse, Run
from jobs.sources import Listing
from jobs.spans import Spans, read_spans
from jobs.summaries import summaries

T = TypeVar("T")


class Workers(Protocol):
    """Those who carry out the steps: `jobs/flow.py` on Ray, `jobs/local_flow.py` in this process."""

    def scan(self, listing: Listing, max_bytes: int) -> pa.Table:
        """References to all records of all files, in no particular order."""

    def enrich_and_stage(self, run: Run, refs: pa.Table, report: Callable[[Mapping[str, int]], None]) -> Enrichment:
        """Run all references through both steps."""

    def build_segments(self, run: Run, tasks: Sequence[Callable[[Storage], T]]) -> list[T]:
        """Carry out the tasks, in their order."""

    def count(self, run: Run, refs: pa.Table, report: Callable[[Mapping[str, int]], None]) -> pa.Table:
        """Of all references what `jobs/counting.py` counts, in no particular order."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What is known before anything is spent."""

    storage: Storage
    listing: Listing
    spans: Spans | None
    dimension: int
    fingerprints: Mapping[str, str]
    questions: Sequence[GoldenQuestion] = ()


def refresh(
    config: Config,
    progress: Progress,
    address: str | None = None,
    asked: Asked = NOTHING_ASKED,
    single_writer: bool = False,
) -> Result:
    """Bring the corpus up to date with its sources. Raises ConfigError before anything is spent."""

    def checking(previous: Manifest | None) -> Checked:
        with progress.stage("check", 0):
            checked = check(config, previous)
        # One log holds many nights.
        progress.say(f"{datetime.now(UTC).isoformat(timespec='seconds')} refresh of {config.corpus}")
        if checked.listing.num_ignored:
            progress.say(f"{checked.listing.num_ignored:,} files of other kinds in {config.documents.uri} are left out")
        return checked

    storage = open_storage(config.corpus)
    # A first night that cannot begin leaves no empty corpus behind.
    first = checking(None) if manifest.latest(storage) is None else None

    def attempt(run_id: str, previous: Manifest | None) -> Result:
        # What is compared with a snapshot is listed after it: an older list would call another publisher's news deleted.
        checked = first if first is not None and previous is None else checking(previous)
        with flow.cluster(address, config.model.replicas if config.model else 1):
            return night(run_id, previous, config, checked, progress, flow, asked)

    return publication.guarded(storage, attempt, single_writer)


def night(
    run_id: str,
    previous: Manifest | None,
    config: Config,
    checked: Checked,
    progress: Progress,
    workers: Workers,
    asked: Asked = NOTHING_ASKED,
) -> Result:
    """From the previous snapshot to the next; none if there is nothing to do.

    Raises LostRaceError if another snapshot was published meanwhile.
    """
    storage = checked.storage
    plan, config, checked = planned(previous, config, checked, progress, workers, asked)
    memory.give_back()
    restated = previous is not None and (
        defaults.restated(config, previous) or indexes.is_due(previous, config, checked.dimension)
    )
    if previous is not None and not plan.due and not restated:
        return unchanged(run_id, config, previous, plan, progress)
    run = new_run(run_id, config, checked, plan, asked)
    run = boilerplate.known(run, plan, workers.build_segments)
    plan = capped(run, plan, asked, storage, workers, progress)
    if run.boilerplate:
        progress.say(f"{len(run.boilerplate):,} texts of chunks are boilerplate: nothing is asked about them")
    with progress.recording(storage, run.id):
        with progress.stage("enrich", plan.work.num_rows, pc.sum(plan.work["num_bytes"]).as_py() or 0):
            settled, enrichment = enrich(run, plan, workers, progress)
        memory.give_back()  # for those who build the segments
        with progress.stage("index", 0):
            carried = carrying.carry(storage, plan, settled, config)
            choice = indexes.choose(storage, run.id, plan, settled, carried, config, checked.dimension)
            carried = carrying.with_lists(carried, choice.lists)
            staged = carrying.staged_tasks(run.id, settled, config, checked.dimension, choice.lists)
            rewritten = carrying.compaction_tasks(plan, settled, carried, config, checked.dimension, choice.lists)
            built = workers.build_segments(run, [*staged, *rewritten])
            measured = workers.build_segments(run, indexes.measuring_tasks(choice, built, checked.dimension))
            dense = indexes.with_recall(choice, measured, config)
        with progress.stage("publish", 0):
            dead = carrying.listed_dead(storage, previous, carried)
            segments = (*carried.kept(), *built)
            census = live.documents(storage, segments, dead, counts.COLUMNS)
            counted = counts.count(census, plan, settled, sum(int(r["preemptions"]) for r in enrichment.replicas))
            counts.reconcile(plan, settled, counted, built[: len(staged)], segments, dead)
            published = manifest.new_manifest(
                previous,
                run_id=run.id,
                config=config.as_dict(),
                fingerprints=checked.fingerprints,
                dimension=checked.dimension,
                counts=counted,
                segments=segments,
                dead=dead,
                rejected=counts.rejected(census),
                stale=settled.stale,
                dense=dense,
            )
            verdict = gate.judge(storage, previous, published, config.gate, checked.questions, asked.force)
            manifest.publish(storage, replace(published, gate=verdict))
        remove_staged(storage, run.id)
        result = Result(
            published.sequence,
            True,
            run_id=run_id,
            corpus=config.corpus,
            finished_at=published.created_at,
            **counted,
            replicas=counts.replicas(enrichment.replicas),
            object_store_bytes=enrichment.object_store_bytes,
            seconds=progress.seconds,
            exceeded=counts.exceeded_limits(config, counted),
            rejected=published.rejected,
            stale=published.stale,
            dense=indexes.summary(dense),
            gate=verdict,
        )
        progress.report(result.as_dict(), settled.kept)
    return result


def check(config: Config, previous: Manifest | None = None) -> Checked:
    """Have the sources, the store and the models at hand; an embedder that the previous snapshot knows is not loaded for
    it. Raises ConfigError.
    """
    storage = open_storage(config.corpus)
    listing = sources.list_files(config.documents, besides=config.corpus)
    spans = read_spans(config.split)
    dimension, fingerprints = check_models(config, previous)
    dense_kind.check_dimension(dense_kind.parse(config.index.dense), dimension)
    if spans is not None:
        fingerprints["spans"] = manifest.digest(repr(sorted(spans.items())).encode())[:32]
    return Checked(storage, listing, spans, dimension, fingerprints, read_questions(config.gate.golden))


def planned(
    previous: Manifest | None, config: Config, checked: Checked, progress: Progress, workers: Workers, asked: Asked
) -> tuple[Plan, Config, Checked]:
    """Read the sources and compare, by settings that leave nothing open; what else was found is gone when this returns."""
    with progress.stage("read", len(checked.listing.files)):
        refs = sources.resolve(workers.scan(checked.listing, config.documents.max_bytes))
        refs = asked.sample.of(refs)
    if not refs.num_rows:
        raise ConfigError(
            f"documents.uri {config.documents.uri} holds {len(checked.listing.files)} files without a record"
        )
    config = defaults.with_language(config, previous, refs["id"])
    checked = replace(checked, fingerprints={**checked.fingerprints, "content": config.content_fingerprint()})
    limit = config.limits.deleted
    with progress.stage("compare", refs.num_rows):
        plan = difference.plan(checked.storage, previous, refs, checked.fingerprints, limit, asked)
    return plan, config, checked


def new_run(run_id: str, config: Config, checked: Checked, plan: Plan, asked: Asked) -> Run:
    """What the workers of this run know."""
    reuse = Reuse(
        ids=difference.ids_to_look_up(plan),
        snapshot=plan.previous.sequence if plan.previous else None,
        changed=difference.ids_replaced(plan),
        fallbacks=not asked.retry_failed,
    )
    model = checked.fingerprints.get("model")
    return Run(run_id, config, checked.listing.root, checked.spans, model, reuse)


def enrich(run: Run, plan: Plan, workers: Workers, progress: Progress) -> tuple[Settled, Enrichment]:
    """Work on what is due; where that fails and a setting changed, on the version that was served before."""
    done = Enrichment(summaries(staging.UNITS.empty_table(), "", np.empty(0, np.int64)), [], {})
    if plan.work.num_rows:
        done = workers.enrich_and_stage(run, plan.work, progress.counts)
    settled = retries.settle(plan, done.summary)
    if len(settled.again):
        refs = difference.stored(plan.old, settled.again)
        settled = retries.resettle(settled, workers.enrich_and_stage(run, refs, progress.counts).summary)
    return settled, done


def capped(run: Run, plan: Plan, asked: Asked, storage: Storage, workers: Workers, progress: Progress) -> Plan:
    """As much of the night's work as may be paid for; the rest is pending."""
    if asked.max_tokens is None and asked.max_minutes is None:
        return plan
    rates = earlier_runs.rates(storage, run.config.context.max_output_tokens)
    cap = caps.allowed_tokens(rates, asked)
    if cap is None or not plan.work.num_rows:
        return plan
    with progress.stage("count", plan.work.num_rows):
        counted = workers.count(run, plan.work, progress.counts)
    return caps.within(plan, counted, cap, run.config, rates.output_tokens)


def check_models(config: Config, previous: Manifest | None = None) -> tuple[int, dict[str, str]]:
    """Have both models at hand before anything is spent; the vectors' dimension and the fingerprints of the settings."""
    directory = resolve_model(config.embedding)
    embedding = embedder_fingerprint(config.embedding, directory)
    if previous is not None and previous.fingerprints["embedding"] == embedding:
        dimension = previous.dimension
    else:
        dimension = open_embedder(config.embedding, directory).dimension
    fingerprints = {"content": config.content_fingerprint(), "embedding": embedding}
    fingerprints["format"] = str(manifest.FORMAT_VERSION)  # what an older program stored is made anew, not carried
    if config.context.asks_model and config.model is not None:
        fingerprints["prompt"] = recipes.fingerprint(config.context)
        fingerprints["model"] = checked_model(config.model)
        if config.context.extract:
            fingerprints["extraction"] = extraction.fingerprint(config.context.extract)
    return dimension, fingerprints


def remove_staged(storage: Storage, run_id: str) -> None:
    """Drop the run's intermediate files: the segments hold all of it."""
    for entry in list(storage.list(layout.run_file(run_id, "staged/"))):
        storage.delete(entry.name)
