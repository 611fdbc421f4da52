"""Evaluation without Ray, with the fake embedder: what is built, reused, compared and recommended.

The fake language model is told what each document is about, so that a context helps; whether it really would is for a model.
"""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import pytrec_eval

from enrichment.engine import Completion
from enrichment.errors import ConfigError
from enrichment.fake_engine import FakeEngine
from enrichment.rerank import RerankOptions
from enrichment.tokens import FakeTokenizer
from indexing.fusion import Fusion
from indexing.snapshot import open_snapshot
from indexing.storage import open_storage
from jobs import cli, config, evaluate, golden, local_flow, refresh, sampling, variants
from jobs.config import Config
from jobs.difference import Asked
from jobs.evaluate import EvaluateOptions
from jobs.golden import Golden, GoldenSpan
from jobs.progress import Progress

STONES = (
    "quartz",
    "basalt",
    "marble",
    "flint",
    "slate",
    "chalk",
    "gneiss",
    "schist",
    "gabbro",
    "pumice",
    "opal",
    "agate",
)
RULES = [f"It must not be {verb} before the {time}." for verb, time in [("cut", "spring"), ("sold", "autumn")]]
QUIET = Progress(show=False)


@pytest.fixture(autouse=True, scope="module")
def without_ray() -> Iterator[None]:
    """The steps in this process; the same refresh."""
    steps = {name: getattr(local_flow, name) for name in ("scan", "enrich_and_stage", "build_segments", "count")}
    here = SimpleNamespace(cluster=lambda *_: contextlib.nullcontext(), **steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refresh, "flow", here)
        patch.setattr(evaluate, "flow", here)
        yield


@pytest.fixture(autouse=True, scope="module")
def knowing() -> Iterator[list[int]]:
    """A language model that says which stone its prompt is about; the lengths of the prompts that it has answered."""
    of_token = {FakeTokenizer().encode_template(stone)[0]: stone for stone in STONES}
    answered: list[int] = []

    async def generate(self: FakeEngine, prompt: Sequence[int], *_: Any) -> Completion:
        answered.append(len(prompt))
        stone = next((of_token[token] for token in prompt if token in of_token), "stone")
        return Completion(f" says what holds for {stone}.", "stop", len(prompt), 0, 6)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeEngine, "generate", generate)
        yield answered


def corpus(root: Path, text: Callable[[str], str]) -> tuple[Config, Golden]:
    """A document per stone; a question per rule of it, answered by that rule's sentence there."""
    (root / "docs").mkdir(parents=True)
    queries, spans = {}, {}
    for place, stone in enumerate(STONES):
        written, name_of_file = text(stone), f"page-{place}.txt"
        (root / "docs" / name_of_file).write_text(written)
        for number, rule in enumerate(RULES):
            start = written.index(rule)
            name = f"{stone}-{number}"
            queries[name] = f"When may {stone} be {rule.split()[4]}?"
            spans[name] = (GoldenSpan(name_of_file, start, start + len(rule)),)
    settings = {"corpus": str(root / "corpus"), "documents": {"uri": str(root / "docs")}, "embedding": {"name": "fake"}}
    parsed = config.parse({**settings, "model": {"name": "fake"}, "split": {"by": "sentences"}})
    return parsed, Golden(queries, spans=spans)


def without_model(base: Config) -> Config:
    return config.parse(base.as_dict() | {"model": None, "context": {"strategy": "header"}})


def pronouns(stone: str) -> str:
    return f"This page is about {stone}. {' '.join(RULES)} Nothing else is known."


Compared = tuple[Config, Golden, evaluate.Evaluation]
ALONE = (Fusion(), Fusion("scores", 1.0, 0.5))
"""Ways to fuse in which a chunk gets nothing from its document, whose first sentence names what all of it is about."""
ASKED = EvaluateOptions(measure="recall@5", windows=(0, 1), fusions=ALONE)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory, knowing: list[int], cross_encoder: Path) -> Compared:
    """Rules that name nothing, in documents without titles: only a context can tell them apart."""
    base, questions = corpus(tmp_path_factory.mktemp("pronouns"), pronouns)
    knowing.clear()
    asked = dataclasses.replace(ASKED, rerank=RerankOptions(str(cross_encoder), 5))
    return base, questions, evaluate.evaluate(base, questions, QUIET, asked)


