"""Requests with prompt modules among others: modules are evicted, preempted, cancelled, loaded and
refused.
"""

from __future__ import annotations

from dataclasses import replace as replace_part
from random import Random

import pytest
from msgspec.structs import replace

from engine.errors import EngineUnavailable, InvalidRequest, PromptTooLong, QueueFull
from engine.link.event_messages import Failed, Finished, Tokens
from engine.link.messages import Cancel, FlowQuota, Generate, Partition
from engine.link.prompt_module import PromptModule
from engine.link.stats.tier_stats import TierTokens
from engine.sequences.intake import Intake
from engine.sequences.module_keeper import AT_ONCE, ModuleKeeper
from engine.sequences.modules import MOST_MODULES
from engine.sequences.sequence import Sequence
from prefix_cache.cache import PrefixCache
from prefix_cache.hashing import TokenIds
from prefix_cache.namespace import NamespacePath
from prefix_cache.tiers.tier_pools import Tiers
from prefix_cache.tree.match import PrefixMatch
from prefix_cache.tree.tree import RadixTree
from tests.doubles.engine.fake_runner import expected_output
from tests.engine.rigs.modular import Part, expected, modular
from tests.engine.rigs.rig import Rig, generate

TOKENS = 4  # tokens of each answer


def parts_of(random: Random) -> list[Part]:
    return [
        Part([random.randrange(1, 60) for _ in range(random.randint(1, 14))], first)
        for first in range(0, 80, 16)
    ]


def with_scaffold(part: Part, random: Random) -> Part:
    """Make some of the part's tokens a scaffold, but not all."""
    first = random.randrange(len(part))
    return replace_part(part, scaffold=(first, random.randint(first, len(part) - (not first))))


@pytest.mark.parametrize("seed", range(24))
def test_any_mix_gives_the_tokens_of_each_alone(seed: int) -> None:
    random = Random(seed)
    parts = [with_scaffold(one, random) for one in parts_of(random)]
    tiers = Tiers(host_blocks=random.choice([8, 40])) if seed % 2 else Tiers()
    rig = Rig(
        num_blocks=random.randint(26, 60),
        max_running=random.randint(1, 5),
        max_batch_tokens=8,
        tiers=tiers,
        overlap_scheduling=bool(seed % 3),
        has_modules=True,
        seed=seed,
    )
    if is_apart := seed % 4 == 0:
        rig.link.say(Partition(flows={flow: FlowQuota() for flow in "xyz"}))
    heads = parts_of(random)[: random.randint(0, 2)]
    wanted, cancelled = dict[str, list[int]](), set[str]()
    for number in range(14):
        own = [random.randrange(1, 60) for _ in range(random.randint(1, 9))]
        flow, name = random.choice("xyz"), f"r{number}"
        if random.random() < 0.3:
            rig.submit(generate(name, own, max_tokens=TOKENS, flow=flow))
            wanted[name] = expected_output(own, TOKENS)
        else:
            used = random.sample(parts, random.randint(1, 4))
            if has_head := bool(heads) and random.random() < 0.7:
                used.insert(0, random.choice(heads))
            made = modular(name, used, own, 90, has_head=has_head, max_tokens=TOKENS, flow=flow)
            rig.submit(made)
            wanted[name] = expected(used, own, TOKENS, rig.block_size, has_head=has_head)
        rig.step(random.randint(0, 4))
        if random.random() < 0.15:
            rig.link.say(Cancel(request_id=name))
            cancelled.add(name)
    rig.run()
    for name, tokens in wanted.items():
        last = rig.link.last(name)
        if is_apart and isinstance(last, Failed) and last.code == PromptTooLong.code:
            assert "part of the cache" in last.message
        elif name not in cancelled:
            assert isinstance(last, Finished), last
            assert rig.link.tokens(name) == tokens
    rig.expect_nothing_left()


