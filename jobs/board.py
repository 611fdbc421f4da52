"""What the workers of a run said last, in one place, and whether anything moves."""

import time
from collections.abc import Mapping, Sequence

from enrichment.errors import SituateError

_START_S = 1800.0  # the least time that the first worker is waited for: an autoscaler brings up its machine meanwhile
_LOAD_S = 7200.0  # the least time that a model's load is waited for; a worker that died in one never says that it ended


class Board:
    """The actor: what the workers said last."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._facts: dict[str, dict[str, float]] = {}
        self._begun: dict[str, int] = {}
        self._failure: SituateError | None = None

    def add(self, counts: Mapping[str, int]) -> None:
        for name, number in counts.items():
            self._counts[name] = self._counts.get(name, 0) + number

    def counts(self) -> dict[str, int]:
        return dict(self._counts)

    def state(self, name: str, facts: dict[str, float]) -> None:
        self._facts[name] = facts

    def facts(self) -> list[dict[str, float]]:
        return list(self._facts.values())

    def begun(self, ids: Sequence[str]) -> int:
        return max(self._begun.get(document_id, 0) for document_id in ids)

    def begin(self, ids: Sequence[str]) -> None:
        self.spare(ids, 1)

    def spare(self, ids: Sequence[str], by: int) -> None:
        for document_id in ids:
            self._begun[document_id] = self._begun.get(document_id, 0) + by

    def finish(self, ids: Sequence[str]) -> None:
        for document_id in ids:
            self._begun.pop(document_id, None)

    def in_work(self) -> list[str]:
        return sorted(document_id for document_id, times in self._begun.items() if times)

    def fail(self, error: SituateError) -> None:
        self._failure = self._failure or error

    def failure(self) -> SituateError | None:
        return self._failure


class StallClock:
    """How long no count has moved; while models are loaded, and before a worker is there, it may be longer."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._last: dict[str, int] = {}
        self._since = time.monotonic()

    @property
    def waited_s(self) -> float:
        """Seconds since a count moved."""
        return time.monotonic() - self._since

    def has_stalled(self, counts: Mapping[str, int]) -> bool:
        if dict(counts) != self._last:
            self._last, self._since = dict(counts), time.monotonic()
        least_s = _LOAD_S if counts.get("loading") else 0.0 if counts.get("workers") else _START_S
        return self.waited_s > max(self._timeout_s, least_s)
