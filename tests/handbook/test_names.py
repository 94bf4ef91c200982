from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from handbook.training import names, values
from handbook.training.names import Source, Split, split_of


def source_of(split: Split, seed: int = 0) -> Source:
    return Source(random.Random(seed), split)


def test_split_is_the_same_on_every_machine() -> None:
    assert [split_of(word).value for word in ("tamora", "velk", "brin", "4821", "dahlo")] == [
        "train", "train", "train", "train", "held-out",
    ]  # fmt: skip


@pytest.mark.parametrize("split", list(Split))
@pytest.mark.parametrize(
    "draw", [names.made_up_name, names.made_up_word, values.code, values.part_number]
)
def test_a_source_spells_only_what_its_split_may(
    split: Split, draw: Callable[[Source], str]
) -> None:
    source = source_of(split)
    assert {split_of(draw(source)) for _ in range(200)} == {split}


def test_about_one_spelling_in_five_is_held_out() -> None:
    held_out = sum(split_of(str(n)) is Split.HELD_OUT for n in range(10_000))
    assert 1800 < held_out < 2200


def test_numbers_and_picks_cover_their_range_and_no_more() -> None:
    source = source_of(Split.TRAIN)
    assert {source.number(3, 6) for _ in range(200)} == {3, 4, 5, 6}
    assert {source.pick("abc") for _ in range(200)} == {"a", "b", "c"}


@pytest.mark.parametrize("draw", values.ANYTHING)
def test_a_value_is_plain_printable_text(draw: Callable[[Source], str]) -> None:
    source = source_of(Split.HELD_OUT)
    for _ in range(50):
        value = draw(source)
        assert value.strip() == value != ""
        assert value.isprintable()
        assert "{" not in value


def test_hours_open_before_they_close() -> None:
    source = source_of(Split.TRAIN)
    for _ in range(100):
        opens, closes = values.hours(source).split(" to ")
        assert opens < closes