@pytest.mark.parametrize(("head", "loaded"), [([], 12), ([Part([7] * 5, 13)], 4 + 11)])
def test_modules_return_from_a_lower_tier_and_are_not_computed_again(
    head: list[Part], loaded: int
) -> None:
    """Load modules from a lower tier.

    Only each module's last block is computed, since a prompt's last token always is.
    """
    rig = Rig(num_blocks=24, tiers=Tiers(host_blocks=64), has_modules=True)
    parts, has_head = [*head, Part(list(range(1, 14)), 0)], bool(head)
    rig.submit(modular("first", parts, [50, 51], 20, flow="x", has_head=has_head))
    rig.run()
    rig.settle_copies()
    rig.push_out()
    again = modular("second", parts, [52, 53], 20, flow="x", has_head=has_head, loads="always")
    rig.submit(again)
    rig.run()
    assert rig.link.tokens("second") == expected(parts, [52, 53], 4, 4, has_head=has_head)
    assert rig.finished("second").reused.tiers == TierTokens(host=loaded)
    rig.expect_nothing_left()


def test_requests_for_one_module_compute_it_once() -> None:
    rig = Rig(has_modules=True, max_batch_tokens=64)
    part = Part(list(range(1, 14)), 0)
    for number in range(4):
        rig.submit(modular(f"r{number}", [part], [50 + number, 40], 20))
    rig.run()
    assert [rig.finished(f"r{number}").computed_tokens for number in range(4)] == [18, 2, 2, 2]


def test_a_head_is_computed_once_and_before_the_modules_behind_it() -> None:
    rig = Rig(has_modules=True, max_batch_tokens=64)
    head, *parts = Part([7] * 5, 0), Part([1] * 6, 5), Part([2] * 3, 11)
    used = [[head, *parts], [head, parts[1]], [head, *parts]]
    for number, one in enumerate(used):
        rig.submit(modular(f"r{number}", one, [50 + number], 20, has_head=True))
    rig.run()
    computed = [rig.finished(f"r{number}").computed_tokens for number in range(3)]
    assert computed == [8 + 7 + 3 + 1, 1, 1], "with padding to whole blocks"
    for number, one in enumerate(used):
        tokens = expected(one, [50 + number], 4, 4, has_head=True)
        assert rig.link.tokens(f"r{number}") == tokens
    rig.expect_nothing_left()


def test_small_modules_are_charged_as_they_are_computed() -> None:
    """Charge a module of one token for a whole block, which it takes to compute."""
    rig = Rig(has_modules=True, max_batch_tokens=64)
    parts = [Part([7] * 5, 0), *(Part([at], 5 + at) for at in range(1, 9))]
    for number in range(3):
        rig.submit(modular(f"r{number}", parts, [50 + number], 40, has_head=True))
    rig.submit(generate("plain", [9] * 5))
    rig.run()
    finished = [rig.finished(name) for name in ("r0", "r1", "r2", "plain")]
    counted = rig.core.components.counters.total().computed_tokens
    assert sum(one.computed_tokens for one in finished) == counted == 8 + 8 * 3 + 3 + 5
    assert [one.reused.tokens for one in finished if one.reused] == [0, 13, 13, 0]


def test_a_head_that_is_evicted_before_its_modules_begin_is_computed_again() -> None:
    # the budget has room for one module at a time
    rig = Rig(has_modules=True, max_batch_tokens=8, max_waiting=16)
    parts = [Part([7] * 9, 0), Part([1] * 16, 9), Part([2] * 16, 25)]
    rig.submit(modular("r", parts, [4], 60, has_head=True))
    rig.step(3)  # the head is computed, and a module waits to start
    rig.cache.flush()
    rig.run()
    computed = dict.fromkeys(one.request_id for owners in rig.runner.owners for one in owners)
    assert [*computed] == ["module-0", "module-2", "module-1", "module-3", "r"]
    assert rig.finished("r").computed_tokens == 12 + 19 + 19 + 1
    assert rig.link.tokens("r") == expected(parts, [4], 4, 4, has_head=True)
    rig.expect_nothing_left()


