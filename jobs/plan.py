"""What the next refresh would do and cost: `situate plan`. It reads sources, snapshot and ledger, and writes nothing.

(configuration, share of the work to look at) -> Estimate. Documents and chunks are exact unless a share of the work stands for
all of it; then every total has the half width of its 95 % interval beside it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from enrichment.errors import ConfigError
from indexing import layout, manifest
from indexing.manifest import Manifest
from indexing.storage import open_storage
from jobs import boilerplate, defaults, earlier_runs, flow, refresh, retries, stored_bytes
from jobs.config import Config
from jobs.counting import COUNTED, NUMBERS
from jobs.difference import NOTHING_ASKED, Plan, unchanged
from jobs.earlier_runs import Rates
from jobs.progress import Progress
from jobs.refresh import Checked, Workers
from jobs.sampling import Sample

# Of the text's bytes, where the corpus itself has no snapshot to go by: what examples/handbook takes, rounded up.
_SHARE_OF_TEXT = {layout.ROWS: 0.8, layout.LEXICAL: 0.5, layout.DOCUMENTS: 0.1}
_BYTES_PER_VALUE = 2  # float16, once in Parquet and once in the index
_95_PERCENT = 1.96
_AROUND_BYTES = 800  # what stands around the text in a prompt weighs like a text of about this length


@dataclass(frozen=True, slots=True)
class Estimate:
    """`as_dict` is `plan --json`; counts are of the next snapshot, of the work, or of what the work costs, as named."""

    snapshot: int | None
    sample: float
    documents: Mapping[str, int]
    why: Mapping[str, int]
    settings: tuple[str, ...]
    chunks: Mapping[str, int]
    tokens: Mapping[str, int]
    embeddings: Mapping[str, int]
    size_bytes: Mapping[str, int]
    hours: float | None
    dollars: float | None
    basis: Mapping[str, Any]
    error: Mapping[str, int]

    def as_dict(self) -> dict[str, Any]:
        """The stable JSON form."""
        return {**asdict(self), "settings": list(self.settings)}


@dataclass(frozen=True, slots=True)
class Prices:
    """What a person states: tokens read and written in a second by all replicas together, and what an hour costs."""

    tokens_per_s: float | None = None
    dollars_per_hour: float | None = None

    def __post_init__(self) -> None:
        for name in ("tokens_per_s", "dollars_per_hour"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"--{name.replace('_', '-')} is {value}; it must be above 0")


NO_PRICES = Prices()


def plan(
    config: Config, progress: Progress, address: str | None = None, sample: float = 1.0, prices: Prices = NO_PRICES
) -> Estimate:
    """Compare, count, estimate. Raises ConfigError for what a refresh would refuse too."""
    if not 0 < sample <= 1:
        raise ConfigError(f"--sample is {sample}; it must be a share above 0, at most 1")
    previous = manifest.latest(open_storage(config.corpus))
    with progress.stage("check", 0):
        checked = refresh.check(config, previous)
    with flow.cluster(address):
        return estimate(previous, config, checked, progress, flow, sample, prices)


def estimate(
    previous: Manifest | None,
    config: Config,
    checked: Checked,
    progress: Progress,
    workers: Workers,
    sample: float = 1.0,
    prices: Prices = NO_PRICES,
) -> Estimate:
    """What a night from the previous snapshot on would do, by the given workers."""
    found, config, checked = refresh.planned(previous, config, checked, progress, workers, NOTHING_ASKED)
    strata = stratified(found.work, sample)
    chosen = found.work.filter(pa.array(strata[0]))
    run = refresh.new_run("plan", config, checked, found, NOTHING_ASKED)
    run = boilerplate.known(run, found, workers.build_segments)  # of all the work, whatever part is looked at
    with progress.stage("count", chosen.num_rows, pc.sum(chosen["num_bytes"]).as_py() or 0):
        counted = workers.count(run, chosen, progress.counts) if chosen.num_rows else COUNTED.empty_table()
    totals, error = scaled(counted, found.work, *strata)
    rates = earlier_runs.rates(checked.storage, config.context.max_output_tokens)
    tokens = _tokens(totals, rates)
    hours = _hours(tokens, prices.tokens_per_s or rates.tokens_per_s)
    return Estimate(
        snapshot=previous.sequence if previous else None,
        sample=sample,
        documents=_documents(found),
        why=_why(found),
        settings=_changed_settings(found, checked, config),
        chunks=_chunks(found, totals),
        tokens=tokens,
        embeddings={name: totals[name] for name in ("texts", "embedded", "split_rows")},
        size_bytes=_sizes(found, totals, checked.dimension),
        hours=hours,
        dollars=None if hours is None or prices.dollars_per_hour is None else round(hours * prices.dollars_per_hour, 2),
        basis={**asdict(rates), "tokens_per_s": prices.tokens_per_s or rates.tokens_per_s},
        error=error,
    )


def stratified(work: pa.Table, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Which documents to count, and which of them stand for themselves alone: `(n,) bool` both.

    Half of the share are the largest documents, on which most of the tokens are spent, and the other half are chosen by hash
    among the rest: a few large ones that the chance left out would else be missing from every total.
    """
    alone = np.zeros(work.num_rows, np.bool_)
    if share >= 1:
        return ~alone, alone
    order = pc.sort_indices(work, [("num_bytes", "descending"), ("id", "ascending")]).to_numpy()
    alone[order[: int(work.num_rows * share / 2)]] = True
    return alone | Sample(share / 2).mask(work["id"]), alone


