"""Models whose older blocks are freed give the same tokens, and their pool has more room."""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field, replace

import pytest

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.link.event_messages import Finished
from engine.link.messages import SamplingParams
from engine.scheduling.fairness.queue import QueueLimits
from engine.scheduling.step_builder import StepLimits
from engine.startup.assembly import EngineLimits, assemble
from engine.startup.loading import OpenedModel, open_model
from engine.step import Forward, Launched, Runner, Step
from storage.pools.window_pool import WindowPool
from tests.doubles.engine.memory_link import MemoryLink
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.hand_driven import random_prompt
from tests.engine.rigs.rig import generate

TURNS = 3
CHATS = 4
GREEDY = SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True)
models = pytest.mark.parametrize("name", ["gpt-oss", "gemma2", "gemma3", "olmo3", "exaone4"])


@dataclass
class NotingRunner:
    """A runner that records which sequence wrote each slot."""

    runner: Runner
    writers: defaultdict[int, set[int]] = field(default_factory=lambda: defaultdict(set))

    def launch(self, step: Step) -> Launched:
        self._note(step)
        return self.runner.launch(step)

    def launch_forward(self, step: Step) -> Forward:
        self._note(step)
        return self.runner.launch_forward(step)

    def _note(self, step: Step) -> None:
        for row in step.rows:
            self.writers[row.state_out].add(row.lease_id)


def engine_of(opened: OpenedModel, link: MemoryLink) -> EngineCore:
    return assemble(
        opened,
        link,
        EngineLimits(StepLimits(60, 4), QueueLimits(), 10.0, overlap_scheduling=True),
    )


def run(core: EngineCore) -> None:
    core.step()
    while not core.is_idle:
        core.step()
        core.check_invariants()


def said(opened: OpenedModel, *, use_cache: bool) -> tuple[list[list[int]], int]:
    """Run concurrent chats with a shared prefix, in chunks; return their answers and numbers of
    cached tokens.
    """
    link, size = MemoryLink(), opened.welcome.block_size
    core = engine_of(opened, link)
    common, cached = random_prompt(117, seed=9), 0
    chats = [common + random_prompt(5 + 7 * chat, seed=chat) for chat in range(CHATS)]
    for turn in range(TURNS):
        for chat, prompt in enumerate(chats):
            link.say(
                generate(
                    f"{chat} {turn}", prompt, sampling=GREEDY, use_cache=use_cache, block_size=size
                )
            )
        run(core)
        for chat in range(CHATS):
            asked = f"{chat} {turn}"
            last = link.last(asked)
            assert isinstance(last, Finished)
            cached += last.reused.tokens
            chats[chat] += [*link.tokens(asked), *random_prompt(6, seed=turn)]
    return chats, cached


@models
def test_turns_of_chats_say_the_same_freed_and_whole(checkpoint: MakeCheckpoint, name: str) -> None:
    answers = {}
    for windows in ("whole", "freed"):
        config = EngineConfig.of(
            model_dir=str(checkpoint(name).model_dir),
            socket="",
            device="cpu",
            cache_tokens=1024,
            max_running=4,
            max_batch_tokens=60,
            windows=windows,
        )
        opened = open_model(config)
        with closing(opened.grammars):
            assert isinstance(opened.states, WindowPool) is (windows == "freed")
            answers[windows, True], cached = said(opened, use_cache=True)
            answers[windows, False], uncached = said(opened, use_cache=False)
            assert cached > 0 == uncached
    assert answers["freed", True] == answers["freed", False] == answers["whole", False]
    assert answers["whole", True] == answers["whole", False]


def test_a_window_that_is_given_back_is_another_sequences_and_no_answer_changes(
    checkpoint: MakeCheckpoint,
) -> None:
    """Reuse the freed slots of a window.

    One long answer runs beside a series of short ones, with slots for two sequences.
    """
    config = EngineConfig.of(
        model_dir=str(checkpoint("gemma3").model_dir),
        socket="",
        device="cpu",
        cache_tokens=1024,
        max_running=2,
        max_batch_tokens=60,
        windows="freed",
        state_cache_ratio=0.0,
    )
    opened = open_model(config)
    asked = {"long": (random_prompt(150, seed=1), 120)}
    asked |= {f"short {one}": (random_prompt(60, seed=2 + one), 5) for one in range(6)}
    with closing(opened.grammars):
        alone = {name: _answers(opened, {name: one})[name] for name, one in asked.items()}
        noting = NotingRunner(opened.runner)
        together = _answers(replace(opened, runner=noting), asked)
    assert together == alone
    assert len(noting.writers) == opened.num_states - 1 == 4
    assert max(map(len, noting.writers.values())) > 2


def _answers(opened: OpenedModel, asked: dict[str, tuple[list[int], int]]) -> dict[str, list[int]]:
    link, size = MemoryLink(), opened.welcome.block_size
    core = assemble(
        opened, link, EngineLimits(StepLimits(60, 2), QueueLimits(), 10.0, overlap_scheduling=True)
    )
    for name, (prompt, count) in asked.items():
        wish = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)
        link.say(generate(name, prompt, sampling=wish, use_cache=False, block_size=size))
    run(core)
    return {name: link.tokens(name) for name in asked}
