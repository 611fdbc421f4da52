"""The command `situate export`: a snapshot's rows, contexts and vectors as records for other search systems."""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

_LINE_EVERY_S = 10.0
_LINES = (".jsonl", ".ndjson")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument("corpus")
    command.add_argument("target", help="a new file (a folder above 1 GiB), on this machine or s3://bucket/name")
    command.add_argument(
        "--format", choices=["parquet", "jsonl"], help="default: jsonl for names that end so, else parquet"
    )
    command.add_argument("--snapshot", type=int, metavar="N", help="default: the newest")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Export, with a line on stderr now and then; the record of `export --json`."""
    from indexing import destination, export, manifest
    from indexing.storage import open_storage

    storage, started = open_storage(options.corpus), time.monotonic()
    found = manifest.find(storage, options.snapshot)
    form: export.Format = options.format or ("jsonl" if options.target.endswith(_LINES) else "parquet")
    with destination.opened(options.target) as target:
        say = _reporter(found.counts["chunks"]["total"])
        exported = export.write(storage, found, target, form, say)
    size = sum(file["size_bytes"] for file in exported.files)
    seconds = round(time.monotonic() - started, 3)
    head = {"snapshot": found.sequence, "target": options.target, "format": form}
    return {**head, **exported._asdict(), "size_bytes": size, "seconds": seconds}


def line(record: dict[str, Any]) -> Any:
    """What people read."""
    from rich.text import Text

    files = f"{len(record['files'])} files in " if len(record["files"]) > 1 else ""
    return Text(
        f"snapshot {record['snapshot']}: {record['documents']:,} documents, {record['chunks']['total']:,} chunks, "
        f"{record['records']:,} records, {record['size_bytes']:,} bytes -> {files}{record['target']}"
    )


def _reporter(total: int) -> Callable[[int], None]:
    """Says how far it is, every ten seconds."""
    started = last = time.monotonic()

    def say(done: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _LINE_EVERY_S:
            last = now
            sys.stderr.write(f"export: {done:,} of {total:,} chunks, {done / (now - started):,.0f}/s\n")
            sys.stderr.flush()

    return say
