"""Adapters on several ranks: all ranks hold an adapter before it gets a slot, and a failing rank is
named.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import closing
from pathlib import Path

import pytest

from engine.adapters.adapter_reader import AdapterReader
from engine.adapters.adapters import DeviceSlots
from engine.adapters.host_adapters import HostAdapters
from engine.adapters.other_ranks import OtherRanksAdapters, RanksSlots
from engine.adapters.rank_adapters import RankAdapters
from engine.models.adapters.adapter import Adapter
from engine.models.adapters.errors import AdapterRefused
from engine.ranks.messages import AdapterHeld, ForgetAdapter, HoldAdapter, PlaceAdapter
from tests.doubles.models.lora_files import fitting, write_adapter
from tests.doubles.ranks.two_ranks import TwoRanks

DIGEST = b"d" * 32


class NotedSlots:
    """One rank's adapter slots, which record copies and the number of launches before each."""

    num_slots = 3

    def __init__(self) -> None:
        self.loaded: list[tuple[int, bytes]] = []

    def load(self, slot: int, adapter: Adapter) -> None:
        self.loaded.append((slot, adapter.digest))


@pytest.fixture
def ranks() -> Iterator[TwoRanks]:
    with closing(TwoRanks()) as made:
        yield made


def digest_at(reader: AdapterReader, path: str) -> bytes:
    return reader.read(path).result().digest


class TestRank0:
    def test_an_adapter_is_held_once_all_ranks_have_reported(self, ranks: TwoRanks) -> None:
        adapters = OtherRanksAdapters(ranks.others)
        assert not adapters.hold(DIGEST, "a")
        assert ranks.told() == [HoldAdapter(0, DIGEST, "a")]
        ranks.report(1, AdapterHeld(0))
        assert not adapters.hold(DIGEST, "a")
        ranks.report(2, AdapterHeld(0))
        assert adapters.hold(DIGEST, "a")
        adapters.place(2, DIGEST)
        adapters.forget(DIGEST)
        adapters.forget(DIGEST)
        assert ranks.told() == [PlaceAdapter(2, 0), ForgetAdapter(0)]

    def test_one_that_a_rank_refuses_is_read_again_by_all(
        self, ranks: TwoRanks, tmp_path: Path
    ) -> None:
        reader, others = AdapterReader(tmp_path, fitting()), OtherRanksAdapters(ranks.others)
        write_adapter(tmp_path / "a")
        digest = digest_at(reader, "a")
        with closing(HostAdapters(reader, 1 << 20, others)) as host:
            assert host.get(digest, "a") is None
            wait(host.under_way)
            ranks.report(2, AdapterHeld(0, "the disk is gone"))
            with pytest.raises(AdapterRefused, match="the disk is gone"):
                host.get(digest, "a")
            ranks.report(1, AdapterHeld(0))  # a late report about a forgotten adapter
            assert host.get(digest, "a") is None
            assert ranks.told() == [
                HoldAdapter(0, digest, "a"),
                ForgetAdapter(0),
                HoldAdapter(1, digest, "a"),
            ]
            wait(host.under_way)
            ranks.report(1, AdapterHeld(1))
            assert host.get(digest, "a") is None
            ranks.report(2, AdapterHeld(1))
            found = host.get(digest, "a")
            assert found is not None
            assert found.digest == digest

    def test_what_host_memory_forgets_all_ranks_forget(
        self, ranks: TwoRanks, tmp_path: Path
    ) -> None:
        reader, others = AdapterReader(tmp_path, fitting()), OtherRanksAdapters(ranks.others)
        with closing(HostAdapters(reader, 0, others)) as host:
            for number, name in enumerate("ab"):
                write_adapter(tmp_path / name, seed=number)
                reading = host.read(name)
                wait([reading])
                assert host.take(reading, name) is None
                for rank in (1, 2):
                    ranks.report(rank, AdapterHeld(number))
                assert host.take(reading, name) is not None
            assert [type(one) for one in ranks.told()] == [HoldAdapter, HoldAdapter, ForgetAdapter]

    def test_slots_of_all_ranks_change_after_the_same_steps(
        self, ranks: TwoRanks, tmp_path: Path
    ) -> None:
        write_adapter(tmp_path / "a")
        with closing(AdapterReader(tmp_path, fitting())) as reader:
            adapter = reader.read("a").result()
        own, launched = NotedSlots(), list[int]()
        others = OtherRanksAdapters(ranks.others)
        slots: DeviceSlots = RanksSlots(own, others, lambda: launched.append(len(own.loaded)))
        others.hold(adapter.digest, "a")
        for rank in (1, 2):
            ranks.report(rank, AdapterHeld(0))
        assert others.hold(adapter.digest, "a")
        slots.load(1, adapter)
        assert ranks.told()[-1] == PlaceAdapter(1, 0)
        assert own.loaded == [(1, adapter.digest)]
        assert launched == [0], "what the others were told before is launched first"
        assert slots.num_slots == 3


class TestOtherRank:
    @pytest.fixture
    def rank(self, tmp_path: Path) -> Iterator[tuple[RankAdapters, NotedSlots, bytes]]:
        write_adapter(tmp_path / "a")
        reader, slots = AdapterReader(tmp_path, fitting()), NotedSlots()
        with closing(RankAdapters(reader, slots)) as adapters:
            yield adapters, slots, digest_at(reader, "a")

    def reports(self, adapters: RankAdapters) -> list[AdapterHeld]:
        wait([one for one in adapters._held.values() if isinstance(one, Future)])
        return adapters.reports()

    def test_it_reports_once_what_it_holds_and_why_it_does_not(
        self, rank: tuple[RankAdapters, NotedSlots, bytes]
    ) -> None:
        adapters, slots, digest = rank
        adapters.do(HoldAdapter(0, digest, "a"))
        adapters.do(HoldAdapter(1, digest, "nobody"))
        adapters.do(HoldAdapter(2, DIGEST, "a"))
        assert adapters.pending == 3
        held, absent, changed = self.reports(adapters)
        assert held == AdapterHeld(0)
        assert "cannot be read" in str(absent.refused)
        assert "changed" in str(changed.refused)
        assert (self.reports(adapters), adapters.pending) == ([], 0)
        adapters.do(PlaceAdapter(2, 0))
        assert slots.loaded == [(2, digest)]

    def test_it_forgets_one_that_it_is_reading(
        self, rank: tuple[RankAdapters, NotedSlots, bytes]
    ) -> None:
        adapters, _, digest = rank
        adapters.do(HoldAdapter(0, digest, "a"))
        adapters.do(ForgetAdapter(0))
        adapters.do(HoldAdapter(1, digest, "a"))
        assert self.reports(adapters) == [AdapterHeld(1)]
        assert list(adapters._held) == [1]
