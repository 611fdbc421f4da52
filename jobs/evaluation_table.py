"""What people see of an evaluation: tables of what was compared, and the sentence that follows from them."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from jobs.console import visible
from jobs.judging import MEASURES

_BEST_PAIRS, _BEST_CHANGES = 12, 5


def shown(record: Mapping[str, Any]) -> RenderableType:
    """The whole evaluation."""
    rows = record["combinations"]
    single = [row for row in rows if row["mode"] != "hybrid"]
    pairs = sorted((row for row in rows if row["mode"] == "hybrid"), key=lambda row: -row["scores"][record["measure"]])
    parts: list[RenderableType] = [
        _table("one index", single, record["measure"]),
        _table(
            f"both indexes, the best {min(_BEST_PAIRS, len(pairs))} of {len(pairs)}",
            pairs[:_BEST_PAIRS],
            record["measure"],
        ),
        _variants(record["variants"]),
    ]
    for name, gain in record["gains"].items():
        between = f"95 % {gain['low']:+.1f} to {gain['high']:+.1f}, p {gain['p']:.3f}"
        means = f"{100 * gain['score']:.1f} from {100 * gain['over']:.1f}, chosen on other questions"
        parts.append(Text(f"{name}: {gain['points']:+.1f} points of {record['measure']}, {between}; {means}"))
    for name, windows in record["windows"].items():
        for window, scores in windows.items():
            told = ", ".join(f"{measure} {100 * value:.1f}" for measure, value in scores.items())
            parts.append(Text(f"window of {window} {record['window_by']}: {told} of {name}"))
    for name, scores in record["reranked"].get("scores", {}).items():
        told = " / ".join(f"{100 * scores[measure]:.1f}" for measure in MEASURES)
        parts.append(Text(f"reranked: {told} of {name}"))
    for word in ("won", "lost"):
        parts += [_changed(word, change) for change in record[word][:_BEST_CHANGES]]
    return Group(*parts, Text(record["recommendation"], style="bold"))


def checked(record: Mapping[str, Any]) -> RenderableType:
    """How a snapshot answers golden questions."""
    lines = [
        f"snapshot {record['snapshot']}: {record['recall']:.3f} of what answers {record['questions']:,} questions is found,"
        f" in {record['characters']:,} characters a question"
    ]
    lines += [f"{missed['question']}: {missed['query']}\n  lacks: {missed['missing']}" for missed in record["missed"]]
    return Text(visible("\n".join(lines)))


def written(record: Mapping[str, Any]) -> RenderableType:
    """What became of the passages that questions were asked about."""
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in record["kinds"].items())
    fates = ", ".join(f"{number:,} {fate}" for fate, number in record["passages"].items())
    return Text(f"wrote {record['questions']:,} questions to {record['file']} ({kinds}); of the passages: {fates}")


def _table(title: str, rows: list[Mapping[str, Any]], measure: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1))
    table.add_column("")
    for name in (*MEASURES, f"95 % of {measure}", "characters"):
        table.add_column(name, justify="right")
    for row in rows:
        low, high = row["interval"]
        scores = [f"{100 * row['scores'][name]:.1f}" for name in MEASURES]
        table.add_row(Text(row["name"]), *scores, f"{100 * low:.1f} - {100 * high:.1f}", f"{row['characters']:,}")
    return table


def _variants(variants: list[Mapping[str, Any]]) -> Table:
    table = Table(title="what was built", title_justify="left", box=None, padding=(0, 1))
    for name in ("", "documents", "chunks", "generated", "reused", "seconds"):
        table.add_column(name, justify="right" if name else "left")
    for row in variants:
        chunks = row["chunks"]
        numbers = (row["documents"], chunks["total"], chunks["generated"], chunks["reused"])
        table.add_row(Text(row["name"]), *(f"{number:,}" for number in numbers), f"{row['seconds']:.1f}")
    return table


def _changed(word: str, change: Mapping[str, Any]) -> Text:
    ranks = f"rank {change['rank'] or '-'}, {change['rank_without'] or '-'} without"
    where = f"{change['document_id']}#{change['chunk_index']}" if change["document_id"] else "no chunk"
    line = f"{word} {change['points']:+.0f} by contexts: {change['query']} ({ranks}; {where})"
    context = f"\n  generated: {change['context']}" if change["context"] else ""
    return Text(visible(line + context))
