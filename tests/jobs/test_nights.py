"""Scripted nights: what a refresh does again, what it carries, and what can be found the morning after.

Without Ray; the steps, the ledger, the segments and both indexes are the real ones, the models are fake. Lucene is built only
where a test searches by words.
"""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from enrichment.engine import PromptRefusedError
from enrichment.errors import ConfigError
from enrichment.fake_engine import FakeEngine
from enrichment.tokens import FakeTokenizer
from indexing import layout, ledger_parts, tables
from indexing.snapshot import Snapshot
from jobs import refresh, show
from jobs.difference import Asked

NAMES = ("ash", "birch", "cedar", "elm", "fir", "hazel", "larch", "maple", "oak", "pine")
RULES = [f"Rule {number} of the {word} holds." for number, word in enumerate(["roof", "garden", "boiler", "gate"])]
NEVER = {"compaction": {"dead_share": 1.0, "pile": 1000}}


def text(name: str, *sentences: str) -> str:
    return f"# {name.title()}\n\n" + " ".join(sentences) + "\n"


@pytest.fixture
def forest(nights: Any) -> Any:
    """Ten documents of five chunks, published."""
    nights.write(**{name: text(name, *RULES) for name in NAMES})
    first = nights.refresh()
    assert first.documents["new"] == 10 and first.chunks["generated"] == first.chunks["total"] == 50
    return nights


def segment_ids(nights: Any) -> list[str]:
    return [segment.id for segment in nights.manifest.segments]


def rows(nights: Any, name: str = "ash") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = nights.open().rows(f"{name}.md")
    return found


def stale(nights: Any) -> list[tuple[str, str, int]]:
    return [(s["id"], s["reason"].partition(":")[0], s["tries"]) for s in nights.manifest.stale]


@pytest.mark.usefixtures("no_lexical")
def test_a_night_without_changes_asks_nothing_and_publishes_nothing(forest: Any, monkeypatch: Any) -> None:
    before, files = forest.manifest, sorted(e.name for e in forest.storage.list())
    (forest.docs / "ash.md").touch()
    monkeypatch.setattr(FakeEngine, "generate", None)
    result = forest.refresh()
    assert (result.published, result.snapshot, result.chunks["generated"]) == (False, 1, 0)
    assert result.documents["unchanged"] == 10 and result.exceeded == ()
    assert forest.manifest == before and sorted(e.name for e in forest.storage.list()) == files


@pytest.mark.usefixtures("no_lexical")
def test_a_night_carries_what_did_not_change_by_reference(forest: Any) -> None:
    (first,) = segment_ids(forest)
    forest.write(new=text("new", *RULES), ash=text("ash", *RULES, "One more thing."), oak=None)
    (forest.docs / "elm.md").rename(forest.docs / "yew.md")
    result = forest.refresh(**NEVER)
    documents = result.documents
    assert {n: documents[n] for n in ("total", "new", "changed", "unchanged", "deleted", "renamed")} == {
        "total": 10,
        "new": 2,
        "changed": 1,
        "unchanged": 7,
        "deleted": 2,
        "renamed": 1,
    }
    assert result.chunks["generated"] == 5 + 1, "a new document, and what was added to another"
    assert segment_ids(forest)[0] == first and len(segment_ids(forest)) == 2
    entry = forest.manifest.dead[first]
    assert (entry.num_documents, entry.num_rows) == (3, 15)
    (second,) = [segment for segment in forest.manifest.segments if segment.id != first]
    assert (second.num_documents, second.num_rows) == (3, 16)
    assert result.chunks["total"] == 51 and result.chunks["reused"] == 45


@pytest.mark.usefixtures("no_lexical")
def test_from_the_first_changed_chunk_on_prompts_are_new(forest: Any) -> None:
    forest.write(ash=text("ash", *RULES[:2], "Another rule of the boiler.", RULES[3]))
    assert forest.refresh().chunks["generated"] == 2
    forest.write(birch=text("birch", *RULES, "At the end.", "Quite at the end."))
    assert forest.refresh().chunks["generated"] == 2


