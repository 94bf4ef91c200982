"""A read returns the requested block, whole and unchanged, or reports it as lost."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from storage.disk.file.lmdb_file import LmdbFile, StoredRecord
from storage.errors import FileDamaged, FileFull
from storage.move import BlockRecord
from tests.storage.disk.support.bench import Bench, reads_right, to_write
from tests.storage.fault_plan import FaultPlan, FaultyFile
from tests.storage.scene import content, record

FLIPS = 1000
PLACES = ("header", "key", "token list", "payload", "tail")


@pytest.fixture(params=[False, True], ids=["clear", "encrypted"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, encrypt=request.param)
    yield bench
    bench.close()


def test_reads_what_was_written(bench: Bench) -> None:
    bench.write_all(20)
    assert all(bench.reads_right(i, i) for i in range(20))


def test_hits_are_told_and_not_compared(bench: Bench) -> None:
    bench.write(3, 7)
    assert bench.records.scan(0).entries == [(3, record(7))]
    assert reads_right(bench.records, 3, replace(record(7), hits=99), 7)


@pytest.mark.parametrize("field", ["key", "parent_key", "namespace", "owner", "token_ids"])
def test_a_record_that_differs_in_any_field_is_not_read(bench: Bench, field: str) -> None:
    bench.write(3, 7)
    other = replace(record(7), **{field: getattr(record(8, owner="else"), field)})
    assert not reads_right(bench.records, 3, other, 7)
    assert reads_right(bench.records, 3, record(7), 7)


def test_an_empty_slot_holds_nothing(bench: Bench) -> None:
    assert not bench.reads_right(3, 3)


def test_erasing_comes_before_writing(bench: Bench) -> None:
    bench.write_all(4)
    bench.records.write([to_write(1, 11)], erased=[1, 2])
    assert bench.reads_right(1, 11)
    assert not bench.reads_right(2, 2)
    assert bench.reads_right(3, 3)


def test_scan_tells_all_in_order_of_slots_in_pieces(bench: Bench) -> None:
    slots = random.Random(1).sample(range(50_000), 400)
    bench.records.write([to_write(slot, slot) for slot in slots])
    found: list[tuple[int, BlockRecord]] = []
    first: int | None = 0
    pieces = 0
    while first is not None:
        entries, unsound, first = bench.records.scan(first)
        assert not unsound
        found += entries
        pieces += 1
    assert found == [(slot, record(slot)) for slot in sorted(slots)]
    assert pieces > 2


def test_scan_gives_up_slots_that_the_tier_has_no_more(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.write(5, 5)
    bench.write(50, 50)
    bench.close()
    smaller = Bench(tmp_path, num_slots=50)
    entries, unsound, _ = smaller.records.scan(0)
    assert ([slot for slot, _ in entries], unsound) == ([5], [50])
    smaller.close()


def test_a_thousand_bit_flips_are_a_thousand_misses(bench: Bench) -> None:
    bench.write_all(FLIPS)
    assert all(bench.reads_right(i, i) for i in range(0, FLIPS, 50))
    kept = [_kept(bench.file, slot) for slot in range(FLIPS)]
    bench.close()
    content_of_file = bytearray(bench.data.read_bytes())
    rng = random.Random(4)
    for slot, (header, payload) in enumerate(kept):
        _flip(content_of_file, header, payload, PLACES[slot % len(PLACES)], slot, rng)
    bench.data.write_bytes(content_of_file)
    bench.file = LmdbFile(bench.directory / "blocks", 64 << 20)
    bench.records = bench.over(bench.file)
    assert sum(bench.reads_right(i, i) for i in range(FLIPS)) == 0
    sound, first = 0, bench.records.scan(0)
    while first.next_slot is not None:
        sound += len(first.entries)
        first = bench.records.scan(first.next_slot)
    assert sound == FLIPS // len(PLACES)  # damage to payloads is found only when these are read


def _kept(file: LmdbFile, slot: int) -> tuple[bytes, bytes]:
    with file.reading(slot) as kept:
        assert kept is not None
        assert kept.payload is not None
        return bytes(kept.header), bytes(kept.payload)


def _flip(
    data: bytearray, header: bytes, payload: bytes, place: str, slot: int, rng: random.Random
) -> None:
    """Flip one bit of a record, wherever the file has a copy of the record."""
    whole = payload if place == "payload" else header
    part = {
        "header": header[:80],
        "key": record(slot).key,
        "token list": record(slot).token_ids,
        "payload": payload,
        "tail": header[-16:],
    }[place]
    start = whole.find(part)
    if start < 0:  # the body is encrypted, so any position in it will do
        start, part = 120, header[120:-16]
    bit = rng.randrange(len(part) * 8)
    changed = 0
    at = data.find(whole)
    while at >= 0:
        data[at + start + bit // 8] ^= 1 << bit % 8
        changed += 1
        at = data.find(whole, at + 1)
    assert changed


def test_swapped_records_are_lost(bench: Bench) -> None:
    """Lose records that were swapped.

    An attacker who can write the file moves another owner's block to the slot of ours.
    """
    bench.write(1, 1, owner="ours")
    bench.write(2, 2, owner="theirs")
    assert bench.reads_right(1, 1, "ours")
    (header_1, payload_1), (header_2, payload_2) = (_kept(bench.file, slot) for slot in (1, 2))
    for first, second in (
        ((header_2, payload_2), (header_1, payload_1)),
        ((header_1, payload_2), (header_2, payload_1)),
    ):
        with bench.file.changing() as changes:
            changes.put(1, *first)
            changes.put(2, *second)
        assert not bench.reads_right(1, 1, "ours")
        assert not bench.reads_right(2, 2, "theirs")
        assert not reads_right(bench.records, 1, record(2, "theirs"), 2)
    with bench.file.changing() as changes:
        changes.put(1, header_1, payload_1)
    assert bench.reads_right(1, 1, "ours")


def test_a_scan_gives_up_what_lies_in_another_s_slot_or_was_changed(bench: Bench) -> None:
    """Drop a record that is in another record's slot or was changed.

    After a restart it is not in the tree, and its slot is free.
    """
    bench.write_all(5)
    (header_1, payload_1), (header_2, payload_2) = (_kept(bench.file, slot) for slot in (1, 2))
    changed, payload_3 = _kept(bench.file, 3)
    with bench.file.changing() as changes:
        changes.put(1, header_2, payload_2)
        changes.put(2, header_1, payload_1)
        changes.put(3, changed[:-1] + bytes([changed[-1] ^ 1]), payload_3)
    found = bench.records.scan(0)
    assert found.entries == [(0, record(0)), (4, record(4))]
    assert found.unsound == [1, 2, 3]


class WithoutPayloads(FaultyFile):
    """A file that has lost its table of payloads."""

    @contextmanager
    def reading(self, slot: int) -> Iterator[StoredRecord | None]:
        with super().reading(slot) as kept:
            yield kept and kept._replace(payload=None)


def test_a_header_whose_payload_is_gone_is_a_miss(bench: Bench) -> None:
    bench.write(1, 1)
    torn = bench.over(WithoutPayloads(bench.file, FaultPlan("get", None, FileDamaged(""))))
    assert not reads_right(torn, 1, record(1), 1)
    assert bench.reads_right(1, 1)


def test_another_fingerprint_reads_nothing(bench: Bench) -> None:
    bench.write(1, 1)
    seal = type(bench.seal)(bench.keys, b"g" * 32, len(content(1)))
    other = type(bench.records)(bench.file, seal, bench.room)
    assert not reads_right(other, 1, record(1), 1)
    assert bench.reads_right(1, 1)


def test_a_forgotten_owner_is_a_miss_and_the_others_are_not(tmp_path: Path) -> None:
    bench = Bench(tmp_path, encrypt=True)
    for slot in range(20):
        bench.write(slot, slot, owner=f"flow {slot % 2}")
    assert sorted(bench.records.forget("flow 0")) == list(range(0, 20, 2))
    assert not any(bench.reads_right(s, s, "flow 0") for s in range(0, 20, 2))
    assert all(bench.reads_right(s, s, "flow 1") for s in range(1, 20, 2))
    bench.close()
    again = Bench(tmp_path, encrypt=True)
    assert not any(again.reads_right(s, s, "flow 0") for s in range(0, 20, 2))
    assert all(again.reads_right(s, s, "flow 1") for s in range(1, 20, 2))
    again.write(0, 0, owner="flow 0")
    assert again.reads_right(0, 0, "flow 0")
    assert not again.reads_right(2, 2, "flow 0")
    again.close()


@pytest.mark.parametrize("encrypt", [False, True], ids=["clear", "encrypted"])
def test_an_encrypted_file_shows_neither_blocks_nor_tokens(tmp_path: Path, encrypt: bool) -> None:
    bench = Bench(tmp_path, encrypt=encrypt)
    bench.write_all(50)
    bench.close()
    data = bench.data.read_bytes()
    shown = 0
    for number in range(50):
        block = content(number).numpy().tobytes()
        runs = [block[at : at + 64] for at in range(0, len(block) - 63, 64)]
        asked = record(number)
        runs += [asked.token_ids, asked.token_ids[:16], asked.key, asked.namespace]
        shown += any(run in data for run in runs)
    assert shown == (0 if encrypt else 50)
    assert (b"flow" in data) != encrypt


def test_a_full_file_refuses_and_goes_on_reading_and_erasing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_bytes=1 << 20)
    written = _fill(bench, 1000)
    assert 100 < written < 250
    assert all(bench.reads_right(i, i) for i in range(written))
    _erase(bench, range(0, written, 2))
    bench.write(0, 500)
    assert bench.reads_right(0, 500)
    assert not bench.reads_right(2, 2)
    bench.close()


def test_a_full_file_with_a_held_reader_refuses_and_recovers_when_it_dies(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_bytes=1 << 20, high_water=1.0)  # the file may be filled completely
    bench.write_all(20)
    holding = (
        "import lmdb, sys; env = lmdb.open(sys.argv[1], max_dbs=4); txn = env.begin(); "
        "txn.get(b'x'); print('held', flush=True); sys.stdin.read()"
    )
    reader = subprocess.Popen(
        [sys.executable, "-c", holding, str(tmp_path / "blocks")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert reader.stdin is not None
    assert reader.stdout is not None
    with reader, reader.stdin, reader.stdout:
        assert reader.stdout.readline() == b"held\n"
        written = _fill(bench, 1000)
        for _ in range(5):
            with pytest.raises(FileFull):
                bench.records.write([to_write(i, i) for i in range(50, 90)])
        assert all(bench.reads_right(i, i) for i in range(written))
        reader.kill()
        reader.wait()
    with pytest.raises(FileFull):
        bench.records.write([to_write(i, i) for i in range(50, 90)], erased=[0])
    bench.file.drop_dead_readers()
    _erase(bench, range(0, written, 2))
    bench.write(0, 500)
    assert bench.reads_right(0, 500)
    bench.close()


def _erase(bench: Bench, slots: range) -> None:
    """Erase a few slots at a time, since freed pages can be reused only two transactions later."""
    for at in range(0, len(slots), 8):
        bench.records.write([], erased=slots[at : at + 8])


def _fill(bench: Bench, most: int) -> int:
    for number in range(most):
        try:
            bench.write(number, number)
        except FileFull:
            return number
    raise AssertionError("it never was full")


@pytest.mark.parametrize("name", ["put", "delete", "commit"])
def test_any_single_failure_of_a_change_leaves_all_or_nothing(tmp_path: Path, name: str) -> None:
    nth, struck = 0, True
    while struck:
        nth += 1
        directory = tmp_path / str(nth)
        directory.mkdir()
        bench = Bench(directory)
        bench.write_all(6)
        faults = FaultPlan(name, nth, FileFull("planned"))
        faulty = bench.over(FaultyFile(bench.file, faults))
        holds = {slot: slot for slot in range(6)}
        for batch in ([(0, 10), (1, 11)], [(6, 12), (2, 13)], [(0, 14)]):
            erased = [batch[0][0], 5]
            try:
                faulty.write([to_write(*pair) for pair in batch], erased)
            except FileFull:
                continue
            for slot in erased:
                holds.pop(slot, None)
            holds.update(batch)
        bench.close()
        again = Bench(directory)
        for slot in range(8):
            found = dict(again.records.scan(0).entries).get(slot)
            assert found == (record(holds[slot]) if slot in holds else None)
            assert slot not in holds or again.reads_right(slot, holds[slot])
        again.close()
        struck = faults.has_struck
    assert nth > 3


def test_any_single_failure_to_read_is_told_and_harms_no_other_read(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.write_all(6)
    for nth in range(1, 7):
        faults = FaultPlan("get", nth, FileDamaged("planned"))
        faulty = bench.over(FaultyFile(bench.file, faults))
        for call in range(1, 7):
            if call == nth:
                with pytest.raises(FileDamaged):
                    reads_right(faulty, call - 1, record(call - 1), call - 1)
            else:
                assert reads_right(faulty, call - 1, record(call - 1), call - 1)
    bench.close()
