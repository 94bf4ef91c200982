"""Draft heads on a CUDA device change no answer: in graphs, in overlapped steps, and with
preemption.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from engine.link.messages import SamplingParams
from tests.engine.conftest import MakeCheckpoint
from tests.engine.models.test_heads_of_families import checkpoints
from tests.engine.rigs.files.draft_heads import HeadAlone, Truth
from tests.engine.rigs.hand_driven import random_prompt
from tests.seams.support.mix import NAMESPACES
from tests.seams.support.real_engine import Bounds, RealEngine

pytestmark = pytest.mark.gpu

PLAIN = Bounds(96, 16, 128, 12, device="cuda")
BOUNDS = [
    PLAIN,
    replace(PLAIN, graph_tokens=128),
    replace(PLAIN, overlap_scheduling=True, graph_tokens=128),
    replace(PLAIN, num_blocks=14, max_batch_tokens=40, overlap_scheduling=True, graph_tokens=16),
]


def tokens(model_dir: Path, bounds: Bounds, drafting: HeadAlone | None) -> tuple[list[int], ...]:
    """Run ten requests one after the other, some with a shared prefix; return their tokens."""
    common = random_prompt(40, seed=9)
    with closing(RealEngine(str(model_dir), bounds, drafting=drafting)) as engine:
        for number in range(10):
            prompt = common[: 9 * (number % 5)] + random_prompt(1 + 7 * number, seed=number)
            seed, temperature = number, 0.9 * (number % 3 == 2)
            wish = SamplingParams(
                max_tokens=16, temperature=temperature, seed=seed, ignore_eos=True
            )
            engine.submit(str(number), prompt, wish, namespace=NAMESPACES[0])
            engine.step()
        engine.run()
        if drafting is not None:
            assert engine.core.stats().drafts["mtp"].accepted_tokens > 0
        return tuple(engine.tokens(str(number)) for number in range(10))


@pytest.mark.parametrize(
    "name", ["qwen3.5", "qwen3-next", "glm4-moe", "deepseek-v3", "glm4-moe-lite", "nemotron-3"]
)
def test_drafts_of_heads_change_no_answer(
    name: str, checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    with_head, without = checkpoints(Truth(checkpoint(name)), tmp_path)
    expected = tokens(without, PLAIN, None)
    for bounds in BOUNDS:
        assert tokens(with_head, bounds, HeadAlone()) == expected, bounds
