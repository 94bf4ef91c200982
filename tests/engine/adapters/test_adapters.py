"""Adapter slots: requests that get a slot or wait for one, and adapters that are forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.adapters.adapter_reader import AdapterReader
from engine.adapters.adapters import FEW_NAMESPACES, PATIENCE_S, AdapterParts, Adapters
from engine.adapters.host_adapters import HostAdapters
from engine.errors import AdapterNotServed
from engine.link.messages import AdapterUse
from engine.link.query_messages import AdapterRead, ReadAdapter
from engine.models.adapters.adapter import Adapter, adapter_digest
from engine.models.adapters.adapter_files import read_adapter_files
from engine.sequences.sequence import Sequence
from prefix_cache.namespace import Namespace, NamespacePath
from tests.doubles.models.lora_files import IN, OUT, RANK, fitting, write_adapter
from tests.engine.rigs.hand_driven import sequence_of


class NotedSlots:
    """A device's adapter slots, which record the adapters copied to them."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.loaded: list[tuple[int, bytes]] = []

    def load(self, slot: int, adapter: Adapter) -> None:
        self.loaded.append((slot, adapter.digest))


class Requests:
    """Requests for adapters on an engine with two slots, and the live sequences."""

    def __init__(self, folder: Path, host: HostAdapters) -> None:
        self.host, self.device = host, NotedSlots(3)
        self.adapters = Adapters(AdapterParts(host, self.device))
        self.alive: list[Sequence] = []
        self._folder = folder

    def used(self, name: str, seed: int = 0) -> AdapterUse:
        if not (self._folder / name).exists():
            write_adapter(self._folder / name, seed=seed)
        return AdapterUse(adapter_digest(read_adapter_files(self._folder, name, 1 << 20)), name)

    def ask(self, name: str, seed: int = 0, arrived: float = 0.0, flow: str = "tenant") -> Sequence:
        sequence = sequence_of([1, 2, 3])
        sequence.adapter, sequence.arrived = self.used(name, seed), arrived
        sequence.flow = flow
        self.alive.append(sequence)
        self.adapters.add(sequence, ())
        return sequence

    def give(self, now: float = 0.0) -> list[str]:
        """Assign slots once all files are read; return the messages of refused requests."""
        refused = self.adapters.give(self.alive, now)
        wait(self.host.under_way)
        return [error.message for _, error in refused + self.adapters.give(self.alive, now)]


@contextmanager
def opened(folder: Path, most_bytes: int = 1 << 20) -> Iterator[Requests]:
    host = HostAdapters(AdapterReader(folder, fitting()), most_bytes)
    yield Requests(folder, host)
    host.close()


def test_requests_of_one_adapter_share_a_slot(tmp_path: Path) -> None:
    with opened(tmp_path) as requests:
        one, other, same = requests.ask("a", 1), requests.ask("b", 2), requests.ask("a", 1)
        assert one.is_unready
        assert requests.give() == []
        assert [each.adapter_slot for each in (one, other, same)] == [1, 2, 1]
        assert not one.is_unready
        assert len(requests.device.loaded) == 2


class HeldReader(AdapterReader):
    """A reader that finishes reading when a test says so."""

    def __init__(self) -> None:
        self.reading: list[tuple[bytes, Future[Adapter]]] = []

    def read(self, path: str, digest: bytes | None = None) -> Future[Adapter]:
        self.reading.append((digest or path.encode(), Future[Adapter]()))
        return self.reading[-1][1]

    def finish(self) -> None:
        for digest, reading in self.reading:
            reading.set_result(Adapter(digest, RANK, {}, 0))

    def close(self) -> None:
        pass


def test_what_is_read_for_requests_that_have_gone_is_forgotten() -> None:
    reader = HeldReader()
    host = HostAdapters(reader, 1 << 20)
    adapters, alive = Adapters(AdapterParts(host, NotedSlots(3))), list[Sequence]()
    for name in ("a", "b", "c"):
        alive.append(sequence_of([1, 2, 3]))
        alive[-1].adapter = AdapterUse(name.encode(), name)
        adapters.add(alive[-1], ())
    adapters.give(alive, 0.0)
    assert len(host.under_way) == 3, "the control"
    adapters.give(alive[:1], 0.0)
    assert len(host.under_way) == 3, "a thread still reads them"
    reader.finish()
    adapters.give(alive[:1], 0.0)
    assert not host.under_way
    assert alive[0].adapter_slot, "the one that has stayed has its slot"


