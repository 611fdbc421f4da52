"""What search returns: contiguous spans of original text, with the hits inside them and what was generated for those."""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


class ChunkSpan(NamedTuple):
    """A chunk of a document and its span in code points: by these, rows of the same split agree in any snapshot."""

    document_id: str
    chunk_index: int
    start: int
    end: int


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

    @property
    def id(self) -> str:
        """The same for the same span of the same document."""
        return f"{self.document_id}:{self.start}-{self.end}"

    def metadata(self) -> dict[str, Any]:
        """All but the text, flat, for systems that keep metadata beside a text: lists have an entry per hit."""
        return {
            "document_id": self.document_id,
            "title": self.title,
            "start": self.start,
            "end": self.end,
            "score": self.score,
            "chunk_indexes": [hit.chunk_index for hit in self.hits],
            "heading_paths": [list(hit.heading_path) for hit in self.hits],
            "generated_contexts": [hit.context for hit in self.hits],
        }