def test_modules_wait_for_the_room_that_a_running_request_takes() -> None:
    """Let modules wait until a running request ends, even if they exceed their tenant's cache
    share.
    """
    rig = Rig(num_blocks=20, has_modules=True, max_running=4)
    parts = [Part([at] * 16, 16 * at) for at in (1, 2, 3)]
    rig.submit(generate("hog", [5] * 36, max_tokens=12, flow="hog"))
    rig.step(6)
    for name in ("late", "later"):
        rig.submit(modular(name, parts, [9], 60, max_tokens=2, flow="x"))
    rig.run()
    assert rig.link.tokens("late") == expected(parts, [9], 2, 4)
    assert rig.link.tokens("later") == expected(parts, [9], 2, 4)
    assert rig.link.tokens("hog") == expected_output([5] * 36, 12)
    rig.expect_nothing_left()


def test_a_request_does_not_evict_its_own_modules() -> None:
    rig = Rig(num_blocks=32, has_modules=True, max_batch_tokens=64)
    first, second = (Part([at] * 16, 16 * at) for at in (1, 2))
    rig.submit(generate("oldest", [6] * 12, max_tokens=1))
    rig.run()
    for name, part in (("stores first", first), ("stores second", second)):
        rig.submit(modular(name, [part], [9], 60, max_tokens=1))
        rig.run()
    rig.submit(generate("newest", [7] * 80, max_tokens=1))
    rig.run()
    assert rig.cache.capacity.pool().free == 1, "the control: a request's own blocks do not fit"
    for name, part in (("holds", first), ("evicts", second)):
        rig.submit(modular(name, [part], [8] * 9, 60, max_tokens=2))
    rig.run()
    for name, part in (("holds", first), ("evicts", second)):
        assert rig.finished(name).computed_tokens == 9
        assert rig.link.tokens(name) == expected([part], [8] * 9, 2, 4)
    rig.expect_nothing_left()


def test_modules_that_do_not_stay_are_refused_with_a_time_to_come_back() -> None:
    rig = Rig(has_modules=True)
    parts = [Part([at] * 16, 16 * at) for at in (1, 2, 3)]
    rig.submit(modular("r", parts, [9], 60))
    for _ in range(40):
        rig.step()
        rig.cache.flush()
    failed = rig.failed("r")
    assert (failed.code, failed.retry_after_s) == (EngineUnavailable.code, 1.0)
    assert failed.reused is not None
    assert (failed.reused.tokens, failed.computed_tokens) == (0, 48)
    rig.submit(modular("again", parts, [9], 60))
    rig.run()
    assert rig.link.tokens("again") == expected(parts, [9], 4, 4)
    rig.expect_nothing_left()


def test_a_module_that_fails_fails_the_request() -> None:
    rig = Rig(has_modules=True)
    rig.runner.not_finite = {"module-0"}
    rig.submit(modular("r", [Part([1, 2, 3], 0)], [4], 8))
    rig.run()
    assert rig.failed("r").code == "numeric_failure"
    rig.submit(modular("again", [Part([1, 2, 3], 0)], [4], 8))
    rig.run()
    assert rig.link.tokens("again") == expected([Part([1, 2, 3], 0)], [4], 4, 4)


def test_a_request_that_leaves_is_charged_what_was_computed_of_its_modules() -> None:
    rig = Rig(has_modules=True, max_batch_tokens=8)
    part = Part([1] * 30, 0)
    rig.submit(modular("r", [part], [4], 40))
    rig.step(2)
    rig.link.say(Cancel(request_id="r"))
    rig.run()
    left = rig.finished("r")
    assert left.reason == "cancelled"
    assert left.reused is not None
    assert (left.computed_tokens, left.reused.tokens) == (16, 0)
    rig.submit(modular("stays", [part], [4], 40))
    rig.run()
    assert rig.finished("stays").computed_tokens == 32 - 16 + 1, "nobody computed the rest before"
    rig.expect_nothing_left()