def test_a_third_adapter_waits_until_a_slot_is_of_no_request(tmp_path: Path) -> None:
    with opened(tmp_path) as requests:
        one, other, third = requests.ask("a", 1), requests.ask("b", 2), requests.ask("c", 3)
        requests.give()
        assert third.is_unready
        requests.alive.remove(other)
        requests.give()
        assert (one.adapter_slot, third.adapter_slot) == (1, 2)
        again = requests.ask("b", 2)
        requests.give()
        assert again.is_unready  # the adapter "b" has been replaced


def test_a_flow_leaves_a_slot_to_others(tmp_path: Path) -> None:
    """Leave a flow's last free slot to other flows, even if its own requests have waited longer.

    If there is no other flow, the flow uses the slot.
    """
    with opened(tmp_path) as requests:
        first, second, third = (requests.ask(name, seed) for seed, name in enumerate("abc"))
        requests.give()
        assert [one.adapter_slot for one in (first, second, third)] == [1, 2, 0], "the control"
        other = requests.ask("d", 4, arrived=5.0, flow="other")
        requests.give(now=5.0 + 2 * PATIENCE_S)
        assert other.is_unready, "both slots are of requests that run"
        requests.alive.remove(first)
        requests.give(now=9.0)
        assert (other.adapter_slot, third.adapter_slot) == (1, 0)
        more = requests.ask("e", 5, arrived=9.0, flow="other")
        requests.alive.remove(second)
        requests.give(now=10.0)
        assert (third.adapter_slot, more.adapter_slot) == (2, 0), "who has none goes first"
        requests.alive.remove(third)
        requests.give(now=11.0)
        assert more.is_unready, "it leaves the last one free"
        late = requests.ask("b", 1, arrived=12.0)
        requests.give(now=12.0)
        assert late.adapter_slot == 2


def test_whoever_waits_for_a_slot_is_not_passed_over_for_good(tmp_path: Path) -> None:
    with opened(tmp_path) as requests:
        requests.ask("a", 1)
        requests.ask("b", 2)
        requests.give()
        third = requests.ask("c", 3, arrived=10.0)
        at_once = requests.ask("a", 1, arrived=10.1)
        requests.give(now=10.2)
        assert at_once.adapter_slot == 1
        late = requests.ask("a", 1, arrived=10.2 + PATIENCE_S)
        requests.give(now=10.2 + PATIENCE_S)
        assert late.is_unready
        requests.alive = [third, late]
        requests.give(now=11.0)
        assert third.adapter_slot
        assert late.adapter_slot == 1


def test_what_cannot_be_read_fails_and_is_read_again_later(tmp_path: Path) -> None:
    with opened(tmp_path) as requests:
        requests.used("a", 1)
        config = (tmp_path / "a" / "adapter_config.json").read_bytes()
        sequence = requests.ask("a", 1)
        (tmp_path / "a" / "adapter_config.json").unlink()
        [message] = requests.give()
        assert "adapter_config.json" in message
        assert sequence.is_unready
        (tmp_path / "a" / "adapter_config.json").write_bytes(config)
        requests.ask("a", 1)
        assert requests.give() == []


def test_files_that_changed_since_are_another_adapter(tmp_path: Path) -> None:
    with opened(tmp_path) as requests:
        use = requests.used("a", 1)
        write_adapter(tmp_path / "a", seed=2)
        sequence = sequence_of([1])
        sequence.adapter = use
        requests.alive.append(sequence)
        requests.adapters.add(sequence, ())
        assert requests.give() == ["the adapter's files have changed since it was loaded"]


def test_host_memory_forgets_the_least_recently_used(tmp_path: Path) -> None:
    write_adapter(tmp_path / "a", seed=1)
    files = read_adapter_files(tmp_path, "a", 1 << 20)
    size = 4 * RANK * (IN + OUT)
    with opened(tmp_path, most_bytes=2 * size) as requests:
        for name, seed in (("a", 1), ("b", 2), ("a", 1), ("c", 3)):
            requests.alive = [requests.ask(name, seed)]
            requests.give()
        assert requests.host.num_bytes == 2 * size
        assert requests.host.get(adapter_digest(files), "a") is not None
        used = requests.used("b", 2)
        assert requests.host.get(used.digest, used.path) is None


