"""A real model with recurrent layers: answers from cached states equal answers without a cache."""

from __future__ import annotations

from contextlib import closing

import pytest

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.link.event_messages import Finished
from engine.link.messages import SamplingParams
from engine.scheduling.fairness.queue import QueueLimits
from engine.scheduling.step_builder import StepLimits
from engine.startup.assembly import EngineLimits, assemble
from engine.startup.loading import OpenedModel, open_model
from tests.doubles.engine.memory_link import MemoryLink
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.hand_driven import random_prompt
from tests.engine.rigs.rig import generate

TURNS = 3
CHATS = 4
GREEDY = SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True)


def engine_of(opened: OpenedModel, link: MemoryLink) -> EngineCore:
    return assemble(
        opened,
        link,
        EngineLimits(StepLimits(40, 4), QueueLimits(), 10.0, overlap_scheduling=True),
    )


def run(core: EngineCore) -> None:
    core.step()
    while not core.is_idle:
        core.step()
        core.check_invariants()


@pytest.mark.parametrize("name", ["qwen3.5", "granite-hybrid", "nemotron-h"])
def test_turns_of_chats_say_the_same_with_the_cache_and_without(
    checkpoint: MakeCheckpoint, name: str
) -> None:
    """Run chats with a shared prefix together, in chunks and with few state slots."""
    config = EngineConfig.of(
        model_dir=str(checkpoint(name).model_dir),
        socket="",
        device="cpu",
        cache_tokens=1024,
        max_running=4,
        max_batch_tokens=40,
    )
    opened = open_model(config)
    with closing(opened.grammars):
        size, said = opened.welcome.block_size, {}
        for use_cache in (True, False):
            link = MemoryLink()
            core = engine_of(opened, link)
            common, cached = random_prompt(37, seed=9), 0
            chats = [common + random_prompt(5 + 7 * chat, seed=chat) for chat in range(CHATS)]
            for turn in range(TURNS):
                for chat, prompt in enumerate(chats):
                    asked = f"{chat} {turn}"
                    link.say(
                        generate(
                            asked, prompt, sampling=GREEDY, use_cache=use_cache, block_size=size
                        )
                    )
                run(core)
                for chat in range(CHATS):
                    asked = f"{chat} {turn}"
                    last = link.last(asked)
                    assert isinstance(last, Finished)
                    cached += last.reused.tokens
                    chats[chat] += [*link.tokens(asked), *random_prompt(6, seed=turn)]
            said[use_cache] = chats
            assert (cached > 0) is use_cache
            if use_cache:
                assert core.stats().states.hits >= CHATS * (TURNS - 1)
        assert said[True] == said[False]