def scaled(
    counted: pa.Table, work: pa.Table, chosen: np.ndarray, alone: np.ndarray
) -> tuple[dict[str, int], dict[str, int]]:
    """Totals over all the work from what was counted of its `stratified` part, and half the width of 95 % intervals.

    The rest is a ratio estimate by the documents' bytes, with the variance of its residuals: Cochran, "Sampling Techniques",
    1977, sections 6.3 and 6.4; of prompt tokens by about the square of the bytes, since each prompt repeats what stands before
    its chunk. Nothing is estimated, and no error given, where all the work was counted.
    """
    if chosen.all():
        return {name: pc.sum(counted[name]).as_py() or 0 for name in NUMBERS}, {}
    listed = work.select(["id", "num_bytes"]).append_column("alone", pa.array(alone))
    known, rest = listed.filter(pa.array(chosen)).sort_by("id"), listed.filter(pa.array(~alone))
    counted = counted.sort_by("id")  # workers count in any order
    sampled = ~known["alone"].to_numpy()
    n, totals, error = int(sampled.sum()), {}, {}
    if n < 2:
        raise ConfigError(f"--sample leaves {n} of {rest.num_rows} documents to stand for the others; raise it")
    for name in NUMBERS:
        values = counted[name].to_numpy().astype(np.float64)
        sizes, all_sizes = _size(known["num_bytes"], name)[sampled], _size(rest["num_bytes"], name)
        ratio = values[sampled].sum() / max(1.0, sizes.sum())
        residuals = values[sampled] - ratio * sizes
        variance = float((residuals**2).sum()) / (n - 1)
        spread = rest.num_rows * np.sqrt((1 - n / rest.num_rows) * variance / n)
        totals[name] = round(values[~sampled].sum() + ratio * all_sizes.sum())
        error[name] = round(_95_PERCENT * spread)
    return totals, error


def _size(num_bytes: pa.ChunkedArray, name: str) -> np.ndarray:
    """What a number of a document grows with: `(n,) float64`."""
    sizes: np.ndarray = num_bytes.to_numpy().astype(np.float64)
    return sizes * (sizes + _AROUND_BYTES) if name == "prompt" else sizes


def _documents(found: Plan) -> dict[str, int]:
    changes = asdict(found.changes)
    return {
        "total": found.num_listed + found.num_kept,
        **changes,
        "stale": len(found.stale),
        "work": found.work.num_rows,
    }


def _why(found: Plan) -> dict[str, int]:
    """Why each document of the work is due; they sum to the work."""
    new, again = int((found.replaces < 0).sum()), int(unchanged(found).sum())
    counted = {"new": new, "changed": found.work.num_rows - new - again, "settings": 0, "retried": 0}
    return counted | {"settings" if found.settings else "retried": again}


def _changed_settings(found: Plan, checked: Checked, config: Config) -> tuple[str, ...]:
    """Those by which documents are done anew, and `search`, of which a change is published by itself."""
    before = found.previous.fingerprints if found.previous and found.settings else checked.fingerprints
    names = {*before, *checked.fingerprints}
    changed = {name for name in names if before.get(name) != checked.fingerprints.get(name)}
    is_restated = found.previous is not None and defaults.restated(config, found.previous)
    return tuple(sorted(changed | ({"search"} if is_restated else set())))


def _chunks(found: Plan, totals: Mapping[str, int]) -> dict[str, int]:
    """Of the next snapshot `total`; of the work the rest, where work = generated + reused + skipped + failed, and of what is
    skipped `boilerplate`.
    """
    before = int(retries.integers(found.old["num_rows"]).sum())
    carried = 0 if found.settings else before - int(retries.integers(found.old["num_rows"])[found.dying].sum())
    parts = {name: totals[name] for name in ("generated", "skipped", "failed")}
    reused = totals["chunks"] - sum(parts.values())
    return {"total": carried + totals["chunks"], "work": totals["chunks"], **parts, "reused": reused} | {
        "boilerplate": totals["boilerplate"],
        "oversized_documents": totals["oversized"],
    }


def _tokens(totals: Mapping[str, int], rates: Rates) -> dict[str, int]:
    """To read and to write, first attempts; `computed` also with what second attempts took in earlier runs."""
    computed = totals["ideal"] + totals["block_rounding"]
    return {
        "prompt": totals["prompt"],
        "cached": totals["prompt"] - computed,
        "ideal": totals["ideal"],
        "block_rounding": totals["block_rounding"],
        "computed": round(computed * (1 + rates.retried_share)),
        "output": round(totals["generated"] * rates.output_tokens),
    }


def _hours(tokens: Mapping[str, int], tokens_per_s: float | None) -> float | None:
    if tokens_per_s is None:
        return None
    return round((tokens["computed"] + tokens["output"]) / tokens_per_s / 3600, 4)


def _sizes(found: Plan, totals: Mapping[str, int], dimension: int) -> dict[str, int]:
    """What the work adds to the store, by kind of file."""
    text = int(pc.sum(found.work["num_bytes"]).as_py() or 0)
    vectors = totals["texts"] * dimension * _BYTES_PER_VALUE
    shares = _shares_of_text(found.previous) or _SHARE_OF_TEXT
    sizes = {layout.ORIGINALS: text, layout.VECTORS: vectors, layout.DENSE: vectors}
    return sizes | {name.rstrip("/"): round(share * text) for name, share in shares.items()}


def _shares_of_text(previous: Manifest | None) -> dict[str, float]:
    """Bytes per byte of original in the previous snapshot."""
    sizes = stored_bytes.by_kind(previous) if previous else {}
    text = sizes.get(layout.ORIGINALS, 0)
    return {name: sizes.get(name.rstrip("/"), 0) / text for name in _SHARE_OF_TEXT} if text else {}
