"""What the commands print for people: rich renderables from the same records that `--json` prints.

Document text is data: it is shown as plain text, never as markup, and terminal control characters are made visible.
"""

import unicodedata
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

Record = Mapping[str, Any]

_DOCUMENT_COUNTS = (
    "total",
    "indexed",
    "empty",
    "quarantined",
    "new",
    "changed",
    "unchanged",
    "deleted",
    "renamed",
    "stale",
    "withheld",
    "pending_new",
    "pending_changed",
)  # the first three after the total make it up; the others compare with the snapshot before
_CHUNK_COUNTS = ("total", "ok", "ungrounded", "fallback", "failed", "skipped", "generated", "reused")
_REJECTED_SHOWN = 10
_UNWRAPPED = 1_000_000  # columns


def show(renderable: RenderableType) -> None:
    """Print to stdout: boxed and wrapped on a terminal, else lines as they are, for programs that read lines."""
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(renderable)
        return
    wide = Console(highlight=False, width=_UNWRAPPED)
    with wide.capture() as captured:
        wide.print(_unboxed(renderable))
    for line in captured.get().splitlines():
        console.out(line.rstrip(), highlight=False)


def _unboxed(renderable: RenderableType) -> RenderableType:
    if isinstance(renderable, Panel):
        title = renderable.title if isinstance(renderable.title, Text) else Text(str(renderable.title or ""))
        return Group(title, _unboxed(renderable.renderable), Text())
    if isinstance(renderable, Group):
        return Group(*map(_unboxed, renderable.renderables))
    return renderable


def refreshed(record: Record, corpus: str) -> RenderableType:
    """The closing summary of a refresh."""
    head = (
        f"snapshot {record['snapshot']} published"
        if record["published"]
        else f"snapshot {record['snapshot']} stands: nothing changed"
    )
    grid = Table.grid(padding=(0, 2))
    grid.add_row("documents", _counts(record["documents"], _DOCUMENT_COUNTS))
    grid.add_row("chunks", _counts(record["chunks"], _CHUNK_COUNTS))
    for entry in record["rejected"][:_REJECTED_SHOWN]:
        grid.add_row("quarantined", Text(visible(f"{entry['id']}: {entry['reason']}")))
    if len(record["rejected"]) > _REJECTED_SHOWN:
        grid.add_row("", Text(f"and {len(record['rejected']) - _REJECTED_SHOWN:,} more: --json names them all"))
    if record["reasons"]:
        grid.add_row("refused", _counts(record["reasons"], tuple(record["reasons"])))
    tokens = record["tokens"]
    if tokens["prompt"]:
        ratio = tokens["computed"] / max(1, tokens["ideal"])
        why = ", ".join(
            f"{tokens[name]:,} {name.replace('_', ' ')}"
            for name in ("block_rounding", "retries", "evicted", "preemptions")
            if tokens[name] or name == "block_rounding"
        )
        grid.add_row(
            "prompt tokens",
            Text(
                f"{tokens['computed']:,} computed of {tokens['prompt']:,} ({tokens['cached']:,} cached); ideal"
                f" {tokens['ideal']:,}, ratio {ratio:.2f} ({why}); {tokens['output']:,} written"
            ),
        )
    if record["replicas"]:
        busy = ", ".join(f"{r['busy']:.0%} ({int(r['documents']):,} documents)" for r in record["replicas"])
        grid.add_row("replicas busy", Text(busy))
    if record["seconds"]:
        grid.add_row("seconds", Text(", ".join(f"{name} {took:.1f}" for name, took in record["seconds"].items())))
    body = Group(grid, Text(f'\nsituate search {corpus} "your question"', style="dim"))
    return Panel(body, title=head, title_align="left", border_style="green")


