"""Prompt modules in a whole engine with a real model, compared with `transformers`."""

from __future__ import annotations

from dataclasses import replace as replace_part
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.link.event_messages import Finished
from engine.link.messages import Generate, SamplingParams, pack_token_ids
from engine.main import build_core
from engine.sequences.intake import path_of
from engine.startup.loading import OpenedModel, open_model
from tests.doubles.engine.memory_link import MemoryLink
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.hand_driven import random_prompt
from tests.engine.rigs.modular import Part, in_truth, modular
from tests.engine.rigs.rig import generate

SIZE = 16
VOCABULARY = list(range(256))
LONG = Part(random_prompt(37, seed=1), 0)
SHORT = Part(random_prompt(5, seed=2), 60)
WITH_GAP = Part(random_prompt(21, seed=3), 80, gap_at=9, gap=30)
WHOLE = Part(random_prompt(32, seed=4), 140)
OWN = random_prompt(6, seed=5)
PARTS = [LONG, SHORT, WITH_GAP, WHOLE]


class Engine:
    """An engine with a real model, whose link is two lists of messages."""

    def __init__(self, model_dir: Any, **fields: Any) -> None:
        config = EngineConfig.of(
            model_dir=str(model_dir), socket="", device="cpu", dtype="float32", **fields
        )
        self.opened: OpenedModel = open_model(config)
        self.link = MemoryLink()
        self.core: EngineCore = build_core(config, self.opened, self.link)

    def run(self, *requests: Generate) -> None:
        for request in requests:
            self.link.say(request)
        self.core.step()
        while not self.core.is_idle:
            self.core.step()
            self.core.check_invariants()

    def end(self, request: Generate) -> Finished:
        self.run(request)
        last = self.link.last(request.request_id)
        assert isinstance(last, Finished), last
        return last

    def kv(self, part: Part, head: Part | None = None) -> torch.Tensor:
        """Return the KV of a module's blocks in the pool."""
        module = part.module(SIZE, head)
        ids = np.frombuffer(module.token_ids, np.int32)
        path = path_of(((0, module.namespace),))
        at = self.core.components.cache.tree.walk(path, ids)
        assert at.num_blocks * SIZE == len(ids)
        blocks = [one for node in reversed([*at.node.way_up()]) for one in node.edge.block_ids]
        return self.opened.pool.tensor[blocks].clone()


def reading(
    request_id: str, parts: list[Part], own: list[int], first: int, *, has_head: bool = False
) -> Generate:
    """Make a request that reports the logits after its prompt."""
    wish = SamplingParams(max_tokens=0)
    made = modular(request_id, parts, own, first, block_size=SIZE, has_head=has_head, sampling=wish)
    return replace(made, candidates=pack_token_ids(VOCABULARY))


def logits(end: Finished) -> torch.Tensor:
    return torch.tensor(np.frombuffer(end.candidates, np.float32).copy())


@pytest.mark.parametrize(
    "name", ["llama", "llama3-rope", "qwen3", "qwen3-moe", "granite", "ministral3", "olmo2"]
)
def test_logits_after_modules_are_those_of_transformers(
    checkpoint: MakeCheckpoint, name: str
) -> None:
    saved = checkpoint(name)
    engine = Engine(saved.model_dir)
    for number, parts in enumerate([PARTS, PARTS[:1], [SHORT], PARTS[1:]]):
        end = engine.end(reading(f"r{number}", parts, OWN, 200))
        truth = in_truth(saved, parts, OWN, 200)[-1][: len(VOCABULARY)]
        assert (logits(end) - truth).abs().max() < 1e-4


@pytest.mark.parametrize("head", [Part(random_prompt(n, seed=n), 0) for n in (3, 32, 37)])
def test_modules_attend_to_one_head(checkpoint: MakeCheckpoint, head: Part) -> None:
    """Attend to a head that is shorter than a block, a number of whole blocks, or longer."""
    saved, parts = checkpoint("llama"), [Part(random_prompt(20, seed=6), 40), SHORT, WHOLE]
    engine = Engine(saved.model_dir)
    first = engine.end(reading("first", [head, *parts], OWN, 200, has_head=True))
    truth = in_truth(saved, [head, *parts], OWN, 200, has_head=True)[-1][: len(VOCABULARY)]
    assert (logits(first) - truth).abs().max() < 1e-4
    alone = in_truth(saved, [head, *parts], OWN, 200)[-1][: len(VOCABULARY)]
    assert (truth - alone).abs().max() > 1e-3, "the control"
    whole = len(head) + sum(map(len, parts)) + len(OWN)
    assert (first.reused.tokens, first.prompt_tokens) == (0, whole)
    with_padding = [head.module(SIZE), *(part.module(SIZE, head) for part in parts)]
    padding = sum(one.padded_tokens - one.num_tokens for one in with_padding)
    assert first.computed_tokens == whole + padding
    kept = [engine.kv(WHOLE, head), engine.kv(head)]
    other = engine.end(reading("other", [head, WHOLE, SHORT], OWN, 180, has_head=True))
    assert other.computed_tokens == len(OWN)
    assert other.reused.tokens == len(head) + len(WHOLE) + len(SHORT)
    assert torch.equal(engine.kv(WHOLE, head), kept[0])
    assert torch.equal(engine.kv(head), kept[1])


