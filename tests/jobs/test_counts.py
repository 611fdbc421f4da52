"""P1: counts reconcile from end to end, or nothing is published."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from enrichment.errors import OperationError
from indexing.manifest import SegmentEntry
from jobs import config, counts
from jobs.difference import Changes

NOTHING = Changes(0, 0, 0, 0, False)
FILES = {
    "a.md": "# A\n\n## One\n\n" + "Some words about one. " * 60 + "\n\n## Two\n\n" + "Some words about two. " * 60,
    "b.md": "short",
    "empty.md": " \n",
    "broken.md": b"\xfa\xfb",
}


def test_statuses_and_documents_sum(stage: Callable[..., Any]) -> None:
    staged = stage(FILES)
    found = counts.count(staged.summary, NOTHING)
    documents, chunks = found["documents"], found["chunks"]
    assert (documents["total"], documents["empty"], documents["quarantined"]) == (4, 1, 1)
    assert chunks["total"] == chunks["ok"] + chunks["fallback"] + chunks["failed"] + chunks["skipped"]
    assert chunks["skipped"] == 1, "a document with one chunk has nothing to situate"
    assert chunks["generated"] == chunks["ok"] > 1
    assert [entry["id"] for entry in counts.rejected(staged.summary)] == ["broken.md"]


@pytest.mark.parametrize(
    ("field", "words"), [("num_documents", "documents enriched and in segments"), ("num_rows", "rows in segments")]
)
def test_a_tampered_count_refuses_to_publish(stage: Callable[..., Any], field: str, words: str) -> None:
    staged = stage(FILES)
    found = counts.count(staged.summary, NOTHING)
    entry = SegmentEntry("s", "d", found["documents"]["total"], found["chunks"]["total"], 0, ())
    counts.reconcile(staged.refs, found, [entry])
    with pytest.raises(OperationError, match=words):
        counts.reconcile(staged.refs, found, [dataclasses.replace(entry, **{field: getattr(entry, field) - 1})])
    with pytest.raises(OperationError, match="read and enriched"):
        counts.reconcile(staged.refs.slice(1), found, [entry])
    found["chunks"]["ok"] += 1
    with pytest.raises(OperationError, match="statuses"):
        counts.reconcile(staged.refs, found, [entry])


def test_limits_are_shares_of_what_was_asked() -> None:
    settings = {"corpus": "c", "documents": {"uri": "d"}, "embedding": {"name": "fake"}, "model": {"name": "fake"}}
    parsed = config.parse(settings)
    tally = {
        "documents": {"total": 100, "quarantined": 1},
        "chunks": {"ok": 85, "fallback": 10, "failed": 5, "skipped": 900},
    }
    assert counts.exceeded_limits(parsed, tally) == ()
    tally["chunks"]["failed"] = 6
    tally["documents"]["quarantined"] = 2
    fallback, quarantined = counts.exceeded_limits(parsed, tally)
    assert "15.8% are fallback, more than limits.fallback allows (15.0%)" in fallback
    assert "2.0% are quarantined, more than limits.quarantined allows (1.0%)" in quarantined