def test_who_waits_on_for_a_module_is_charged_the_rest_of_it() -> None:
    rig = Rig(has_modules=True, max_batch_tokens=8)
    parts = [Part([1] * 30, 0)]
    for name in ("first", "second"):
        rig.submit(modular(name, parts, [4], 40))
    rig.step(2)
    rig.link.say(Cancel(request_id="first"))
    rig.run()
    assert rig.finished("first").computed_tokens == 16
    assert rig.finished("second").computed_tokens == 32 - 16 + 1
    assert rig.link.tokens("second") == expected(parts, [4], 4, 4)
    rig.expect_nothing_left()


def test_many_modules_leave_the_queue_to_the_requests_of_their_flow() -> None:
    """Leave waiting slots to a flow's requests: its modules may take only 12 of the queue's 16."""
    rig = Rig(has_modules=True, max_batch_tokens=8, max_waiting=16)
    parts = [Part([at] * 8, 8 * at) for at in range(1, 21)]
    rig.submit(modular("r", parts, [4], 200))
    rig.step()
    waiting = [f"plain{number}" for number in range(10)]
    for name in waiting:
        rig.submit(generate(name, [7] * 5, max_tokens=2))
    rig.run()
    for name in waiting:
        assert rig.link.tokens(name) == expected_output([7] * 5, 2)
    assert rig.link.tokens("r") == expected(parts, [4], 4, 4)
    for name in (flood := [f"flood{number}" for number in range(20)]):
        rig.submit(generate(name, [7] * 5, max_tokens=2))
    rig.run()
    assert any(isinstance(rig.link.last(name), Failed) for name in flood), "the control"
    rig.expect_nothing_left()


def test_requests_that_fill_the_queue_have_their_modules_computed() -> None:
    rig = Rig(has_modules=True, max_batch_tokens=8, max_waiting=8)
    names = [f"r{number}" for number in range(6)]
    parts = {name: [Part([at, 5, 5, 5, 5], 0)] for at, name in enumerate(names, 1)}
    for name in names:
        rig.submit(modular(name, parts[name], [4], 80))
    rig.submit(generate("more", [7]))
    rig.run()
    assert rig.failed("more").code == QueueFull.code, "the control"
    for name in names:
        assert rig.link.tokens(name) == expected(parts[name], [4], 4, 4)
    rig.expect_nothing_left()


def test_a_module_that_is_awaited_by_another_flow_too_is_begun_once() -> None:
    rig = Rig(has_modules=True, max_batch_tokens=8, max_waiting=16)
    parts = [Part([at] * 8, 8 * at) for at in range(1, 6)]
    for flow in "xy":
        rig.submit(modular(flow, parts, [4], 80, flow=flow))
    rig.step(2)
    rig.link.say(Cancel(request_id="x"))
    rig.run()
    assert rig.finished("x").computed_tokens + rig.finished("y").computed_tokens == 5 * 8 + 1
    assert rig.link.tokens("y") == expected(parts, [4], 4, 4)
    rig.expect_nothing_left()


