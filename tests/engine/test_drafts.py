"""An engine that verifies drafts gives the same answers as one without drafts, in fewer steps.

The fake runner's tokens depend on all KV that a row should have read. So they would change if a
block, or the tree, kept KV of a rejected draft.
"""

from __future__ import annotations

from random import Random

import pytest
from msgspec import structs

from engine.drafting.acceptance import MOST_DRAFTS
from engine.link.messages import Cancel, Generate, SamplingParams
from engine.scheduling.step_drafts import MOST_DRAFTED_ROWS
from engine.sequences.sequence import Sequence
from engine.step import VERIFY, has_drafts
from tests.doubles.engine.drafting.scripted_drafting import ScriptedDrafting
from tests.doubles.engine.fake_runner import VOCAB_SIZE, expected_output
from tests.engine.rigs.rig import Rig, generate

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def right(sequence: Sequence, most: int) -> list[int]:
    return expected_output(sequence.token_ids.tolist(), most)


def drafting(wrong: float, seed: int = 1, often: float = 1.0) -> ScriptedDrafting:
    return ScriptedDrafting(right, VOCAB_SIZE, wrong, often=often, random=Random(seed))


def verified(rig: Rig) -> int:
    return sum(row.kind is VERIFY for step in rig.runner.steps for row in step.rows)


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("wrong", [0.0, 0.4, 1.0])
def test_the_answer_is_that_without_drafts_in_fewer_steps(*, wrong: float, overlaps: bool) -> None:
    drafts = drafting(wrong)
    rig = Rig(drafting=drafts, overlap_scheduling=overlaps)
    plain = Rig(overlap_scheduling=overlaps)
    request = generate("a", PROMPT, max_tokens=40)
    for one in (rig, plain):
        one.submit(request)
        one.run()
        one.expect_output(request)
    assert verified(rig) > 5
    assert len(rig.runner.steps) <= len(plain.runner.steps)
    assert (len(rig.runner.steps) < 20) is (wrong < 0.5)
    drafted, accepted = rig.finished("a").drafts["own"]
    counted = rig.core.stats().drafts["own"]
    assert (counted.drafted_tokens, counted.accepted_tokens) == (drafted, accepted)
    assert accepted == (0 if wrong == 1.0 else accepted)
    assert accepted > 0 or wrong == 1.0
    assert set(drafts.prepared) == ({"a"} if overlaps else set()), "while the device computes"
    assert drafts.gone == ["a"]
    rig.expect_nothing_left()


@pytest.mark.parametrize("max_running", [16, 256])
@pytest.mark.parametrize("wrong", [0.0, 0.03, 1.0])
def test_the_longest_drafts_change_no_answer(*, wrong: float, max_running: int) -> None:
    """Draft as many tokens as one row may have. The batch slots bound the tokens of a step."""
    drafts = ScriptedDrafting(right, VOCAB_SIZE, wrong, most=MOST_DRAFTS, fewest=MOST_DRAFTS)
    rig = Rig(
        drafting=drafts, num_blocks=512, max_running=max_running, max_batch_tokens=max_running
    )
    requests = [
        generate(f"r{number}", PROMPT[:number], max_tokens=60 * number) for number in range(1, 5)
    ]
    for request in requests:
        rig.submit(request)
    rig.run()
    for request in requests:
        rig.expect_output(request)
    rows = [row for step in rig.runner.steps for row in step.rows if row.kind is VERIFY]
    assert max(row.num_new for row in rows) == min(MOST_DRAFTS + 1, max_running)
    decodes = [step.rows for step in rig.runner.steps if has_drafts(step.rows)]
    assert max(sum(row.num_new for row in step) for step in decodes) <= max_running
    rig.expect_nothing_left()


