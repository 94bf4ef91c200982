"""Prompt modules with a common head, on ranks and stages, give the results of `transformers`."""

from __future__ import annotations

from contextlib import closing

import pytest

from engine.link.messages import SamplingParams
from tests.engine.rigs.checkpoints import Checkpoint
from tests.engine.rigs.hand_driven import random_prompt
from tests.engine.rigs.modular import Part, in_truth, modular
from tests.seams.support.real_engine import CLIENT, Bounds, RealEngine

HEAD = Part(random_prompt(21, 9), 0)
PARTS = [Part(random_prompt(size, at), 21 + 40 * at) for at, size in enumerate((13, 34, 16))]
USED = [[HEAD, *PARTS], [HEAD, PARTS[2], PARTS[0]], PARTS[:2], [HEAD, *PARTS[1:]]]
GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
FIRST = 150  # position of the request's own tokens


@pytest.mark.parametrize(("ranks", "stages"), [(1, 1), (2, 1), (1, 2)])
def test_modules_that_share_a_head(checkpoint: Checkpoint, ranks: int, stages: int) -> None:
    """The pool is so small that requests are preempted and modules evicted."""
    bounds = Bounds(20, 16, 24, 3, ranks=ranks, stages=stages, host_blocks=8)
    with closing(RealEngine(str(checkpoint.model_dir), bounds)) as engine:
        asked = [*enumerate(USED * 2)]
        for number, used in asked:
            made = modular(
                str(number),
                used,
                random_prompt(3 + number),
                FIRST,
                block_size=16,
                has_head=used[0] is HEAD,
                flow="xy"[number % 2],
                sampling=GREEDY,
            )
            engine.link.say(made, CLIENT)
            engine.step()
        engine.run()
        for number, used in asked:
            tokens, own = engine.tokens(str(number)), random_prompt(3 + number)
            has_head = used[0] is HEAD
            logits = in_truth(checkpoint, used, own + tokens, FIRST, has_head=has_head)
            assert tokens == logits[len(own) - 1 : -1].argmax(-1).tolist()
        assert engine.core.stats().windows["all"].hit_tokens > 0
        engine.expect_nothing_left()
    # positive control: results differ without the head
    [*_, alone] = in_truth(checkpoint, PARTS, own, FIRST)
    [*_, behind] = in_truth(checkpoint, [HEAD, *PARTS], own, FIRST, has_head=True)
    assert (alone - behind).abs().max() > 0.1
