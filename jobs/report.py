"""`situate report`: what the last run did and what the corpus is like, as one page of HTML that needs nothing else.

(store, what an evaluation printed) -> HTML. Everything that comes from documents, models or configurations is escaped, and the
page's own policy lets nothing run and nothing load.
"""

import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from enrichment.errors import ConfigError
from enrichment.records import Status
from indexing import layout, manifest
from indexing.manifest import Manifest
from indexing.snapshot import Snapshot
from indexing.storage import MissingObjectError, Storage, open_storage
from jobs import plots, stored_bytes

_TREND = 30  # snapshots
_SAMPLES = 3  # of each kind
_CANDIDATES = 400  # chunks that samples are chosen from
_LISTED = 50  # quarantined documents
_BEST = 12  # combinations of an evaluation
_TOKENS = ("ideal", "block_rounding", "retries", "evicted")
_SAMPLED = ("document_id", "chunk_index", "start", "end", "header", "context", "status", "reason")
_WORD = re.compile(r"\w+")
_STYLE = """
:root{color-scheme:light dark;--line:#8885;--soft:#8881}
body{font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere;max-width:52rem;margin:0 auto;padding:1rem}
h1{font-size:1.5rem;margin:.5rem 0}
h2{font-size:1.15rem;margin:2rem 0 .5rem;border-bottom:1px solid var(--line)}
figure{margin:0;background:#fff;border-radius:.4rem;padding:.3rem;overflow-x:auto}svg{width:100%;height:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem}td,th{text-align:left;padding:.2rem .6rem .2rem 0;vertical-align:top}
th{white-space:nowrap}.n{text-align:right;font-variant-numeric:tabular-nums}
.sample{border:1px solid var(--line);border-radius:.4rem;padding:.6rem .8rem;margin:.6rem 0;break-inside:avoid}
.original{white-space:pre-wrap;max-height:14rem;overflow:auto;background:var(--soft);padding:.4rem}
.context{border-left:.25rem solid;padding-left:.6rem;font-style:italic}.meta{font-size:.85rem;opacity:.8}
.said{font-size:1.1rem}
@media print{body{max-width:none;padding:0;font-size:11pt}.original{max-height:none;overflow:visible}figure{break-inside:avoid}}
"""


def write(corpus: str, path: Path, sequence: int | None = None, evaluation: Path | None = None) -> dict[str, Any]:
    """Write the page about a snapshot, the newest unless another is named. Raises ConfigError."""
    storage = open_storage(corpus)
    found = manifest.find(storage, sequence)
    evaluated = _read_evaluation(evaluation) if evaluation else None
    text = page(storage, found, evaluated)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the report {path} cannot be written: {error.strerror}") from error
    return {"snapshot": found.sequence, "file": str(path), "size_bytes": len(text.encode())}


def page(storage: Storage, found: Manifest, evaluated: Mapping[str, Any] | None) -> str:
    """The whole page."""
    run, snapshot = _run_report(storage, found), Snapshot(storage, found)
    title = f"Snapshot {found.sequence} of {storage.uri}"
    sections = [
        ("What the run did", _did(found, run)),
        ("What is stored", _stored(snapshot)),
        ("Samples, before and after", _samples(snapshot)),
        ("What contexts are worth", _evaluated(evaluated)),
        ("The last snapshots", _trend(storage, found)),
        ("Quarantined and stale", _left_out(found)),
        ("Configuration", f"<pre class=original>{_text(json.dumps(found.config, indent=1))}</pre>"),
    ]
    body = "".join(f"<section><h2>{name}</h2>{content}</section>" for name, content in sections)
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        f'<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><title>{_text(title)}</title>'
        f"<style>{_STYLE}</style><h1>{_text(title)}</h1>"
        f"<p class=meta>published {_text(found.created_at)} by run {_text(found.run_id)}</p>{body}</html>\n"
    )