def test_a_rejected_draft_leaves_nothing_in_the_tree() -> None:
    """Commit no rejected draft. Positive control: the answer's tokens are found in the tree."""
    rig = Rig(drafting=drafting(1.0))
    request = generate("a", PROMPT, max_tokens=24)
    rig.submit(request)
    rig.run()
    said = expected_output(PROMPT, 24)
    again = generate("b", [*PROMPT, *said], max_tokens=4)
    rig.submit(again)
    rig.run()
    rig.expect_output(again)
    assert rig.finished("b").reused.tokens >= len(PROMPT) + 20
    wrong = [*PROMPT, *said[:3], (said[3] + 1) % VOCAB_SIZE, *said[4:12]]
    other = generate("c", wrong, max_tokens=4)
    rig.submit(other)
    rig.run()
    rig.expect_output(other)
    assert rig.finished("c").reused.tokens <= len(PROMPT) + 3


@pytest.mark.parametrize("seed", range(12))
def test_any_drafts_among_many_requests_change_no_answer(seed: int) -> None:
    """Draft at random in a small pool that forces preemptions.

    Some requests are cancelled, some stop early.
    """
    random = Random(seed)
    drafts = drafting(random.choice([0.0, 0.2, 0.7]), seed, often=random.choice([0.5, 1.0]))
    rig = Rig(
        num_blocks=random.choice([16, 64]),
        max_running=random.choice([6, 16]),
        overlap_scheduling=random.random() < 0.5,
        drafting=drafts,
    )
    requests: list[Generate] = []
    cancelled: set[str] = set()
    for number in range(14):
        prompt = [*PROMPT[: random.randint(1, 8)], random.randrange(1, 5)]
        request = generate(
            f"r{number}", prompt, max_tokens=random.randint(1, 20), flow=f"f{number % 3}"
        )
        requests.append(request)
        rig.submit(request)
        rig.step(random.randint(0, 4))
        if random.random() < 0.2:
            cancelled.add(request.request_id)
            rig.link.say(Cancel(request.request_id))
    rig.run()
    for request in requests:
        if rig.finished(request.request_id).reason != "cancelled":
            rig.expect_output(request)
    assert verified(rig) > 0 or rig.num_blocks == 16, "few blocks: requests wait all the time"
    rig.expect_nothing_left()


def test_a_stop_within_a_draft_ends_the_answer_there() -> None:
    said = expected_output(PROMPT, 24)
    stop = said[10]
    first = said.index(stop)
    rig = Rig(drafting=drafting(0.0))
    wish = SamplingParams(max_tokens=24, ignore_eos=True, stop_token_ids=frozenset({stop}))
    rig.submit(generate("a", PROMPT, sampling=wish))
    rig.run()
    assert rig.link.tokens("a") == said[:first]
    assert rig.finished("a").completion_tokens == first + 1
    rig.expect_nothing_left()


def test_a_request_without_drafts_has_none() -> None:
    rig = Rig(drafting=drafting(0.0))
    request = generate("a", PROMPT, max_tokens=12)
    rig.submit(structs.replace(request, drafts=False))
    rig.run()
    rig.expect_output(request)
    assert verified(rig) == 0
    assert rig.finished("a").drafts == {}


def test_nothing_is_drafted_while_prompts_wait() -> None:
    """Draft nothing while prompts wait: a step with prompts is already large, and steps overlap."""
    rig = Rig(drafting=drafting(0.0), max_batch_tokens=8, max_running=4)
    rig.submit(generate("a", PROMPT, max_tokens=30))
    rig.step(4)
    rig.submit(generate("b", PROMPT * 6, max_tokens=2))
    rig.step(2)
    before = verified(rig)
    rig.step(2)
    mixed = [step for step in rig.runner.steps if len({row.kind for row in step.rows}) > 1]
    assert mixed, "the prompt takes several steps"
    assert not any(row.kind is VERIFY for step in mixed for row in step.rows)
    rig.run()
    assert verified(rig) > before


@pytest.mark.parametrize("rows", [MOST_DRAFTED_ROWS, MOST_DRAFTED_ROWS + 1])
def test_many_rows_have_no_drafts(rows: int) -> None:
    rig = Rig(
        drafting=drafting(0.0),
        max_running=256,
        max_batch_tokens=1024,
        num_blocks=1024,
        check_every=50,
    )
    for number in range(rows):
        rig.submit(generate(f"r{number}", PROMPT, max_tokens=8))
    rig.step(3)
    assert (verified(rig) > 0) is (rows <= MOST_DRAFTED_ROWS)