def test_a_deleted_document_is_unreachable_everywhere_at_once(forest: Any) -> None:
    """Also one without rows; and k is filled with live rows. Its segment lives on, for another document's sake."""
    gone = text("gone", *(f"The unicorn has secret {number}." for number in range(30)))
    forest.write(**{"gone.md": gone, "blank.md": " \n", "kept.md": text("kept", *RULES)})
    forest.refresh(**NEVER)
    assert forest.open().search("unicorn secret", 1, "lexical")[0].document_id == "gone.md"
    forest.write(**{"gone.md": None, "blank.md": None})
    assert forest.refresh(**NEVER).documents["deleted"] == 2
    snapshot = forest.open()
    assert len(snapshot.manifest.segments) == 2 and len(snapshot.manifest.dead) == 1
    assert not any("unicorn" in found for found in snapshot.texts())
    assert snapshot.search("unicorn secret", 10, "lexical") == []
    for mode in ("dense", "hybrid", "lexical"):
        for k in (1, 7, 50, 1000):
            found = snapshot.search("rule of the roof unicorn secret", k, mode)
            ids = {(p.document_id, hit.chunk_index) for p in found for hit in p.hits}
            assert not {"gone.md", "blank.md"} & {name for name, _ in ids}
            assert len(ids) == min(k, 55) or mode == "lexical"
    for ask in (snapshot.document, snapshot.rows, snapshot.original):
        for name in ("gone.md", "blank.md"):
            with pytest.raises(ConfigError, match="holds no document"):
                ask(name)
    for name in ("gone.md", "blank.md"):
        with pytest.raises(ConfigError, match=f"holds no document {name}"):
            show.read(snapshot.storage.uri, name, None)


def test_a_replaced_document_says_only_what_is_new(forest: Any) -> None:
    forest.write(ash=text("ash", "The unicorn has a secret.", *RULES))
    forest.refresh(**NEVER)
    forest.write(ash=text("ash", "The dragon has a secret.", *RULES))
    forest.refresh(**NEVER)
    snapshot = forest.open()
    assert snapshot.search("unicorn", 5, "lexical") == []
    assert snapshot.search("dragon", 5, "lexical")[0].document_id == "ash.md"
    assert snapshot.original("ash.md") == text("ash", "The dragon has a secret.", *RULES)
    assert snapshot.manifest.counts["chunks"]["total"] == 51


@pytest.mark.usefixtures("no_lexical")
def test_new_metadata_alone_is_stored_and_costs_nothing(nights: Any) -> None:
    record = {"id": "a", "title": "A", "text": "One. Two. Three.", "metadata": {"owner": "x"}}
    nights.write(**{"in.jsonl": json.dumps(record), "b.md": text("b", *RULES)})
    nights.refresh()
    nights.write(**{"in.jsonl": json.dumps({**record, "metadata": {"owner": "y"}})})
    result = nights.refresh()
    assert (result.documents["changed"], result.chunks["generated"]) == (1, 0)
    assert json.loads(nights.open().document("a")["metadata"]) == {"owner": "y"}


@pytest.mark.usefixtures("no_lexical")
@pytest.mark.parametrize(
    ("section", "generated", "embedded"),
    [
        ({"embedding": {"name": "fake", "passage_prefix": "p: "}}, 0, 50),
        ({"context": {"strategy": "situate", "prompt": "quote"}}, 50, 0),
        # The last chunks end where they did before, so the prompts that a causal model reads for them are the same.
        ({"split": {"by": "sentences", "size": 2}}, 0, 20),
        ({"split": {"by": "characters", "size": 40}}, 20, 30),
        ({"index": {"rows_per_segment": 20}}, 0, 0),
    ],
)
def test_a_setting_redoes_only_what_depends_on_it(
    forest: Any, section: dict[str, Any], generated: int, embedded: int
) -> None:
    """P26: and nothing of before is left among the rows."""
    before, ledger = set(segment_ids(forest)), {e.name for e in forest.storage.list(layout.LEDGER)}
    result = forest.refresh(**section)
    assert result.chunks["generated"] == generated and result.documents["unchanged"] == 10
    new = [e.name for e in forest.storage.list(layout.LEDGER) if e.name not in ledger and "/vectors-" in e.name]
    kind = tables.ledger_vectors(64)
    assert sum(tables.read(forest.storage.get(name), kind).num_rows for name in new) == embedded
    assert not before & set(segment_ids(forest)) and not forest.manifest.dead
    made = {(row["prompt_fingerprint"], row["model_fingerprint"]) for name in NAMES for row in rows(forest, name)}
    assert made == {(forest.manifest.fingerprints["prompt"], forest.manifest.fingerprints["model"])}
    assert not forest.refresh(**section).published


