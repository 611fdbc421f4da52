"""Nights with rewriting strategies: what is stored, indexed, reused and shown. The engine says each passage again with a name
in the place of its first word; all else is real.
"""

import json
import re
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from enrichment.embed import EmbeddingOptions
from enrichment.engine import Completion
from enrichment.fake_engine import FakeEngine
from enrichment.records import Chunk, Document, DocumentId
from enrichment.tokens import FakeTokenizer
from indexing import answers, destination, export, serving
from indexing.expansion import Expansion
from indexing.filters import Filter
from indexing.storage import DirectoryStorage
from jobs import show
from jobs.embedding import EmbedOnce

RULES = [
    "The lease of the Selby Mill begins in the month of May.",
    "It ends after six long years unless somebody renews it.",
    "They inspect the roof once in every calendar year.",
    "This costs the tenant nothing whatsoever at all.",
]
NEAR = {"strategy": "neighborhood", "forward_chunks": 1, "backward_chunks": 1}
SEEN = {"dense_text": ["header", "body"], "lexical_text": ["header", "body"]}
_MARK = FakeTokenizer().encode("The passage to say again").ids.tolist()
_END = FakeTokenizer().encode("---\nSay this passage again").ids.tolist()


class Rewriter:
    """Knows the words of the documents by their tokens, and notes the prompts. Of a stubborn passage it makes nothing."""

    def __init__(self, *texts: str) -> None:
        words = {word for text in texts for word in re.findall(r"\w+|[^\w\s]", text)}
        self.words = {zlib.crc32(word.encode()): word for word in words}
        self.prompts: list[list[int]] = []

    def text_of(self, ids: list[int]) -> str:
        return " ".join(self.words.get(token, "?") for token in ids)

    async def generate(self, engine: Any, prompt: Any, sampling: Any, enough: Any = None) -> Completion:
        ids = list(prompt)
        self.prompts.append(ids)
        start = max(n for n in range(len(ids)) if ids[n : n + len(_MARK)] == _MARK) + len(_MARK)
        end = max(n for n in range(len(ids)) if ids[n : n + len(_END)] == _END)
        words = self.text_of(ids[start:end]).rpartition('" ')[2].split()
        said = " ".join(["Selby", *words[1:]]).removesuffix(" .") + "."
        return Completion("no rewrite" if "stubborn" in said else said, "stop", len(ids), 0, 9)


@pytest.fixture
def rewriter(monkeypatch: pytest.MonkeyPatch) -> Rewriter:
    made = Rewriter("# Lease", *RULES, "The stubborn gate stays as it is for ever.", '"')

    async def generate(self: Any, prompt: Any, sampling: Any, enough: Any = None) -> Completion:
        return await made.generate(self, prompt, sampling, enough)

    monkeypatch.setattr(FakeEngine, "generate", generate)
    return made


def lease(*rules: str) -> str:
    return "# Lease\n\n" + " ".join(rules) + "\n"