def planned(record: Record) -> RenderableType:
    """What a refresh would do."""
    grid, error = Table.grid(padding=(0, 2)), record["error"]

    def about(name: str, number: int) -> str:
        return f"{number:,} ± {error[name]:,}" if name in error else f"{number:,}"

    grid.add_row("documents", _counts(record["documents"], (*_DOCUMENT_COUNTS, "work")))
    why = ", ".join(f"{number:,} {name}" for name, number in record["why"].items() if number)
    changed = f" (changed: {', '.join(record['settings'])})" if record["settings"] else ""
    grid.add_row("because", Text((why or "nothing changed") + changed))
    chunks = record["chunks"]
    named = ("generated", "reused", "skipped", "failed")
    parts = ", ".join(f"{about(name, chunks[name])} {name}" for name in named if chunks[name] or name == "generated")
    grid.add_row("chunks", Text(f"{chunks['total']:,} in all; of {about('chunks', chunks['work'])}: {parts}"))
    if chunks["oversized_documents"]:
        grid.add_row(
            "", Text(f"{about('oversized', chunks['oversized_documents'])} documents are longer than the model")
        )
    tokens = record["tokens"]
    grid.add_row(
        "prompt tokens",
        Text(
            f"{tokens['computed']:,} to compute of {about('prompt', tokens['prompt'])}; ideal"
            f" {about('ideal', tokens['ideal'])}, {about('block_rounding', tokens['block_rounding'])} block rounding;"
            f" {tokens['output']:,} to write"
        ),
    )
    embeddings = record["embeddings"]
    grid.add_row(
        "embeddings",
        Text(
            f"{about('embedded', embeddings['embedded'])} to make for {about('texts', embeddings['texts'])} texts;"
            f" {about('split_rows', embeddings['split_rows'])} rows are longer than the embedder's window"
        ),
    )
    sizes = ", ".join(f"{name} {size / 1e6:,.1f}" for name, size in record["size_bytes"].items())
    grid.add_row("MB to write", Text(sizes))
    basis = record["basis"]
    source = f"{basis['runs']} earlier runs" if basis["runs"] else "no earlier run"
    hours = "unknown: state --tokens-per-s" if record["hours"] is None else f"{record['hours']:,.2f}"
    dollars = "" if record["dollars"] is None else f", {record['dollars']:,.2f} dollars"
    grid.add_row("hours", Text(f"{hours}{dollars} ({source}; {basis['output_tokens']:.0f} tokens per context)"))
    share = "" if record["sample"] == 1 else f" (by {record['sample']:.0%} of the work, 95 % intervals)"
    return Panel(grid, title=f"what a refresh would do{share}", title_align="left", border_style="green")


def passages(record: Record, query: str) -> RenderableType:
    """Search results: original text, with context and heading path beside it."""
    if not record["passages"]:
        return Text(f"nothing in snapshot {record['snapshot']} matches, or nothing that fits into --budget")
    panels = []
    for rank, passage in enumerate(record["passages"], 1):
        hits = []
        for hit in passage["hits"]:
            scores = "".join(f", {n} {hit[n]:.3f}" for n in ("dense", "lexical") if hit[n] is not None)
            hits.append(Text(f"chunk {hit['chunk_index']}, score {hit['score']:.4f}{scores}", style="dim"))
            if hit["heading_path"]:
                hits.append(Text("under " + visible(" > ".join(hit["heading_path"])), style="cyan"))
            if hit["context"]:
                hits.append(Text("generated: " + visible(hit["context"]), style="italic magenta"))
        title = Text(f"{rank}. {visible(passage['title'] or passage['document_id'])}", style="bold")
        where = Text(f"{visible(passage['document_id'])} [{passage['start']}:{passage['end']}]", style="dim")
        text = Text(visible(passage["text"].strip("\n")))
        panels.append(Panel(Group(where, *hits, Text(), text), title=title, title_align="left"))
    return Group(*panels)