@pytest.mark.parametrize("is_first_elsewhere", [True, False])
def test_evicted_modules_do_not_wait_for_another_flows_long_answers(
    is_first_elsewhere: bool,
) -> None:
    """Compute evicted modules again beside another flow's long answers.

    These answers fill the other flow's own slots, so only that flow's next sequence has to wait.
    """
    rig = Rig(num_blocks=96, has_modules=True, max_running=4, max_batch_tokens=16)
    rig.link.say(Partition(flows={flow: FlowQuota(floor=0.45) for flow in "xy"}))
    for number in range(5):
        rig.submit(generate(f"answer{number}", [1 + number] * 4, max_tokens=120, flow="x"))
    rig.step(3)
    if is_first_elsewhere:
        rig.submit(modular("waits", [Part([20] * 16, 0)], [5] * 30, 90, flow="x"))
        rig.step(8)
    parts = [Part([30 + at] * 16, 16 * at) for at in range(4)]
    rig.submit(modular("r", parts, [6] * 4, 140, flow="y"))
    rig.step(5)
    rig.cache.flush()
    rig.step(60)
    ended = {type(event) for event in rig.link.events("answer0")} - {Tokens}
    assert not ended, "the control: a long answer goes on"
    assert rig.link.tokens("r") == expected(parts, [6] * 4, TOKENS, 4)
    assert rig.finished("r").computed_tokens == 4 * 16 + 4
    computed = {one.request_id for owners in rig.runner.owners for one in owners}
    modules = sum(1 for name in computed if name.startswith("module-"))
    assert modules > 4 + is_first_elsewhere, "the control: a module was computed again"
    rig.run()
    rig.expect_nothing_left()


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_module_that_fails_as_its_last_request_leaves_ends_once(is_cancelled: bool) -> None:
    """End `first` exactly once, although its module fails: the module's head is evicted each
    time.
    """
    ends = set[str]()
    for steps in range(8):
        rig = Rig(num_blocks=400, has_modules=True, max_batch_tokens=16, max_waiting=64)
        rig.submit(modular("first", [Part([3] * 600, 0)], [6, 7], 700))
        rig.step()
        request = modular("r", [Part([9] * 5, 0), Part([1] * 16, 13)], [6, 7], 80, has_head=True)
        rig.submit(request)
        rig.step(2)
        for _ in range(steps):
            rig.cache.flush(namespace=request.modules[0].namespace)
            rig.step()
        rig.cache.flush(namespace=request.modules[0].namespace)
        if is_cancelled:
            rig.link.say(Cancel(request_id="r"))
        rig.run()
        last = rig.link.last("r")
        ends.add(last.code if isinstance(last, Failed) else type(last).__name__)
        rig.expect_nothing_left()
    assert EngineUnavailable.code in ends, "the control: the module does not stay"


def test_a_sequence_that_is_first_as_partitions_begin_is_first_once() -> None:
    rig = Rig(num_blocks=400, has_modules=True, max_batch_tokens=16)
    rig.submit(modular("r", [Part([3] * 40, 0)], [6, 7], 700, flow="x"))
    rig.step(2)
    rig.link.say(Partition(flows={flow: FlowQuota() for flow in "xy"}))
    for _ in range(60):
        rig.step()
        rig.cache.flush()
    assert rig.failed("r").code == EngineUnavailable.code, "the control: it was looked up"
    rig.expect_nothing_left()


def test_modules_that_are_computed_do_not_wait_behind_sequences_with_evicted_modules() -> None:
    rig = Rig(num_blocks=360, has_modules=True, max_running=16, max_batch_tokens=64)
    rig.link.say(Partition(flows={flow: FlowQuota() for flow in "xyz"}))
    head, count, each = Part([9] * 5, 0), 12, 30
    assert (count - 1) * each > AT_ONCE, "the control: not all are looked up"
    for number in range(count):
        parts = [Part([1 + at, 1 + number], 5 + 2 * at) for at in range(each)]
        own = [number + 1] * 8
        request = modular(f"r{number}", [head, *parts], own, 200, has_head=True, flow="x")
        rig.submit(request)
    rig.run()
    assert all(
        isinstance(rig.link.last(f"r{number}"), Finished | Failed) for number in range(count)
    )
    computed = {one.request_id for owners in rig.runner.owners for one in owners}
    modules = sum(1 for name in computed if name.startswith("module-"))
    assert modules > count * each + 1, "the control: some are evicted"
    rig.expect_nothing_left()


class CountingTree(RadixTree):
    """A tree that counts its look-ups of prefixes."""

    matches = 0

    def match(
        self, path: NamespacePath, tokens: TokenIds, before: PrefixMatch | None = None
    ) -> PrefixMatch:
        self.matches += 1
        return super().match(path, tokens, before)


