"""Heads that draft of other families, beside those of `transformers`.

GLM-4.5, DeepSeek V3 and GLM-4.7-Flash have the head as one more layer, Qwen3-Next as Qwen3.5 does.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from engine.link.messages import SamplingParams
from prefix_cache.namespace import Namespace
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.draft_heads import HeadAlone, Truth, save_with_head
from tests.engine.rigs.hand_driven import random_prompt
from tests.seams.support.real_engine import Bounds, RealEngine

GREEDY = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
PROMPT = random_prompt(45)


@pytest.mark.parametrize("name", ["glm4-moe", "deepseek-v3", "glm4-moe-lite", "qwen3-next"])
def test_its_drafts_are_those_of_its_definition_and_change_no_answer(
    name: str, checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    truth, bounds, drafting = Truth(checkpoint(name)), Bounds(64, 16, 24, 8), HeadAlone()
    (tmp_path / "plain").mkdir()
    (tmp_path / "head").mkdir()
    plain = RealEngine(str(save_with_head(truth, tmp_path / "plain", {})), bounds)
    with_head = save_with_head(truth, tmp_path / "head", truth.tensors())
    engine = RealEngine(str(with_head), bounds, drafting=drafting)
    for one in (plain, engine):
        with closing(one):
            one.submit("a", PROMPT, GREEDY, namespace=Namespace(b"n" * 16))
            one.run()
    answer = engine.tokens("a")
    assert answer == plain.tokens("a")
    for known, token_ids in list(drafting.drafted.items())[::3]:
        expected = truth.drafts([*PROMPT, *answer][:known], len(token_ids))
        assert list(token_ids) == expected, known
    assert engine.finished("a").drafts["mtp"][1] > 0
    assert plain.pool.layout.num_layers == engine.pool.layout.num_layers - 1
