"""Lucene's part on generated texts: what building costs, and what cutting a corpus into segments changes.

    python benchmarks/lexical.py --texts 1000000 --segments 7

* build: one segment of ours (write JSONL, Anserini's IndexCollection, CheckIndex) against IndexCollection alone, by its own
  command line, on the same JSONL that already lies there;
* query: the median of the same queries over n segments and over one; the same rows and scores are required of both;
* naive: what is left of the top 10 if each segment is asked alone and the scores are merged;
* compaction: how far scores move when dead rows leave the index.

Texts are 20 to 40 words of a Zipf vocabulary, half of them of the text's topic; topics come in order, so that segments are
skewed.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from indexing import lexical_build
from indexing.jvm import heap_megabytes, run_java
from indexing.lexical import LexicalHit, LexicalIndex

COMMON_WORDS, TOPIC_WORDS, TOPICS, K = 50_000, 2_000, 30, 10
QUERIES_PER_TOPIC, BATCH = 10, 10_000


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--segments", type=int, default=7)
    parser.add_argument("--dead", type=float, default=0.2, help="share of dead rows (default 0.2)")
    parser.add_argument("--rounds", type=int, default=3, help="of builds and queries; the medians count")
    options = parser.parse_args(arguments)
    print(f"{options.texts:,} texts, heap {heap_megabytes()} MB, one thread")
    with tempfile.TemporaryDirectory(prefix="situate-lexical-") as work:
        root = Path(work)
        texts = list(generated(options.texts))
        compare_building(texts, root, options.rounds)
        bounds = np.linspace(0, len(texts), options.segments + 1).astype(int)
        parts = [(f"p{n}", texts[start:end]) for n, (start, end) in enumerate(zip(bounds, bounds[1:], strict=False))]
        for name, some in parts:
            lexical_build.build(some, name, root / name, "en")
        one = LexicalIndex.open([("one", root / "one")], "en")
        many = LexicalIndex.open([(name, root / name) for name, _ in parts], "en")
        compare_queries(one, many, dict(zip((name for name, _ in parts), bounds, strict=False)), options.rounds)
        compare_with_naive(many, [(name, root / name) for name, _ in parts])
        compare_compacted(one, texts, options.dead, root)


def generated(number: int) -> Iterator[str]:
    """Texts in order of their topics, with a seed."""
    chance = np.random.default_rng(1)
    for first in range(0, number, BATCH):
        lengths = chance.integers(20, 41, min(BATCH, number - first))
        topics = np.repeat(np.arange(first, first + len(lengths)) * TOPICS // number, lengths)
        common = np.minimum(chance.zipf(1.2, len(topics)), COMMON_WORDS)
        own = np.minimum(chance.zipf(1.2, len(topics)), TOPIC_WORDS)
        is_own = chance.random(len(topics)) < 0.5
        words = [f"t{t}w{o}" if mine else f"w{c}" for t, o, c, mine in zip(topics, own, common, is_own, strict=True)]
        ends = np.cumsum(lengths)
        yield from (" ".join(words[start:end]) for start, end in zip([0, *ends[:-1]], ends, strict=True))


def queries() -> list[str]:
    """Three words of one topic, one of another, two that occur everywhere."""
    chance = np.random.default_rng(2)
    found = []
    for topic in range(TOPICS):
        for _ in range(QUERIES_PER_TOPIC):
            own, common = np.minimum(chance.zipf(1.2, 3), TOPIC_WORDS), chance.integers(1, 200, 2)
            other = f"t{(topic + 7) % TOPICS}w{int(chance.integers(1, 20))}"
            found.append(" ".join([*(f"t{topic}w{w}" for w in own), other, *(f"w{w}" for w in common)]))
    return found


def compare_building(texts: Sequence[str], root: Path, rounds: int) -> None:
    """Ours, of texts in memory, leaves its index in `one`; theirs, of a file that is there. The median of pairs."""
    source = root / "source"
    source.mkdir()
    with (source / "rows.jsonl").open("w") as file:
        for number, text in enumerate(texts):
            file.write(json.dumps({"id": f"one-{number}", "contents": text}) + "\n")
    arguments = ["-collection", "JsonCollection", "-generator", "DefaultLuceneDocumentGenerator", "-threads", "1"]
    arguments += ["-input", str(source), "-memoryBuffer", str(heap_megabytes() // 2), "-index"]
    pairs = []
    for number in range(rounds):
        name = "one" if number == 0 else f"one-{number}"
        started = time.perf_counter()
        run_java("io.anserini.index.IndexCollection", [*arguments, str(root / f"theirs-{number}")], "Anserini's own")
        between = time.perf_counter()
        lexical_build.build(texts, name, root / name, "en")
        pairs.append((time.perf_counter() - between, between - started))
    ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    print(f"build: ours {ours:.1f} s, IndexCollection {theirs:.1f} s, ratio {ratio:.2f} (medians of {rounds})")


def compare_queries(one: LexicalIndex, many: LexicalIndex, bases: dict[str, int], rounds: int) -> None:
    """Medians over all rounds, the two indexes asked in turns; raises if they answer differently."""
    asked = queries()
    seconds: dict[str, list[float]] = {"one": [], "many": []}
    for index in (one, many):
        for query in asked:
            index.search(query, K)  # warm
    for _ in range(rounds):
        for query in asked:
            answers = []
            for name, index in (("one", one), ("many", many)):
                started = time.perf_counter()
                answers.append(index.search(query, K))
                seconds[name].append(time.perf_counter() - started)
            alone = {hit.row: hit.score for hit in answers[0]}
            together = {int(bases[hit.segment_id]) + hit.row: hit.score for hit in answers[1]}
            if alone.keys() != together.keys() or any(abs(alone[row] - together[row]) > 1e-4 for row in alone):
                raise SystemExit(f"one segment and {len(bases)} answer {query!r} differently")
    p50 = {name: statistics.median(values) for name, values in seconds.items()}
    p95 = {name: statistics.quantiles(values, n=20)[-1] for name, values in seconds.items()}
    print(
        f"query: p50 {1000 * p50['many']:.2f} ms over {len(bases)} segments, {1000 * p50['one']:.2f} ms over one, ratio"
        f" {p50['many'] / p50['one']:.2f}; p95 {1000 * p95['many']:.2f} and {1000 * p95['one']:.2f} ms; same answers"
    )


def compare_with_naive(many: LexicalIndex, directories: Sequence[tuple[str, Path]]) -> None:
    """Each segment alone, with its own statistics, merged by score."""
    singles = [LexicalIndex.open([directory], "en") for directory in directories]
    shares = []
    for query in queries():
        truth = {hit[:2] for hit in many.search(query, K)[:K]}
        merged: list[LexicalHit] = sorted((hit for s in singles for hit in s.search(query, K)), key=lambda h: -h.score)
        shares.append(len(truth & {hit[:2] for hit in merged[:K]}) / len(truth))
    print(
        f"naive: {100 * statistics.mean(shares):.0f} % of the top {K} are left, worst query {100 * min(shares):.0f} %"
    )


def compare_compacted(one: LexicalIndex, texts: Sequence[str], share: float, root: Path) -> None:
    """The live rows with the dead still in the statistics, and the same rows alone."""
    is_dead = np.random.default_rng(3).random(len(texts)) < share
    live = np.flatnonzero(~is_dead)
    lexical_build.build([texts[row] for row in live], "fresh", root / "fresh", "en")
    fresh = LexicalIndex.open([("fresh", root / "fresh")], "en")
    dead = {"one": np.flatnonzero(is_dead)}
    changes, shares = [], []
    for query in queries():
        before = {hit.row: hit.score for hit in one.search(query, K, dead)[:K]}
        after = {int(live[hit.row]): hit.score for hit in fresh.search(query, 10 * K)}
        changes += [abs(before[row] - after[row]) / after[row] for row in before.keys() & after.keys()]
        shares.append(len(before.keys() & set(list(after)[:K])) / len(before))
    print(
        f"compaction: with {100 * share:.0f} % dead, scores differ by {100 * statistics.mean(changes):.2f} % on average,"
        f" at most {100 * max(changes):.1f} %; {100 * statistics.mean(shares):.1f} % of the top {K} stay"
    )


if __name__ == "__main__":
    main()
