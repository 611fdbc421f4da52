"""What may be asked of an expansion, and what is refused in one sentence."""

import argparse
from typing import Any

import pytest

from enrichment.errors import ConfigError
from indexing.expansion import RUN_LENGTH, RUN_PENALTY, Expansion
from jobs import search_command


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"expand": "page"}, "expand is page; it must be one of window, parent, run"),
        ({"window_by": "words"}, "window_by is words; it must be one of chunks, characters, tokens"),
        ({"window": -1}, "window is -1; it must be at least 0"),
        ({"expand": "run", "run_penalty": -0.1}, "run_penalty is -0.1; it must be a number from 0 to 1"),
        ({"expand": "run", "run_penalty": float("nan")}, "run_penalty is nan; it must be a number from 0 to 1"),
        ({"expand": "run", "run_length": 0}, "run_length is 0; it must be at least 1 chunk"),
        (
            {"expand": "parent", "window": 1},
            "expand is parent, which takes no window; leave window, window_by and within",
        ),
        ({"expand": "run", "within_section": True}, "expand is run, which takes no window"),
        ({"expand": "parent", "window_by": "tokens"}, "expand is parent, which takes no window"),
        ({"run_length": 7}, "expand is window, which has no runs; leave run_penalty and run_length out"),
        ({"expand": "parent", "run_penalty": 0.9}, "expand is parent, which has no runs"),
    ],
)
def test_what_cannot_be_is_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        Expansion(**options)


def test_the_command_names_the_defaults_of_runs() -> None:
    parser = argparse.ArgumentParser()
    search_command.add_arguments(parser)
    shown = " ".join(parser.format_help().split())
    assert f"0 to 1 (default {RUN_PENALTY:g})" in shown
    assert f"most chunks of a run (default {RUN_LENGTH})" in shown
