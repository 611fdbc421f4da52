"""Header: the free context of a chunk."""

import pytest

from enrichment.header import header


@pytest.mark.parametrize(
    ("title", "path", "expected"),
    [
        (None, (), None),
        ("", (), None),
        ("Handbook", (), "Handbook"),
        (None, ("Travel", "Hotels"), "Travel > Hotels"),
        ("Handbook", ("Travel", "Hotels"), "Handbook > Travel > Hotels"),
        ("Travel", ("Travel", "Hotels"), "Travel > Hotels"),
        ("Travel", ("Travel",), "Travel"),
        ("Hotels", ("Travel", "Hotels"), "Hotels > Travel > Hotels"),
        ("Travel", ("Travel rules",), "Travel > Travel rules"),
    ],
)
def test_title_and_heading_path_are_joined_and_a_title_is_not_said_twice(
    title: str | None, path: tuple[str, ...], expected: str | None
) -> None:
    assert header(title, path) == header(title, list(path)) == expected