def test_contexts_that_help_are_recommended_with_what_they_cost(compared: Compared, knowing: list[int]) -> None:
    _, questions, found = compared
    record = found.record
    gain = record["gains"]["context"]
    assert gain["low"] > 20 and gain["p"] < 0.01
    assert gain["score"] - gain["over"] == pytest.approx(gain["points"] / 100, abs=2e-4)
    assert "context" in str(gain["chosen"]) and "context" not in str(gain["against"])
    assert record["recommendation"].startswith("contexts are worth their cost here: +")
    written = record["variants"][0]["context_tokens"]
    assert record["cost"]["computed"] == written["computed"] == sum(knowing)
    assert record["cost"]["per_point"] > 0
    won = record["won"][0]
    assert won["points"] > 0 and won["context"].endswith(f"holds for {won['question'].split('-')[0]}.")
    assert won["rank"] <= 5 and (won["rank_without"] is None or won["rank_without"] > won["rank"])
    json.dumps(record)


def test_every_combination_of_what_the_indexes_see_is_compared(
    compared: Compared,
) -> None:
    rows = compared[2].record["combinations"]
    modes = [row["mode"] for row in rows]
    assert (modes.count("dense"), modes.count("lexical"), modes.count("hybrid")) == (4, 4, 4 * 4 * 2)
    assert len({row["name"] for row in rows}) == len(rows)
    kinds = {row["name"]: row["kind"] for row in rows}
    assert kinds["dense body, lexical body, rrf 1:1"] == "plain"
    assert kinds["dense header+body, lexical body, rrf 1:1"] == "header"
    assert kinds["dense body, lexical context+body, scores 1:0.5"] == "context"
    for row in rows:
        assert row["interval"][0] <= row["scores"]["recall@5"] <= row["interval"][1]


def test_a_document_that_is_found_makes_up_for_contexts(compared: Compared) -> None:
    base, questions, before = compared
    found = evaluate.evaluate(base, questions, QUIET, EvaluateOptions(measure="recall@5")).record
    rows = {row["name"]: row["scores"]["recall@5"] for row in found["combinations"]}
    assert sum(row["mode"] == "hybrid" for row in found["combinations"]) == 4 * 4 * 4
    name = "dense body, lexical body, scores 1:0.5"
    assert rows[name] < 0.5 and rows[f"{name}:0.5"] > 0.9
    assert before.record["recommendation"].startswith("contexts are worth their cost here")
    assert found["recommendation"].startswith("the plain text is enough here")


def test_a_context_is_written_once_for_all_variants_and_for_the_corpus_itself(
    compared: Compared, knowing: list[int], count_embedded: Callable[[], list[str]]
) -> None:
    base, _, found = compared
    generated = [variant["chunks"]["generated"] for variant in found.record["variants"]]
    chunks = found.record["variants"][0]["chunks"]["total"]
    assert generated == [chunks, 0, 0, 0] and len(knowing) == chunks
    embedded = count_embedded()
    adopted = refresh.refresh(base, QUIET)
    assert adopted.chunks["generated"] == 0 and len(knowing) == chunks
    assert embedded == [], "its dense text is that of a variant"


def test_the_second_evaluation_builds_nothing(compared: Compared, monkeypatch: pytest.MonkeyPatch) -> None:
    base, questions, first = compared
    monkeypatch.setattr(FakeEngine, "generate", None)
    again = evaluate.evaluate(base, questions, QUIET, ASKED)
    for name in ("combinations", "gains", "best", "cost", "won", "lost", "recommendation"):
        assert again.record[name] == first.record[name]


def test_a_pair_is_fused_as_a_search_fuses_it(compared: Compared) -> None:
    _, questions, found = compared
    for candidate in found.candidates:
        if candidate.dense is not candidate.lexical or candidate.fusion is None:
            continue
        snapshot = open_snapshot(open_storage(candidate.dense.variant.config.corpus))
        for query, ranking in zip(questions.queries.values(), candidate.rankings, strict=True):
            hits = snapshot.open_indexes().search(query, 20, fusion=candidate.fusion)
            assert [snapshot.span_of(hit) for hit in hits] == list(ranking[:20])