def test_only_a_modules_own_text_attends_to_its_scaffold(checkpoint: MakeCheckpoint) -> None:
    """Leave out a scaffold within a block, over whole blocks, and at a module's end."""
    saved, head = checkpoint("llama"), Part(random_prompt(21, seed=7), 0)
    engine, ids = Engine(saved.model_dir), random_prompt(70, seed=6)
    for scaffold in ((3, 9), (5, 45), (11, 12), (16, 32), (60, 70), (0, 69)):
        part = Part(ids, 40, scaffold=scaffold)
        first = engine.end(
            reading(f"first{scaffold}", [head, part, SHORT], OWN, 200, has_head=True)
        )
        truth = in_truth(saved, [head, part, SHORT], OWN, 200, has_head=True)
        assert (logits(first) - truth[-1][: len(VOCABULARY)]).abs().max() < 1e-4
        attended = in_truth(saved, [head, replace_part(part, scaffold=(0, 0)), SHORT], OWN, 200)
        assert (truth - attended).abs().max() > 1e-3, "the control: prompts attend to it"
        left_out = len(range(*scaffold))
        assert first.prompt_tokens == len(head) + 70 - left_out + len(SHORT) + len(OWN)


def test_a_module_with_a_scaffold_is_the_same_bits_wherever_it_is_used(
    checkpoint: MakeCheckpoint,
) -> None:
    engine, scaffold = Engine(checkpoint("llama").model_dir), (14, 23)
    part = replace_part(LONG, scaffold=scaffold)
    first = engine.end(reading("first", [part, WHOLE], OWN, 200))
    assert (first.reused.tokens, first.computed_tokens) == (0, 48 + 32 + 6)
    assert torch.equal(engine.kv(part), engine.kv(LONG)), "the scaffold is computed with the rest"
    kept = engine.kv(part)
    other = engine.end(reading("other", [WHOLE, SHORT, part], OWN, 190))
    assert (other.reused.tokens, other.computed_tokens) == (37 - 9 + 32, 16 + 6)
    assert torch.equal(engine.kv(part), kept)


def test_tokens_after_modules_are_those_of_transformers(checkpoint: MakeCheckpoint) -> None:
    """Compare the answer's tokens, also beside plain prompts, in small steps, and with drafts."""
    saved = checkpoint("llama")
    engine = Engine(saved.model_dir, max_batch_tokens=48)
    plain = random_prompt(70, seed=9)
    wish = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    engine.run(
        modular("a", PARTS, OWN, 200, block_size=SIZE, sampling=wish),
        generate("plain", plain, block_size=SIZE, sampling=wish),
        modular("b", [WHOLE, SHORT], OWN, 172, block_size=SIZE, sampling=wish),
    )
    assert engine.link.tokens("plain") == saved.greedy(plain, 24)
    for name, parts, first in (("a", PARTS, 200), ("b", [WHOLE, SHORT], 172)):
        ids = list(OWN)
        for _ in range(24):
            ids.append(int(in_truth(saved, parts, ids, first)[-1].argmax()))
        assert engine.link.tokens(name) == ids[len(OWN) :]


def test_a_module_is_computed_once_and_is_the_same_bits_wherever_it_is_used(
    checkpoint: MakeCheckpoint,
) -> None:
    engine = Engine(checkpoint("llama").model_dir)
    first = engine.end(reading("first", [LONG, WHOLE], OWN, 200))
    assert (first.reused.tokens, first.computed_tokens) == (0, 48 + 32 + 6)
    kept = [engine.kv(part) for part in (LONG, WHOLE)]
    other = engine.end(reading("other", [WHOLE, SHORT, LONG], random_prompt(9, seed=8), 190))
    assert (other.reused.tokens, other.computed_tokens) == (37 + 32, 16 + 9)
    assert [torch.equal(engine.kv(part), kv) for part, kv in zip((LONG, WHOLE), kept, strict=True)]
    alone = engine.end(reading("alone", [LONG], OWN, 200))
    assert (alone.reused.tokens, alone.computed_tokens, alone.prompt_tokens) == (37, 6, 43)
    again = engine.end(reading("again", [LONG, WHOLE], OWN, 200))
    assert torch.equal(logits(again), logits(first))


def test_a_follow_up_finds_its_own_tokens(checkpoint: MakeCheckpoint) -> None:
    engine = Engine(checkpoint("llama").model_dir)
    own = random_prompt(40, seed=6)
    engine.end(reading("first", PARTS, own, 200))
    end = engine.end(reading("next", PARTS, [*own, *OWN], 200))
    whole = sum(map(len, PARTS)) + len(own)
    assert whole - SIZE <= end.reused.tokens <= whole
    truth = in_truth(checkpoint("llama"), PARTS, [*own, *OWN], 200)[-1][: len(VOCABULARY)]
    assert (logits(end) - truth).abs().max() < 1e-4
