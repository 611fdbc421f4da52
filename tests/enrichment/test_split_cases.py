"""The shared cases, for what they demand of splitting. Skipped where the file is absent; nothing else depends on it."""

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enrichment.headings import headings
from enrichment.records import Chunk, Document, DocumentId
from enrichment.split import SplitOptions, split
from enrichment.tokens import TokenOffsets

DIRECTORY = Path(os.environ.get("SITUATE_CASES", Path(__file__).parents[3] / "shared" / "cases"))
PATH = DIRECTORY / "texts.jsonl"
CASES = {}
if PATH.is_file():
    CASES = {case["case"]: case for case in map(json.loads, PATH.read_text("utf-8").split("\n")[:-1])}

Check = Callable[[str, list[Chunk], list[str]], bool]
MUST_HOLD: dict[str, Check] = {
    "repeat-words": lambda text, chunks, pieces: spans(chunks) == [(0, 5), (5, 10), (10, 11)],
    "fence-comment": lambda text, chunks, pieces: {chunk.heading_path for chunk in chunks} == {("Title",)},
    "tilde-fence": lambda text, chunks, pieces: {chunk.heading_path for chunk in chunks} <= {("A",), ("A", "B")},
    "form-feed": lambda text, chunks, pieces: "".join(pieces).count("\f") == 2,
    "empty": lambda text, chunks, pieces: chunks == [],
    "blank": lambda text, chunks, pieces: chunks == [],
    "cjk-no-spaces": lambda text, chunks, pieces: all(piece.endswith("。") for piece in pieces if "。" in piece),
    "unequal-sentences": lambda text, chunks, pieces: pieces == ["hello. ", "foo bar. ", "cat dog. ", "mouse"],
    "abbreviations": lambda text, chunks, pieces: len(chunks) == 2,
    "nul": lambda text, chunks, pieces: pieces == ["before\x00after"],
    "line-separators": lambda text, chunks, pieces: pieces == [text],
    "bom": lambda text, chunks, pieces: chunks[0].heading_path == ("Title",),
    "special-tokens": lambda text, chunks, pieces: pieces == [text],
    "bidi": lambda text, chunks, pieces: pieces == [text],
    "table": lambda text, chunks, pieces: all(piece.endswith("|\n") for piece in pieces[:-1]),
}


def spans(chunks: list[Chunk]) -> list[tuple[int, int]]:
    return [(chunk.start, chunk.end) for chunk in chunks]


def tokens_of(text: str) -> TokenOffsets:
    found = np.array([match.span() for match in re.finditer(r"\w+|[^\w\s]", text)], dtype=np.int64).reshape(-1, 2)
    return TokenOffsets(found[:, 0], found[:, 1])


@pytest.mark.skipif(not CASES, reason=f"{PATH} is absent; SITUATE_CASES may name its directory")
@pytest.mark.parametrize("name", CASES or ["absent"])
def test_the_case_holds(name: str) -> None:
    case: dict[str, Any] = CASES[name]
    text = case["text"].removeprefix("\ufeff")  # as stored
    options = {"size": 1, **case["split"]}
    tokens = tokens_of(text)
    begin = time.thread_time()
    chunks = split(Document(DocumentId(name), text), headings(text), SplitOptions(**options), tokens)
    assert time.thread_time() - begin < 10
    pieces = [text[chunk.start : chunk.end] for chunk in chunks]
    assert "".join(pieces) == (text if text.strip() else "")
    encoded = text.encode()
    assert [encoded[chunk.byte_start : chunk.byte_end].decode() for chunk in chunks] == pieces
    if options["by"] == "tokens":
        assert all(len(tokens_of(piece).starts) <= options["size"] for piece in pieces)
        assert all(len(piece) <= 8 * options["size"] for piece in pieces)
    assert name not in MUST_HOLD or MUST_HOLD[name](text, chunks, pieces)
