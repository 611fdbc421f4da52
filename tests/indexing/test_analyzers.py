"""What identifiers and paths become, that real Lucene finds their parts, and which corpora are source code."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from indexing import lexical_build
from indexing.analyzers import ANALYZERS, SOURCE_EXTENSIONS, QueryAnalyzer, Stopwords, language_of, prepared
from indexing.jvm import in_jvm
from indexing.lexical import LexicalIndex


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("parseFileName", "parseFileName parse File Name"),
        ("HTTPServerError", "HTTPServerError HTTP Server Error"),
        ("snake_case", "snake_case snake case"),
        ("__init__", "__init__"),
        ("kebab-case", "kebab_case kebab case"),
        ("a/b/c.py", "a_b_c_py a b c py"),
        ("src/parse_file.py", "src_parse_file_py src parse_file parse file py"),
        ("C\\Dir", "C_Dir C Dir"),
        ("std::vector", "std_vector std vector"),
        ("utf8", "utf8 utf 8"),
        ("sha256sum", "sha256sum sha 256 sum"),
        ("2.60.0", "2_60_0 2 60 0"),
        ("größeBerechnen", "größeBerechnen größe Berechnen"),
        ("die Übung", "die Übung"),
        ("plain words, as ever.", "plain words, as ever."),
        ("a -> b, --flag", "a -> b, --flag"),
        ("使用parseFile方法", "使用 parseFile parse File 方法"),
        ("____ - / . ::", "____ - / . ::"),
        ("\ud800 fileName", "\ud800 fileName file Name"),
        ("x" * 300 + "A", "x" * 300 + "A"),
        ("", ""),
    ],
)
def test_a_compound_is_written_out_whole_and_in_parts(text: str, words: str) -> None:
    assert prepared(text, "code").split() == words.split()
    assert prepared(text, "en") == text


def test_hostile_texts_take_linear_time() -> None:
    for text in ("a-" * 500_000, "aB" * 500_000, "_" * 1_000_000, "A" * 1_000_000 + "b", "a/b.C " * 100_000):
        assert len(prepared(text, "code")) < 4 * len(text)


TEXTS = [
    "def parseFileName(path): pass",
    "the parser reads a file by its name",
    "see src/indexing/lexical_build.py for more",
    "class HTTPServer2: pass",
    "kebab-case-name",
    "nothing of this",
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LexicalIndex]:
    directory = tmp_path_factory.mktemp("code") / "s"
    lexical_build.build(TEXTS, "s", directory, "code")
    opened = LexicalIndex.open([("s", directory)], "code")
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("parseFileName", [0, 1, 4]),  # the name itself before a text that has its parts
        ("filename", []),
        ("file names", [1, 0, 4]),
        ("lexical build", [2]),
        ("lexical_build.py", [2]),
        ("lexical-build", [2]),
        ("indexing/lexical_build.py", [2]),
        ("http server", [3]),
        ("kebab", [4]),
        ("caseName", [4, 0, 1]),
    ],
)
def test_a_part_finds_the_name_and_the_name_finds_itself_first(
    index: LexicalIndex, query: str, rows: list[int]
) -> None:
    hits = [hit.row for hit in index.search(query, 10)]
    assert hits[:1] == rows[:1]
    assert set(hits) == set(rows)


@pytest.mark.parametrize("language", ["en", "code"])
@pytest.mark.parametrize(
    ("query", "terms"),
    [
        (
            "What does the DiffExecutor do, and how?",
            {"snowball": "diffexecutor", "lucene": "what doe diffexecutor do how"},
        ),
        ("who is not here?", {"snowball": "who here", "lucene": "who here"}),  # nothing else is left of it
        ("the", {"snowball": "", "lucene": ""}),
    ],
)
def test_words_that_questions_are_made_of_are_not_looked_for(
    language: str, query: str, terms: dict[Stopwords, str]
) -> None:
    for stopwords, wanted in terms.items():
        found = in_jvm(lambda stopwords=stopwords: QueryAnalyzer(language, stopwords).terms(query))
        split = "diff executor" if language == "code" and "diff" in wanted else ""
        assert set(found) == {*wanted.split(), *split.split()}


def test_code_is_source_code_by_the_ends_of_ids() -> None:
    def language(*ids: str) -> str:
        return language_of(pa.chunked_array([pa.array(ids, pa.string())]))

    assert language("a.py", "src/B.JAVA", "notes.md") == "code"
    assert language("a.py", "notes.md") == "code"
    assert language("a.py", "notes.md", "b.txt") == "en"
    assert language("py", "a.python", "c.py/part") == "en"
    assert language() == "en"
    assert set(SOURCE_EXTENSIONS.split("|")).isdisjoint({"md", "txt", "rst", "json", "xml", "html", "csv", "", "yaml"})


def test_every_language_builds_and_finds(tmp_path: Path) -> None:
    """The analyzer of queries is the one that Anserini built with: each finds a text by itself."""
    for language in ("de", "ja", "ko", "ar", "code"):
        text = {"ja": "東京都の家賃", "ko": "서울의 집세", "ar": "إيجار البيت"}.get(language, "Häuser and Roofs")
        lexical_build.build([text, "x"], "s", tmp_path / language, language)
        opened = LexicalIndex.open([("s", tmp_path / language)], language)
        assert [hit.row for hit in opened.search(text, 5)] == [0], language
        opened.close()
    assert {"ja", "ko", "zh", "code"} <= set(ANALYZERS)