def test_what_is_written_for_trec_eval_gives_the_same_measures(compared: Compared, tmp_path: Path) -> None:
    found = compared[2]
    found.write(tmp_path / "trec")
    runs = [line.split("\t") for line in (tmp_path / "trec" / "runs.tsv").read_text().splitlines()]
    assert [name for _, _, name in runs] == [row["name"] for row in found.record["combinations"]]
    for run, qrels, name in runs[::7]:
        with open(tmp_path / "trec" / run) as run_file, open(tmp_path / "trec" / qrels) as qrels_file:
            evaluator = pytrec_eval.RelevanceEvaluator(pytrec_eval.parse_qrel(qrels_file), {"recip_rank"})
            values = evaluator.evaluate(pytrec_eval.parse_run(run_file))
        row = next(row for row in found.record["combinations"] if row["name"] == name)
        mean = np.mean([value["recip_rank"] for value in values.values()])
        assert row["scores"]["mrr"] == pytest.approx(mean, abs=1e-4)
    assert golden.read(tmp_path / "trec" / "topics.tsv", tmp_path / "trec" / "qrels-1.txt").queries


def test_where_the_plain_text_says_it_all_it_is_enough(tmp_path: Path) -> None:
    """And without a model only what is free is compared."""
    base, questions = corpus(tmp_path, lambda stone: " ".join(f"Of {stone}: {rule}" for rule in RULES))
    found = evaluate.evaluate(without_model(base), questions, QUIET, ASKED)
    assert found.record["recommendation"].startswith("the plain text is enough here")
    assert found.record["recommendation"].endswith("contexts were not compared")
    assert set(found.record["gains"]) == {"header"} and found.record["cost"] is None
    windows = found.record["windows"][found.record["best"]["plain"]]
    assert windows["1"]["recall@5"] >= windows["0"]["recall@5"] > 0.9


def test_where_a_heading_says_it_headers_alone_are_enough(tmp_path: Path) -> None:
    base, questions = corpus(tmp_path, pronouns)
    spans = {}
    for place, stone in enumerate(STONES):
        (tmp_path / "docs" / f"page-{place}.txt").unlink()
        text = f"# {stone.title()}\n\n{' '.join(RULES)} Nothing else is known.\n"
        (tmp_path / "docs" / f"{stone}.md").write_text(text)
        for number, rule in enumerate(RULES):
            start = text.index(rule)
            spans[f"{stone}-{number}"] = (GoldenSpan(f"{stone}.md", start, start + len(rule)),)
    found = evaluate.evaluate(without_model(base), Golden(questions.queries, spans=spans), QUIET, ASKED)
    assert found.record["recommendation"].startswith("headers alone are enough here: they gain +")
    assert found.record["gains"]["header"]["low"] > 0


def test_settings_are_varied_and_splits_compared_by_spans(tmp_path: Path) -> None:
    base, questions = corpus(tmp_path, pronouns)
    asked = EvaluateOptions((variants.parse_varied("split.size=[1, 2]"),), fusions=(Fusion(),))
    found = evaluate.evaluate(without_model(base), questions, QUIET, asked)
    pairs = [row for row in found.record["combinations"] if row["mode"] == "hybrid"]
    assert len(pairs) == 2 * 2 * 2, "only indexes of the same chunks are fused"
    assert {row["dense"].split()[0] for row in pairs if row["lexical"].startswith("split.size=2")} == {"split.size=2"}
    longer = {row["name"]: row["characters"] for row in found.record["combinations"]}
    assert longer["dense split.size=2 body"] > 1.2 * longer["dense split.size=1 body"]


def test_an_index_is_known_by_what_means_something_to_it(tmp_path: Path) -> None:
    """Two languages and two lengths of parts are four corpora, but only two lexical and two dense indexes of each view."""
    base, questions = corpus(tmp_path, pronouns)
    varied = tuple(map(variants.parse_varied, ("index.language=[en,code]", "embedding.part_tokens=[null,16]")))
    found = evaluate.evaluate(without_model(base), questions, QUIET, EvaluateOptions(varied, fusions=(Fusion(),)))
    names = [row["name"] for row in found.record["combinations"]]
    assert len(found.record["variants"]) == 8 and len(set(names)) == len(names) == 4 + 4 + 4 * 4
    assert names[:2] == ["dense embedding.part_tokens=null body", "dense embedding.part_tokens=null header+body"]
    assert "lexical index.language=code body" in names


def test_what_contexts_are_like_means_nothing_to_an_index_without_them(tmp_path: Path) -> None:
    base, _ = corpus(tmp_path, pronouns)
    varied = [variants.parse_varied("split.size=[1,2]"), variants.parse_varied("context.prompt=[causal, quote]")]
    names = [variant.name for variant in variants.variants(base, varied, "x", sampling.EVERYTHING)]
    assert len(names) == 2 * (2 + 2 * 2) == len(set(names))
    assert "split.size=1 body" in names and "split.size=2 context.prompt=quote context+body" in names


