"""What the benchmarks compute without a model: ideal, block rounding, ratios, tables; what a night costs."""

import dataclasses
import json
import re
import sys
import threading
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enrichment.prompts import PromptKind
from indexing import s3
from indexing.passages import Passage
from indexing.storage import open_storage
from jobs import config, plan
from jobs.golden import GoldenSpan
from jobs.progress import Progress

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))  # a folder of commands, no package

import dense  # noqa: E402
import expansion  # noqa: E402
import nights  # noqa: E402
import prefill  # noqa: E402
import prefill_prompts  # noqa: E402
import recall  # noqa: E402
import serving  # noqa: E402

FACTS = {"num_prompts": 2, "total_tokens": 300, "ideal": 200, "block_rounding": 20, "corpus_bytes": 1000}


def ids(*runs: range) -> np.ndarray:
    return np.array([token for run in runs for token in run], dtype=np.int32)


def test_the_first_prompt_is_computed_whole() -> None:
    assert prefill.ideal_and_rounding([ids(range(70))], 32) == (70, 0)


def test_what_the_prompt_before_began_with_is_not_computed_again() -> None:
    prompts = [ids(range(70), range(900, 905)), ids(range(100), range(800, 803))]
    # The second shares 70 tokens, of which 6 do not fill a block of 32.
    assert prefill.ideal_and_rounding(prompts, 32) == (75 + 33, 6)


def test_a_repeated_prompt_still_computes_its_last_token() -> None:
    assert prefill.ideal_and_rounding([ids(range(64)), ids(range(64))], 32) == (64 + 1, 31)


def test_a_prompt_that_is_the_beginning_of_the_one_before() -> None:
    assert prefill.ideal_and_rounding([ids(range(64)), ids(range(33))], 32) == (64 + 1, 0)


def test_prompts_without_a_common_beginning_share_nothing() -> None:
    assert prefill.ideal_and_rounding([ids(range(40)), ids(range(50, 90)), ids(range(40))], 16) == (120, 0)


def test_a_summary_takes_medians_and_ratios() -> None:
    rounds = [
        {"prompts": 2, "computed": computed, "wall_s": wall, "object_store_bytes": 2500}
        for computed, wall in ((220, 1.0), (440, 9.0), (300, 2.0))
    ]
    found = prefill.summary(rounds, FACTS)
    assert (found["computed"], found["wall_s"]) == (300, 2.0)
    assert found["over_ideal"] == pytest.approx(1.5)
    assert found["over_floor"] == pytest.approx(300 / 220)
    assert found["store_ratio"] == 2.5


def test_a_summary_of_other_prompts_is_refused() -> None:
    with pytest.raises(SystemExit, match="3 prompts were answered, but 2 were prepared"):
        prefill.summary([{"prompts": 3, "computed": 1}], FACTS)


def test_the_table_has_a_cell_for_every_column() -> None:
    cell = {"prompt": "causal", "replicas": 1, "cache": "ample"}
    rounds = [
        {"prompts": 2, "computed": 220, "output_tokens": 1234, "wall_s": 1.26, "peak_memory_bytes": 2_500_000_000}
    ]
    results = [
        cell | {"variant": "a"} | prefill.summary([rounds[0] | {"object_store_bytes": 1500}], FACTS),
        cell | {"variant": "d"} | prefill.summary([rounds[0] | {"object_store_bytes": None}], FACTS),
        cell | {"variant": "b", "replicas": 2} | prefill.summary([{"skipped": "no reason"}], FACTS),
    ]
    lines = prefill.table(results).splitlines()
    assert len(lines) == 4 and {line.count("|") for line in lines} == {16}
    assert lines[2] == (
        "| causal | 1 | ample | ours | 2 | 300 | 220 | 200 | 20 | 1.100 | 1.000 | 1,234 | 1.3 | 1.50 | 2.50 |"
    )
    assert lines[3].endswith("| vllm.LLM | 2 | 300 | 220 | 200 | 20 | 1.100 | 1.000 | 1,234 | 1.3 | - | 2.50 |")
    assert prefill.skipped(results) == ["not run: ray.data.llm, 2 replicas, ample cache: no reason"]


def test_a_small_cache_is_given_in_blocks() -> None:
    assert prefill_prompts.cache_override(Namespace(cache="squeezed"), 32) == {"num_gpu_blocks_override": 512}
    assert prefill_prompts.cache_override(Namespace(cache="ample"), 32) == {}


def test_the_first_documents_are_copied_as_they_are(tmp_path: Path) -> None:
    lines = [json.dumps({"id": name, "title": name.upper(), "text": f"text of {name}"}) for name in "cab"]
    source = tmp_path / "documents.jsonl"
    source.write_text("\n".join(lines))
    prefill_prompts.copy_first(source, 2, tmp_path / "copy")
    copied = (tmp_path / "copy" / "documents.jsonl").read_text().splitlines()
    assert copied == [lines[1], lines[2]]  # in order of their ids


