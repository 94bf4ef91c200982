"""The sequences that give up slots or blocks to another flow, and cannot take them back."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import cast

import pytest

from engine.scheduling.fairness.parts import BlockParts, SlotParts
from engine.sequences.sequence import Sequence
from engine.sequences.sequence_cache import SequenceCache
from prefix_cache.eviction.shares import PUBLISHED
from tests.engine.rigs.sequences import waiting


def arrivals(*flows: str) -> list[Sequence]:
    """Make sequences that arrive a second apart, one for each of `flows`, named by flow and
    number.
    """
    found = []
    for at, flow in enumerate(flows):
        sequence = waiting(f"{flow}{at}", flow=flow)
        sequence.arrived = float(at)
        found.append(sequence)
    return found


def named(victim: Sequence | None) -> str | None:
    return None if victim is None else victim.request_id


class TestSlots:
    def gives(
        self, running: list[Sequence], flow: str, spared: list[Sequence] | None = None
    ) -> str | None:
        parts = SlotParts(running, spared or [])
        return named(parts.victim(waiting("asks", flow=flow), is_visiting=True))

    def test_the_last_to_come_of_who_has_most_gives(self) -> None:
        assert self.gives(arrivals("a", "b", "a", "b", "a"), "new") == "a4"
        assert self.gives(list(reversed(arrivals("b", "a", "b", "b", "a"))), "new") == "b3"

    def test_of_several_that_came_at_once_the_last_gives(self) -> None:
        running = arrivals("a", "a", "a")
        for one in running:
            one.arrived = 0.0
        assert self.gives(running, "new") == "a2"

    def test_no_flow_gives_up_its_only_slot(self) -> None:
        assert self.gives(arrivals("a", "b", "c"), "new") is None
        assert self.gives([], "new") is None
        assert self.gives(arrivals("a", "b", "c", "b"), "new") == "b3"

    def test_who_has_slots_takes_more_from_who_keeps_more(self) -> None:
        assert self.gives(arrivals("b", *"aaaa"), "b") == "a4"
        assert self.gives(arrivals("b", *"aaa"), "b") is None
        assert self.gives(arrivals(*"bbaaaa"), "a") is None

    def test_who_is_always_there_takes_a_first_slot_only(self) -> None:
        parts = SlotParts(arrivals("b", *"aaaa"))
        assert named(parts.victim(waiting("asks", flow="b"), is_visiting=False)) is None
        assert named(parts.victim(waiting("asks", flow="c"), is_visiting=False)) == "a4"

    def test_slots_count_by_weight(self) -> None:
        running = arrivals("b", *"aaaa")
        heavy = waiting("asks", flow="b", weight=3.0)
        for one in running[1:]:
            one.weight = 3.0
        assert self.gives(running, "b") is None
        assert named(SlotParts(running).victim(heavy, is_visiting=True)) == "a4"

    def test_spared_sequences_are_never_chosen(self) -> None:
        running = arrivals("a", "a", "b", "b", "a")
        assert self.gives(running, "new") == "a4"
        assert self.gives(running, "new", [running[4]]) in ("a1", "b3")
        assert self.gives(running, "new", [running[4], running[1]]) == "b3"
        assert self.gives(running, "new", [running[4], running[1], running[3]]) is None

    @pytest.mark.parametrize("seed", range(20))
    def test_what_was_taken_is_not_taken_back(self, seed: int) -> None:
        drawn = Random(seed)
        running = arrivals(*drawn.choices("abc", k=12))
        weights = {flow: drawn.choice([0.5, 1.0, 3.0]) for flow in "abc"}
        for one in running:
            one.weight = weights[one.flow]
        for _ in range(12):
            asking = waiting("asks", flow=drawn.choice("abc"))
            asking.weight = weights[asking.flow]
            victim = SlotParts(running).victim(asking, is_visiting=True)
            if victim is not None:
                running.remove(victim)
                running.append(asking)
                again = SlotParts(running).victim(victim, is_visiting=True)
                assert again is None or again.flow != asking.flow


@dataclass
class UsedBlocks:
    """A double of the sequence cache, which knows each flow's used blocks and its share."""

    used: dict[str, int]
    parts: dict[str, int]
    lacking_blocks: int = 4
    are_partitions: bool = True

    def in_use(self) -> Counter[str]:
        return Counter(self.used)

    def part(self, flow: str) -> int:
        return self.parts.get(flow, 0)

    def lacking(self, sequence: Sequence) -> int:
        return self.lacking_blocks


def gives(
    blocks: UsedBlocks, others: list[Sequence], flow: str, *, is_visiting: bool = False
) -> str | None:
    parts = BlockParts(cast(SequenceCache, blocks))
    return named(parts.victim(waiting("asks", flow=flow), others, is_visiting=is_visiting))


class TestBlocks:
    def test_who_is_furthest_beyond_its_part_gives_its_latest(self) -> None:
        blocks = UsedBlocks({"a": 14, "b": 30}, {"a": 10, "b": 10, "new": 10})
        assert gives(blocks, arrivals(*"abab"), "new") == "b3"
        blocks.used["a"] = 40
        assert gives(blocks, arrivals(*"abab"), "new") == "a2"

    def test_who_is_within_its_part_gives_nothing(self) -> None:
        blocks = UsedBlocks({"a": 10, "b": 11}, {"a": 10, "b": 10, "new": 10})
        assert gives(blocks, arrivals(*"abbaa"), "new") == "b2"
        blocks.used["b"] = 10
        assert gives(blocks, arrivals(*"abbaa"), "new") is None

    def test_who_would_be_beyond_its_part_takes_nothing(self) -> None:
        blocks = UsedBlocks({"a": 30, "new": 6}, {"a": 10, "new": 10})
        assert gives(blocks, arrivals(*"aaa"), "new") == "a2"
        blocks.used["new"] = 7
        assert gives(blocks, arrivals(*"aaa"), "new", is_visiting=True) is None

    def test_the_oldest_of_those_that_give_stays(self) -> None:
        blocks = UsedBlocks({"a": 30, "b": 90}, {"a": 10, "b": 10, "new": 10})
        assert gives(blocks, arrivals("b", "a"), "new") == "a1"
        assert gives(blocks, arrivals("b"), "new") is None

    def test_published_prefixes_take_and_do_not_give(self) -> None:
        blocks = UsedBlocks({"a": 30, PUBLISHED: 90}, {"a": 10, "new": 10})
        published = waiting("pin", flow=PUBLISHED)
        published.arrived = 9.0
        assert gives(blocks, [*arrivals(*"aa"), published], "new") == "a1"
        assert gives(blocks, arrivals(*"aa"), PUBLISHED) == "a1"

    def test_pooled_blocks_are_taken_back_up_to_a_floor(self) -> None:
        blocks = UsedBlocks({"a": 30}, {"new": 10}, are_partitions=False)
        assert gives(blocks, arrivals(*"aaa"), "new") == "a2"

    def test_beyond_floors_a_visitor_takes_from_who_keeps_more(self) -> None:
        blocks = UsedBlocks({"a": 30, "new": 20}, {}, are_partitions=False)
        assert gives(blocks, arrivals(*"aaa"), "new") is None
        assert gives(blocks, arrivals(*"aaa"), "new", is_visiting=True) == "a2"
        blocks.used["new"] = 26
        assert gives(blocks, arrivals(*"aaa"), "new", is_visiting=True) is None