@pytest.mark.usefixtures("no_lexical")
def test_what_a_night_pays_for_is_in_the_ledger_once(forest: Any) -> None:
    forest.write(new=text("new", *RULES))
    written = forest.refresh().chunks["generated"]
    parts = [name for name in ledger_parts.names(forest.storage) if "/contexts-" in name]
    assert written and sum(ledger_parts.read(forest.storage, name).num_rows for name in parts) == 50 + written


@pytest.mark.usefixtures("no_lexical")
def test_another_model_redoes_every_context_and_no_vector(forest: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(refresh, "checked_model", lambda options: "another")
    before = {row["context_key"] for name in NAMES for row in rows(forest, name)}
    assert forest.refresh().chunks["generated"] == 50
    after = [row for name in NAMES for row in rows(forest, name)]
    assert not before & {row["context_key"] for row in after}
    assert {row["model_fingerprint"] for row in after} == {"another"}


@pytest.mark.usefixtures("no_lexical")
def test_a_rename_is_free_unless_the_id_is_the_title(nights: Any) -> None:
    nights.write(**{"a.md": text("same", *RULES), "b.txt": " ".join(RULES), "c.md": text("c", *RULES)})
    nights.refresh()
    (nights.docs / "a.md").rename(nights.docs / "z.md")
    result = nights.refresh()
    assert (result.documents["renamed"], result.chunks["generated"]) == (1, 0)
    (nights.docs / "b.txt").rename(nights.docs / "y.txt")
    result = nights.refresh()
    assert (result.documents["renamed"], result.chunks["generated"]) == (1, 4)


@pytest.mark.usefixtures("no_lexical")
def test_a_context_that_was_paid_under_another_documents_id_is_not_paid_again(nights: Any) -> None:
    """b was renamed from a, which came back as something else; then b grows."""
    nights.write(a=text("same", *RULES), c=text("c", *RULES))
    nights.refresh()
    (nights.docs / "a.md").rename(nights.docs / "b.md")
    nights.write(a=text("other", "Nothing of before."))
    assert nights.refresh().chunks["generated"] == 2
    nights.write(b=text("same", *RULES, "More."))
    assert nights.refresh().chunks["generated"] == 1


@pytest.mark.usefixtures("no_lexical")
def test_what_was_paid_before_a_rename_is_not_paid_again_on_later_nights(nights: Any, count_embedded: Any) -> None:
    """b was renamed from a; then its first rule changes, and changes back."""
    nights.write(a=text("same", *RULES), c=text("c", *RULES))
    nights.refresh()
    (nights.docs / "a.md").rename(nights.docs / "b.md")
    assert nights.refresh().chunks["generated"] == 0
    embedded = count_embedded()
    nights.write(b=text("same", "Another rule.", *RULES[1:]))
    assert nights.refresh().chunks["generated"] == 4
    assert embedded == ["Same\nAnother rule. "]
    nights.write(b=text("same", *RULES))
    assert nights.refresh().chunks["generated"] == 0
    assert len(embedded) == 1
    parts = [entry.name for entry in nights.storage.list(layout.LEDGER)]
    nights.write(b=text("same", "Another rule.", *RULES[1:]))
    assert nights.refresh().chunks["generated"] == 0
    assert [entry.name for entry in nights.storage.list(layout.LEDGER)] == parts, "nothing is recorded twice"


@pytest.mark.usefixtures("no_lexical")
def test_a_document_that_is_renamed_and_grows_on_one_night_pays_for_its_end(nights: Any, count_embedded: Any) -> None:
    nights.write(a=text("same", *RULES), c=text("c", *RULES))
    nights.refresh()
    nights.write(a=None, b=text("same", *RULES, "More."))
    embedded = count_embedded()
    result = nights.refresh()
    assert (result.documents["new"], result.documents["deleted"], result.chunks["generated"]) == (1, 1, 1)
    assert embedded == ["Same\nRule 3 of the gate holds. ", "Same\nMore.\n"]  # a line ended behind the rule before


@pytest.mark.usefixtures("no_lexical")
def test_with_reuse_chunk_only_chunks_whose_own_text_changed_are_generated(nights: Any) -> None:
    sentences = [f"Sentence {number} says something." for number in range(300)]
    chunk = {"context": {"strategy": "situate", "reuse": "chunk"}, "model": {"name": "fake", "max_model_len": 16384}}
    nights.write(long=text("long", *sentences), other=text("other", *RULES))
    nights.refresh(**chunk)
    before = {row["start"]: row["context"] for row in rows(nights, "long")}
    sentences[150] = "Sentence 150 says another thing."
    nights.write(long=text("long", *sentences))
    assert nights.refresh(**chunk).chunks["generated"] == 1
    after = rows(nights, "long")
    assert sum(row["context"] == before.get(row["start"]) for row in after) == 151
    assert len({row["context"] for row in after}) == len(after) == 301
    sentences[10] = "Sentence 10 says another thing."
    nights.write(long=text("long", *sentences))
    exact = {**chunk, "context": {"strategy": "situate"}}
    assert nights.refresh(**exact).chunks["generated"] == 301 - 11, "with exact keys the rest of the document is new"


@pytest.mark.usefixtures("no_lexical")
def test_an_edit_inside_a_document_of_many_scopes_generates_its_own_chunks_only(nights: Any) -> None:
    """A thousand chunks, of which the model reads a few dozen at once: the scopes move with the edit."""
    paragraphs = [f"Paragraph {number} says something. It says it twice.\n\n" for number in range(500)]
    chunk = {"context": {"strategy": "situate", "reuse": "chunk"}, "model": {"name": "fake", "max_model_len": 1024}}
    nights.write(long="# Long\n\n" + "".join(paragraphs), other=text("other", *RULES))
    assert nights.refresh(**chunk).chunks["total"] == 1001 + 5
    assert len({tuple(row[n] for n in ("scope_start", "scope_end")) for row in rows(nights, "long")}) > 3
    paragraphs[250] = "Paragraph 250 was edited.\n\nIt has become longer. It is three chunks now.\n\n"
    nights.write(long="# Long\n\n" + "".join(paragraphs))
    result = nights.refresh(**chunk)
    assert (result.chunks["generated"], result.chunks["total"]) == (3, 1002 + 5)
    assert [row["status"] for row in rows(nights, "long")] == ["ok"] * 1002


@pytest.mark.usefixtures("no_lexical")
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "txt"])
def test_many_documents_of_one_kind_of_source_are_unchanged_the_night_after(
    nights: Any, kind: str, monkeypatch: Any
) -> None:
    """Two hundred that are alike but for a number, by themselves and beside one that is new."""
    texts = [f"data {number}. More of {number}." for number in range(200)]

    def write(texts: list[str]) -> None:
        if kind == "txt":
            nights.write(**{f"{number}.txt": text for number, text in enumerate(texts)})
        elif kind == "jsonl":
            nights.write(**{"data.jsonl": "".join(json.dumps({"text": text}) + "\n" for text in texts)})
        else:
            nights.write()
            pq.write_table(pa.table({"text": texts}), nights.docs / "data.parquet", row_group_size=64)

    write(texts)
    first = nights.refresh()
    assert (first.documents["new"], first.chunks["generated"]) == (200, 400)
    with monkeypatch.context() as silent:
        silent.setattr(FakeEngine, "generate", None)
        second = nights.refresh()
    assert (second.published, second.snapshot, second.chunks["generated"]) == (False, 1, 0)
    assert second.documents["unchanged"] == 200
    write([*texts, "data 200. More of 200."])
    third = nights.refresh()
    assert (third.documents["unchanged"], third.documents["new"], third.chunks["generated"]) == (200, 1, 2)


