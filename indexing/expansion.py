"""How much original text comes back around a hit: a window, the section it is in, or a run of relevant chunks.

Options of a search and what they may be. None of them changes which chunks are hits, or their scores.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from enrichment.errors import ConfigError

Expand = Literal["window", "parent", "run"]
WindowBy = Literal["chunks", "characters", "tokens"]

RUN_PENALTY = 0.8
RUN_LENGTH = 3
"""Measured in docs/measurements.md: scores fused by rank fall slowly, so that a small penalty makes every run a long one."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """What each hit becomes; see `margins`, `sections` and `runs` for what the words mean.

    `window` counts chunks, characters (code points) or tokens of the embedder on each side. `run_penalty` is taken from the
    relevance of each chunk of a run, which has at most `run_length` chunks.
    """

    expand: Expand = "window"
    window: int = 0
    window_by: WindowBy = "chunks"
    within_section: bool = False
    run_penalty: float = RUN_PENALTY
    run_length: int = RUN_LENGTH

    def __post_init__(self) -> None:
        for name, value, known in (("expand", self.expand, Expand), ("window_by", self.window_by, WindowBy)):
            if value not in get_args(known):
                raise ConfigError(f"{name} is {value}; it must be one of {', '.join(get_args(known))}")
        if self.window < 0:
            raise ConfigError(f"window is {self.window}; it must be at least 0")
        if not 0 <= self.run_penalty <= 1:
            raise ConfigError(f"run_penalty is {self.run_penalty}; it must be a number from 0 to 1")
        if self.run_length < 1:
            raise ConfigError(f"run_length is {self.run_length}; it must be at least 1 chunk")
        if self.expand != "window" and (self.window or self.within_section or self.window_by != "chunks"):
            raise ConfigError(f"expand is {self.expand}, which takes no window; leave window, window_by and within out")
        if self.expand != "run" and (self.run_penalty, self.run_length) != (RUN_PENALTY, RUN_LENGTH):
            raise ConfigError(f"expand is {self.expand}, which has no runs; leave run_penalty and run_length out")
