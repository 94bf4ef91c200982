"""A start logs the seconds of each phase when the phase is done, and nothing for a failed phase."""

from __future__ import annotations

import logging

import pytest

from engine.startup.timed import timed


def test_the_seconds_of_a_part_are_logged_once_it_is_done(caplog: pytest.LogCaptureFixture) -> None:
    now = iter([10.0, 11.25])
    with caplog.at_level(logging.INFO):
        with timed("weights", clock=lambda: next(now)):
            assert caplog.messages == []
        assert caplog.messages == ["weights: 1.25 s"]


def test_of_a_part_that_fails_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), pytest.raises(OSError, match="gone"), timed("weights"):
        raise OSError("gone")
    assert caplog.messages == []
