"""The heading sections of a document, from its rows' heading paths alone: which chunks lie below a heading.

A section is the longest run of consecutive chunks whose heading paths begin with one prefix, subsections included; the empty
prefix is the document. Two neighbouring sections under the same path are one: nothing in the rows tells them apart.
"""

from collections.abc import Sequence

from enrichment.records import Span
from indexing.windows import Neighbour, covering


def parent(rows: Sequence[Neighbour], index: int) -> Span:
    """The smallest heading section around chunk `index` that holds more than this chunk; failing that, the document.

    Tried in turn are the heading path of the chunk, then that path without its last heading, and so on to the document.
    """
    path = rows[index].heading_path
    sections = (_around(rows, index, path[:depth], whole_path=False) for depth in range(len(path), -1, -1))
    return covering(next((section for section in sections if len(section) > 1), rows))


def own(rows: Sequence[Neighbour], index: int) -> Span:
    """The chunks around chunk `index` that have the same heading path, subsections not included."""
    return covering(_around(rows, index, rows[index].heading_path, whole_path=True))


def _around(rows: Sequence[Neighbour], index: int, prefix: tuple[str, ...], whole_path: bool) -> Sequence[Neighbour]:
    """The run of chunks around one whose heading paths begin with a prefix, or are it."""
    depth = None if whole_path else len(prefix)
    first = last = index
    while first > 0 and rows[first - 1].heading_path[:depth] == prefix:
        first -= 1
    while last + 1 < len(rows) and rows[last + 1].heading_path[:depth] == prefix:
        last += 1
    return rows[first : last + 1]
