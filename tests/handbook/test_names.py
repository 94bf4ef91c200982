from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from handbook.texts import names, values
from handbook.texts.names import NameSource, is_held_out


@pytest.fixture
def source() -> NameSource:
    return NameSource(random.Random(0))


def test_the_same_spellings_are_held_out_on_every_machine() -> None:
    words = ("tamora", "velk", "brin", "4821", "dahlo")
    assert [word for word in words if is_held_out(word)] == ["dahlo"]


@pytest.mark.parametrize(
    "draw", [names.made_up_name, names.made_up_word, values.code, values.part_number]
)
def test_what_a_source_makes_up_was_held_out(
    source: NameSource, draw: Callable[[NameSource], str]
) -> None:
    assert all(is_held_out(draw(source)) for _ in range(200))


def test_about_one_spelling_in_five_is_held_out() -> None:
    assert 1800 < sum(is_held_out(str(n)) for n in range(10_000)) < 2200


def test_numbers_and_picks_cover_their_range_and_no_more(source: NameSource) -> None:
    assert {source.number(3, 6) for _ in range(200)} == {3, 4, 5, 6}
    assert {source.pick("abc") for _ in range(200)} == {"a", "b", "c"}


@pytest.mark.parametrize("draw", values.ANYTHING)
def test_a_value_is_plain_printable_text(
    source: NameSource, draw: Callable[[NameSource], str]
) -> None:
    for _ in range(50):
        value = draw(source)
        assert value.strip() == value != ""
        assert value.isprintable()
        assert "{" not in value


def test_hours_open_before_they_close(source: NameSource) -> None:
    for _ in range(100):
        opens, closes = values.hours(source).split(" to ")
        assert opens < closes