def test_a_client_is_told_of_the_adapter_it_had_read(tmp_path: Path) -> None:
    with opened(tmp_path) as requests:
        use = requests.used("a", 1)
        for number, path in enumerate(("a", "nobody")):
            requests.adapters.ask(b"client", ReadAdapter(query_id=str(number), path=path))
        found = dict[str, AdapterRead]()
        while len(found) < 2:
            found |= {answer.query_id: answer for _, answer in requests.adapters.answers()}
        assert (found["0"].digest, found["0"].rank) == (use.digest, 4)
        assert isinstance(found["1"].error(), AdapterNotServed)
        assert list(requests.adapters.answers()) == []
        requests.ask("a", 1)
        assert requests.adapters.give(requests.alive, 0.0) == []
        assert not requests.alive[0].is_unready  # the adapter was still in host memory


def test_a_dropped_adapter_leaves_its_slot_once_nobody_uses_it(tmp_path: Path) -> None:
    with opened(tmp_path) as requests:
        sequence = requests.ask("a", 1)
        requests.give()
        digest = requests.used("a").digest
        assert requests.adapters.drop(digest, "tenant", requests.alive) == {Namespace(bytes(16))}
        requests.ask("a", 1)
        requests.give()
        assert len(requests.device.loaded) == 1  # the adapter was still in its slot
        requests.alive.clear()
        requests.adapters.drop(digest, "tenant", [])
        requests.ask("a", 1)
        requests.give()
        assert len(requests.device.loaded) == 2
        assert sequence.adapter_slot == 1


def test_an_adapter_stays_until_the_last_flow_has_dropped_it(tmp_path: Path) -> None:
    with opened(tmp_path) as requests:
        own, shared = (requests.used(name, seed).digest for name, seed in (("a", 1), ("b", 2)))

        def loaded() -> list[bytes]:
            return [digest for _, digest in requests.device.loaded]

        for name, flows in (("a", ["one"]), ("b", ["one", "other"])):
            for flow in flows:
                requests.ask(name, flow=flow)
            requests.give()
            requests.alive.clear()
        assert loaded() == [own, shared]
        requests.adapters.drop_all("one", [])
        assert set(requests.host.digests) == {shared}
        for name in ("a", "b"):
            requests.ask(name, flow="other")
            requests.give()
            requests.alive.clear()
        assert loaded() == [own, shared, own]  # the shared adapter was still in its slot
        requests.adapters.drop(shared, "other", [])
        requests.ask("b", flow="other")
        requests.give()
        assert loaded() == [own, shared, own, shared], "the control"
        requests.adapters.drop_all("other", requests.alive)
        assert set(requests.host.digests) == set()
        requests.alive.clear()
        requests.adapters.drop_all("other", [])  # repeats the flow's flush
        requests.ask("b", flow="other")
        requests.give()
        assert loaded() == [own, shared, own, shared, shared]


def test_flows_of_adapters_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    with opened(tmp_path, most_bytes=1) as requests:
        for number in range(9):
            requests.ask(f"a{number}", number, flow=f"tenant {number}")
            requests.give()
            requests.alive.clear()
        # one adapter in host memory, two in slots, and the adapter of the newest request
        assert len(requests.adapters._flows) <= 4


def test_namespaces_without_blocks_are_forgotten(tmp_path: Path) -> None:
    with opened(tmp_path) as requests:
        use = requests.used("a", 1)
        present = Namespace((7).to_bytes(16, "big"))
        for number in range(FEW_NAMESPACES + 1):
            sequence = sequence_of([1])
            sequence.adapter = use
            sequence.path = NamespacePath.single(Namespace(number.to_bytes(16, "big")))
            requests.adapters.add(sequence, {present})
        found = requests.adapters.drop(use.digest, "tenant", [])
        assert found == {present, Namespace(FEW_NAMESPACES.to_bytes(16, "big"))}


def test_an_engine_without_a_folder_refuses_them() -> None:
    adapters = Adapters(None)
    with pytest.raises(AdapterNotServed, match="no folder"):
        adapters.check(AdapterUse(bytes(32), "a"))
    adapters.check(None)
    adapters.ask(b"client", ReadAdapter(query_id="1", path="a"))
    [(_, answer)] = adapters.answers()
    assert isinstance(answer, AdapterRead)
    assert isinstance(answer.error(), AdapterNotServed)
