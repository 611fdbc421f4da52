"""A chunk is known by (document id, chunk index), and by nothing that depends on where or when it was worked on (P3)."""

import json
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from indexing import live
from jobs import flow

# Glued together with a chunk index in any usual way, some of these are each other's; all texts begin alike.
IDS = (
    "a",
    "a_b",
    "b_c",
    "c",
    "a1",
    "a11",
    "a_1",
    "a-1",
    "a:1",
    "a#1",
    "a/1",
    "1",
    "11",
    "empty",
    "A",
    "a ",
    "a\0",
    "\u00e9",
    "e\u0301",
)
QUERIES = ("rule of the roof", "document 615f62 has it", "number 11")


def record(name: str) -> str:
    text = " ".join(f"Rule {number} of the roof, as document {name.encode().hex()} has it." for number in range(12))
    return json.dumps({"id": name, "title": "Roof", "text": text + " The end is alike everywhere."})


@pytest.fixture
def built(nights: Any) -> Callable[..., Any]:
    """`built(files of records, ...)`: a corpus of its own."""

    def build(name: str, files: Iterable[Iterable[str]], **settings: Any) -> Any:
        found = type(nights)(nights.root / name)
        found.root.mkdir()
        found.write(**{f"{number}.jsonl": "\n".join(lines) for number, lines in enumerate(files)})
        found.refresh(**settings)
        return found

    return build


def rows(corpus: Any) -> dict[tuple[str, int], dict[str, Any]]:
    """Every live row by its identity."""
    snapshot = corpus.open()
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for name in live.documents(corpus.storage, snapshot.manifest.segments, {}, ["id"])["id"].to_pylist():
        for row in snapshot.rows(name):
            identity = row["document_id"], row["chunk_index"]
            assert identity not in found and row["document_id"] == name
            found[identity] = {key: value for key, value in row.items() if key != "cached_tokens"}
            found[identity]["text"] = snapshot.original(name, (row["byte_start"], row["byte_end"]))
    assert len(found) == snapshot.manifest.counts["chunks"]["total"]
    return found


def answers(corpus: Any) -> list[Any]:
    """Of every mode: the hits in order, with their scores."""
    snapshot = corpus.open()
    return [
        [
            (passage.document_id, passage.start, passage.end, passage.text)
            + tuple((hit.chunk_index, round(hit.score, 4), hit.context) for hit in passage.hits)
            for passage in snapshot.search(query, k, mode)
        ]
        for query in QUERIES
        for mode in ("dense", "lexical", "hybrid")
        for k in (1, 10, 1000)
    ]


def test_ids_that_look_like_anothers_chunk_stay_apart(built: Callable[..., Any]) -> None:
    corpus = built("corpus", [map(record, IDS)])
    found = rows(corpus)
    assert set(found) == {(name, index) for name in IDS for index in range(13)}
    assert len({row["context"] for row in found.values()}) == len(found), "no context came from another chunk"
    for name in IDS:
        text = json.loads(record(name))["text"]
        assert "".join(found[name, index]["text"] for index in range(13)) == text
    ties = [
        (p.document_id, h.chunk_index)
        for p in corpus.open().search("end alike everywhere", 19, "lexical")
        for h in p.hits
    ]
    assert ties == sorted((name, 12) for name in IDS)


def test_order_files_parts_and_segments_change_neither_ids_nor_answers(
    built: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    records = list(map(record, IDS))
    plain = built("plain", [records])
    expected, answered = rows(plain), answers(plain)
    for seed in range(2):
        random.Random(seed).shuffle(records)
        shuffled = built(
            f"shuffled-{seed}",
            [records[start::7] for start in range(7)] if seed else [records[:4], records[4:]],
            index={"rows_per_segment": 100 - 60 * seed},
        )
        assert len(shuffled.manifest.segments) > 1
        assert rows(shuffled) == expected and answers(shuffled) == answered
    monkeypatch.setattr(flow, "_BLOCK_DOCUMENTS", 1)  # one staged part per document, as with many workers
    assert [s.digest for s in built("parts", [map(record, IDS)]).manifest.segments] == [
        segment.digest for segment in plain.manifest.segments
    ]


def test_a_minified_line_has_as_many_identities_as_chunks(nights: Any, no_lexical: None) -> None:
    line = "".join(random.Random(1).choices("abcdefghijklmnop;{}()=,.", k=60_000))
    nights.write(**{"min.txt": line})
    nights.refresh(split={"by": "tokens", "size": 200}, context={"strategy": "header"})
    found = rows(nights)
    assert len(found) >= 60_000 / (8 * 200) and {name for name, _ in found} == {"min.txt"}
    assert sorted(index for _, index in found) == list(range(len(found)))
    assert "".join(found["min.txt", index]["text"] for index in range(len(found))) == line


def test_nights_name_and_rank_chunks_as_one_build_does(nights: Any, built: Callable[..., Any]) -> None:
    """The second night adds documents before, between and behind: segments are no longer in order of their ids."""
    nights.write(**{"b.jsonl": "\n".join(map(record, IDS[4:8]))})
    nights.refresh()
    before = rows(nights)
    nights.write(**{"a.jsonl": "\n".join(map(record, (*IDS[:4], *IDS[8:])))})
    nights.refresh(compaction={"pile": 1000})
    assert len(nights.manifest.segments) == 2
    after = rows(nights)
    assert {identity: after[identity] for identity in before} == before
    whole = built("whole", [map(record, IDS)])
    assert after == rows(whole) and answers(nights) == answers(whole)
