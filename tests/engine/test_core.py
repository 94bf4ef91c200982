"""The engine's core answers queries, refuses a bad request once, and drains without a loss."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.core import IDLE_WAIT_S, MOST_CHECKED, EngineCore
from engine.errors import EngineDied, EngineUnavailable
from engine.link.event_messages import Failed, StepReply, Tokens
from engine.link.messages import Hello, Welcome
from engine.link.query_messages import Flush, Flushed, StatsQuery, StatsReply
from engine.sequences.sequence_cache import lease_of
from prefix_cache.errors import InvariantBroken
from prefix_cache.namespace import Namespace
from tests.doubles.engine.fake_runner import expected_output
from tests.engine.rigs.rig import CLIENT, Rig, generate


class TestQueries:
    def test_hello_is_answered_by_welcome(self) -> None:
        rig = Rig(num_blocks=16, block_size=4)
        rig.link.say(Hello())
        rig.step()
        [welcome] = rig.link.sent[CLIENT]
        assert isinstance(welcome, Welcome)
        assert welcome == rig.core.components.welcome != Rig().core.components.welcome

    def test_flush_by_namespace_and_by_flow(self) -> None:
        other = Namespace(b"o" * 16)
        rig = Rig()
        rig.submit(generate("a", range(9), flow="x", max_tokens=1))
        rig.submit(generate("b", range(17), flow="y", max_tokens=1, namespace=other))
        rig.run()
        rig.link.say(Flush(query_id="1", namespace=other))
        rig.link.say(Flush(query_id="2", namespace=other))
        rig.link.say(Flush(query_id="3", flow="x"))
        rig.link.say(Flush(query_id="4"))
        rig.link.say(Flush(query_id="5", namespace=b"not a namespace"))
        rig.step()
        flushed = [message for message in rig.link.sent[CLIENT] if isinstance(message, Flushed)]
        assert [reply.query_id for reply in flushed] == ["1", "2", "3", "4", "5"]
        assert [reply.blocks for reply in flushed] == [4, 0, 2, 0, 0]

    def test_a_flush_forgets_the_grammars_of_a_flow_or_all(self) -> None:
        rig = Rig()
        forgotten: list[str | None] = []
        intake = replace(rig.core.components.intake, forget_grammars=forgotten.append)
        rig.core = EngineCore(replace(rig.core.components, intake=intake))
        rig.link.say(Flush(query_id="1", flow="x"))
        rig.link.say(Flush(query_id="2", namespace=b"n" * 16))
        rig.link.say(Flush(query_id="3"))
        rig.step()
        assert forgotten == ["x", None]

    def test_a_flow_that_is_forgotten_leaves_nothing_though_it_still_runs(self) -> None:
        rig = Rig()
        gone, stays = (
            generate(name, range(at, at + 20), flow=name, max_tokens=12)
            for name, at in (("gone", 0), ("stays", 30))
        )
        waits = generate("waits", range(9), flow="gone", max_tokens=4)
        for request in (gone, stays, waits):
            rig.submit(request)
        rig.step()  # no prompt is complete, and one has not begun
        rig.link.say(Flush(query_id="1", flow="gone"))
        rig.run()
        for request in (gone, stays, waits):
            rig.expect_output(request)
        owners = rig.cache.capacity.owners()
        assert owners["gone"].blocks_held == 0
        assert owners["stays"].blocks_held == 7
        again = generate("again", range(20), flow="gone", max_tokens=1)
        rig.submit(again)
        rig.run()
        assert rig.finished("again").reused.tokens == 0
        rig.expect_nothing_left()

    def test_flush_while_it_is_used_harms_nobody(self) -> None:
        rig = Rig()
        rig.submit(generate("a", range(20), max_tokens=8))
        rig.step(3)
        rig.link.say(Flush(query_id="1"))
        rig.run()
        assert rig.link.tokens("a") == expected_output(range(20), 8)
        rig.expect_nothing_left()

    def test_stats(self) -> None:
        rig = Rig()
        rig.link.say(StatsQuery(query_id="7"))
        rig.step()
        [reply] = rig.link.sent[CLIENT]
        assert isinstance(reply, StatsReply)
        assert (reply.query_id, reply.stats.pool.total) == ("7", 64)


class TestRefusals:
    def test_each_refused_request_gets_exactly_one_failed(self) -> None:
        rig = Rig(max_waiting=1, max_running=1)
        rig.submit(generate("runs", range(6), max_tokens=8))
        rig.step()
        rig.submit(generate("waits", range(6)))
        rig.submit(generate("too many", range(6)))
        rig.submit(generate("too long", range(6), max_tokens=10_000))
        rig.submit(generate("empty", []))
        rig.run()
        codes = {name: rig.failed(name).code for name in ("too many", "too long", "empty")}
        assert codes == {
            "too many": "queue_full",
            "too long": "prompt_too_long",
            "empty": "invalid_request",
        }
        assert rig.failed("too many").retry_after_s
        rig.expect_output(generate("runs", range(6), max_tokens=8))
        rig.expect_output(generate("waits", range(6)))

    def test_an_id_that_is_running_is_refused_and_the_running_one_goes_on(self) -> None:
        rig = Rig()
        request = generate("a", range(6), max_tokens=6)
        rig.submit(request)
        rig.step()
        rig.submit(generate("a", range(9), max_tokens=2))
        rig.run()
        events = rig.link.events("a")
        [refusal] = [event for event in events if isinstance(event, Failed)]
        assert refusal.code == "invalid_request"
        assert len(rig.link.tokens("a")) == 6
        assert len(events) == 8
        # an id may be reused once its request has ended
        rig.submit(generate("a", range(9), max_tokens=2))
        rig.run()
        assert len(rig.link.tokens("a")) == 8

    def test_a_draining_engine_finishes_and_takes_nothing_new(self) -> None:
        rig = Rig()
        request = generate("a", range(6), max_tokens=6)
        rig.submit(request)
        rig.step()
        rig.core.drain()
        rig.submit(generate("late", range(6)))
        rig.run()
        assert rig.failed("late").code == "engine_unavailable"
        rig.expect_output(request)

    def test_failing_all_leaves_nothing(self) -> None:
        rig = Rig(max_running=1)
        for name in "ab":
            rig.submit(generate(name, range(6), max_tokens=9))
        rig.step(2)
        rig.core.fail_all(EngineUnavailable("stopped", retry_after_s=3.0))
        for name in "ab":
            assert rig.failed(name).code == "engine_unavailable"
            assert rig.failed(name).retry_after_s == 3.0
        rig.expect_nothing_left()

    def test_reporting_all_touches_no_state(self) -> None:
        rig = Rig(max_running=1)
        for name in "ab":
            rig.submit(generate(name, range(6), max_tokens=9))
        rig.step()
        leased = rig.cache.capacity.pool().leased
        rig.core.report_all(EngineDied("broken"))
        assert rig.failed("a").code == rig.failed("b").code == "engine_died"
        assert rig.cache.capacity.pool().leased == leased


class TestReplies:
    def test_each_gateway_gets_one_message_a_step(self) -> None:
        rig = Rig(max_batch_tokens=64)
        for client in (b"one", b"two"):
            for name in "abc":
                rig.submit(generate(name, [ord(name) % 64, 1], max_tokens=3), client)
        rig.step()
        for client in (b"one", b"two"):
            [reply] = rig.link.sent[client]
            assert isinstance(reply, StepReply)
            assert [event.request_id for event in reply.events] == ["a", "b", "c"]
            assert all(isinstance(event, Tokens) for event in reply.events)

    def test_a_client_that_is_gone_takes_its_requests_along(self) -> None:
        rig = Rig(max_running=2)
        for name in "abcd":
            rig.submit(generate(name, range(6), max_tokens=40), b"gone")
        stays = generate("stays", range(6), max_tokens=20)
        rig.submit(stays)
        rig.step()
        rig.link.gone.add(b"gone")
        rig.step()
        assert [sequence.client for sequence in rig.scheduler.running] == []
        rig.run()
        rig.expect_output(stays)
        rig.expect_nothing_left()

    def test_it_waits_for_messages_only_when_nothing_is_alive(self) -> None:
        rig = Rig()
        rig.step()
        rig.submit(generate("a", range(6), max_tokens=2))
        rig.step(3)
        assert rig.link.waits == [IDLE_WAIT_S, IDLE_WAIT_S, 0.0, IDLE_WAIT_S]


def test_check_invariants_finds_a_wrong_count() -> None:
    rig = Rig()
    rig.submit(generate("a", range(20), max_tokens=9))
    rig.step(2)
    rig.core.check_invariants()
    [sequence] = rig.scheduler.running
    lease_of(sequence).num_blocks -= 1
    with pytest.raises(InvariantBroken):
        rig.core.check_invariants()


def test_only_small_trees_are_quickly_checked() -> None:
    rig = Rig()
    assert rig.core.is_quickly_checked
    rig.cache.tree.num_nodes = MOST_CHECKED
    assert rig.core.is_quickly_checked
    rig.cache.tree.num_nodes += 1
    assert not rig.core.is_quickly_checked
