"""What search returns: contiguous spans of original text, with the hits inside them and what was generated for those."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PassageHit:
    """A hit inside a passage: its chunk, what was generated for it, and where it is in the document, in code points."""

    chunk_index: int
    score: float
    context: str | None
    heading_path: tuple[str, ...]
    start: int
    end: int
    dense: float | None
    lexical: float | None
    rerank: float | None = None


@dataclass(frozen=True, slots=True)
class Passage:
    """A contiguous span of one document's original; offsets are code points."""

    document_id: str
    title: str | None
    start: int
    end: int
    text: str
    score: float
    hits: tuple[PassageHit, ...]

    def as_dict(self) -> dict[str, Any]:
        """The stable JSON form."""
        return asdict(self)
