"""The relay without Ray: what counts as a stall, and what the board knows of documents in work."""

from types import SimpleNamespace

import pytest

from jobs import board
from jobs.board import Board, StallClock


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(board, "time", SimpleNamespace(monotonic=lambda: self.now))


def test_a_stall_is_when_no_count_moves_for_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    stall = StallClock(60)
    moments: list[tuple[float, dict[str, int], bool]] = [
        (50, {}, False),
        (100, {}, False),
        (109, {"workers": 1}, False),
        (168, {"workers": 1}, False),
        (169, {"workers": 1, "generated": 1}, False),
        (228, {"workers": 1, "generated": 1}, False),
        (230, {"workers": 1, "generated": 1}, True),
    ]
    for clock.now, counts, stalled in moments:
        assert stall.has_stalled(counts) is stalled, (clock.now, counts)


def test_a_long_model_load_is_no_stall_but_a_hang_behind_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    stall = StallClock(60)
    for clock.now in range(0, 7200, 30):
        assert not stall.has_stalled({"loading": 1})
    assert not stall.has_stalled({"loading": 0, "workers": 1})
    clock.now += 61
    assert stall.has_stalled({"loading": 0, "workers": 1})


def test_no_worker_at_all_is_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    stall = StallClock(60)
    clock.now = 1799
    assert not stall.has_stalled({})  # a machine may be on its way
    clock.now = 1801
    assert stall.has_stalled({})


def test_the_board_knows_what_was_begun_and_never_finished() -> None:
    seen = Board()
    seen.begin(["a", "b"])
    seen.begin(["c"])
    seen.finish(["a", "b"])
    assert (seen.begun(["a", "b"]), seen.begun(["c"]), seen.in_work()) == (0, 1, ["c"])
    seen.begin(["c"])
    assert seen.begun(["a", "c"]) == 2
    seen.finish(["c"])
    assert seen.begun(["c"]) == 0 and seen.in_work() == []


def test_a_worker_that_dies_in_a_load_ends_as_a_stall_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """It never says that the load ended."""
    clock = Clock(monkeypatch)
    stall = StallClock(60)
    assert not stall.has_stalled({"loading": 1, "workers": 1})
    clock.now = 7201
    assert stall.has_stalled({"loading": 1, "workers": 1})


def test_documents_that_wait_for_a_load_are_not_in_work_and_keep_their_count() -> None:
    seen = Board()
    seen.begin(["a", "b"])
    seen.begin(["a"])
    seen.spare(["a", "b"], -1)
    assert (seen.begun(["a"]), seen.begun(["b"]), seen.in_work()) == (1, 0, ["a"])
    seen.spare(["a", "b"], 1)
    assert (seen.begun(["a"]), seen.begun(["b"]), seen.in_work()) == (2, 1, ["a", "b"])
