"""What every worker of one run knows."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from jobs.config import Config

Report = Callable[[Mapping[str, int]], None]


@dataclass(frozen=True, slots=True)
class Reuse:
    """Where a run finds what was paid for before.

    The ledger, of the documents `ids` alone if they are given; and the rows that the documents `changed` have in `snapshot`.
    Without `fallbacks`, what a guard refused is asked for again.
    """

    ids: pa.Array | None = None
    snapshot: int | None = None
    changed: pa.Array | None = None
    fallbacks: bool = True


@dataclass(frozen=True, slots=True)
class Run:
    """`spans` is the table of given spans for `split.by: spans`, else None."""

    id: str
    config: Config
    root: str
    spans: Mapping[str, Sequence[tuple[int, int]]] | None = None
    model_fingerprint: str | None = None
    reuse: Reuse = field(default_factory=Reuse)
    directory: str = field(default_factory=os.getcwd)
    boilerplate: frozenset[bytes] = frozenset()
    """Hashes of the texts that stand in too many documents to be asked about (`enrichment/boilerplate.py`)."""

    def enter(self) -> None:
        """Let relative paths mean on a worker of this machine what they mean to the user; elsewhere none are used."""
        if Path(self.directory).is_dir():
            os.chdir(self.directory)
