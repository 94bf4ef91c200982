"""Drafts with a recurrent state: no rejected token stays in the state or in the tree.

`StatefulRunner` raises if a row reads the state of another sequence or position, and its tokens
depend on the state.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from msgspec import structs

from engine.drafting.acceptance import MOST_DRAFTS
from engine.execution.head_drafts import next_ids_of
from engine.link.event_messages import Finished
from engine.link.messages import Cancel, Generate
from engine.step import VERIFY, Row
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import NamespacePath
from tests.doubles.constraints import HeldMasks, steps_of
from tests.doubles.engine.drafting.scripted_drafting import ScriptedDrafting
from tests.doubles.engine.fake_runner import VOCAB_SIZE, expected_output
from tests.engine.in_flight.test_masked_step import answer, bound
from tests.engine.rigs.rig import NAMESPACE, OTHER, Rig, generate
from tests.engine.test_drafts import PROMPT, drafting, right

both = pytest.mark.parametrize("overlap_scheduling", [False, True])
rings = pytest.mark.parametrize("in_place", [False, True])


def rig_of(
    drafts: ScriptedDrafting | None, masks: HeldMasks | None = None, **wanted: object
) -> Rig:
    masks = masks or HeldMasks()
    settings: dict[str, object] = {"num_states": 63} | wanted
    return Rig(constraint_of=steps_of, masks=masks, drafting=drafts, **settings)  # type: ignore[arg-type]


def verified(rig: Rig) -> list[Row]:
    return [row for step in rig.runner.steps for row in step.rows if row.kind is VERIFY]


def next_turn(rig: Rig, prompt: list[int], said: list[int]) -> int:
    """Run the conversation's next turn; return its number of cached tokens."""
    turn = generate("turn", [*prompt, *said, 7, 7], max_tokens=3)
    rig.submit(turn)
    rig.run()
    rig.expect_output(turn)
    return rig.finished("turn").reused.tokens