BROKEN = b"\xfa\xfb is no text"


@pytest.mark.usefixtures("no_lexical")
def test_a_changed_document_that_cannot_be_read_keeps_its_previous_version(forest: Any) -> None:
    """P37: marked with the reason, tried on three nights, then left alone until it changes."""
    forest.write(ash=BROKEN, fir=text("fir", *RULES, "More."))
    result = forest.refresh()
    assert (result.documents["stale"], result.documents["changed"], result.documents["total"]) == (1, 1, 10)
    assert result.documents["quarantined"] == 0 and stale(forest) == [("ash.md", "undecodable", 1)]
    snapshot = forest.open()
    assert snapshot.original("ash.md") == text("ash", *RULES)
    assert snapshot.document("ash.md")["stale"].startswith("undecodable: byte 0")
    assert snapshot.document("fir.md")["stale"] is None
    for tries in (2, 3):
        assert forest.refresh().published and stale(forest) == [("ash.md", "undecodable", tries)]
    assert not forest.refresh().published
    assert forest.refresh(Asked(retry_failed=True)).published and stale(forest)[0][2] == 4
    forest.write(ash=BROKEN + b"!")
    assert forest.refresh().published and stale(forest) == [("ash.md", "undecodable", 1)]
    forest.write(ash=text("ash", *RULES))
    assert forest.refresh().documents["stale"] == 0 and stale(forest) == []
    assert forest.manifest.counts["documents"]["total"] == 10