def test_few_modules_are_looked_up_between_two_steps_of_flows_in_turn() -> None:
    cache = PrefixCache(num_blocks=400, block_size=4)
    tree = cache.tree = CountingTree(block_size=4)
    keeper = ModuleKeeper(cache, at_a_time=1 << 20)
    intake = Intake(64, 4, 4096, cache.fits, has_modules=True)
    each, waiting = 20, list[Sequence]()
    for number, flow in [*((at, "many") for at in range(40)), (40, "one")]:
        parts = [Part([number, at], 4 * at) for at in range(each)]
        request = modular(f"r{number}", parts, [4, 4], 200, flow=flow)
        waiting.append(intake.accept(b"gateway", request, 0.0))
        keeper.add(waiting[-1])
    turn = keeper.turn(waiting, 0.0)
    assert {one.flow for one in turn.started} == {"many", "one"}
    assert len(turn.started) == tree.matches < AT_ONCE + each
    started = len(turn.started)
    for _ in range(60):
        started += len(keeper.turn(waiting, 0.0).started)
    assert started == tree.matches == each * len(waiting), "each once, while it is computed"


SOUND = modular("r", [Part([1, 2, 3, 4, 5], 0)], [4, 4], 8)
[MODULE] = SOUND.modules
# a module that has only its head's last token
EMPTY = Part([], 5).module(4, head=Part([1, 2, 3, 4, 5], 0))
# a module with a scaffold, to which no other may attend
SCAFFOLD = replace(MODULE, scaffolds=((1, 2),))
BEHIND_IT = Part([6], 5).module(4, head=Part([1, 2, 3, 4, 5], 0))


def _with(module: PromptModule) -> Generate:
    return replace(SOUND, modules=(module,))


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (_with(replace(MODULE, token_ids=MODULE.token_ids[4:])), InvalidRequest.code),
        (_with(replace(MODULE, token_ids=b"")), InvalidRequest.code),
        (_with(replace(MODULE, num_tokens=9)), InvalidRequest.code),
        (_with(replace(MODULE, num_tokens=4)), InvalidRequest.code),
        (_with(replace(MODULE, token_ids=b"\xff" * 32)), InvalidRequest.code),
        (_with(replace(MODULE, positions=b"\xff" * 32)), PromptTooLong.code),
        (_with(replace(MODULE, namespace=b"short")), InvalidRequest.code),
        (_with(replace(MODULE, block_keys=b"")), InvalidRequest.code),
        (replace(SOUND, modules=(MODULE,) * (MOST_MODULES + 1)), InvalidRequest.code),
        (_with(replace(MODULE, head_tokens=0)), InvalidRequest.code),
        (replace(SOUND, modules=(MODULE, replace(MODULE, head_tokens=2))), InvalidRequest.code),
        (replace(SOUND, modules=(MODULE, replace(MODULE, head_tokens=-1))), InvalidRequest.code),
        (replace(SOUND, modules=(MODULE, EMPTY)), InvalidRequest.code),
        (_with(replace(MODULE, scaffolds=((3, 2),))), InvalidRequest.code),
        (_with(replace(MODULE, scaffolds=((3, 6),))), InvalidRequest.code),
        (_with(replace(MODULE, scaffolds=((2, 3), (1, 2)))), InvalidRequest.code),
        (_with(replace(MODULE, scaffolds=((0, 5),))), InvalidRequest.code),
        (replace(SOUND, modules=(SCAFFOLD, BEHIND_IT)), InvalidRequest.code),
        (replace(SOUND, positions=b"\0" * 4), InvalidRequest.code),
        (replace(SOUND, positions=b"\xff" * 12), PromptTooLong.code),
        (replace(SOUND, use_cache=False), InvalidRequest.code),
        (replace(SOUND, token_ids=b"\1\0\0\0", block_keys=b"", positions=b""), InvalidRequest.code),
    ],
)
def test_what_would_break_the_engine_is_refused(request_: Generate, code: str) -> None:
    rig = Rig(has_modules=True)
    rig.submit(request_)
    rig.run()
    assert rig.failed("r").code == code
    rig.submit(SOUND)
    rig.run()
    assert rig.link.tokens("r") == expected([Part([1, 2, 3, 4, 5], 0)], [4, 4], 4, 4)


def test_a_model_that_cannot_have_modules_refuses_them() -> None:
    rig = Rig()
    rig.submit(SOUND)
    rig.run()
    assert rig.failed("r").code == InvalidRequest.code
