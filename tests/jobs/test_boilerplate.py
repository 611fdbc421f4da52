"""Boilerplate: texts in more than so many documents are not asked about; every other chunk is."""

from pathlib import Path
from typing import Any

import pytest

from enrichment.boilerplate import text_hash
from indexing import manifest, tables
from indexing.storage import open_storage
from jobs import boilerplate, config, local_flow, plan, refresh
from jobs.difference import Asked
from jobs.progress import Progress

NOTICE = "All rights in this text are reserved by the Selby Mill."
SPACED = "All  rights in this TEXT\nare reserved by the Selby Mill."


def letter(name: str, *ends: str) -> str:
    own = " ".join(f"Rule {n} of {name} holds for each tenant in it." for n in range(3))
    return f"# {name}\n\n{own} {' '.join(ends)}\n"


def reasons(nights: Any) -> dict[str, list[str]]:
    """The texts that are not asked about, by document, with what is said of each."""
    found, texts = nights.open(), {path.name: path.read_text() for path in sorted(nights.docs.iterdir())}
    return {
        name: [text[row["start"] : row["end"]].strip() for row in found.rows(name) if row["reason"] == "boilerplate"]
        for name, text in texts.items()
    }


def test_a_text_in_more_documents_than_allowed_is_spared_in_each_of_them(nights: Any) -> None:
    twice = letter("b", NOTICE, NOTICE)
    nights.write(
        a=letter("a", NOTICE), b=twice, c=letter("c", SPACED), d=letter("d", "Nothing is reserved here at all.")
    )
    result = nights.refresh(context={"boilerplate": 2})
    spared = {"a.md": [NOTICE], "b.md": [NOTICE, NOTICE], "c.md": [SPACED], "d.md": []}
    assert reasons(nights) == spared
    assert result.chunks["skipped"] == 4 and result.chunks["generated"] == result.chunks["total"] - 4
    assert all(row["status"] == "skipped" and row["context"] is None for row in nights.open().rows("b.md")[-2:])