@pytest.mark.usefixtures("no_lexical")
def test_a_stale_document_is_served_by_new_settings_too(forest: Any) -> None:
    """From its stored original: rows of another model are not mixed in."""
    forest.write(ash=BROKEN)
    result = forest.refresh(context={"strategy": "situate", "prompt": "quote"})
    assert (result.documents["stale"], result.documents["quarantined"]) == (1, 0)
    assert forest.open().original("ash.md") == text("ash", *RULES)
    assert {row["prompt_fingerprint"] for row in rows(forest)} == {forest.manifest.fingerprints["prompt"]}
    assert forest.refresh(context={"strategy": "situate", "prompt": "quote"}).documents["total"] == 10


@pytest.mark.usefixtures("no_lexical")
def test_a_listing_that_lost_much_deletes_nothing_until_told_so(forest: Any) -> None:
    """P38."""
    forest.write(**dict.fromkeys(NAMES[:3]))
    result = forest.refresh()
    assert not result.published and "3 documents are absent" in result.exceeded[0]
    forest.write(new=text("new", *RULES))
    result = forest.refresh()
    assert result.published and (result.documents["deleted"], result.documents["withheld"]) == (0, 3)
    assert result.documents["total"] == 11 and "--allow-deletes" in result.exceeded[0]
    assert forest.open().original("ash.md") == text("ash", *RULES)
    result = forest.refresh(embedding={"name": "fake", "passage_prefix": "p: "})
    assert (result.documents["withheld"], result.documents["total"], result.chunks["generated"]) == (3, 11, 0)
    assert forest.open().original("ash.md") == text("ash", *RULES)
    settings = {"embedding": {"name": "fake", "passage_prefix": "p: "}}
    result = forest.refresh(Asked(allow_deletes=True), **settings)
    assert (result.documents["deleted"], result.documents["total"], result.exceeded) == (3, 8, ())
    with pytest.raises(ConfigError, match="holds no document"):
        forest.open().document("ash.md")


@pytest.mark.usefixtures("no_lexical")
def test_few_losses_delete_and_renames_are_no_losses(forest: Any) -> None:
    for name in NAMES[:6]:
        (forest.docs / f"{name}.md").rename(forest.docs / f"new-{name}.md")
    forest.write(**dict.fromkeys(NAMES[6:8]))
    documents = forest.refresh().documents
    assert (documents["renamed"], documents["deleted"], documents["withheld"], documents["total"]) == (6, 8, 0, 8)


@pytest.mark.usefixtures("no_lexical")
def test_of_three_documents_one_may_go(nights: Any) -> None:
    nights.write(a="One. Two.", b="Three. Four.", c="Five. Six.")
    nights.refresh()
    nights.write(c=None)
    assert nights.refresh().documents["deleted"] == 1


@pytest.mark.usefixtures("no_lexical")
def test_with_a_limit_of_nothing_not_even_one_may_go(forest: Any) -> None:
    forest.write(pine=None)
    result = forest.refresh(limits={"deleted": 0.0})
    assert result.exceeded and (result.documents["deleted"], result.documents["withheld"]) == (0, 1)


@pytest.mark.usefixtures("no_lexical")
def test_what_was_quarantined_may_go_whatever_the_limit(forest: Any) -> None:
    bad = [f"bad{number}" for number in range(5)]
    forest.write(**dict.fromkeys(bad, b"\xff"))
    assert forest.refresh().documents["quarantined"] == 5
    forest.write(**dict.fromkeys(bad))
    result = forest.refresh()
    assert (result.documents["deleted"], result.documents["quarantined"], result.exceeded) == (5, 0, ())
    forest.write(**dict.fromkeys(bad, b"\xff"))
    forest.refresh()
    forest.write(**dict.fromkeys([*bad, *NAMES[:3]]))
    result = forest.refresh()
    assert (result.documents["deleted"], result.documents["withheld"], result.documents["total"]) == (5, 3, 10)


@pytest.mark.usefixtures("no_lexical")
def test_what_lies_in_a_file_that_cannot_be_read_is_not_deleted(forest: Any, monkeypatch: Any) -> None:
    lines = "".join(json.dumps({"id": f"n{number}", "text": f"{number} one. Two."}) + "\n" for number in range(2))
    forest.write(**{"some.jsonl": lines})
    forest.refresh()
    read = Path.read_bytes

    def failing(path: Path) -> bytes:
        if path.name == "some.jsonl":
            raise OSError(5, "Input/output error")
        return read(path)

    with monkeypatch.context() as broken:
        broken.setattr(Path, "read_bytes", failing)
        result = forest.refresh()
        assert (result.documents["deleted"], result.documents["stale"], result.documents["total"]) == (0, 2, 13)
        assert forest.open().original("n1") == "1 one. Two."
    result = forest.refresh()
    assert (result.documents["stale"], result.documents["total"], result.documents["quarantined"]) == (0, 12, 0)


