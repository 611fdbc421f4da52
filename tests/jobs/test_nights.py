"""Scripted nights: what a refresh does again, what it carries, and what can be found the morning after.

Called directly, without Ray: the steps, the ledger, FAISS and Lucene are the real ones, the models are fake.
"""

import pytest

from indexing import layout, manifest
from indexing.serving import Snapshot


def text(name: str, *sentences: str) -> str:
    return f"# {name.title()}\n\n" + " ".join(sentences) + "\n"


RULES = [f"Rule {number} of the {word} holds." for number, word in enumerate(["roof", "garden", "boiler", "gate"])]


def start(nights) -> None:
    nights.write(**{name: text(name, *RULES) for name in ("ash", "birch", "cedar", "elm", "fir", "oak")})
    first = nights.refresh()
    assert first.published and first.documents["new"] == 6 and first.chunks["generated"] == first.chunks["total"]


def test_a_night_of_every_kind(nights) -> None:
    start(nights)
    before = nights.manifest
    again = nights.refresh()
    assert not again.published and again.chunks["generated"] == 0 and nights.manifest == before
    nights.write(new=text("new", *RULES), ash=text("ash", *RULES, "One more thing."), oak=None)
    (nights.docs / "elm.md").rename(nights.docs / "yew.md")
    second = nights.refresh()
    print(second)
    assert False
