"""The operator's commands: options in, what to print and whether it is well out. The work itself is in `indexing/`.

Each function answers (record, lines for people, complaint); a complaint is one sentence and means exit status 1.
"""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from enrichment.errors import ConfigError
from indexing import collection, history, verification
from indexing.storage import open_storage
from jobs import purge
from jobs.console import visible

Answer = tuple[dict[str, Any], list[str], str | None]
_SHOWN = 20  # names in what people read; --json has them all


def verify(options: argparse.Namespace) -> Answer:
    """Every file's size and hash, and that a segment's files agree."""
    record = verification.verify(open_storage(options.corpus), options.sample)
    lines = [
        f"{record['snapshots']} snapshots, {record['segments_read']} of {record['segments']} segments read, "
        f"{record['files']} files, {record['bytes_read']:,} bytes, {record['ledger_parts']} parts of the ledger"
    ]
    lines += [f"{found['file']}: {found['problem']} (snapshots {found['snapshots']})" for found in record["problems"]]
    if record["ok"]:
        return record, [*lines, "all is as it was written"], None
    first = record["problems"][0]
    more = f", and {len(record['problems']) - 1} more problems" if len(record["problems"]) > 1 else ""
    return record, lines, f"{options.corpus}/{first['file']}: {first['problem']}{more}; restore it or roll back"


def snapshots(options: argparse.Namespace) -> Answer:
    """The kept snapshots, oldest first."""
    found = history.snapshots(open_storage(options.corpus))
    lines = []
    for record in found:
        if "error" in record:
            lines.append(f"{record['snapshot']:>6}  {record['error']}")
            continue
        held = f", held at {record['held']}" if record["held"] is not None else ""
        lines.append(
            f"{record['snapshot']:>6}  {record['created_at']}  {record['documents']:,} documents, "
            f"{record['chunks']:,} chunks, {record['segments']} segments, {record['dead_rows']:,} dead rows, "
            f"{record['size_bytes']:,} bytes{held}"
        )
    return {"snapshots": found}, lines, None


def diff(options: argparse.Namespace) -> Answer:
    """What changed between two snapshots."""
    record = history.diff(open_storage(options.corpus), options.before, options.after)
    lines = []
    for name in ("new", "changed", "deleted"):
        lines.append(f"{name}: {len(record[name])}")
        lines += [f"  {visible(document)}" for document in record[name][:_SHOWN]]
        if len(record[name]) > _SHOWN:
            lines.append(f"  and {len(record[name]) - _SHOWN:,} more: --json names them all")
    for group in ("documents", "chunks", "reasons"):
        lines += [f"{group} {name}: {old} -> {new}" for name, (old, new) in record["counts"].get(group, {}).items()]
    lines += [
        f"{name}: {old} -> {new}"
        for group in ("settings", "fingerprints")
        for name, (old, new) in record[group].items()
    ]
    return record, lines, None


def rollback(options: argparse.Namespace) -> Answer:
    """Go back to a snapshot and hold there, or let go."""
    storage = open_storage(options.corpus)
    if (options.sequence is None) == (not options.release):
        raise ConfigError("give either the number of a snapshot to roll back to or --release")
    if options.release:
        published = history.release(storage)
        line = f"snapshot {published.sequence} published: the rollback is released, the next refresh publishes again"
    else:
        published = history.roll_back(storage, options.sequence)
        line = (
            f"snapshot {published.sequence} published, the same as {options.sequence}; it holds: refreshes are refused "
            f"until `situate rollback {options.corpus} --release`"
        )
    return {"snapshot": published.sequence, "held": published.held}, [line], None


def gc(options: argparse.Namespace) -> Answer:
    """Remove what no kept snapshot needs, or say what would be removed."""
    older_than_s = options.older_than * 3600
    garbage = collection.collect(open_storage(options.corpus), options.keep, older_than_s, options.delete)
    record = garbage.as_dict(options.delete)
    verb = "removed" if options.delete else "would remove"
    names = [f"  {name}" for name in record["objects"][:_SHOWN]]
    if len(record["objects"]) > _SHOWN:
        names.append(f"  and {len(record['objects']) - _SHOWN:,} more: --json names them all")
    head = (
        f"{verb} {len(record['snapshots'])} snapshots, {len(record['objects'])} objects, {record['size_bytes']:,} bytes"
    )
    hint = [] if options.delete else ["nothing was removed; --delete removes it"]
    return record, [head, *names, *hint], None


def erase(options: argparse.Namespace) -> Answer:
    """Erase a document for good, with a proof."""
    record = purge.purge(open_storage(options.corpus), options.document)
    name = visible(options.document)
    searched = record["searched"]
    if not record["found"] and not record["left"]:
        complaint = f"{options.corpus} holds no trace of {name}; its id is a path below the sources, or a record's id"
        return record, [], complaint
    lines = [
        f"snapshots rewritten: {len(record['snapshots_rewritten'])}; segments: {record['segments_rewritten']}; "
        f"entries of the ledger removed: {record['ledger_entries_removed']}; objects removed: {record['objects_removed']}",
        f"searched afterwards: {searched['objects']} objects, {searched['size_bytes']:,} bytes; "
        f"left of it: {'nothing' if not record['left'] else len(record['left'])}",
        *(f"  {entry['object']}: {entry['trace']}" for entry in record["left"]),
        *(f"{visible(entry['id'])} stays and has {entry['what']}" for entry in record["copies"]),
        *(f"note: {note}" for note in record["notes"]),
    ]
    if not record["left"]:
        return record, lines, None
    first = record["left"][0]
    still = f"{options.corpus}/{first['object']} still holds {first['trace']} of {name}"
    return record, lines, f"{still}; run the same command again"


COMMANDS: Mapping[str, Callable[[argparse.Namespace], Answer]] = {
    "verify": verify,
    "snapshots": snapshots,
    "diff": diff,
    "rollback": rollback,
    "gc": gc,
    "purge": erase,
}
