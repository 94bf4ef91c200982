"""A start is refused if the state's id is another installation's, or if the state is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.state.identity import (
    KEYS_FILE,
    ExpectedState,
    WrongState,
    expected,
    forget,
    remember,
)
from gateway.state.private_file import PrivateFileDamaged

MINE, OTHER = "a" * 32, "b" * 32


def some_expected(state_id: str | None, *, was_there: bool) -> ExpectedState:
    return ExpectedState("state", "state.sqlite", state_id, was_there)


@pytest.mark.parametrize("is_empty", [True, False])
@pytest.mark.parametrize("was_there", [True, False])
def test_what_bears_the_right_id_is_right(is_empty: bool, was_there: bool) -> None:
    assert some_expected(MINE, was_there=was_there).settled(MINE, is_empty=is_empty) == MINE
    assert some_expected(None, was_there=was_there).settled(MINE, is_empty=is_empty) == MINE


def test_another_one_is_refused_and_says_what_to_do() -> None:
    with pytest.raises(WrongState, match=r"state\.sqlite .*state\.id.*--new-state") as refusal:
        some_expected(MINE, was_there=True).settled(OTHER, is_empty=False)
    assert refusal.value.fault.status == "state_missing"


def test_nothing_is_a_first_start_only_where_there_was_nothing() -> None:
    begun = some_expected(None, was_there=False).settled(None, is_empty=True)
    assert len(begun) == 32
    assert begun != some_expected(None, was_there=False).settled(None, is_empty=True)
    for state_id in (MINE, None):
        with pytest.raises(WrongState, match="empty or gone"):
            some_expected(state_id, was_there=True).settled(None, is_empty=True)


def test_a_state_from_before_there_were_ids_is_taken_over() -> None:
    assert some_expected(MINE, was_there=True).settled(None, is_empty=False) == MINE
    assert len(some_expected(None, was_there=True).settled(None, is_empty=False)) == 32


def test_a_marker_is_kept_and_forgotten(tmp_path: Path) -> None:
    assert expected(tmp_path, "state", "s") == ExpectedState("state", "s")
    remember(tmp_path, "state", MINE)
    remember(tmp_path, "state", OTHER)  # the first marker is not overwritten
    assert expected(tmp_path, "state", "s") == ExpectedState("state", "s", MINE, True)
    assert expected(tmp_path, "limits", "l") == ExpectedState("limits", "l")
    forget(tmp_path, "state")
    assert expected(tmp_path, "state", "s") == ExpectedState("state", "s")


def test_the_first_keys_say_that_there_was_a_state_but_nothing_of_limits(tmp_path: Path) -> None:
    (tmp_path / KEYS_FILE).touch(0o600)
    assert expected(tmp_path, "state", "s") == ExpectedState("state", "s", None, True)
    assert expected(tmp_path, "limits", "l") == ExpectedState("limits", "l")


def test_a_damaged_marker_is_named(tmp_path: Path) -> None:
    (tmp_path / "state.id").touch(0o600)
    with pytest.raises(PrivateFileDamaged, match=r"state\.id"):
        expected(tmp_path, "state", "s")