@pytest.mark.parametrize(("allowed", "spared"), [(1, 2), (2, 0), (None, 0)])
def test_a_text_twice_in_one_document_stands_in_one_document(nights: Any, allowed: int | None, spared: int) -> None:
    nights.write(a=letter("a", NOTICE, NOTICE), b=letter("b"), c=letter("c", NOTICE if allowed != 1 else SPACED))
    nights.refresh(context={"boilerplate": allowed})
    assert [len(texts) for texts in reasons(nights).values()] == [spared, 0, spared // 2]


def test_documents_of_earlier_nights_count_and_keep_what_was_written(nights: Any) -> None:
    settings = {"context": {"boilerplate": 3}}
    nights.write(**{name: letter(name, NOTICE) for name in "abc"})
    nights.refresh(**settings)
    assert not any(reasons(nights).values())
    nights.write(d=letter("d", NOTICE))
    assert nights.refresh(**settings).chunks["generated"] == 4, "its heading and its rules"
    assert {name for name, texts in reasons(nights).items() if texts} == {"d.md"}
    assert all(row["status"] == "ok" for row in nights.open().rows("a.md"))


def test_documents_that_go_or_change_count_by_what_they_become(nights: Any) -> None:
    settings = {"context": {"boilerplate": 3}, "limits": {"deleted": 1.0}}
    nights.write(**{name: letter(name, NOTICE) for name in "abc"}, x=letter("x"))
    nights.refresh(**settings)
    nights.write(a=None, b=letter("b", "It says something else now."), d=letter("d", NOTICE), e=letter("e", NOTICE))
    nights.refresh(**settings)  # in c, d, e
    assert not any(reasons(nights).values())
    nights.write(c=letter("c", NOTICE, "It was changed."))  # in c, d, e
    nights.refresh(**settings)
    assert not any(reasons(nights).values())
    nights.write(c=letter("c", NOTICE, "And again."), g=letter("g", NOTICE))  # in c, d, e, g
    nights.refresh(**settings)
    assert {name for name, texts in reasons(nights).items() if texts} == {"c.md", "g.md"}


def test_dead_rows_and_a_text_twice_in_an_older_document_do_not_count(
    nights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In segments that no compaction rewrites, read a few rows at a time."""
    monkeypatch.setattr(tables, "_BATCH_ROWS", 7)
    settings = {"context": {"boilerplate": 2}, "limits": {"deleted": 1.0}}
    others = {f"m{n}": letter(f"m{n}") for n in range(20)}
    nights.write(**others, a=letter("a", NOTICE), b=letter("b", NOTICE, NOTICE))
    nights.refresh(**settings)
    nights.write(a=None)
    nights.refresh(**settings)
    assert sum(entry.num_documents for entry in nights.manifest.dead.values()) == 1, "else it would say nothing"
    nights.write(c=letter("c", NOTICE))  # in b, c
    nights.refresh(**settings)
    assert not any(reasons(nights).values())
    nights.write(z=letter("z", NOTICE))  # in b, c, z
    nights.refresh(**settings)
    assert {name for name, texts in reasons(nights).items() if texts} == {"z.md"}


def test_plan_counts_what_the_refresh_spares(nights: Any, tmp_path: Path) -> None:
    nights.write(**{name: letter(name, NOTICE) for name in "abcd"}, e=letter("e"))
    given = {"corpus": str(tmp_path / "corpus"), "documents": {"uri": str(nights.docs)}, "split": {"by": "sentences"}}
    parsed = config.parse(
        {**given, "embedding": {"name": "fake"}, "model": {"name": "fake"}, "context": {"boilerplate": 3}}
    )
    storage = open_storage(parsed.corpus)
    found = plan.estimate(manifest.latest(storage), parsed, refresh.check(parsed), Progress(show=False), local_flow)
    result = nights.refresh(context={"boilerplate": 3})
    assert found.chunks["boilerplate"] == found.chunks["skipped"] == result.chunks["skipped"] == 4
    assert found.chunks["generated"] == result.chunks["generated"]


def test_a_capped_night_pays_for_no_boilerplate_and_leaves_nothing_free_waiting(nights: Any) -> None:
    """What waits is listed too: it counts, and a document of boilerplate alone costs nothing."""
    settings = {"context": {"boilerplate": 3}}
    nights.write(**{name: letter(name, NOTICE) for name in "abcdefgh"}, z=f"{NOTICE} {NOTICE}\n")
    result = nights.refresh(Asked(max_tokens=400), **settings)
    assert result.documents["pending_new"] > 0
    found = nights.open()
    texts = {
        name: row["context"] for name in ("a.md", "z.md") for row in found.rows(name) if row["reason"] == "boilerplate"
    }
    assert texts == {"a.md": None, "z.md": None}
    while nights.refresh(Asked(max_tokens=400), **settings).documents["pending_new"]:
        pass
    assert all(texts == [NOTICE] for name, texts in reasons(nights).items() if name != "z.md")


def test_a_sampled_plan_counts_in_all_documents(nights: Any, tmp_path: Path) -> None:
    nights.write(**{f"n{n:02}": letter(f"n{n:02}", NOTICE) for n in range(40)})
    given = {"corpus": str(tmp_path / "corpus"), "documents": {"uri": str(nights.docs)}, "split": {"by": "sentences"}}
    parsed = config.parse(
        {**given, "embedding": {"name": "fake"}, "model": {"name": "fake"}, "context": {"boilerplate": 20}}
    )
    found = plan.estimate(None, parsed, refresh.check(parsed), Progress(show=False), local_flow, sample=0.3)
    low, high = (found.chunks["boilerplate"] + sign * (found.error["boilerplate"] + 1) for sign in (-1, 1))
    assert low <= 40 <= high


def test_without_a_model_or_a_bound_nothing_is_counted(nights: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boilerplate, "_in_work", None)
    nights.write(**{name: letter(name, NOTICE) for name in "ab"})
    nights.refresh()
    nights.refresh(context={"strategy": "header", "boilerplate": 1})


def test_a_hash_sees_words_and_marks_alone() -> None:
    assert text_hash(NOTICE) == text_hash(f"\n{SPACED} ") != text_hash(NOTICE.removesuffix("."))
    assert len(text_hash("\ud800")) == 16