def records(*names: str) -> str:
    return "".join(json.dumps({"id": name, "text": f"{name} one. Two."}) + "\n" for name in names)


@pytest.mark.usefixtures("no_lexical")
def test_a_line_that_is_no_json_any_more_deletes_nothing(forest: Any) -> None:
    forest.write(**{"some.jsonl": records("n0", "n1", "n2")})
    forest.refresh()
    forest.write(**{"some.jsonl": records("n0") + records("n1")[:-9] + "\n" + records("n2")})
    result = forest.refresh()
    assert (result.documents["deleted"], result.documents["stale"]) == (0, 1)
    assert forest.open().original("n1") == "n1 one. Two."
    assert [entry["id"] for entry in result.rejected] == ["some.jsonl#2"]
    assert not forest.refresh().published
    forest.write(**{"some.jsonl": records("n3", "n0") + records("n1")[:-9] + "\n" + records("n2")})
    result = forest.refresh()
    assert [entry["id"] for entry in result.rejected] == ["some.jsonl#3"], "a broken line that moves is one"
    assert [entry["id"] for entry in result.stale] == ["n1"]
    forest.write(**{"some.jsonl": records("n0", "n2", "n3")})
    result = forest.refresh()
    assert (result.documents["deleted"], result.documents["stale"], result.documents["quarantined"]) == (2, 0, 0)


@pytest.mark.usefixtures("no_lexical")
def test_what_moved_into_a_file_that_cannot_be_read_is_not_deleted(forest: Any) -> None:
    forest.write(**{"some.jsonl": records("n0", "n1")})
    forest.refresh()
    forest.write(**{"some.jsonl": records("n0")})
    pq.write_table(pa.table({"id": ["n1"], "text": ["n1 one. Two."]}), forest.docs / "other.parquet")
    forest.refresh()
    forest.write(**{"other.parquet": b"PAR1", "pine": None})
    result = forest.refresh()
    assert (result.documents["deleted"], result.documents["stale"]) == (1, 1)  # pine was a file of its own
    assert forest.open().original("n1") == "n1 one. Two."


@pytest.mark.usefixtures("no_lexical")
def test_many_losses_of_one_text_are_no_renames_to_one_document(nights: Any) -> None:
    nights.write(**dict.fromkeys(NAMES, "One. Two."), other="Three. Four.")
    nights.refresh()
    nights.write(**dict.fromkeys(NAMES), poplar="One. Two.")
    result = nights.refresh()
    assert (result.documents["deleted"], result.documents["withheld"]) == (0, 10) and result.exceeded
    result = nights.refresh(Asked(allow_deletes=True))
    assert (result.documents["deleted"], result.documents["total"]) == (10, 2)


def refuse(monkeypatch: Any, word: str) -> None:
    """Prompts with a word are refused by the engine from now on."""
    number = int(FakeTokenizer().encode(word).ids[0])
    answer = FakeEngine.generate

    async def generate(self: FakeEngine, prompt: Any, *rest: Any) -> Any:
        if number in prompt:
            raise PromptRefusedError("a fault was asked for")
        return await answer(self, prompt, *rest)

    monkeypatch.setattr(FakeEngine, "generate", generate)


@pytest.mark.usefixtures("no_lexical")
def test_failed_chunks_are_tried_on_three_nights_also_without_a_change(forest: Any, monkeypatch: Any) -> None:
    forest.write(ash=text("ash", *RULES[:3], "The cyanide is here."))
    with monkeypatch.context() as broken:
        refuse(broken, "cyanide")
        assert forest.refresh().chunks["failed"] == 1
        for _ in range(2):
            result = forest.refresh()
            assert result.published and (result.chunks["failed"], result.documents["unchanged"]) == (1, 10)
        assert not forest.refresh().published
    assert not forest.refresh().published, "given up"
    result = forest.refresh(Asked(retry_failed=True))
    assert (result.chunks["failed"], result.chunks["generated"]) == (0, 1)


