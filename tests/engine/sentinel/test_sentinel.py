"""The sentinel computes cached answers again, reports a damaged block, and gives way to requests.

The whole engine runs with the real cache and a runner without tensors.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from engine.link.event_messages import Finished, Tokens
from engine.link.messages import Cancel, SamplingParams
from engine.link.query_messages import Flush
from engine.link.stats.engine_stats import SentinelStats
from engine.sentinel.sentinel import KEPT_S, LATE_S, TRIES, WATCHED_S
from engine.step import SCORE
from prefix_cache.eviction.shares import Quota
from prefix_cache.namespace import NamespacePath
from prefix_cache.tiers.tier_pools import Tiers
from tests.engine.rigs.rig import NAMESPACE, OTHER, Rig, generate

PROMPT = list(range(1, 24))
ANSWER = 6


def rig(**settings: Any) -> Rig:
    return Rig(**({"sentinel_share": 1.0} | settings))


def ask(rig: Rig, name: str, prompt: list[int] | None = None, **fields: Any) -> None:
    rig.submit(generate(name, prompt or PROMPT, **({"max_tokens": ANSWER} | fields)))


def answered(rig: Rig, name: str, **fields: Any) -> None:
    """Send a request, and step only until its answer is complete."""
    ask(rig, name, **fields)
    while not any(isinstance(event, Finished) for event in rig.link.events(name)):
        rig.step()


def stats(rig: Rig) -> SentinelStats:
    return rig.core.stats().sentinel


def is_checking(rig: Rig) -> bool:
    return rig.core.components.sentinel.running is not None


def twice(**settings: Any) -> Rig:
    """Make a rig that has answered one prompt twice, the second time from the cache."""
    made = rig(**settings)
    for name in ("cold", "as cold") if settings.get("num_states") else ("cold",):
        answered(made, name)
        made.run()
    assert stats(made) == SentinelStats()  # no part of the first answer came from the cache
    answered(made, "hot")
    return made


@pytest.mark.parametrize("overlap_scheduling", [False, True])
@pytest.mark.parametrize("num_states", [0, 16])
def test_an_answer_from_the_cache_is_computed_again_without_it(
    overlap_scheduling: bool, num_states: int
) -> None:
    made = twice(overlap_scheduling=overlap_scheduling, num_states=num_states)
    assert made.finished("hot").reused.tokens
    before = made.runner.tokens_computed
    made.run()
    assert made.runner.tokens_computed - before == len(PROMPT) + ANSWER
    assert stats(made) == SentinelStats(checked=1, tokens=ANSWER)
    scored = [row for step in made.runner.steps for row in step.rows if row.kind is SCORE]
    assert scored[0].start == 0
    made.expect_nothing_left()


def test_without_a_share_nothing_is_computed_again() -> None:
    made = twice(sentinel_share=0.0)
    before = made.runner.tokens_computed
    made.run()
    assert made.runner.tokens_computed == before
    assert stats(made) == SentinelStats()


def test_of_a_share_of_a_quarter_each_fourth_answer_is_checked() -> None:
    made = rig(sentinel_share=0.25)
    for number in range(9):  # the first prompt finds nothing cached
        answered(made, str(number))
        made.run()
    assert stats(made).checked == 2


def damage(rig: Rig) -> None:
    """Change one number of the first cached block on the device."""
    path, tokens = NamespacePath.single(NAMESPACE), np.array(PROMPT, np.int32)
    lease = rig.cache.read(path, tokens, owner="flow", now=rig.clock())
    assert lease is not None
    block = rig.runner.blocks[int(lease.block_ids[0])]
    assert block[1] is not None
    block[1] += 1
    rig.cache.release(lease, now=rig.clock())


def test_a_damaged_block_is_found_and_told_without_the_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = rig()
    answered(made, "cold")
    damage(made)
    answered(made, "hot")
    with caplog.at_level("ERROR"):
        made.run()
    assert stats(made).differed == stats(made).checked == 1
    [line] = [record.getMessage() for record in caplog.records]
    told = json.loads(line[line.index("{") :])
    assert told["answer"]["prompt_tokens"] == len(PROMPT)
    assert told["answer"]["found"] == [22, 0, 0]
    assert told["mean"] > told["bound"]
    positions = {position for position, *_ in told["tokens"]}
    assert positions == set(range(len(PROMPT), len(PROMPT) + ANSWER))
    assert {"ratoon", "torch"} <= told["versions"].keys()
    numbers = ", ".join(map(str, PROMPT[:6]))
    assert numbers not in line
    assert "token_ids" not in line


def test_an_undamaged_block_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    made = twice()
    with caplog.at_level("ERROR"):
        made.run()
    assert not caplog.records
    assert stats(made).checked == 1


def test_a_client_is_told_no_more_than_it_asked_for() -> None:
    made = rig()
    answered(made, "cold")
    for name, wanted in (("hot", None), ("told", 0)):
        sampling = SamplingParams(max_tokens=ANSWER, ignore_eos=True, num_logprobs=wanted)
        answered(made, name, sampling=sampling)
        made.run()
        tokens = [event for event in made.link.events(name) if isinstance(event, Tokens)]
        assert [event.logprobs is not None for event in tokens] == [wanted == 0] * ANSWER
    assert stats(made).checked == 2


def test_it_is_charged_to_nobody() -> None:
    made = twice()
    before = made.core.stats()
    made.run()
    after = made.core.stats()
    assert stats(made).checked == 1
    assert after.flows == before.flows
    assert after.generated_tokens == before.generated_tokens
    assert after.windows["all"].queried_tokens == before.windows["all"].queried_tokens


def test_it_gives_way_to_a_request_and_comes_back() -> None:
    made = twice(max_batch_tokens=8)
    made.step(2)
    assert is_checking(made)
    ask(made, "other", [9, 8, 7], namespace=OTHER, use_cache=False)
    made.step()
    assert not is_checking(made)
    assert [one.request_id for one in made.scheduler.running] == ["other"]
    for _ in range(2):  # first to the end of the request, then to the end of its check
        made.run()
    assert stats(made).checked == 1


def test_it_is_given_up_after_some_tries() -> None:
    made = twice(max_batch_tokens=8)
    for number in range(TRIES):
        while not is_checking(made):
            made.step()
        answered(made, f"other-{number}", prompt=[9, 8, 7], use_cache=False)
    made.run()
    assert stats(made) == SentinelStats(dropped=1)


def test_it_waits_while_others_run_and_then_starts_beside_few() -> None:
    made = twice(max_running=16, max_batch_tokens=32, num_blocks=256)
    ask(made, "long", [5] * 4, max_tokens=300, use_cache=False)
    made.step(20)
    assert stats(made).checked == 0
    assert not is_checking(made)
    made.wait(LATE_S)
    made.step(20)
    assert stats(made).checked == 1
    assert made.scheduler.running


@pytest.mark.parametrize(("waited", "checked"), [(0.0, 0), (2 * WATCHED_S, 2)])
def test_a_long_stream_does_not_keep_later_answers_from_being_checked(
    waited: float, checked: int
) -> None:
    made = rig(max_running=16, num_blocks=256)
    answered(made, "cold")
    ask(made, "long", max_tokens=400)
    made.step(20)
    made.wait(waited)
    # When `second` starts, the sentinel will check only the tokens that `long` has so far.
    for later in ("second", "third"):
        answered(made, later)
        made.wait(LATE_S + 1)
        made.step(20)
    assert made.scheduler.running
    assert stats(made).checked == checked


def test_it_does_not_start_beside_many() -> None:
    made = twice(max_running=16, max_batch_tokens=32, num_blocks=512)
    for number in range(3):
        ask(made, f"long-{number}", [5 + number] * 4, max_tokens=300, use_cache=False)
    made.step(3)
    made.wait(LATE_S)
    made.step(20)
    assert stats(made).checked == 0
    made.wait(KEPT_S)
    made.step()
    assert stats(made) == SentinelStats(dropped=1)


def test_nothing_is_evicted_for_it() -> None:
    made = twice(num_blocks=16)
    fill = [(7 * one) % 60 for one in range(20)]
    ask(made, "fill", fill, max_tokens=1, namespace=OTHER)
    made.step()
    while made.scheduler.running or made.scheduler.queue:
        made.step()
    held = made.cache.capacity.pool().used
    made.step(5)
    assert made.cache.capacity.pool().used == held
    assert stats(made).checked == 0
    made.cache.flush()
    made.run()
    made.step(20)
    assert stats(made).checked == 1  # positive control: only free room was missing


def test_it_takes_of_no_partition() -> None:
    made = rig(num_blocks=128)
    made.cache.quotas.partition({"flow": Quota(), "other": Quota()}, {"flow": 88, "other": 88})
    answered(made, "cold")
    answered(made, "hot")
    held = made.cache.capacity.owners()["flow"].blocks_held
    made.run()
    assert stats(made).checked == 1
    assert made.cache.capacity.owners()["flow"].blocks_held == held


@pytest.mark.parametrize("flow", ["flow", None])
def test_a_flush_forgets_the_answer(flow: str | None) -> None:
    made = twice(max_batch_tokens=8)
    made.step(2)
    assert is_checking(made)
    made.link.say(Flush(query_id="q", flow=flow, flush_id="f"))
    made.run()
    assert stats(made) == SentinelStats(dropped=1)
    made.expect_nothing_left()


def test_a_flush_of_another_flow_does_not() -> None:
    made = twice(max_batch_tokens=8)
    made.link.say(Flush(query_id="q", flow="other", flush_id="f"))
    made.run()
    assert stats(made).checked == 1


def test_a_draining_engine_gives_it_up() -> None:
    made = twice(max_batch_tokens=8)
    made.step(2)
    assert is_checking(made)
    made.core.drain()
    made.step(2)
    assert made.core.is_idle
    assert stats(made).checked == 0


def test_the_answer_of_a_client_that_left_is_checked_as_far_as_it_came() -> None:
    made = rig()
    answered(made, "cold")
    ask(made, "hot", max_tokens=50)
    while len(made.link.tokens("hot")) < 3:
        made.step()
    made.link.say(Cancel("hot"))
    made.run()
    assert stats(made).checked == 1
    assert 3 <= stats(made).tokens < 50


def test_a_request_that_fails_is_not_checked_and_the_next_one_is() -> None:
    made = rig()
    answered(made, "cold")
    made.runner.not_finite.add("hot")
    ask(made, "hot")
    made.run()
    made.failed("hot")
    assert stats(made) == SentinelStats(dropped=1)
    answered(made, "cold again")  # the prompt's blocks had been forgotten
    answered(made, "hot again")
    made.run()
    assert stats(made).checked == 1


def test_an_answer_from_a_lower_tier_is_checked() -> None:
    made = rig(num_blocks=16, tiers=Tiers(host_blocks=64), max_batch_tokens=64, sentinel_share=1.0)
    for name in ("first", "second"):
        answered(made, name, max_tokens=1)
        made.run()
    made.push_out()
    before = stats(made).checked
    answered(made, "hot")
    assert made.finished("hot").reused.tiers.host
    made.cache.flush()
    made.run()
    made.step(20)
    assert stats(made).checked == before + 1
    assert stats(made).differed == 0
