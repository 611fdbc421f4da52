"""The main job, in the order of its picture: sources -> documents -> chunks -> contexts -> vectors -> segments -> snapshot.

(configuration, sources, previous snapshot, ledger) -> the next snapshot, or none if nothing changed. The commit is the
creation of the manifest, last; whatever happens before it, readers see the previous snapshot.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from enrichment import prompts
from enrichment.embed import open_embedder
from enrichment.errors import ConfigError
from indexing import layout, manifest
from indexing.manifest import Manifest
from indexing.storage import Storage, open_storage
from jobs import counts, difference, flow, publication, sources
from jobs.config import Config
from jobs.difference import Changes
from jobs.models import checked_model, resolve_model
from jobs.progress import Progress
from jobs.spans import read_spans
from jobs.steps import Run


@dataclass(frozen=True, slots=True)
class Result:
    """What a refresh did; `as_dict` is `refresh --json`."""

    snapshot: int
    published: bool
    documents: Mapping[str, int]
    chunks: Mapping[str, int]
    tokens: Mapping[str, int]
    replicas: tuple[Mapping[str, float], ...]
    object_store_bytes: Mapping[str, int]
    reasons: Mapping[str, int]
    seconds: Mapping[str, float]
    exceeded: tuple[str, ...]
    rejected: tuple[Mapping[str, str], ...]

    def as_dict(self) -> dict[str, Any]:
        """The stable JSON form."""
        record = asdict(self)
        for name in ("replicas", "exceeded", "rejected"):
            record[name] = list(record[name])
        return record


def refresh(config: Config, progress: Progress, address: str | None = None, single_writer: bool = False) -> Result:
    """Bring the corpus up to date with its sources. Raises ConfigError before anything is spent."""
    storage = open_storage(config.corpus)
    return publication.guarded(
        storage, lambda run_id, previous: attempt(run_id, previous, config, progress, address), single_writer
    )


def attempt(run_id: str, previous: Manifest | None, config: Config, progress: Progress, address: str | None) -> Result:
    """One attempt from the previous snapshot to the next. Raises LostRaceError if another one was published meanwhile."""
    with progress.stage("check", 0):
        storage = open_storage(config.corpus)
        listing = sources.list_files(config.documents, besides=config.corpus)
        spans = read_spans(config.split)
        dimension, fingerprints = check_models(config)
        if spans is not None:
            fingerprints["spans"] = manifest.digest(repr(sorted(spans.items())).encode())[:32]
    with flow.cluster(address, config.model.replicas if config.model else 1):
        with progress.stage("read", len(listing.files)):
            refs = sources.resolve(flow.scan(listing, config.documents.max_bytes))
        if not refs.num_rows:
            raise ConfigError(f"documents.uri {config.documents.uri} holds {len(listing.files)} files without a record")
        changes = difference.compare(storage, previous, refs, fingerprints)
        if previous and not changes.any:
            return unchanged(previous, changes, progress)
        run = Run(run_id, config, listing.root, spans, fingerprints.get("model"))
        with progress.recording(storage, run.id):
            with progress.stage("enrich", refs.num_rows, pc.sum(refs["num_bytes"]).as_py()):
                enrichment = flow.enrich_and_stage(run, refs, progress.counts)
            summary, replicas = enrichment.summary, counts.replicas(enrichment.replicas)
            with progress.stage("index", 0):
                entries = flow.build_segments(run, cut_segments(summary, config.index.rows_per_segment), dimension)
            with progress.stage("publish", 0):
                counted = counts.count(summary, changes, int(sum(replica["preemptions"] for replica in replicas)))
                counts.reconcile(refs, counted, entries)
                published = manifest.new_manifest(
                    previous,
                    run_id=run.id,
                    config=config.as_dict(),
                    fingerprints=fingerprints,
                    dimension=dimension,
                    counts=counted,
                    segments=tuple(entries),
                    dead={},
                    rejected=counts.rejected(summary),
                )
                manifest.publish(storage, published)
            remove_staged(storage, run.id)
            exceeded = counts.exceeded_limits(config, counted)
            result = Result(
                published.sequence,
                True,
                **counted,
                replicas=replicas,
                object_store_bytes=enrichment.object_store_bytes,
                seconds=progress.seconds,
                exceeded=exceeded,
                rejected=published.rejected,
            )
            progress.report(result.as_dict(), summary)
    return result


def check_models(config: Config) -> tuple[int, dict[str, str]]:
    """Have both models at hand before anything is spent; the vectors' dimension and the fingerprints of the settings."""
    embedder = open_embedder(config.embedding, resolve_model(config.embedding))
    fingerprints = {"content": config.content_fingerprint(), "embedding": embedder.fingerprint}
    if config.context.strategy == "situate" and config.model is not None:
        fingerprints["prompt"] = prompts.fingerprint(config.context.prompt)
        fingerprints["model"] = checked_model(config.model)
    return embedder.dimension, fingerprints


def cut_segments(summary: pa.Table, rows_per_segment: int) -> list[tuple[str, str, list[str]]]:
    """Cut the documents, in order of their ids, into runs of about `rows_per_segment` rows: (first id, last id, parts)."""
    ordered = summary.select(["id", "num_rows", "part"]).sort_by([("id", "ascending")]).combine_chunks()
    ids, parts, totals = ordered["id"], ordered["part"], np.cumsum(ordered["num_rows"].to_numpy())
    groups: list[tuple[str, str, list[str]]] = []
    first = rows = 0
    while first < len(ids):
        last = min(int(np.searchsorted(totals, rows + rows_per_segment)), len(ids) - 1)
        # An id that occurs twice (a quarantined duplicate) stays in one segment.
        while last + 1 < len(ids) and ids[last + 1] == ids[last]:
            last += 1
        inside = parts.slice(first, last + 1 - first).unique().to_pylist()
        groups.append((ids[first].as_py(), ids[last].as_py(), sorted(inside)))
        first, rows = last + 1, int(totals[last])
    return groups


def unchanged(previous: Manifest, changes: Changes, progress: Progress) -> Result:
    """Nothing to do: the previous snapshot stands."""
    counted = {name: dict(values) for name, values in previous.counts.items()}
    counted["documents"] |= {"new": 0, "changed": 0, "unchanged": changes.unchanged, "deleted": 0}
    counted["chunks"] |= {"generated": 0, "reused": counted["chunks"]["ok"] + counted["chunks"]["fallback"]}
    counted["tokens"] = dict.fromkeys(counted["tokens"], 0)
    return Result(
        previous.sequence,
        False,
        **counted,
        replicas=(),
        object_store_bytes={},
        seconds=progress.seconds,
        exceeded=(),
        rejected=previous.rejected,
    )


def remove_staged(storage: Storage, run_id: str) -> None:
    """Drop the run's intermediate files: the segments hold all of it."""
    for entry in list(storage.list(layout.run_file(run_id, "staged/"))):
        storage.delete(entry.name)