def rows(nights: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = nights.open().rows("lease.md")
    return found


def test_a_rewrite_stands_for_the_chunk_in_both_indexes_and_the_text_stays_the_original(
    nights: Any, rewriter: Rewriter
) -> None:
    nights.write(lease=lease(*RULES, "The stubborn gate stays as it is for ever."))
    result = nights.refresh(context=NEAR, index=SEEN)
    assert (result.chunks["ok"], result.chunks["fallback"]) == (5, 1)
    found = rows(nights)
    assert [row["context"] for row in found] == [None] * 6
    assert found[2]["rewrite"] == "Selby ends after six long years unless somebody renews it."
    assert (found[5]["rewrite"], found[5]["status"], found[5]["reason"]) == (None, "fallback", "no_sentence")
    assert {row["strategy"] for row in found} == {"neighborhood"}
    (hit, *_) = nights.open().search("selby inspect roof", 1, "lexical")
    assert hit.hits[0].chunk_index == 3 and hit.text.strip() == RULES[2]
    assert nights.open().search("stubborn gate", 1, "lexical")[0].hits[0].chunk_index == 5
    (hit,) = nights.open().search("selby inspect roof", 1, "dense")
    assert hit.text.strip() == RULES[2]


@pytest.mark.usefixtures("no_lexical")
def test_a_chunk_is_never_rewritten_from_a_rewrite(
    nights: Any, rewriter: Rewriter, nights_in: Any, tmp_path: Path
) -> None:
    nights.write(lease=lease(*RULES))
    nights.refresh(context=NEAR)
    nights.refresh(context=NEAR | {"forward_chunks": 2})
    again = rewriter.prompts[5:]
    rewriter.prompts = []
    (tmp_path / "fresh").mkdir()
    fresh = nights_in(tmp_path / "fresh")
    fresh.write(lease=lease(*RULES))
    fresh.refresh(context=NEAR | {"forward_chunks": 2})
    assert again and all(prompt in rewriter.prompts for prompt in again)
    assert not any("Selby ends" in rewriter.text_of(prompt) for prompt in again)


@pytest.mark.usefixtures("no_lexical")
def test_a_changed_sentence_is_paid_for_with_its_neighbours_and_nothing_else(nights: Any, rewriter: Rewriter) -> None:
    nights.write(lease=lease(*RULES))
    assert nights.refresh(context=NEAR).chunks["generated"] == 5
    nights.write(lease=lease(*RULES[:3], "This costs the tenant nothing at all."))
    rewriter.words |= Rewriter("This costs the tenant nothing at all.").words
    result = nights.refresh(context=NEAR)
    assert (result.chunks["generated"], result.chunks["reused"]) == (2, 3)


@pytest.mark.usefixtures("no_lexical")
def test_semantic_takes_what_is_alike_by_the_plain_vectors_and_pays_for_those_once(
    nights: Any, rewriter: Rewriter, count_embedded: Any
) -> None:
    rules = [RULES[0], RULES[1], "The lease of the Selby Mill begins in the month of June."]
    rewriter.words |= Rewriter(*rules).words
    nights.write(lease=lease(*rules))
    embedded = count_embedded()
    semantic = {"strategy": "semantic", "semantic_similarity_threshold": 0.7}
    nights.refresh(context=semantic, index={"dense_text": ["body"]})
    assert sum(text.strip() == rules[0] for text in embedded) == 1
    read = [rewriter.text_of(prompt) for prompt in rewriter.prompts]
    assert "month of June" in read[1] and "six long years" not in read[1]
    assert "Mill" not in read[2], "nothing is like it"
    embedded = count_embedded()
    nights.refresh(context=semantic | {"semantic_neighbors": 1}, index={"dense_text": ["body"]})
    assert embedded == [], "all is paid for"


@pytest.mark.usefixtures("no_lexical")
def test_a_summary_is_paid_for_once(nights: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []
    summing = FakeTokenizer().encode("Sum up the document").ids.tolist()

    async def generate(self: Any, prompt: Any, sampling: Any, enough: Any = None) -> Completion:
        ids = list(prompt)
        asked.append(ids)
        is_summary = any(ids[n : n + len(summing)] == summing for n in range(len(ids)))
        return Completion(" is the lease of a mill." if is_summary else "nothing", "stop", len(ids), 0, 9)

    monkeypatch.setattr(FakeEngine, "generate", generate)
    nights.write(lease=lease(*RULES))
    result = nights.refresh(context=NEAR | {"summary": True}, limits={"fallback": 1.0})
    assert len(asked) == 1 + 5 * 2 and result.tokens["prompt"] == sum(map(len, asked))
    told = FakeTokenizer().encode("Summary: This document is the lease of a mill.").ids.tolist()
    assert all(any(ids[n : n + len(told)] == told for n in range(len(ids))) for ids in asked[1:])
    asked.clear()
    nights.write(lease=lease(*RULES) + "\n")
    nights.refresh(context=NEAR | {"summary": True}, limits={"fallback": 1.0})
    assert asked == [], "what a guard refused is paid for, too"
    (nights.docs / "lease.md").rename(nights.docs / "let.md")
    nights.refresh(context=NEAR | {"summary": True}, limits={"fallback": 1.0, "deleted": 1.0})
    nights.write(let=lease(*RULES) + "\n\n")
    nights.refresh(context=NEAR | {"summary": True}, limits={"fallback": 1.0})
    assert asked == [], "and stays so under another name"


def test_rows_are_shown_as_people_know_them_who_come_from_r2r(nights: Any, rewriter: Rewriter, tmp_path: Path) -> None:
    nights.write(lease=lease(*RULES, "The stubborn gate stays as it is for ever."), alone="Alone.\n")
    nights.refresh(context=NEAR, index=SEEN)
    uri = str(nights.root / "corpus")
    shown = show.read(uri, "lease.md", None)["chunks"]
    original = RULES[1] + " "
    rewritten = "Selby ends after six long years unless somebody renews it."
    view = {"text": rewritten, "metadata": {"original_text": original, "chunk_enrichment_status": "success"}}
    assert shown[2]["enrichment"] == view and shown[2]["text"] == original
    assert shown[5]["enrichment"]["metadata"]["chunk_enrichment_status"] == "failed"
    assert shown[5]["enrichment"]["text"] == shown[5]["text"]
    assert show.read(uri, "alone.md", 0)["chunks"][0]["enrichment"] is None
    with closing(serving.open(uri)) as corpus:
        chunk = answers.chunk(corpus, "lease.md", 2, Expansion()).chunk
    assert chunk.enrichment is not None and chunk.enrichment.text == chunk.text == rewritten
    assert chunk.enrichment.metadata.original_text == chunk.original == original
    with destination.opened(str(tmp_path / "out.jsonl")) as where:
        export.write(nights.storage, nights.manifest, where, "jsonl", lambda done: None)
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert next(r for r in records if r["chunk_index"] == 2 and r["document_id"] == "lease.md")["enrichment"] == view
    assert next(r for r in records if r["document_id"] == "alone.md")["enrichment"] is None


def test_fields_are_copied_into_the_metadata_once_and_searches_filter_by_them(
    nights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    copying = FakeTokenizer().encode("Copy out the fields.").ids.tolist()

    async def generate(self: Any, prompt: Any, sampling: Any, enough: Any = None) -> Completion:
        ids = list(prompt)
        is_fields = any(ids[n : n + len(copying)] == copying for n in range(len(ids)))
        asked.append(is_fields)
        text = " the month of May\nparties: Selby Mill\n" if is_fields else " is about the mill."
        return Completion(text, "stop", len(ids), 0, 9)

    monkeypatch.setattr(FakeEngine, "generate", generate)
    context = {"strategy": "situate", "extract": ["month", "parties"]}
    nights.write(
        lease=lease(*RULES),
        other=lease("Nothing of the kind.", "Nor here."),
        own="---\nparties: Ada\n---\n\n# Own\n\nThe Selby Mill again.\n",
    )
    result = nights.refresh(context=context)
    assert asked.count(True) == 3 and result.chunks["generated"] == asked.count(False)
    found = {name: json.loads(nights.open().document(f"{name}.md")["metadata"]) for name in ("lease", "other", "own")}
    assert found["lease"] == {"month": "the month of May", "parties": "Selby Mill"}
    assert found["other"] == {}, "what the document does not say is not kept"
    assert found["own"]["parties"] == "Ada", "what the source says stays"
    hits = nights.open().search("the mill", 5, "lexical", filters=Filter((("parties", "Selby Mill"),)))
    assert {hit.document_id for hit in hits} == {"lease.md"}
    asked.clear()
    nights.write(lease=lease(*RULES[:3]))
    nights.refresh(context=context)
    nights.write(lease=lease(*RULES))
    nights.refresh(context=context)
    assert asked.count(True) == 1, "the text that was asked about before is paid for"


def test_a_document_that_waits_for_its_engine_is_not_embedded_again_for_it(tmp_path: Path, count_embedded: Any) -> None:
    """Chunks are compared before it is known that a model is needed, and again once it is there."""
    embedded = count_embedded()
    once = EmbedOnce(DirectoryStorage(tmp_path), "run-1", EmbeddingOptions("fake"), None)
    document = Document(DocumentId("a"), "One rule holds. Another one holds too.")
    chunks = [Chunk(0, 0, 16, 0, 16), Chunk(1, 16, len(document.text), 16, len(document.text))]
    first = once.cosines(document, chunks)
    assert (once.cosines(document, chunks) == first).all() and len(embedded) == 2
    changed = Document(DocumentId("a"), document.text.upper())
    once.cosines(changed, chunks)
    assert len(embedded) == 4