def _did(found: Manifest, run: Mapping[str, Any]) -> str:
    counts = found.counts
    tokens, chunks = counts["tokens"], counts["chunks"]
    told = [
        _counted("documents", counts["documents"]),
        _counted("chunks", chunks),
        _counted("tokens", tokens),
    ]
    pictures = []
    if tokens.get("prompt"):
        pictures += [
            _figure(plots.parts({name: tokens.get(name, 0) for name in _TOKENS}, "prompt tokens computed, by reason"))
        ]
    if run.get("seconds"):
        pictures.append(_figure(plots.times(run["seconds"])))
    statuses = {str(status): chunks[str(status)] for status in Status}
    pictures.append(_figure(plots.bars(statuses, "chunks by status")))
    if counts.get("reasons"):
        pictures.append(_figure(plots.bars(counts["reasons"], "chunks without a context, by reason")))
    gate = found.gate
    said = f"<p>The gate's questions found {gate['recall']:.3f} of what answers them.</p>" if "recall" in gate else ""
    if gate.get("refused"):
        why = _text("; ".join(gate["refused"]))
        said += f"<p><b>Published although the gate refused</b>: {why}. {_text(gate['forced'])}</p>"
    return said + "".join(pictures) + f"<table>{''.join(told)}</table>"


def _counted(name: str, counts: Mapping[str, int]) -> str:
    told = ", ".join(f"{count:,} {part.replace('_', ' ')}" for part, count in counts.items() if count)
    return f"<tr><th>{name}</th><td>{_text(told)}</td></tr>"


def _stored(snapshot: Snapshot) -> str:
    """Bytes by kind of file, and what windows around every chunk would take: they are cut out of the originals instead."""
    sizes = stored_bytes.by_kind(snapshot.manifest)
    text = sizes.get(layout.ORIGINALS, 0)
    windows = stored_bytes.of_windows(snapshot.live_rows(stored_bytes.WINDOW_COLUMNS))
    told = sorted(sizes.items(), key=lambda entry: -entry[1])
    told.append((f"windows of {stored_bytes.WINDOW} chunks on each side, were they stored with every chunk", windows))
    rows = [
        f"<tr><td>{_text(name)}</td><td class=n>{size:,} bytes</td><td class=n>{size / max(1, text):.2f} x the text</td></tr>"
        for name, size in told
    ]
    return f"<table>{''.join(rows)}</table>"


def _samples(snapshot: Snapshot) -> str:
    """Chunks with the context that adds most, least, and any: words of the document that the chunk itself lacks."""
    rows = snapshot.live_rows(_SAMPLED)
    rows = rows.filter(pc.is_valid(rows["context"]))
    if not rows.num_rows:
        return "<p>No chunk has a context.</p>"
    lengths = pc.utf8_length(rows["context"]).to_pylist()
    names = [f"{row['document_id']}\0{row['chunk_index']}" for row in rows.select(_SAMPLED[:2]).to_pylist()]
    order = sorted(range(len(names)), key=lambda place: hashlib.sha256(names[place].encode()).digest())
    made = rows.take(pa.array(order[:_CANDIDATES])).to_pylist()
    scored = sorted(made, key=lambda row: -_added(snapshot, row))
    doubtful = [row for row in made if row["reason"]] or scored[::-1]
    parts = [_figure(plots.histogram(lengths, "characters of a context"))]
    for name, chosen in (
        ("adds most words that the document has and the chunk lacks", scored),
        ("doubtful: names what the document does not, or adds least", doubtful),
        ("any", made),
    ):
        parts += [f"<h3>{name}</h3>", *(_sample(snapshot, row) for row in chosen[:_SAMPLES])]
    return "".join(parts)


def _added(snapshot: Snapshot, row: Mapping[str, Any]) -> int:
    text = snapshot.original(row["document_id"])
    words, chunk = set(_WORD.findall(text.lower())), set(_WORD.findall(text[row["start"] : row["end"]].lower()))
    return len((set(_WORD.findall(row["context"].lower())) & words) - chunk)


