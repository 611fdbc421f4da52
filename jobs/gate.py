"""The gate: what a finished snapshot must be like to be published. Refused, it leaves the one before in place.

(previous, candidate, questions) -> what the manifest keeps of it, or PublishGateError with all reasons in one sentence. The
candidate is searched as a reader would search it, before its manifest exists. A person may publish it all the same with a
reason, which the manifest keeps too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from enrichment.errors import PublishGateError
from indexing import manifest
from indexing.manifest import Manifest
from indexing.snapshot import Snapshot
from indexing.storage import Storage
from jobs.check import Answered, GateOptions, GoldenQuestion, ask, too_low


def judge(
    storage: Storage,
    previous: Manifest | None,
    candidate: Manifest,
    options: GateOptions,
    questions: Sequence[GoldenQuestion],
    force: str | None = None,
) -> dict[str, Any]:
    """What the manifest says of the gate; empty where nothing is asked of it. Raises PublishGateError."""
    now = _answered(storage, candidate, questions, options)
    before = _before(storage, previous, questions, options)
    reasons = [*_counted(previous, candidate, options), *_recalled(before, now, options)]
    if reasons and force is None:
        stands = f"snapshot {previous.sequence} still answers" if previous else "there is no snapshot yet"
        raise PublishGateError(
            f"not published, {stands}: {'; '.join(reasons)}; mend it, or publish it all the same with --force REASON"
        )
    record: dict[str, Any] = {}
    if now is not None:
        record |= {"recall": now.recall, "questions": now.questions, "asked": _asked(questions, options)}
    if reasons:
        record |= {"refused": reasons, "forced": force}
    return record


def _counted(previous: Manifest | None, candidate: Manifest, options: GateOptions) -> Iterator[str]:
    documents, chunks = candidate.counts["documents"], candidate.counts["chunks"]
    if previous is not None:
        held = previous.counts["documents"]["indexed"]
        if documents["indexed"] < options.documents * held:
            yield f"it holds {documents['indexed']:,} documents of {held:,} (gate.documents {options.documents:g})"
    for name, part, whole in (
        ("quarantined", documents["quarantined"], documents["total"]),
        ("fallback", chunks["fallback"], chunks["total"]),
    ):
        most = getattr(options, name)
        if part > most * whole:
            yield f"{part:,} of {whole:,} are {name} (gate.{name} {most:g})"


def _recalled(before: float | None, now: Answered | None, options: GateOptions) -> Iterator[str]:
    if now is None:
        return
    if now.recall < options.min_recall:
        yield too_low(now, options.min_recall)
    if before is not None and before - now.recall > options.max_drop:
        yield (
            f"the golden questions find {now.recall:.3f} of what answers them, {before:.3f} before"
            f" (gate.max_drop {options.max_drop:g}): {now.names()} not all of it"
        )


def _before(
    storage: Storage, previous: Manifest | None, questions: Sequence[GoldenQuestion], options: GateOptions
) -> float | None:
    """The recall of the snapshot before: as it was measured then if the same was asked, else measured now."""
    if previous is None or not questions:
        return None
    if previous.gate.get("asked") == _asked(questions, options):
        return float(previous.gate["recall"])
    found = _answered(storage, previous, questions, options)
    return found.recall if found else None


def _answered(
    storage: Storage, found: Manifest, questions: Sequence[GoldenQuestion], options: GateOptions
) -> Answered | None:
    if not questions:
        return None
    snapshot = Snapshot(storage, found)
    try:
        return ask(snapshot, questions, options)
    finally:
        snapshot.close()


def _asked(questions: Sequence[GoldenQuestion], options: GateOptions) -> str:
    """Changes with the questions and with how they are asked."""
    asked = [repr(asdict(question)).encode() for question in questions]
    return manifest.digest(*asked, repr(options.how).encode())[:32]