def shown(record: Record) -> RenderableType:
    """A document, its chunks before and after."""
    document = record["document"]
    head = Text(f"{visible(document['title'] or document['id'])}\n", style="bold")
    head.append(f"{visible(document['id'])}, {document['num_rows']} chunks, {document['status']}", style="dim")
    if document["reason"]:
        head.append(f": {visible(document['reason'])}", style="dim")
    if document.get("stale"):
        head.append(f"\nstale: its newest version cannot be used: {visible(document['stale'])}", style="yellow")
    parts: list[RenderableType] = [head]
    for chunk in record["chunks"]:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim")
        grid.add_row("original", Text(visible(chunk["text"].strip("\n"))))
        grid.add_row("header", Text(visible(chunk["header"] or "none"), style="cyan"))
        grid.add_row("context", Text(visible(chunk["context"] or "none"), style="italic magenta"))
        if chunk["rewrite"]:
            grid.add_row("rewrite", Text(visible(chunk["rewrite"]), style="italic magenta"))
        reason = f" ({visible(chunk['reason'])})" if chunk["reason"] else ""
        grid.add_row("status", Text(f"{chunk['status']}{reason}, strategy {chunk['strategy']}"))
        grid.add_row(
            "span", Text(f"[{chunk['start']}:{chunk['end']}], bytes [{chunk['byte_start']}:{chunk['byte_end']}]")
        )
        parts.append(Panel(grid, title=f"chunk {chunk['chunk_index']}", title_align="left"))
    if "window" in record:
        window = record["window"]
        text = Text(visible(window["text"].strip("\n")))
        parts.append(Panel(text, title=f"window [{window['start']}:{window['end']}]", title_align="left"))
    return Group(*parts)


def run_status(record: Record) -> RenderableType:
    """The last run of a corpus."""
    lines = [progress_line(record)]
    if record["held"] is not None:
        lines.append(
            f"rolled back to snapshot {record['held']}, which holds: refreshes are refused until it is released"
        )
    if record["last_success"] is not None:
        success = record["last_success"]
        lines.append(f"last success {success['age_s'] / 3600:.1f} hours ago, snapshot {success['snapshot']}")
    lines += [f"{name} {took:.1f} s" for name, took in record["seconds"].items()]
    if record["report"]:
        lines.append(
            f"snapshot {record['report']['snapshot']}: chunks {_counts(record['report']['chunks'], _CHUNK_COUNTS)}"
        )
    return Text("\n".join(lines))


def progress_line(record: Record) -> str:
    """One line about a run."""
    done = record["counts"].get("documents", 0)
    of = f", {done} of {record['total']} documents" if record["total"] and record["stage"] != "done" else ""
    return f"run {record['run_id']}: {record['stage']}{of}, last heard of at {record['updated_at']}"


def diagnosis(record: Record) -> RenderableType:
    """What `doctor` found."""
    table = Table.grid(padding=(0, 2))
    for _ in range(3):
        table.add_column(overflow="fold")
    for check in record["checks"]:
        table.add_row(
            Text("ok" if check["ok"] else "missing", style="green" if check["ok"] else "bold red"),
            check["name"],
            Text(check["detail"]),
        )
    return table


def started(record: Record) -> RenderableType:
    """What `init` wrote."""
    return Text(f"wrote {record['config']} for {record['files']} files; next: situate refresh {record['config']}")


def submitted(record: Record) -> RenderableType:
    """A job on a cluster."""
    return Text(f"job {record['job']} {record['status'].lower()}")


def visible(text: str) -> str:
    """Text without control over the terminal: control and bidirectional marks become their code points."""
    return "".join(
        f"\\u{ord(char):04x}" if unicodedata.category(char) in ("Cc", "Cf") and char not in "\n\t\u200d" else char
        for char in text.replace("\r\n", "\n")
    )


def _counts(counts: Mapping[str, int], names: tuple[str, ...]) -> Text:
    shown = [name for name in names if counts.get(name) or name == "total"]
    return Text(", ".join(f"{counts[name]:,} {name.replace('_', ' ')}" for name in shown))