def test_nights_are_printed_with_what_they_cost(capsys: pytest.CaptureFixture[str]) -> None:
    nights.main(["--documents", "30", "--bytes", "4000", "--changed", "0.1", "--nights", "1", "--local"])
    head, _, full, night = (line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines())
    costs = [dict(zip(head, line, strict=True)) for line in (full, night)]
    calls = [int(cost["calls"].replace(",", "")) for cost in costs]
    assert 0 < calls[1] < calls[0] / 5
    assert (costs[0]["of full"], costs[0]["segments"], costs[0]["dead rows"]) == ("100.00%", "1", "0")
    assert (costs[1]["segments"], costs[1]["compaction"]) == ("2", "0.00%") and int(costs[1]["dead rows"]) > 0


def test_recall_is_of_golden_characters_and_set_against_those_returned() -> None:
    passages = [Passage("d", None, 0, 20, "x" * 20, 1.0, ()), Passage("e", None, 0, 80, "x" * 80, 1.0, ())]
    found = expansion.measured([passages, []], [[GoldenSpan("d", 10, 30)], [GoldenSpan("d", 0, 5)]])
    assert found == expansion.Found(0.25, 50.0)
    assert (found.cell(), expansion.Found(0.0, 0.0).cell()) == ("25.0 / 500.0", "0.0 / 0.0")


def test_every_way_to_expand_hits_is_asked_the_same_questions(
    open_corpus: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "# Roof\n\nSlates crack in frost. Look after storms.\n\n# Kettle\n\nUse vinegar monthly. Rinse it twice.\n"
    corpus = open_corpus({"a.md": text})
    start = text.index("Use")
    span = {"document_id": "a.md", "start": start, "end": len(text)}
    (tmp_path / "golden.jsonl").write_text(json.dumps({"query": "use vinegar", "spans": [span]}))
    expansion.main([corpus.storage.uri, str(tmp_path / "golden.jsonl"), "-k", "1", "--budgets", "30", "1000"])
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[3:]]
    recalls = {name: [float(cell.partition(" / ")[0]) for cell in cells] for name, *cells in lines}
    assert len(recalls) == 15
    assert recalls["window of 0 chunks"] == [56.8, 56.8]
    assert recalls["window of 1 chunks"] == [0.0, 100.0]
    assert recalls["parent"] == [56.8, 100.0]


@pytest.mark.soak
def test_serving_is_measured_from_import_to_swap(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in (
        "AWS_ENDPOINT_URL",
        "AWS_DEFAULT_REGION",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "SITUATE_CACHE",
    ):
        monkeypatch.setenv(name, str(tmp_path))  # put back when the test is over
    monkeypatch.setattr(s3, "_local", threading.local())
    serving.main(["--chunks", "300", "--per-segment", "200", "--night", "50", "--queries", "20", "--seconds", "4"])
    output = capsys.readouterr().out
    cells = [line.strip("| ").split(" | ") for line in output.splitlines() if line.startswith(("| directory", "| S3"))]
    assert len(cells) == 4 and all(0 < float(cell) < 5000 for row in cells for cell in row[1:])
    read, new = re.search(r"the second: ([\d,]+) in [\d.]+ s, of ([\d,]+) that are new", output).groups()  # type: ignore[union-attr]
    assert 0 <= int(read.replace(",", "")) - int(new.replace(",", "")) < 5_000  # the listing is not counted
    answered = re.search(r"([\d,]+) answered, 0 failed; it took", output)
    assert answered and 100 < int(answered[1]) < 400


def test_a_dense_index_is_measured_against_faiss_and_in_segments(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--vectors", "3000", "--dimension", "32", "--topics", "40", "--queries", "20", "--segments", "3"]
    dense.main([*given, "--kind", "IVF16,SQfp16"])
    found = {line[:28].strip(): line[28:].strip() for line in capsys.readouterr().out.splitlines()}
    assert found["index"] == "IVF16,SQfp16 over 3,000 x 32 in 40 topics"
    assert found["same vectors and scores"] == "20 of 20 queries"
    assert 0.9 < float(found["recall@10 of the queries"]) <= 1
    assert found["build, plain FAISS"].split("ratio ")[1] and "MB" in found["load, cold"]
    assert float(found["lists of each segment's own"].partition("%")[0]) < 100
    dense.main([*given, "--kind", "flat"])
    assert "recall@10 of the queries     1.000\n" in capsys.readouterr().out


@pytest.mark.ray
@pytest.mark.model
@pytest.mark.parametrize("prompt", ["causal", "quote"])
def test_the_kept_contexts_are_those_of_the_prompts_and_the_model_in_use(
    prompt: PromptKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the handbook nothing is generated again: their keys hold the prompt's tokens, the sampling and the model's files,
    which must not depend on the machine.
    """
    monkeypatch.chdir(ROOT)
    base = config.load(Path("examples/handbook.yaml"))
    context = dataclasses.replace(base.context, prompt=prompt)
    asked = dataclasses.replace(base, context=context, corpus=str(tmp_path / "corpus"))
    recall.lay_in(ROOT / "benchmarks" / "contexts", open_storage(asked.corpus))
    chunks = plan.plan(asked, Progress(show=False)).as_dict()["chunks"]
    assert (chunks["generated"], chunks["reused"]) == (0, 181)
