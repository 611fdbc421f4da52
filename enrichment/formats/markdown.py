"""Markdown: YAML front matter in front of the text."""

import re
from dataclasses import dataclass

from enrichment.formats.aliases import first_alias

_FRONT_MATTER = re.compile(r"---[ \t]*\r?\n(.*?)(?:^|\n)---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_LONGEST = 65_536  # front matter longer than this is text


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """The fields that are scalars or lists of them, as text; the code point where the body begins (0 without front matter)."""

    fields: dict[str, str]
    body_start: int


def front_matter(text: str) -> FrontMatter:
    """Read the front matter; what is not a YAML mapping, or has aliases, is none, and stays text."""
    import yaml

    if not text.startswith("---"):
        return FrontMatter({}, 0)
    match = _FRONT_MATTER.match(text, 0, _LONGEST)
    if match is None:
        return FrontMatter({}, 0)
    try:
        if first_alias(match.group(1)):
            return FrontMatter({}, 0)
        fields = yaml.load(match.group(1), Loader=yaml.BaseLoader)  # BaseLoader: every scalar stays the text it is
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError):
        return FrontMatter({}, 0)
    if not isinstance(fields, dict):
        return FrontMatter({}, 0)
    kept = {str(key): text for key, value in fields.items() if (text := _text(value))}
    return FrontMatter(kept, match.end())


def _text(value: object) -> str:
    """A scalar as it is, a list of scalars joined; nothing else."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return value if isinstance(value, str) else ""
