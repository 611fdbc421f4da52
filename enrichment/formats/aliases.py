"""YAML's aliases, of which a few lines can make gigabytes: found before anything is built from a text."""

from typing import Any


def first_alias(text: str) -> Any:
    """The first alias of a YAML text, a token of PyYAML's, or None. Raises YAMLError."""
    import yaml

    if "*" not in text:  # a second pass over a text costs as much as reading it
        return None
    return next(
        (token for token in yaml.scan(text, Loader=yaml.BaseLoader) if isinstance(token, yaml.AliasToken)), None
    )
