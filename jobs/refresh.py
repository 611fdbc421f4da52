"""The main job, in the order of its picture: sources -> documents -> chunks -> contexts -> vectors -> segments -> snapshot.

(configuration, sources, previous snapshot, ledger) -> the next snapshot, or none if nothing changed. The commit is the
creation of the manifest, last; whatever happens before it, readers see the previous snapshot.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from enrichment import models, prompts
from enrichment.embed import open_embedder
from enrichment.errors import ConfigError, OperationError
from indexing import layout, manifest, tables
from indexing.manifest import Manifest, SegmentEntry
from indexing.staging import TOKEN_COUNTS
from indexing.storage import Storage, is_remote, open_storage
from jobs import flow, sources
from jobs.config import Config
from jobs.models import resolve_model
from jobs.progress import Progress
from jobs.spans import read_spans
from jobs.steps import STATUSES, Run


@dataclass(frozen=True, slots=True)
class Result:
    """What a refresh did; `as_dict` is `refresh --json`."""

    snapshot: int
    published: bool
    documents: Mapping[str, int]
    chunks: Mapping[str, int]
    tokens: Mapping[str, int]
    reasons: Mapping[str, int]
    seconds: Mapping[str, float]
    exceeded: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The stable JSON form."""
        return {name: _plain(getattr(self, name)) for name in self.__slots__}


def refresh(config: Config, progress: Progress, address: str | None = None) -> Result:
    """Bring the corpus up to date with its sources. Raises ConfigError before anything is spent."""
    storage = open_storage(config.corpus)
    dimension, fingerprints = check_models(config)
    listing = sources.list_files(config.documents)
    previous = manifest.latest(storage)
    with flow.cluster(address):
        with progress.stage("read", len(listing.files)):
            refs = sources.resolve(flow.scan(listing, config.documents.max_bytes))
        changes = compare(storage, previous, refs, fingerprints)
        if previous and not changes.any:
            return unchanged(previous, changes, progress)
        run = Run(new_run_id(), config, listing.root, read_spans(config.split))
        progress.begin(storage, run.id)
        with progress.stage("enrich", refs.num_rows):
            summary = flow.enrich_and_stage(run, refs, progress.counts)
        with progress.stage("index", 0):
            entries = flow.build_segments(run, cut_segments(summary, config.index.rows_per_segment), dimension)
        with progress.stage("publish", 0):
            counts = count(summary, changes)
            reconcile(refs, counts, entries)
            published = manifest.new_manifest(
                previous,
                run_id=run.id,
                config=config.as_dict(),
                fingerprints=fingerprints,
                dimension=dimension,
                counts=counts,
                segments=tuple(entries),
                dead={},
                rejected=rejected(summary),
            )
            manifest.publish(storage, published)
    remove_staged(storage, run.id)
    result = Result(
        snapshot=published.sequence,
        published=True,
        documents=counts["documents"],
        chunks=counts["chunks"],
        tokens=counts["tokens"],
        reasons=counts["reasons"],
        seconds=progress.seconds,
        exceeded=exceeded_limits(config, counts),
    )
    progress.end(result.as_dict())
    return result


@dataclass(frozen=True, slots=True)
class Changes:
    """Documents against the previous snapshot, by id; `settings` says whether a setting changed that rows depend on."""

    new: int
    changed: int
    unchanged: int
    deleted: int
    settings: bool

    @property
    def any(self) -> bool:
        """Whether a new snapshot is due."""
        return self.settings or self.new + self.changed + self.deleted > 0


def check_models(config: Config) -> tuple[int, dict[str, str]]:
    """Have both models at hand before anything is spent; the vectors' dimension and the fingerprints of the settings."""
    embedder = open_embedder(config.embedding, resolve_model(config.embedding))
    fingerprints = {"content": config.content_fingerprint(), "embedding": embedder.fingerprint}
    if config.context.strategy == "situate" and config.model is not None:
        directory = resolve_model(config.model)
        name, revision = config.model.name, config.model.revision
        fingerprints["prompt"] = prompts.fingerprint(config.context.prompt)
        fake = name == models.FAKE
        fingerprints["model"] = models.FAKE if fake else models.fingerprint(directory, name, revision)
    return embedder.dimension, fingerprints


def compare(
    storage: Storage, previous: Manifest | None, refs: pa.Table, fingerprints: Mapping[str, str]
) -> Changes:
    """Compare what the sources hold with what the previous snapshot was made from, by source hashes."""
    before: dict[tuple[str, str], str] = {}
    for segment in previous.segments if previous else ():
        data = storage.get(layout.segment(segment.id, layout.DOCUMENTS))
        table = tables.read(data, tables.DOCUMENTS, columns=["id", "source", "source_sha256"])
        for entry in table.to_pylist():
            before[entry["id"], entry["source"]] = entry["source_sha256"]
    new = changed = unchanged_ = 0
    for ref in refs.select(["id", "file", "number", "sha256"]).to_pylist():
        known = before.pop((ref["id"], sources.source_name(ref["file"], ref["number"])), None)
        if known is None:
            new += 1
        elif known == ref["sha256"]:
            unchanged_ += 1
        else:
            changed += 1
    settings = previous is not None and dict(previous.fingerprints) != dict(fingerprints)
    return Changes(new, changed, unchanged_, len(before), settings)


