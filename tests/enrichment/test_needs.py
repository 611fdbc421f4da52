"""Needs: which chunks cannot do without a context."""

import pytest

from enrichment.needs import needs
from enrichment.records import Chunk, Document, DocumentId

ALONE = "The lease of the Selby Mill begins in May, and the tenant of the mill pays rent."


def rules(*texts: str, title: str | None = None, path: tuple[str, ...] = (), language: str = "en") -> list[str | None]:
    document, chunks, start = Document(DocumentId("a"), "".join(texts), title), [], 0
    for index, text in enumerate(texts):
        chunks.append(Chunk(index, start, start + len(text), 0, 0, path))
        start += len(text)
    return needs(document, chunks, language)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("The tenant may end this lease of the mill.", "referent 'this'"),
        ("The tenant returns such Product to the mill.", "referent 'such'"),
        ("The tenant of the mill pays what clause 4 asks for.", "referent 'clause 4'"),
        ("The tenant of the mill follows the above.", "referent 'the above'"),
        ("It ends after six years, says the lease of the mill.", "referent 'it'"),
        ("In May they leave the mill.", "referent 'they'"),
        ("The mill and all of its rooms are let.", None),
        (ALONE, None),
        ("Thistles grow at the mill.", None),
    ],
)
def test_what_points_at_something_unnamed_needs_a_context(text: str, rule: str | None) -> None:
    assert rules(text) == [rule]


def test_a_chunks_own_number_is_no_reference() -> None:
    assert rules("Clause 4. Rent is due in May.", path=("Clause 4. Rent",)) == [None]
    assert rules("Clause 4. Rent is due as clause 5 says.", path=("Clause 4. Rent",)) == ["referent 'clause 5'"]


def test_a_chunk_without_a_word_of_its_title_and_headings_needs_one() -> None:
    assert rules("Rent is due in May.", title="The Selby Mill") == ["no_title_word"]
    assert rules("Rent is due in May.", title="The Selby Mill", path=("Rents",)) == [None]
    assert rules("Rent is due in May.") == [None], "without a title nothing is missing"


def test_a_chunk_without_the_words_of_its_document_needs_one() -> None:
    typical = "The lease of the mill names the tenant, the rent and the deposit."
    found = rules(typical, typical, typical, "Swallows nest under the eaves from April on.")
    assert found == [None, None, None, "standalone 0.00"]
    assert rules(typical, "Swallows nest under the eaves.") == [None, None], "two chunks have no words in common use"


def test_referents_are_of_english_alone() -> None:
    assert rules("Its this.", language="de") == [None]