def test_a_sample_holds_all_answers_and_a_share_of_the_rest(nights: Any, no_lexical: None) -> None:
    names = [f"other-{number}" for number in range(60)]
    nights.write(**{name: pronouns(name) for name in names}, answer=pronouns("answer"))
    sample = sampling.Sample(0.3, frozenset({"answer.md"}))
    assert (
        nights.refresh(Asked(sample=sample)).documents["total"] == 1 + sampling.Sample(0.3).mask(names_of(names)).sum()
    )
    assert 5 < nights.manifest.counts["documents"]["total"] < 35
    assert nights.open().document("answer.md")["status"] == "indexed"


def names_of(names: list[str]) -> pa.ChunkedArray:
    return pa.chunked_array([[f"{name}.md" for name in names]])


def test_judged_chunks_serve_as_well_as_spans(compared: Compared) -> None:
    base, questions, by_spans = compared
    judged = {name: {f"{spans[0].document_id}#{1 + int(name[-1])}": 1} for name, spans in questions.spans.items()}
    asked = dataclasses.replace(ASKED, windows=())
    by_chunks = evaluate.evaluate(base, Golden(questions.queries, judged=judged), QUIET, asked)
    for one, other in zip(by_chunks.record["combinations"], by_spans.record["combinations"], strict=True):
        assert one["scores"]["mrr"] == other["scores"]["mrr"]
        assert one["scores"]["recall@10"] == pytest.approx(other["scores"]["recall@10"])
    with pytest.raises(ConfigError, match="--window needs golden spans"):
        evaluate.evaluate(base, Golden(questions.queries, judged=judged), QUIET, EvaluateOptions(windows=(1,)))


def test_a_cross_encoder_orders_the_best_anew(compared: Compared) -> None:
    record = compared[2].record
    assert set(record["reranked"]["scores"]) == set(record["best"].values())
    same = {row["name"]: row["scores"] for row in record["combinations"]}
    for name, scores in record["reranked"]["scores"].items():
        assert scores["recall@5"] == pytest.approx(same[name]["recall@5"], abs=1e-4), "the same five in another order"
    assert any(scores["mrr"] != same[name]["mrr"] for name, scores in record["reranked"]["scores"].items())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("split.size", "no key or no value"),
        ("split.size=", "no key or no value"),
        ("split.size=[", "cannot be parsed"),
        ("corpus=x", "is not for an evaluation"),
        ("index.dense_text=[body]", "is not for an evaluation"),
        ("split.length=3", "not a known key"),
        ("nothing.at.all=3", "not a known key"),
        ("split.size=many", "split.size"),
    ],
)
def test_what_cannot_be_varied_is_named(tmp_path: Path, text: str, message: str) -> None:
    base, _ = corpus(tmp_path, pronouns)
    with pytest.raises(ConfigError, match="--vary") as caught:
        variants.variants(base, [variants.parse_varied(text)], "x", sampling.EVERYTHING)
    assert message in str(caught.value)


def test_the_command_says_it_all(compared: Compared, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, questions, _ = compared
    settings = {name: value for name, value in base.as_dict().items() if name in ("corpus", "documents")}
    fake = {"model": {"name": "fake"}, "embedding": {"name": "fake"}}
    (tmp_path / "c.yaml").write_text(json.dumps({**settings, **fake, "split": {"by": "sentences"}}))
    lines = [
        json.dumps({"query_id": name, "query": query, "spans": [span._asdict() for span in questions.spans[name]]})
        for name, query in questions.queries.items()
    ]
    (tmp_path / "q.jsonl").write_text("\n".join(lines))
    asked = ["evaluate", str(tmp_path / "c.yaml"), "--queries", str(tmp_path / "q.jsonl"), "--fusion", "scores:1:0.4"]
    asked += ["--window", "1", "--measure", "recall@5"]
    assert cli.main([*asked, "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    assert "lexical context+header+body" in told and "contexts are worth their cost here" in told
    assert "window of 1 chunks: recall@5 " in told and "won +" in told and "scores 1:0.4" in told
    assert (tmp_path / "out" / "run-001.txt").is_file()
    assert cli.main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["questions"] == 2 * len(STONES)
    assert cli.main([*asked, "--measure", "recall"]) == 2
    assert "--measure is recall" in capsys.readouterr().err
    assert cli.main([*asked, "--fusion", "scores:1"]) == 2
    assert "--fusion scores:1 is neither" in capsys.readouterr().err