@pytest.mark.usefixtures("no_lexical")
def test_a_failed_chunk_is_healed_by_the_next_night(forest: Any, monkeypatch: Any) -> None:
    forest.write(ash=text("ash", *RULES[:3], "The cyanide is here."))
    with monkeypatch.context() as broken:
        refuse(broken, "cyanide")
        forest.refresh()
    result = forest.refresh()
    assert (result.chunks["failed"], result.chunks["generated"], result.reasons) == (0, 1, {})
    assert not forest.refresh().published


@pytest.mark.usefixtures("no_lexical")
def test_a_quarantined_document_is_tried_again_unless_its_bytes_are_at_fault(forest: Any, monkeypatch: Any) -> None:
    from jobs.sources import SourceReader

    forest.write(new=text("new", *RULES), bad=BROKEN)
    load = SourceReader.load

    def failing(self: SourceReader, ref: dict[str, Any]) -> Any:
        if ref["id"] == "new.md":
            from enrichment.errors import DocumentError

            raise DocumentError("unreadable", "a fault was asked for")
        return load(self, ref)

    with monkeypatch.context() as broken:
        broken.setattr(SourceReader, "load", failing)
        assert forest.refresh().documents["quarantined"] == 2
        assert forest.refresh().published
    result = forest.refresh()
    assert (result.documents["quarantined"], result.chunks["generated"]) == (1, 5)
    assert [entry["id"] for entry in result.rejected] == ["bad.md"]
    assert not forest.refresh().published


@pytest.mark.usefixtures("no_lexical")
def test_what_a_guard_refused_is_asked_for_again_only_on_demand(forest: Any, monkeypatch: Any) -> None:
    from enrichment.engine import Completion

    with monkeypatch.context() as broken:

        async def loops(self: FakeEngine, prompt: Any, *rest: Any) -> Completion:
            return Completion(" loop loop loop loop loop loop loop", "length", len(prompt), 0, 7)

        broken.setattr(FakeEngine, "generate", loops)
        forest.write(new=text("new", *RULES))
        assert forest.refresh().chunks["fallback"] == 5
    assert sum(forest.manifest.counts["reasons"].values()) == 5
    assert not forest.refresh().published
    result = forest.refresh(Asked(retry_failed=True))
    assert (result.chunks["fallback"], result.chunks["generated"]) == (0, 5)
    forest.write(new=text("new", *RULES, "More."))
    assert forest.refresh().chunks["generated"] == 1, "the good context of a key stands before the refused one"


@pytest.mark.usefixtures("no_lexical")
def test_compaction_rewrites_without_a_model_what_a_fresh_build_would_write(forest: Any, monkeypatch: Any) -> None:
    for number in range(4):
        forest.write(**{NAMES[number]: text(NAMES[number], *RULES, f"Night {number}.")})
        forest.refresh(**NEVER)
    assert len(segment_ids(forest)) == 5
    forest.write(oak=text("oak", *RULES, "Last night."))
    kept = rows(forest)
    result = forest.refresh(compaction={"dead_share": 0.3, "max_share": 1.0, "pile": 4})
    assert result.chunks["generated"] == 1
    sizes = [(segment.num_documents, segment.num_rows) for segment in forest.manifest.segments]
    assert sorted(sizes) == [(1, 6), (9, 49)] and forest.manifest.dead == {}
    assert rows(forest) == kept
    fresh = forest.refresh(index={"rows_per_segment": 499_999})
    assert fresh.chunks["generated"] == 0
    compacted = forest.manifest
    forest.write(ash=text("ash", *RULES, "Changed."), birch=text("birch", *RULES, "Changed."))
    forest.refresh(index={"rows_per_segment": 499_999}, **NEVER)
    forest.write(ash=text("ash", *RULES, "Night 0."), birch=text("birch", *RULES, "Night 1."))
    forest.refresh(index={"rows_per_segment": 499_999}, compaction={"pile": 2, "dead_share": 0.01, "max_share": 1.0})
    assert compacted.segments[0].digest not in {s.digest for s in forest.manifest.segments}
    forest.write(**{"zz.md": "One. Two."})
    forest.refresh(index={"rows_per_segment": 499_999}, compaction={"pile": 2, "dead_share": 0.01, "max_share": 1.0})
    assert compacted.segments[0].digest in {s.digest for s in forest.manifest.segments}, "a function of the content"


def fresh(nights: Any, other: Any) -> Any:
    """The same sources in a new corpus."""
    other.root.mkdir(parents=True)
    (other.root / "docs").symlink_to(nights.docs)
    other.refresh(documents={"uri": str(nights.docs)})
    return other.open()


