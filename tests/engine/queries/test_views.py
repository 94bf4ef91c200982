"""An operator's views of an engine list a few of many entries, and no text of prompts."""

from __future__ import annotations

import msgspec

from engine.link.view_messages import Overview, OverviewQuery, Sequences, SequencesQuery
from tests.engine.rigs.rig import CLIENT, Rig, generate

FLOWS = 5


def rig_of_many_flows() -> Rig:
    """Make a rig in which flow `n` holds more blocks the larger `n` is."""
    rig = Rig(num_blocks=64)
    for n in range(FLOWS):
        rig.submit(generate(f"r{n}", range(10 * n, 14 * n + 8), flow=f"flow {n}"))
        rig.run()
    return rig


def overview(rig: Rig, *, owners: int = 0, evictions: int = 0) -> Overview:
    rig.link.say(OverviewQuery(query_id="q", owners=owners, evictions=evictions))
    rig.step()
    replies = [one for one in rig.link.sent[CLIENT] if isinstance(one, Overview)]
    assert replies[-1].query_id == "q"
    return replies[-1]


def sequences(rig: Rig, limit: int) -> Sequences:
    rig.link.say(SequencesQuery(query_id="q", limit=limit))
    rig.step()
    return next(one for one in reversed(rig.link.sent[CLIENT]) if isinstance(one, Sequences))


def test_counters_are_those_of_the_stats() -> None:
    rig = rig_of_many_flows()
    told, stats = overview(rig), rig.core.stats()
    assert told.engine_id == stats.engine_id
    assert told.found == stats.tiers.found
    assert told.computed_tokens == stats.windows["all"].computed_tokens > 0
    assert told.generated_tokens == stats.generated_tokens > 0
    assert (told.waiting, told.running) == (0, 0)


def test_without_owners_it_lists_nothing() -> None:
    told = overview(rig_of_many_flows())
    assert (told.tiers, told.queue, told.evictions) == ([], [], [])


def test_of_many_owners_the_largest_are_listed() -> None:
    rig = rig_of_many_flows()
    (device,) = overview(rig, owners=2).tiers
    assert [owner.flow for owner in device.owners] == ["flow 4", "flow 3"]
    assert device.num_owners == FLOWS
    assert device.total == 64
    stats = rig.core.stats()
    assert device.used == stats.pool.used
    assert device.owners[0].blocks == stats.flows["flow 4"].blocks_held
    assert device.owners[0].ceiling == 64


def test_evictions_between_flows_are_listed() -> None:
    rig = Rig(num_blocks=16, max_batch_tokens=64)
    for n in range(4):
        rig.submit(generate(f"r{n}", range(n, 32 + n), flow=f"flow {n}"))
        rig.run()
    counted = rig.core.stats(evictions=9).evictions
    told = overview(rig, owners=1, evictions=9).evictions
    assert [(one.of_flow, one.for_flow, one.blocks) for one in told] == [
        (one.of_flow, one.for_flow, one.blocks) for one in counted
    ]
    assert len(told) > 1
    assert len(overview(rig, owners=1, evictions=1).evictions) == 1


def test_sequences_are_listed_with_their_states_and_counts() -> None:
    rig = Rig(max_running=1)
    rig.submit(generate("first", range(8), flow="a", max_tokens=50))
    rig.step()
    rig.step()
    rig.submit(generate("second", range(20), flow="b"))
    rig.step()
    told = sequences(rig, 10)
    assert told.total == 2
    first, second = told.sequences
    assert (first.request_id, first.flow, first.state) == ("first", "a", "decode")
    assert (first.prompt_tokens, first.cached_tokens) == (8, 0)
    assert first.generated_tokens > 0
    assert (second.request_id, second.state, second.generated_tokens) == ("second", "waiting", 0)
    waiting = overview(rig, owners=5).queue
    assert {(one.flow, one.waiting, one.running) for one in waiting} == {("a", 0, 1), ("b", 1, 0)}


def test_of_many_sequences_the_oldest_are_listed() -> None:
    rig = Rig(max_running=1)
    for n in range(6):
        rig.submit(generate(f"r{n}", range(8), flow=f"flow {n}", max_tokens=50))
    rig.step()
    told = sequences(rig, 2)
    assert told.total == 6
    assert [one.request_id for one in told.sequences] == ["r0", "r1"]


def test_nothing_of_a_prompt_is_in_any_reply() -> None:
    rig = Rig()
    rig.submit(generate("r", [41, 42, 43, 44] * 4, max_tokens=50))
    rig.step()
    packed = msgspec.msgpack.encode([overview(rig, owners=9), sequences(rig, 9)])
    prompt = b"".join(n.to_bytes(4, "little") for n in (41, 42, 43, 44))
    assert prompt in rig.core.components.scheduler.running[0].token_ids.tobytes()
    assert prompt not in packed
