"""What contexts and headers are worth on a corpus: `situate evaluate`. Variants are built and asked the same questions.

(configuration, golden questions) -> Evaluation. Every variant is a corpus of its own, built by the same refresh; what one has
paid for, contexts and vectors, is in the ledgers of the others and of the configured corpus, so nothing is paid for twice and
adopting a variant costs no model call. Each index is searched once per question; pairs are fused from its rankings, as a search
fuses them.
"""

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from enrichment.errors import ConfigError
from enrichment.rerank import RerankOptions, open_reranker
from indexing import ledger
from indexing.expansion import WindowBy
from indexing.fusion import Fusion, fused, with_documents
from indexing.passages import ChunkSpan
from indexing.search import FUSION_DEPTH, Mode
from indexing.snapshot import Snapshot, open_snapshot
from indexing.storage import open_storage
from jobs import comparison, flow, golden, refresh, variants
from jobs.comparison import Built, Candidate, Ranking
from jobs.config import Config
from jobs.difference import Asked
from jobs.golden import Golden
from jobs.judging import MEASURES, Judge
from jobs.progress import Progress
from jobs.sampling import Sample
from jobs.variants import Side, Variant, Varied


@dataclass(frozen=True, slots=True)
class EvaluateOptions:
    """What a person may ask of an evaluation. `into` is where its corpora lie; None is beside the configured one."""

    varied: tuple[Varied, ...] = ()
    windows: tuple[int, ...] = ()
    window_by: WindowBy = "chunks"
    fusions: tuple[Fusion, ...] = (
        Fusion(),
        Fusion(document_weight=0.5),
        Fusion("scores", 1.0, 0.5),
        Fusion("scores", 1.0, 0.5, 0.5),
    )
    measure: str = "recall@10"
    sample: float = 1.0
    into: str | None = None
    rerank: RerankOptions | None = None

    def __post_init__(self) -> None:
        if not 0 < self.sample <= 1:
            raise ConfigError(f"--sample is {self.sample}; it must be a share above 0, at most 1")
        if self.measure not in MEASURES:
            raise ConfigError(f"--measure is {self.measure}; it must be one of {', '.join(MEASURES)}")
        if any(window < 0 for window in self.windows):
            raise ConfigError(f"--window is {min(self.windows)}; it must be at least 0")


AS_USUAL = EvaluateOptions()


@dataclass(frozen=True, slots=True)
class Evaluation:
    """`record` is `evaluate --json`; the rest is what TREC's files are written from."""

    record: Mapping[str, Any]
    golden: Golden
    candidates: tuple[Candidate, ...]

    def write(self, folder: Path) -> None:
        """Topics, and of every combination its run and the judgements of its chunks, for trec_eval."""
        folder.mkdir(parents=True, exist_ok=True)
        golden.write_topics(self.golden, folder / "topics.tsv")
        judges = list({id(candidate.judge): candidate.judge for candidate in self.candidates}.values())
        for number, candidate in enumerate(self.candidates, 1):
            run = candidate.judge.run(candidate.rankings)
            golden.write_run(run, f"run-{number:03}", folder / f"run-{number:03}.txt")
        for number, judge in enumerate(judges, 1):
            golden.write_qrels(judge.judged, folder / f"qrels-{number}.txt")
        lines = (
            f"run-{number:03}.txt\tqrels-{judges.index(candidate.judge) + 1}.txt\t{candidate.name}\n"
            for number, candidate in enumerate(self.candidates, 1)
        )
        (folder / "runs.tsv").write_text("".join(lines), encoding="utf-8")


def evaluate(
    config: Config,
    questions: Golden,
    progress: Progress,
    options: EvaluateOptions = AS_USUAL,
    address: str | None = None,
) -> Evaluation:
    """Build, ask, judge, compare. Raises ConfigError for what a refresh would refuse, and for questions that do not fit."""
    started = time.monotonic()
    if any(options.windows) and not questions.spans:
        raise ConfigError("--window needs golden spans: a judged chunk is found or not, whatever is around it")
    into = options.into or f"{config.corpus.rstrip('/')}-variants"
    sample = Sample(options.sample, questions.document_ids)
    wanted = variants.variants(config, options.varied, into, sample)
    built: list[Built] = []
    with flow.cluster(address, config.model.replicas if config.model else 1):
        for number, variant in enumerate(wanted, 1):
            progress.say(f"variant {number} of {len(wanted)}: {variant.name}")
            built.append(_built(variant, config, questions, sample, progress))
    candidates = tuple(_candidates(built, questions, options.fusions))
    measured = comparison.compared(questions, candidates, options.measure, options.windows, options.window_by)
    record = {
        "corpus": config.corpus,
        "into": into,
        "sample": options.sample,
        "questions": len(questions.queries),
        "measure": options.measure,
        "window_by": options.window_by,
        "variants": [each.record for each in built],
        **measured,
        "reranked": _reranked(questions, measured["best"], candidates, options.rerank),
        "seconds": round(time.monotonic() - started, 1),
    }
    return Evaluation(record, questions, candidates)