@pytest.mark.parametrize("seed", range(3))
def test_after_random_nights_all_is_as_in_a_fresh_build(
    nights: Any, tmp_path: Path, no_lexical: None, monkeypatch: Any, seed: int
) -> None:
    """P1, P22: random additions, changes, deletions, renames, broken files, blanks and twins; compaction in between."""
    monkeypatch.setattr(Snapshot, "_open_lexical", lambda self: None)
    chance = random.Random(seed)
    names = [f"d{number}" for number in range(12)]
    for night in range(8):
        for name in chance.sample(names, 4):
            path = nights.docs / f"{name}.md"
            path.parent.mkdir(exist_ok=True)
            match chance.choice(["write", "write", "blank", "twin", "delete", "rename"]):
                case "write":
                    words = chance.sample(RULES, 3)
                    path.write_text(text(name, *words, f"Night {night}."))
                case "blank":
                    path.write_text(" \n")
                case "twin":
                    path.write_text(text("twin", *RULES))
                case "delete" if path.exists() and len(list(nights.docs.iterdir())) > 1:
                    path.unlink()
                case "rename" if path.exists():
                    path.rename(nights.docs / f"{chance.choice(names)}.md")
                case _:
                    path.write_text(text(name, "Something else.", f"Night {night}."))
        result = nights.refresh(Asked(allow_deletes=True), compaction={"pile": 3})
        documents = result.documents
        told = sum(documents[name] for name in ("new", "changed", "unchanged", "stale", "withheld"))
        assert told == documents["total"] == len(list(nights.docs.iterdir()))
    snapshot, expected = nights.open(), fresh(nights, type(nights)(tmp_path / "fresh"))
    names = sorted(path.name for path in nights.docs.iterdir())
    for name in names:
        assert snapshot.original(name) == expected.original(name)
        ours, theirs = snapshot.rows(name), expected.rows(name)
        for row in (*ours, *theirs):
            del row["cached_tokens"]
        assert ours == theirs
    assert sorted(snapshot.texts()) == sorted(expected.texts())
    for query in ("rule of the roof", "night 7", "something else"):
        for k in (1, 5, 1000):
            assert snapshot.search(query, k, "dense") == expected.search(query, k, "dense")
    chunks = ("total", "ok", "fallback", "failed", "skipped", "ungrounded")
    assert {n: snapshot.manifest.counts["chunks"][n] for n in chunks} == {
        n: expected.manifest.counts["chunks"][n] for n in chunks
    }


@pytest.mark.usefixtures("no_lexical")
def test_a_damaged_bitmap_is_refused_by_name(forest: Any) -> None:
    forest.write(oak=None)
    forest.refresh(**NEVER)
    ((segment, entry),) = forest.manifest.dead.items()
    name = layout.dead(segment, entry.sha256)
    kept = forest.storage.get(name)
    for data in (b"", kept[:-1], kept + b"\0", bytes([kept[0] ^ 1]) + kept[1:]):
        forest.storage.put(name, data)
        with pytest.raises(Exception, match=entry.sha256):
            forest.open()
    forest.storage.delete(name)
    with pytest.raises(Exception, match=entry.sha256):
        forest.open()


@pytest.mark.usefixtures("no_lexical")
def test_a_night_that_fails_leaves_yesterday(forest: Any, monkeypatch: Any) -> None:
    """P23: whichever stage fails; the next night finishes and pays for nothing twice."""
    from indexing import dead, segments
    from jobs import counts, retries

    calls: list[int] = []
    answer = FakeEngine.generate

    async def counted(self: FakeEngine, *rest: Any) -> Any:
        calls.append(1)
        return await answer(self, *rest)

    monkeypatch.setattr(FakeEngine, "generate", counted)
    forest.write(ash=text("ash", *RULES, "More."), oak=None)
    before = forest.manifest

    def fail(*given: Any, **named: Any) -> None:
        raise RuntimeError("a fault was asked for")

    stages: list[tuple[Any, str]] = [
        (retries, "settle"),
        (segments, "build_from"),
        (dead, "write"),
        (counts, "reconcile"),
    ]
    for module, name in stages:
        with monkeypatch.context() as broken:
            broken.setattr(module, name, fail)
            with pytest.raises(RuntimeError):
                forest.refresh()
        assert forest.manifest == before and forest.open().original("ash.md") == text("ash", *RULES)
    assert forest.refresh().published and len(calls) == 1
