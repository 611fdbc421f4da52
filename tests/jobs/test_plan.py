"""`plan` against the refresh that follows it: the same counts, and not a byte written."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from enrichment.errors import ConfigError
from indexing import manifest
from jobs import cli, config, local_flow, plan, refresh
from jobs.counting import COUNTED, NUMBERS
from jobs.difference import Asked
from jobs.plan import NO_PRICES, Estimate, Prices
from jobs.progress import Progress

pytestmark = pytest.mark.usefixtures("no_lexical")

RULES = [f"Rule {number} of the {word} holds for everyone who lives there." for number, word in enumerate("abcdefgh")]


def text(name: str, *sentences: str) -> str:
    return f"# {name.title()}\n\n" + " ".join(sentences) + "\n"


def planned(nights: Any, sample: float = 1.0, prices: Prices = NO_PRICES, **settings: Any) -> Estimate:
    """What `nights.refresh` with the same settings would do."""
    fake = {"name": "fake"}
    given = {"corpus": str(nights.root / "corpus"), "documents": {"uri": str(nights.docs)}, "embedding": fake}
    parsed = config.parse({**given, "model": fake, "split": {"by": "sentences"}, **settings})
    previous, checked = manifest.latest(nights.storage), refresh.check(parsed)
    return plan.estimate(previous, parsed, checked, Progress(show=False), local_flow, sample, prices)


def agree(found: Estimate, result: Any) -> None:
    """Documents, chunks and the tokens of first attempts are those of the refresh."""
    for name in ("total", "new", "changed", "unchanged", "deleted", "renamed"):
        assert found.documents[name] == result.documents[name], name
    for name in ("total", "generated"):
        assert found.chunks[name] == result.chunks[name], name
    for name in ("prompt", "ideal", "block_rounding"):
        assert found.tokens[name] == result.tokens[name], name
    parts = sum(found.chunks[name] for name in ("generated", "reused", "skipped", "failed"))
    assert found.chunks["work"] == parts


def test_a_first_night_is_foreseen_and_nothing_is_written(nights: Any) -> None:
    nights.write(ash=text("ash", *RULES), birch=text("birch", *RULES[:3]), one=text("one", "Alone."))
    before = sorted(str(path) for path in nights.root.rglob("*"))
    found = planned(nights)
    assert sorted(str(path) for path in nights.root.rglob("*")) == before
    assert found.snapshot is None and found.why == {"new": 3, "changed": 0, "settings": 0, "retried": 0}
    agree(found, nights.refresh())


def test_a_later_night_is_foreseen_with_what_it_reuses(nights: Any) -> None:
    nights.write(**{name: text(name, *RULES) for name in ("ash", "birch", "cedar", "elm")})
    nights.refresh()
    nights.write(ash=text("ash", *RULES[:4], "Another.", *RULES[5:]), birch=None, fir=text("fir", *RULES))
    (nights.docs / "cedar.md").rename(nights.docs / "larch.md")
    files = {entry.name: entry.size_bytes for entry in nights.storage.list()}
    found = planned(nights)
    assert {entry.name: entry.size_bytes for entry in nights.storage.list()} == files
    assert found.why == {"new": 2, "changed": 1, "settings": 0, "retried": 0}
    assert found.chunks["reused"] == 5 + 9, "of the changed one what stands before the change, of the renamed one all"
    agree(found, nights.refresh())
    assert planned(nights).documents["work"] == 0


@pytest.mark.parametrize(
    ("settings", "changed", "generates"),
    [
        ({"context": {"strategy": "situate", "prompt": "quote"}}, {"content", "prompt"}, True),
        ({"embedding": {"name": "fake", "passage_prefix": "passage: "}}, {"content", "embedding"}, False),
    ],
)
def test_a_changed_setting_is_named_with_what_it_costs(
    nights: Any, settings: Any, changed: set, generates: bool
) -> None:
    nights.write(**{name: text(name, *RULES) for name in ("ash", "birch")})
    nights.refresh()
    found = planned(nights, **settings)
    assert set(found.settings) == changed and found.why["settings"] == 2
    assert (found.chunks["generated"] > 0) == generates
    assert (found.embeddings["embedded"] > 0) != generates
    agree(found, nights.refresh(**settings))


def test_another_way_to_search_is_named_and_published_without_work(nights: Any) -> None:
    nights.write(a=text("a", "One.", "Two."))
    nights.refresh()
    assert planned(nights).settings == () and not nights.refresh().published
    settings = {"search": {"document_weight": 0.5}}
    found = planned(nights, **settings)
    assert found.settings == ("search",) and found.documents["work"] == 0
    assert nights.refresh(**settings).published and planned(nights, **settings).settings == ()


def test_oversized_documents_and_long_texts_are_counted(nights: Any) -> None:
    long = " ".join(f"Sentence {number} says what is so and why it is so, at length." for number in range(200))
    nights.write(long=text("long", long), short=text("short", *RULES), wide=text("wide", "word " * 400 + ".", *RULES))
    settings = {"model": {"name": "fake", "max_model_len": 1024}}
    found = planned(nights, **settings)
    assert found.chunks["oversized_documents"] == 1
    assert found.embeddings["split_rows"] == 1 and found.embeddings["texts"] > found.chunks["total"]
    agree(found, nights.refresh(**settings))


@pytest.mark.parametrize("strategy", ["keywords", "questions", "neighborhood", "semantic"])
def test_prompts_of_every_strategy_are_counted_once_and_no_rewrite_calls_a_document_oversized(
    nights: Any, strategy: str
) -> None:
    """What the fake model answers is no list, question or rewrite: a refresh asks twice, first attempts are what is planned."""
    nights.write(**{name: text(name, *RULES) for name in ("ash", "birch")})
    context = {"strategy": strategy, "semantic_similarity_threshold": 0.1}
    found, files = planned(nights, context=context), sorted(str(path) for path in nights.root.rglob("*"))
    assert not any("ledger" in name for name in files)
    result = nights.refresh(context=context, limits={"fallback": 1.0})
    assert found.chunks["generated"] == result.chunks["generated"] == 18
    assert found.tokens["prompt"] * 2 == result.tokens["prompt"] and found.chunks["oversized_documents"] == 0
    assert found.tokens["ideal"] == result.tokens["ideal"]


def test_rates_come_from_earlier_runs_and_what_is_stated_wins(nights: Any) -> None:
    nights.write(ash=text("ash", *RULES))
    first = planned(nights, prices=Prices(tokens_per_s=100.0, dollars_per_hour=3.6))
    assert first.basis["runs"] == 0 and first.basis["output_tokens"] == 72  # three quarters of 96
    work = first.tokens["computed"] + first.tokens["output"]
    assert first.hours == round(work / 100 / 3600, 4) and first.dollars == round(first.hours * 3.6, 2)
    assert planned(nights).hours is None
    result = nights.refresh()
    nights.write(birch=text("birch", *RULES))
    second = planned(nights)
    assert second.basis["runs"] == 1 and second.hours is not None
    mean = result.tokens["output"] / result.chunks["generated"]
    assert second.tokens["output"] == round(mean * second.chunks["generated"])


def test_a_sample_covers_the_truth_as_often_as_it_says() -> None:
    """500 corpora of known totals: about 95 % of the intervals hold them, and they are no wider than they need be."""
    held, shares, rng = {"chunks": 0, "prompt": 0}, [], np.random.default_rng(7)
    for _ in range(500):
        sizes = rng.lognormal(8, 1, 2000).astype(np.int64) + 1
        linear = np.maximum(0, sizes / 800 + rng.normal(0, 2, 2000)).astype(np.int64)
        square = (sizes * (sizes + 900) / 5600 * rng.normal(1, 0.1, 2000)).astype(np.int64)
        truth = {name: square if name == "prompt" else linear for name in NUMBERS}
        work = pa.table({"id": [f"{n:04}" for n in range(2000)], "num_bytes": sizes})
        strata = plan.stratified(work, 0.2)
        places = rng.permutation(np.flatnonzero(strata[0]))  # workers count in any order
        columns = {"id": [f"{n:04}" for n in places], "status": [""] * len(places)}
        columns |= {name: truth[name][places] for name in NUMBERS}
        totals, error = plan.scaled(pa.table(columns, schema=COUNTED), work, *strata)
        for name in held:
            held[name] += abs(totals[name] - truth[name].sum()) <= error[name]
        shares.append(error["prompt"] / totals["prompt"])
    assert all(0.92 <= number / 500 <= 0.98 for number in held.values()), held
    assert np.median(shares) < 0.1


def test_a_sample_stands_for_all_within_its_stated_error(nights: Any) -> None:
    rng = random.Random(3)
    documents = {f"d{number:03}": text(f"d{number}", *(RULES * 6)[: rng.randint(2, 40)]) for number in range(120)}
    nights.write(**documents)
    sampled, whole = planned(nights, sample=0.3), planned(nights)
    assert not whole.error and sampled.error["chunks"] > 0
    for found, name in ((sampled.chunks, "generated"), (sampled.tokens, "prompt"), (sampled.tokens, "ideal")):
        exact = {**whole.chunks, **whole.tokens}[name]
        assert abs(found[name] - exact) <= 1.5 * sampled.error[name]


def test_bad_shares_and_prices_are_refused(nights: Any, tmp_path: Path, capsys: Any) -> None:
    nights.write(ash=text("ash", *RULES))
    settings = {"corpus": f"{tmp_path}/c", "documents": {"uri": str(nights.docs)}, "embedding": {"name": "fake"}}
    path = tmp_path / "c.yaml"
    path.write_text(json.dumps({**settings, "model": {"name": "fake"}}))
    for given in (["--sample", "0"], ["--sample", "1.5"], ["--tokens-per-s", "0"], ["--dollars-per-hour", "-1"]):
        assert cli.main(["plan", str(path), *given, "--json"]) == cli.BAD_USAGE
        assert given[0] in json.loads(capsys.readouterr().out)["error"]
    with pytest.raises(ConfigError, match="--sample leaves 0 of 1"):
        planned(nights, sample=1e-9)


def test_a_capped_night_leaves_the_rest_pending_and_the_next_ones_do_it(nights: Any) -> None:
    """Changed before new, small before large; the old version serves meanwhile; nothing is lost or paid for twice."""
    nights.write(**{name: text(name, *RULES) for name in ("ash", "birch", "cedar")})
    nights.refresh()
    nights.write(ash=text("ash", "Now.", *RULES), birch=text("birch", "Now.", *RULES, *RULES))
    nights.write(fir=text("fir", *RULES[:2]), larch=text("larch", *RULES))
    whole = planned(nights)
    first = nights.refresh(Asked(max_tokens=1))
    documents = first.documents
    assert (documents["changed"], documents["new"]) == (1, 0), "one always goes on: the smallest changed one"
    assert (documents["pending_changed"], documents["pending_new"]) == (1, 2)
    assert documents["total"] == 3 and nights.manifest.counts["documents"]["pending_new"] == 2
    snapshot = nights.open()
    assert snapshot.original("ash.md").startswith("# Ash\n\nNow.")
    assert "Now." not in snapshot.original("birch.md"), "yesterday's version serves"
    generated = [first.chunks["generated"]]
    while (result := nights.refresh(Asked(max_tokens=1))).published:
        generated.append(result.chunks["generated"])
    assert len(generated) == 4 and sum(generated) == whole.chunks["generated"]
    assert nights.open().original("birch.md").startswith("# Birch\n\nNow.")
    assert nights.manifest.counts["documents"]["total"] == 5
    assert nights.manifest.counts["documents"]["pending_new"] == 0


def test_a_cap_holds_and_free_work_never_waits(nights: Any) -> None:
    nights.write(**{f"d{number}": text(f"d{number}", *RULES) for number in range(8)})
    whole = planned(nights)
    cap = (whole.tokens["computed"] + whole.tokens["output"]) / 2
    first = nights.refresh(Asked(max_tokens=cap))
    assert 0 < first.documents["pending_new"] < 8
    spent = first.tokens["computed"] + first.chunks["generated"] * whole.basis["output_tokens"]
    assert spent <= cap < spent * 8 / first.documents["new"] * (first.documents["new"] + 1)
    (nights.docs / "d0.md").rename(nights.docs / "renamed.md")
    second = nights.refresh(Asked(max_tokens=1))
    assert second.documents["renamed"] == 1 and second.documents["deleted"] == 1


def test_what_goes_first_can_be_said(nights: Any) -> None:
    nights.write(small=text("small", *RULES[:2]), large=text("large", *RULES))
    result = nights.refresh(Asked(max_tokens=1), limits={"order": ["new", "large"]})
    assert result.documents["new"] == 1 and nights.open().document("large.md")["status"] == "indexed"


def test_caps_that_say_nothing_are_refused(nights: Any) -> None:
    nights.write(ash=text("ash", *RULES))
    with pytest.raises(ConfigError, match="--max-minutes needs an earlier run"):
        nights.refresh(Asked(max_minutes=1))
    with pytest.raises(ConfigError, match="--max-tokens is 0"):
        nights.refresh(Asked(max_tokens=0))
    nights.refresh()
    with pytest.raises(ConfigError, match="none can wait"):
        nights.refresh(Asked(max_tokens=5), context={"strategy": "situate", "prompt": "quote"})
