"""The free context of a chunk: where it stands, in the document's own words."""

from enrichment.records import Chunk, Document

SEPARATOR = " > "


def header(document: Document, chunk: Chunk) -> str | None:
    """Title and heading path; a title that the first heading repeats is given once. None if there is neither."""
    path = chunk.heading_path
    if document.title and path[:1] != (document.title,):
        path = (document.title, *path)
    return SEPARATOR.join(path) or None