def _built(variant: Variant, base: Config, questions: Golden, sample: Sample, progress: Progress) -> Built:
    """Refresh a variant's corpus; what is paid for goes through the configured corpus's ledger. Then ask its indexes."""
    started = time.monotonic()
    storage, paid = open_storage(variant.config.corpus), open_storage(base.corpus)
    ledger.share(paid, storage)
    result = refresh.refresh(variant.config, progress, asked=Asked(allow_deletes=True, sample=sample))
    ledger.share(storage, paid)
    snapshot = open_snapshot(storage)
    rows = snapshot.live_rows([*ChunkSpan._fields, "prompt_tokens", "cached_tokens", "output_tokens"])
    totals = {name: pc.sum(rows[name]).as_py() or 0 for name in rows.column_names if name.endswith("_tokens")}
    chunks = tuple(ChunkSpan(*row.values()) for row in rows.select(ChunkSpan._fields).to_pylist())
    queries = list(questions.queries.values())
    dense, lexical = (_rankings(snapshot, queries, mode) for mode in ("dense", "lexical"))
    snapshot.close()  # what follows reads rows and originals
    record = {
        "name": variant.name,
        "corpus": variant.config.corpus,
        "documents": result.documents["indexed"],
        "chunks": {name: result.chunks[name] for name in ("total", "ok", "fallback", "failed", "generated", "reused")},
        "context_tokens": {
            "computed": totals["prompt_tokens"] - totals["cached_tokens"],
            "written": totals["output_tokens"],
        },
        "seconds": round(time.monotonic() - started, 1),
    }
    return Built(variant, snapshot, record, chunks, dense, lexical)


def _rankings(snapshot: Snapshot, queries: Sequence[str], mode: Mode) -> tuple[Ranking, ...]:
    found = snapshot.open_indexes(mode).search_many(queries, FUSION_DEPTH, mode)
    return tuple({snapshot.span_of(hit): hit.score for hit in hits} for hits in found)


def _candidates(built: Sequence[Built], questions: Golden, fusions: Sequence[Fusion]) -> list[Candidate]:
    """Every index alone; every dense with every lexical one of the same chunks, fused in every way."""
    found = []
    groups: dict[tuple[ChunkSpan, ...], list[Built]] = {}
    for each in built:
        groups.setdefault(tuple(sorted(each.chunks)), []).append(each)
    for chunks, members in groups.items():
        judge = Judge(questions, chunks)
        of_dense, of_lexical = _distinct(members, "dense"), _distinct(members, "lexical")
        found += [Candidate("dense", each, None, None, judge, _ordered(each.dense)) for each in of_dense]
        found += [Candidate("lexical", None, each, None, judge, _ordered(each.lexical)) for each in of_lexical]
        for dense, lexical, how in itertools.product(of_dense, of_lexical, fusions):
            pairs = zip(dense.dense, lexical.lexical, strict=True)
            both = [
                with_documents(
                    fused(one, other, how, FUSION_DEPTH), how.document_weight, lambda chunk: chunk.document_id
                )
                for one, other in pairs
            ]
            found.append(Candidate("hybrid", dense, lexical, how, judge, _ordered(both)))
    return found


def _distinct(members: Sequence[Built], side: Side) -> list[Built]:
    """Of indexes that differ only by what means nothing to them, the first."""
    found: dict[str, Built] = {}
    for each in members:
        found.setdefault(each.variant.seen_as(side), each)
    return list(found.values())


def _ordered(rankings: Sequence[Ranking]) -> tuple[tuple[ChunkSpan, ...], ...]:
    """Best first, ties as a search breaks them."""
    return tuple(tuple(sorted(r, key=lambda chunk: (-r[chunk], chunk))[:FUSION_DEPTH]) for r in rankings)


def _reranked(
    questions: Golden,
    best: Mapping[str, str],
    candidates: Sequence[Candidate],
    options: RerankOptions | None,
) -> dict[str, Any]:
    """The strongest combinations with a cross-encoder over their first hits, by what they are called."""
    if options is None:
        return {}
    reranker, found = open_reranker(options.name), {}
    for candidate in (each for each in candidates if each.name in best.values()):
        snapshot = candidate.sides[0][1].snapshot
        rankings = []
        for query, ranking in zip(questions.queries.values(), candidate.rankings, strict=True):
            depth = ranking[: options.depth]
            passages = [_passage(snapshot, chunk) for chunk in depth]
            scores = dict(zip(depth, reranker.scores(query, passages), strict=True))
            rankings.append((*sorted(depth, key=lambda chunk: -scores[chunk]), *ranking[options.depth :]))
        means = {name: values.mean() for name, values in candidate.judge.scores(rankings).items()}
        found[candidate.name] = {name: round(float(mean), 4) for name, mean in means.items()}
    return {"model": asdict(options), "scores": found}


def _passage(snapshot: Snapshot, chunk: ChunkSpan) -> str:
    """What a cross-encoder reads of a chunk: as in a search, its header and its original."""
    header = snapshot.rows(chunk.document_id)[chunk.chunk_index]["header"]
    return f"{header or ''}\n{snapshot.original(chunk.document_id)[chunk.start : chunk.end]}".strip()