def _sample(snapshot: Snapshot, row: Mapping[str, Any]) -> str:
    original = snapshot.original(row["document_id"])[row["start"] : row["end"]]
    reason = f" ({row['reason']})" if row["reason"] else ""
    where = f"{row['document_id']}, chunk {row['chunk_index']}, {row['status']}{reason}"
    return (
        f"<div class=sample><div class=meta>{_text(where)}<br>header: {_text(row['header'] or 'none')}</div>"
        f"<div class=original>{_text(original)}</div>"
        f"<div class=meta>generated:</div><div class=context>{_text(row['context'] or 'none')}</div></div>"
    )


def _evaluated(record: Mapping[str, Any] | None) -> str:
    if record is None:
        return "<p>Not evaluated: <code>situate evaluate</code> compares, <code>--evaluation</code> shows it here.</p>"
    measure = record["measure"]
    rows = sorted(record["combinations"], key=lambda row: -row["scores"][measure])
    kept = [*rows[:_BEST], *(row for row in rows[_BEST:] if row["name"] in record["best"].values())]
    points = [(r["name"], *(100 * value for value in (r["scores"][measure], *r["interval"]))) for r in kept]
    changed = [
        f"<tr><td>{word}</td><td class=n>{change['points']:+.0f}</td><td>{_text(change['query'])}</td>"
        f"<td>{_text(change['context'] or '')}</td></tr>"
        for word in ("won", "lost")
        for change in record[word][:_SAMPLES]
    ]
    return (
        f"<p class=said>{_text(record['recommendation'])}</p>"
        + _figure(
            plots.intervals(points, f"{measure} of {record['questions']} questions, per cent, with 95 % intervals")
        )
        + f"<table><tr><th></th><th class=n>points</th><th>question</th><th>generated</th></tr>{''.join(changed)}</table>"
    )


def _trend(storage: Storage, found: Manifest) -> str:
    known = [sequence for sequence in manifest.sequences(storage) if sequence <= found.sequence][-_TREND:]
    manifests = [manifest.load(storage, sequence) for sequence in known]
    lines = {
        "chunks": [(m.sequence, float(m.counts["chunks"]["total"])) for m in manifests],
        "fallback, per cent of chunks": [
            (m.sequence, 100 * m.counts["chunks"]["fallback"] / max(1, m.counts["chunks"]["total"])) for m in manifests
        ],
        "prompt tokens computed": [(m.sequence, float(m.counts["tokens"]["computed"])) for m in manifests],
        "recall of the gate's questions": [(m.sequence, m.gate["recall"]) for m in manifests if "recall" in m.gate],
    }
    return _figure(plots.trend(lines))


def _left_out(found: Manifest) -> str:
    entries = [
        *((e["id"], e["reason"]) for e in found.rejected),
        *((e["id"], f"stale: {e['reason']}") for e in found.stale),
    ]
    if not entries:
        return "<p>None.</p>"
    more = f"<p>and {len(entries) - _LISTED:,} more</p>" if len(entries) > _LISTED else ""
    return f"<table>{_rows(entries[:_LISTED])}</table>{more}"


def _rows(entries: Iterable[Sequence[str]]) -> str:
    return "".join("<tr>" + "".join(f"<td>{_text(value)}</td>" for value in entry) + "</tr>" for entry in entries)


def _run_report(storage: Storage, found: Manifest) -> Mapping[str, Any]:
    """The report of the run that made the snapshot; empty where it was collected or is damaged."""
    try:
        record = json.loads(storage.get(layout.run_file(found.run_id, "report.json")))
    except (MissingObjectError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _read_evaluation(path: Path) -> Mapping[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        for name in ("measure", "combinations", "best", "won", "lost", "questions", "recommendation"):
            _ = record[name]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not what `situate evaluate --json` prints ({error})") from error
    found: Mapping[str, Any] = record
    return found


def _figure(svg: str) -> str:
    return f"<figure>{svg}</figure>"


def _text(text: str) -> str:
    """Text as a page shows it: nothing in it is markup."""
    return html.escape(text)
