"""What a configuration leaves open: the language of a new corpus, kept until told otherwise; how to search."""

import json
from typing import Any

import pytest

from indexing import layout
from jobs.difference import NOTHING_ASKED

CODE = {"a.py": "def parse_file(): pass", "b.go": "func ReadFile() {}", "notes": "These are notes."}


def write(nights: Any, texts: dict[str, str]) -> None:
    lines = "\n".join(json.dumps({"id": name, "text": text}) for name, text in texts.items())
    nights.write(**{"in.jsonl": lines})


def language(nights: Any) -> str:
    return nights.manifest.config["index"]["language"]


@pytest.mark.usefixtures("no_lexical")
def test_the_language_of_a_new_corpus_is_recorded_and_kept(nights: Any) -> None:
    write(nights, CODE)
    nights.refresh()
    assert language(nights) == "code"
    assert not nights.refresh().published, "the same settings are the same night"
    prose = {f"letter {n}": f"This is letter {n}." for n in range(9)}
    write(nights, CODE | prose)
    result = nights.refresh()
    assert (result.documents["new"], len(nights.manifest.segments)) == (9, 2), "the older segment is carried"
    assert language(nights) == "code"
    nights.refresh(index={"language": "en"})
    assert (language(nights), len(nights.manifest.segments)) == ("en", 1)
    assert not nights.refresh().published, "auto is what the corpus has"


@pytest.mark.usefixtures("no_lexical")
def test_a_corpus_of_prose_is_english(nights: Any) -> None:
    write(nights, {"a.py": "x", "b": "This is b.", "c": "This is c."})
    nights.refresh()
    assert language(nights) == "en"


def test_a_part_of_an_identifier_finds_it(nights: Any) -> None:
    write(nights, CODE)
    nights.refresh()
    opened = nights.open()
    assert [p.document_id for p in opened.search("read", mode="lexical")] == ["b.go"]
    assert [p.document_id for p in opened.search("parse_file", mode="lexical")][0] == "a.py"


@pytest.mark.usefixtures("no_lexical")
def test_other_defaults_of_searches_are_published_with_the_same_segments(nights: Any) -> None:
    write(nights, CODE)
    nights.refresh()
    before = nights.manifest
    staged = [entry.name for entry in nights.storage.list(layout.SEGMENTS)]
    result = nights.refresh(NOTHING_ASKED, search={"fusion": "scores", "bm25_k1": 1.2})
    assert result.published and result.chunks["generated"] == 0
    assert nights.manifest.segments == before.segments
    assert [entry.name for entry in nights.storage.list(layout.SEGMENTS)] == staged
    assert nights.manifest.config["search"]["fusion"] == "scores"
    assert nights.manifest.fingerprints == before.fingerprints
    assert not nights.refresh(search={"fusion": "scores", "bm25_k1": 1.2}).published