def cut_segments(summary: pa.Table, rows_per_segment: int) -> list[tuple[str, str, list[str]]]:
    """Cut the documents, in order of their ids, into runs of about `rows_per_segment` rows: (first id, last id, parts)."""
    ordered = summary.select(["id", "num_rows", "part"]).sort_by([("id", "ascending")]).to_pylist()
    groups: list[tuple[str, str, list[str]]] = []
    rows, first, parts = 0, None, set()
    for position, entry in enumerate(ordered):
        first = entry["id"] if first is None else first
        rows += entry["num_rows"]
        parts.add(entry["part"])
        last = position + 1 == len(ordered)
        # An id that occurs twice (a quarantined duplicate) stays in one segment.
        if last or (rows >= rows_per_segment and ordered[position + 1]["id"] != entry["id"]):
            groups.append((first, entry["id"], sorted(parts)))
            rows, first, parts = 0, None, set()
    return groups


def count(summary: pa.Table, changes: Changes) -> dict[str, dict[str, int]]:
    """The counts of the snapshot: documents, chunks, tokens of this run, reasons of what was refused or failed."""
    statuses = summary["status"].to_pylist()
    documents = {
        "total": summary.num_rows,
        "new": changes.new,
        "changed": changes.changed,
        "unchanged": changes.unchanged,
        "deleted": changes.deleted,
        "stale": 0,
        "quarantined": statuses.count("quarantined"),
        "empty": statuses.count("empty"),
    }
    chunks = {"total": sum(summary["num_rows"].to_pylist())}
    chunks |= {status: sum(summary[f"chunks_{status}"].to_pylist()) for status in STATUSES}
    chunks["generated"] = sum(summary["generated"].to_pylist())
    chunks["reused"] = chunks["ok"] + chunks["fallback"] - chunks["generated"]
    tokens = {name: sum(summary[f"tokens_{name}"].to_pylist()) for name in TOKEN_COUNTS}
    tokens["computed"] = tokens["prompt"] - tokens["cached"]
    reasons: dict[str, int] = {}
    for found in summary["reasons"].to_pylist():
        for reason in found:
            code = reason.partition(":")[0]
            reasons[code] = reasons.get(code, 0) + 1
    return {"documents": documents, "chunks": chunks, "tokens": tokens, "reasons": dict(sorted(reasons.items()))}


def reconcile(refs: pa.Table, counts: Mapping[str, Mapping[str, int]], entries: Sequence[SegmentEntry]) -> None:
    """Refuse to publish unless documents and chunks add up from end to end."""
    chunks = counts["chunks"]
    for what, left, right in (
        ("documents read and enriched", refs.num_rows, counts["documents"]["total"]),
        ("documents enriched and in segments", counts["documents"]["total"], sum(e.num_documents for e in entries)),
        ("chunks and rows in segments", chunks["total"], sum(e.num_rows for e in entries)),
        ("chunks and their statuses", chunks["total"], sum(chunks[status] for status in STATUSES)),
    ):
        if left != right:
            raise OperationError(f"{what} do not add up ({left} and {right}): nothing was published; report this")


def rejected(summary: pa.Table) -> tuple[dict[str, str], ...]:
    """Quarantined documents by name, with their sources and reasons."""
    entries = summary.select(["id", "source", "status", "reason"]).sort_by([("id", "ascending"), ("source", "ascending")])
    return tuple(
        {"id": e["id"], "source": e["source"], "reason": e["reason"]}
        for e in entries.to_pylist()
        if e["status"] == "quarantined"
    )


def exceeded_limits(config: Config, counts: Mapping[str, Mapping[str, int]]) -> tuple[str, ...]:
    """The limits that the published snapshot exceeds, as sentences."""
    asked = counts["chunks"]["ok"] + counts["chunks"]["fallback"] + counts["chunks"]["failed"]
    lost = counts["chunks"]["fallback"] + counts["chunks"]["failed"]
    shares = {
        "fallback": (lost / asked if asked else 0.0, config.limits.fallback),
        "quarantined": (
            counts["documents"]["quarantined"] / max(1, counts["documents"]["total"]),
            config.limits.quarantined,
        ),
    }
    return tuple(
        f"limits.{name} is {limit:.1%}, but {share:.1%} were" for name, (share, limit) in shares.items() if share > limit
    )


def unchanged(previous: Manifest, changes: Changes, progress: Progress) -> Result:
    """Nothing to do: the previous snapshot stands."""
    documents = dict(previous.counts["documents"]) | {"new": 0, "changed": 0, "unchanged": changes.unchanged, "deleted": 0}
    chunks = dict(previous.counts["chunks"])
    chunks |= {"generated": 0, "reused": chunks["ok"] + chunks["fallback"]}
    tokens = dict.fromkeys(previous.counts["tokens"], 0)
    reasons = dict(previous.counts["reasons"])
    return Result(previous.sequence, False, documents, chunks, tokens, reasons, progress.seconds, ())


def remove_staged(storage: Storage, run_id: str) -> None:
    """Drop the run's intermediate files: the segments hold all of it."""
    for entry in list(storage.list(layout.run_file(run_id, "staged/"))):
        storage.delete(entry.name)


def new_run_id() -> str:
    """Sorts by time, unique without asking anyone."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"


def refuse_local_paths(config: Config) -> None:
    """A cluster reaches only remote stores. Raises ConfigError naming the first local path."""
    for key, uri in (("corpus", config.corpus), ("documents.uri", config.documents.uri)):
        if not is_remote(uri):
            raise ConfigError(f"{key} is the local path {uri}, which a remote cluster cannot see; use s3://bucket/prefix")


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))
