"""Real Lucene throughout; one JVM for the module."""

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from enrichment.errors import ConfigError, OperationError
from indexing import analyzers, jvm, lexical_build
from indexing.lexical import LexicalIndex

WORDS = ["payment", "clause", "tenant", "roof", "insurance", "notice", "garden", "winter", "boiler", "deposit"]


def random_texts(num_texts: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(3, 30))) for _ in range(num_texts)]


# Skewed on purpose: "roof" is common in one segment and rare in the other; row 3 of `b` repeats row 1 of `a`.
A = ["roof and payment", "the roof leaks in winter", "roof roof roof", "roof garden", "roof insurance clause"]
B = ["boiler notice", "tenant deposit and roof", "", "the roof leaks in winter", *random_texts(40, 1)]
TIED = ["same words here"] * 100 + ["words of some other kind"]
HARD = [
    "",
    " \n\t\0\x1f",
    "\u2028",
    "nul\0here",
    "line\u2028separator\x85next",
    "x" * 40_000 + " behind",
    "\ud800 lone",
]
HARD += ["\U0001f600 family", "\ufeff mark \ufffe", 'quote " and \\ slash', "</script>{}", "last"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The directories of all segments, by id; two are built at a time, most of a small build is starting Java."""
    root = tmp_path_factory.mktemp("segments")
    parts = {"a": A, "b": B, "empty": [], "one": A + B, "tied": TIED, "hard": HARD}
    with ThreadPoolExecutor(2) as pool:
        counts = pool.map(lambda name: lexical_build.build(parts[name], name, root / name, "en"), parts)
        assert dict(zip(parts, counts, strict=True)) == {name: len(texts) for name, texts in parts.items()}
    return {name: root / name for name in parts}


@pytest.fixture
def open_index(built: dict[str, Path]) -> Iterator[Callable[..., LexicalIndex]]:
    with ExitStack() as opened:

        def open_segments(*names: str) -> LexicalIndex:
            index = LexicalIndex.open([(name, built[name]) for name in names], "en")
            opened.callback(index.close)
            return index

        yield open_segments


@pytest.fixture
def index(open_index: Callable[..., LexicalIndex]) -> LexicalIndex:
    return open_index("a", "b", "empty")


def test_every_text_is_a_row_and_its_number_is_the_row(index: LexicalIndex, built: dict[str, Path]) -> None:
    assert index.num_rows == {"a": len(A), "b": len(B), "empty": 0}
    for word in WORDS:
        hits = index.search(word, len(A) + len(B))
        expected = {(name, row) for name, texts in (("a", A), ("b", B)) for row, t in enumerate(texts) if word in t}
        assert {hit[:2] for hit in hits} == expected
    for directory in built.values():
        assert not [file.name for file in directory.iterdir() if file.suffix in (".lock", ".log")]
    assert {path.name for path in built["a"].parent.iterdir()} == set(built)  # the texts are gone


def test_scores_do_not_depend_on_the_number_of_segments(
    index: LexicalIndex, open_index: Callable[..., LexicalIndex]
) -> None:
    one = open_index("one")
    for query in ("roof", "roof leaks winter", "payment clause tenant", "roof roof deposit"):
        together = {hit.row: hit.score for hit in one.search(query, 100)}
        apart = {hit.row + (len(A) if hit.segment_id == "b" else 0): hit.score for hit in index.search(query, 100)}
        assert together.keys() == apart.keys()
        assert apart == pytest.approx(together, abs=1e-4)


def test_a_repeated_term_weighs_more(index: LexicalIndex) -> None:
    once, twice = index.search("leaks", 1)[0], index.search("leaks leaks", 1)[0]
    assert twice.score == pytest.approx(2 * once.score, rel=1e-5)


def test_hits_are_sorted_and_ties_at_the_last_place_are_complete(
    index: LexicalIndex, open_index: Callable[..., LexicalIndex]
) -> None:
    assert {hit[:2] for hit in index.search("leaks", 1)} == {("a", 1), ("b", 3)}
    tied = open_index("tied", "a")
    hits = tied.search("words", 2)
    assert {hit.row for hit in hits} == set(range(100))
    assert len(hits) == 100
    assert len({hit.score for hit in hits}) == 1
    assert len(tied.search("words", 101)) == 101
    scores = [hit.score for hit in index.search("roof payment winter", 50)]
    assert scores == sorted(scores, reverse=True)


def test_dead_rows_are_never_returned_and_k_is_still_filled(index: LexicalIndex) -> None:
    everything = index.search("roof tenant", 100)
    dead = {"a": {0, 1, 2}, "b": [everything[-1].row, 3], "unknown": [1]}
    gone = {("a", 0), ("a", 1), ("a", 2), ("b", dead["b"][0]), ("b", 3)}  # type: ignore[index]
    expected = [hit for hit in everything if hit[:2] not in gone]
    assert index.search("roof tenant", 100, dead) == expected
    assert len(index.search("roof tenant", 5, dead)) >= 5
    assert index.search("roof", 5, {"a": range(len(A)), "b": range(len(B))}) == []
    assert index.search("roof tenant", 100) == everything
    with pytest.raises(OperationError, match="segment a"):
        index.search("roof", 5, {"a": [len(A)]})


@pytest.mark.parametrize("query", ["", " ", "the of", "*", "(", "\0", "\ud800", "\u2003", "... !!!"])
def test_a_query_without_terms_finds_nothing(index: LexicalIndex, query: str) -> None:
    assert index.search(query, 5) == []


@pytest.mark.parametrize(
    "query",
    [
        "roof AND (",
        'roof* "',
        "contents: roof^9 \\",
        "roof\0\ud800",
        "roof " + "x" * 100_000,
        "\U0001f600\u200d" * 999 + " roof",
    ]
    + ["roof " + " ".join(f"t{n}" for n in range(5000)), "roof " * 20_000, "roof [a TO b] ~3 && || !"],
)
def test_a_hostile_query_is_a_bag_of_words(index: LexicalIndex, query: str) -> None:
    assert {("a", row) for row in range(len(A))} <= {hit[:2] for hit in index.search(query, 100)}


def test_difficult_texts_are_kept_and_found(open_index: Callable[..., LexicalIndex]) -> None:
    index = open_index("hard")
    words = {"nul": 3, "separator": 4, "next": 4, "behind": 5, "lone": 6, "\U0001f600": 7, "mark": 8, "quote": 9}
    for word, row in {**words, "slash": 9, "script": 10, "last": 11}.items():
        assert [hit.row for hit in index.search(word, 5)] == [row], word


def test_languages_have_the_analyzers_that_anserini_builds_with(tmp_path: Path) -> None:
    def anserini() -> dict[str, str]:
        entries = jvm.java_class("io.anserini.analysis.AnalyzerMap").analyzerMap.entrySet().toArray()
        return {entry.getKey(): entry.getValue() for entry in entries}

    known = jvm.in_jvm(anserini)
    assert set(known) - set(analyzers.ANALYZERS) == {"th"}
    assert {code: name for code, name in analyzers.ANALYZERS.items() if known.get(code, name) != name} == {}
    lexical_build.build(["東京都の家賃", "大阪の冬"], "zh", tmp_path / "zh", "zh")
    index = LexicalIndex.open([("zh", tmp_path / "zh")], "zh")
    assert [hit.row for hit in index.search("家賃", 5)] == [0]
    index.close()


def test_an_unknown_language_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'xx'.*\bde\b.*\ben\b"):
        lexical_build.build(["a"], "s", tmp_path / "s", "xx")
    with pytest.raises(ConfigError):
        LexicalIndex.open([], "xx")


def test_another_segments_index_is_refused(built: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(OperationError, match="segment b"):
        LexicalIndex.open([("b", built["a"])], "en")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(OperationError, match="nothing"):
        LexicalIndex.open([("b", tmp_path / "nothing")], "en")


def test_an_index_without_rows_finds_nothing(open_index: Callable[..., LexicalIndex]) -> None:
    assert open_index().search("roof", 5) == []
    assert open_index("empty").search("roof", 5) == []


def test_a_closed_index_is_closed(index: LexicalIndex) -> None:
    index.search("roof", 5, {"a": [0]})
    index.close()
    for dead in ({}, {"a": [0]}):
        with pytest.raises(Exception, match="AlreadyClosed|closed"):
            index.search("roof", 5, dead)


def test_threads_get_the_same_answers(index: LexicalIndex) -> None:
    dead = {"a": [0, 2]}
    expected = index.search("roof payment", 7), index.search("roof payment", 7, dead)
    with ThreadPoolExecutor(4) as pool:
        for pair in pool.map(
            lambda _: (index.search("roof payment", 7), index.search("roof payment", 7, dead)), range(80)
        ):
            assert pair == expected


def test_a_failing_java_is_reported_with_its_last_message(tmp_path: Path) -> None:
    arguments = ["-collection", "JsonCollection", "-input", str(tmp_path / "none"), "-index", str(tmp_path / "s")]
    with pytest.raises(OperationError, match=r"^Segment s: Java ended with status 1 .*Invalid collection path"):
        jvm.run_java("io.anserini.index.IndexCollection", arguments, "Segment s")


def test_rows_that_need_more_than_one_flush_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SITUATE_JVM_HEAP", "32m")
    texts = (" ".join(f"w{row}x{word}" for word in range(100)) for row in range(4000))
    with pytest.raises(OperationError, match="segment s: 4000 rows .* order is lost: raise SITUATE_JVM_HEAP"):
        lexical_build.build(texts, "s", tmp_path / "s", "en")
    monkeypatch.setenv("SITUATE_JVM_HEAP", "plenty")
    with pytest.raises(ConfigError, match="plenty"):
        lexical_build.build(["a"], "s", tmp_path / "s", "en")


def test_texts_that_cannot_be_made_end_the_build_and_say_why(tmp_path: Path) -> None:
    def texts() -> Iterator[str]:
        yield from (f"row {row}" for row in range(5000))
        raise OperationError("rows.parquet is damaged")

    with pytest.raises(OperationError, match=r"^rows.parquet is damaged$"):
        lexical_build.build(texts(), "s", tmp_path / "s", "en")


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`java(script)`: what runs in Java's place."""

    def installed(script: str) -> None:
        path = tmp_path / "home" / "bin" / "java"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr(jvm, "java_home", lambda: tmp_path / "home")

    return installed


@pytest.mark.parametrize("script", ["exit 3", 'read -r line; echo "no room" >&2; exit 3', "cat >/dev/null; exit 3"])
def test_a_java_that_dies_is_named_however_many_texts_are_left(
    tmp_path: Path, java: Callable[[str], None], script: str
) -> None:
    """With all, with all but one line, and with none unread."""
    java(script)
    for texts in ([], ["a"], [f"row {row}" for row in range(50_000)]):
        with pytest.raises(OperationError, match="segment s: Java ended with status 3"):
            lexical_build.build(texts, "s", tmp_path / "s", "en")


def test_a_java_that_stops_early_and_ends_well_is_told_by_the_count_and_its_words(
    tmp_path: Path, java: Callable[[str], None]
) -> None:
    java('read -r line; echo "value exceeds the maximum"')
    with pytest.raises(OperationError, match=r"\d+ texts went in, 0 are in the index. value exceeds the maximum"):
        lexical_build.build([f"row {row}" for row in range(50_000)], "s", tmp_path / "s", "en")


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.3])
def test_a_java_whose_caller_is_killed_ends(tmp_path: Path, delay_s: float) -> None:
    """Before it reads, and while it does."""
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom indexing import lexical_build\n"
        "texts = (time.sleep(0.001) or f'row {n}' for n in range(10**6))\n"
        f"lexical_build.build(texts, 's', Path({str(tmp_path / 's')!r}), 'en')\n"
    )
    caller = subprocess.Popen([sys.executable, "-c", script])
    try:
        (java,) = wait_for(lambda: children(caller.pid))
        time.sleep(delay_s)
    finally:
        caller.kill()
        caller.wait()
    wait_for(lambda: not Path(f"/proc/{java}").exists() or not Path(f"/proc/{java}/cmdline").read_bytes())


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def wait_for(found: Callable[[], Any], most_s: float = 60) -> Any:
    """What there is once there is something."""
    until = time.monotonic() + most_s
    while not (value := found()):
        assert time.monotonic() < until
        time.sleep(0.01)
    return value


def test_java_home_is_used_if_its_java_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib" / "server").mkdir(parents=True)
    (tmp_path / "lib" / "server" / "libjvm.so").touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    for version, chosen in (("17.0.15", False), ("1.8.0", False), ("21.0.8", True), ("25", True)):
        (tmp_path / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
        assert (jvm.java_home() == tmp_path) is chosen
    with pytest.raises(OperationError, match=r"segment s: cannot start .*bin/java"):
        lexical_build.build(["a"], "s", tmp_path / "s", "en")
