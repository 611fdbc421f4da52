"""The free context of a chunk: where it stands, in the document's own words."""

from collections.abc import Sequence

SEPARATOR = " > "


def header(title: str | None, heading_path: Sequence[str]) -> str | None:
    """Title and heading path; a title that the first heading repeats is given once. None if there is neither."""
    path = [title, *heading_path] if title and (not heading_path or heading_path[0] != title) else heading_path
    return SEPARATOR.join(path) or None
