"""What a snapshot counts, and which limits that exceeds; that it reconciles or is not published: `test_sources.py`."""

from collections.abc import Callable
from typing import Any

from jobs import config, counts

FILES = {
    "a.md": "# A\n\n## One\n\n" + "Some words about one. " * 60 + "\n\n## Two\n\n" + "Some words about two. " * 60,
    "b.md": "short",
    "empty.md": " \n",
    "broken.md": b"\xfa\xfb",
}


def test_statuses_and_documents_sum(stage: Callable[..., Any], no_lexical: None) -> None:
    published = stage(FILES).publish()
    documents, chunks = published.counts["documents"], published.counts["chunks"]
    assert (documents["total"], documents["empty"], documents["quarantined"]) == (4, 1, 1)
    assert chunks["total"] == chunks["ok"] + chunks["fallback"] + chunks["failed"] + chunks["skipped"]
    assert chunks["skipped"] == 1, "a document with one chunk has nothing to situate"
    assert chunks["generated"] == chunks["ok"] > 1
    assert [entry["id"] for entry in published.rejected] == ["broken.md"]


def test_limits_are_shares_of_what_was_asked() -> None:
    settings = {"corpus": "c", "documents": {"uri": "d"}, "embedding": {"name": "fake"}, "model": {"name": "fake"}}
    parsed = config.parse(settings)
    tally = {
        "documents": {"total": 100, "quarantined": 1, "withheld": 0},
        "chunks": {"ok": 85, "fallback": 10, "failed": 5, "skipped": 900},
    }
    assert counts.exceeded_limits(parsed, tally) == ()
    tally["chunks"]["failed"] = 6
    tally["documents"]["quarantined"] = 2
    tally["documents"]["withheld"] = 30
    fallback, quarantined, withheld = counts.exceeded_limits(parsed, tally)
    assert "15.8% are fallback, more than limits.fallback allows (15.0%)" in fallback
    assert "2.0% are quarantined, more than limits.quarantined allows (1.0%)" in quarantined
    assert "30 documents are absent from d, more than limits.deleted allows (20%)" in withheld