@both
@rings
@pytest.mark.parametrize("wrong", [0.0, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("length", [37, 40, 41])
def test_the_answer_and_its_checkpoint_are_those_without_drafts(
    *, wrong: float, length: int, in_place: bool, overlap_scheduling: bool
) -> None:
    request, cached = generate("a", PROMPT, max_tokens=length), []
    steps = []
    for drafts in (None, drafting(wrong)):
        rig = rig_of(drafts, overlap_scheduling=overlap_scheduling, in_place=in_place)
        rig.submit(request)
        rig.run()
        rig.expect_output(request)
        steps.append(len(rig.runner.steps))
        cached.append(next_turn(rig, PROMPT, rig.link.tokens("a")))
        rig.expect_nothing_left()
    assert cached[0] == cached[1] >= len(PROMPT) + length - 5
    assert steps[1] <= steps[0]
    assert (steps[1] < 26) is (wrong < 1.0)
    assert len(verified(rig)) > 5


@rings
@pytest.mark.parametrize("stopped", range(1, 24, 3))
def test_an_answer_that_ends_within_a_draft_keeps_no_state_after_its_end(
    stopped: int, *, in_place: bool
) -> None:
    said = expected_output(PROMPT, 40)
    drafts = ScriptedDrafting(right, VOCAB_SIZE, most=MOST_DRAFTS, fewest=MOST_DRAFTS)
    rig = rig_of(drafts, in_place=in_place)
    request = generate("a", PROMPT, max_tokens=stopped)
    rig.submit(request)
    rig.run()
    rig.expect_output(request)
    assert next_turn(rig, PROMPT, said[:stopped]) <= len(PROMPT) + stopped
    rig.expect_nothing_left()


def test_tokens_after_the_state_are_computed_again_also_without_a_draft() -> None:
    """Compute the tokens after the state again, also in later steps without drafts.

    The first step's draft is half right.
    """
    wrong = ScriptedDrafting(right, VOCAB_SIZE, most=6, fewest=6)
    rig = rig_of(wrong)
    request = generate("a", PROMPT, max_tokens=20)
    rig.submit(request)
    rig.step(3)
    half = expected_output(PROMPT, 20)
    wrong.follows = lambda sequence, most: [*half[sequence.num_output :][:2], 0, 0, 0][:most]
    while not (rig.scheduler.running and rig.scheduler.running[0].num_again):
        rig.step()
    wrong.often = 0.0
    rig.run()
    rig.expect_output(request)
    assert any(row.num_again and row.num_samples == 1 for row in verified(rig))


def test_rejected_drafts_of_a_ring_cost_no_token_again() -> None:
    rig = rig_of(drafting(0.3), in_place=True)
    request = generate("a", PROMPT, max_tokens=60)
    rig.submit(request)
    rig.run()
    rig.expect_output(request)
    assert len(verified(rig)) > 5
    assert not any(row.num_again for row in verified(rig))
    decodes = [row for step in rig.runner.steps for row in step.rows if row.samples]
    assert sum(row.state_in == row.state_out for row in decodes) == len(decodes) - 1


def test_what_is_computed_again_is_not_written_into_the_tree_before() -> None:
    """Write a recomputed token to a private block: other sequences read the tree's blocks."""
    rig = rig_of(drafting(0.3))
    request = generate("a", PROMPT, max_tokens=60)
    rig.submit(request)
    again = 0
    rig.step()
    while not rig.core.is_idle:
        rig.step()
        for one in rig.scheduler.running:
            if one.lease is not None:
                assert one.lease.num_shared * rig.block_size <= one.num_computed
                again += one.num_again
    assert again > 0
    rig.expect_output(request)


@rings
@pytest.mark.parametrize("seed", range(16))
def test_any_drafts_among_many_requests_change_no_answer(seed: int, *, in_place: bool) -> None:
    """Draft at random with few blocks and states.

    Requests are cancelled, launches fail, and prompts come in chunks.
    """
    random = Random(seed)
    drafts = drafting(random.choice([0.0, 0.2, 0.7]), seed, often=random.choice([0.5, 1.0]))
    rig = rig_of(
        drafts,
        num_blocks=random.choice([16, 64]),
        num_states=random.choice([7, 20, 63]),
        max_running=random.choice([6, 16]),
        max_batch_tokens=random.choice([16, 64]),
        overlap_scheduling=random.random() < 0.5,
        in_place=in_place,
    )
    requests: list[Generate] = []
    cancelled: set[str] = set()
    for number in range(14):
        prompt = [*PROMPT[: random.randint(1, 8)], *range(random.randrange(1, 14))]
        request = generate(
            f"r{number}", prompt, max_tokens=random.randint(1, 20), flow=f"f{number % 3}"
        )
        requests.append(request)
        rig.submit(request)
        rig.step(random.randint(0, 4))
        if random.random() < 0.2:
            cancelled.add(request.request_id)
            rig.link.say(Cancel(request.request_id))
        if random.random() < 0.2:
            rig.runner.raising = [MemoryError()]
    rig.run()
    for request in requests:
        # a request fails after two launches that found no memory
        last = rig.link.last(request.request_id)
        if isinstance(last, Finished) and last.reason != "cancelled":
            rig.expect_output(request)
    rig.expect_nothing_left()


@both
@rings
@pytest.mark.parametrize("held", [0, 1, 3, 5])
def test_a_row_of_drafts_left_out_is_computed_again_from_its_state(
    held: int, *, in_place: bool, overlap_scheduling: bool
) -> None:
    masks = HeldMasks(held={held})
    drafts = ScriptedDrafting(lambda one, most: answer(PROMPT, 12)[one.num_output :][:most], 64)
    settings = {"overlap_scheduling": overlap_scheduling, "in_place": in_place}
    rig = rig_of(drafts, masks, max_batch_tokens=32, **settings)
    rig.submit(bound("slow", PROMPT, 12))
    rig.step(12)
    masks.release()
    rig.run()
    assert rig.link.tokens("slow") == answer(PROMPT, 12)
    rig.expect_nothing_left()


def test_the_token_after_a_namespace_is_not_told_to_the_head_that_drafts() -> None:
    """Do not pass the token after a namespace's end to the draft head.

    The head's KV at the last shared position also serves others. Positive control: at a chunk's end
    within the namespace, the next token is passed.
    """
    rig = rig_of(None, max_batch_tokens=16)
    path = NamespacePath(((0, OTHER), (6, NAMESPACE)))
    prompt = list(range(1, 45))
    keys = block_keys(path, np.array(prompt, np.int32), 4)
    request = generate("1", prompt, max_tokens=1)
    rig.submit(structs.replace(request, namespaces=path.spans, block_keys=keys))
    rig.run()
    rows = {row.end: row for step in rig.runner.steps for row in step.rows}
    told = {end: next_ids_of([row], 4)[-1] for end, row in rows.items() if not row.samples}
    assert told == {16: 17, 24: 0, 40: 41}
    whole = structs.replace(
        rows[40], start=16, token_ids=np.arange(17, 41, dtype=np.int32).tobytes()
    )
    assert next_ids_of([rows[16], whole], 4).tolist() == [
        *range(2, 18),
        *range(18, 25),
        0,
        *range(26, 42),
    ]
