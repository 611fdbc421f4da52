"""The relay without Ray: what counts as a stall, and what the board knows of documents in work."""

from types import SimpleNamespace

import pytest

from jobs import relay
from jobs.relay import _Board, _StallClock


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(relay, "time", SimpleNamespace(monotonic=lambda: self.now))


def test_a_stall_is_when_no_count_moves_for_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    stall = _StallClock(60)
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
    stall = _StallClock(60)
    for clock.now in range(0, 3600, 30):
        assert not stall.has_stalled({"loading": 1})
    assert not stall.has_stalled({"loading": 0, "workers": 1})
    clock.now += 61
    assert stall.has_stalled({"loading": 0, "workers": 1})


def test_no_worker_at_all_is_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    stall = _StallClock(60)
    clock.now = 1799
    assert not stall.has_stalled({})  # a machine may be on its way
    clock.now = 1801
    assert stall.has_stalled({})


def test_the_board_knows_what_was_begun_and_never_finished() -> None:
    board = _Board()
    board.begin(["a", "b"])
    board.begin(["c"])
    board.finish(["a", "b"])
    assert (board.begun(["a", "b"]), board.begun(["c"]), board.in_work()) == (0, 1, ["c"])
    board.begin(["c"])
    assert board.begun(["a", "c"]) == 2
    board.finish(["c"])
    assert board.begun(["c"]) == 0 and board.in_work() == []
