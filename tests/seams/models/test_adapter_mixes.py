"""Eight adapters and the base model in one step: each request gets the same answer as alone.

Filters, penalties, biases, masks, drafts and two choices of one prompt run together, and are
preempted. `tests/engine/adapters` compares single adapters with PEFT.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec.structs import replace
from safetensors.torch import save_file

from engine.config import EngineConfig
from engine.link.messages import AdapterUse, SamplingParams
from engine.link.query_messages import AdapterRead, ReadAdapter
from engine.models.adapters.adapted import AdapterSlots
from engine.sequences.sequence import Sequence
from prefix_cache.namespace import Namespace
from tests.doubles.constraints import Allows
from tests.doubles.engine.drafting.scripted_drafting import ScriptedDrafting
from tests.doubles.models.lora_files import CONFIG
from tests.engine.rigs.checkpoints import RECIPES, VOCAB_SIZE, Checkpoint, make_checkpoint
from tests.engine.rigs.hand_driven import EVERY_WISH, random_prompt
from tests.seams.support.real_engine import CLIENT, Bounds, RealEngine

NAMES = [f"a{number}" for number in range(8)]
RANK, LENGTH = 4, 36
MASKED = range(50, 90)
ROOMY = Bounds(64, 16, 64, 1)
PRESSED = Bounds(20, 16, 48, 12, overlap_scheduling=True, drafts=True)
WISHES = [replace(one, max_tokens=LENGTH, ignore_eos=True) for one in EVERY_WISH]


@dataclass(frozen=True)
class Wish:
    """A request, with or without an adapter."""

    name: str
    adapter: str | None
    prompt: list[int]
    sampling: SamplingParams

    @property
    def namespace(self) -> Namespace:
        """Return the request's namespace. Each adapter and each mask has its own."""
        return Namespace((self.adapter or "base").encode().ljust(16))


def mix() -> list[Wish]:
    """Return requests: one per adapter, one without, and a second choice of the last prompt."""
    found = [
        Wish(str(at), name, random_prompt(9 + at, at), WISHES[at % len(WISHES)])
        for at, name in enumerate((None, *NAMES))
    ]
    last = found[-1]
    return [*found, Wish("again", last.adapter, last.prompt, replace(WISHES[1], seed=77))]


def write_adapter(engine: RealEngine, folder: Path, seed: int) -> None:
    """Write an adapter of the model's attention, drawn at random."""
    assert engine.adapters is not None
    slots = engine.adapters.device
    assert isinstance(slots, AdapterSlots)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (rows, size_in) in slots.fits.shapes.items():
        if "self_attn" in name:
            prefix = f"base_model.model.{name}.lora"
            tensors[f"{prefix}_A.weight"] = 0.3 * torch.randn(RANK, size_in, generator=generator)
            tensors[f"{prefix}_B.weight"] = 0.3 * torch.randn(rows, RANK, generator=generator)
    assert tensors
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_bytes(msgspec.json.encode(CONFIG))


@contextmanager
def engine_of(
    checkpoint: Checkpoint, place: Path, bounds: Bounds, drafting: ScriptedDrafting | None = None
) -> Iterator[RealEngine]:
    own: dict[str, Any] = {"adapters_dir": str(place), "adapter_slots": 8, "adapter_rank": RANK}
    masked = Namespace(NAMES[2].encode().ljust(16)).hex()

    def over(config: EngineConfig) -> EngineConfig:
        return replace(config, model=replace(config.model, **own))

    def constraint_of(wish: SamplingParams, flow: str) -> Allows | None:
        del wish
        return Allows(MASKED, VOCAB_SIZE) if flow == masked else None

    model_dir = str(checkpoint.model_dir)
    with closing(
        RealEngine(model_dir, bounds, over=over, constraint_of=constraint_of, drafting=drafting)
    ) as engine:
        yield engine


def uses_of(engine: RealEngine) -> dict[str | None, AdapterUse | None]:
    """Let the engine read all adapters."""
    for name in NAMES:
        engine.link.say(ReadAdapter(query_id=name, path=name), CLIENT)
    reads = list[AdapterRead]()
    while len(reads) < len(NAMES):
        engine.step()
        reads = [one for one in engine.link.sent[CLIENT] if isinstance(one, AdapterRead)]
    return {None: None} | {one.query_id: AdapterUse(one.digest, one.query_id) for one in reads}


def submit(
    engine: RealEngine, wish: Wish, use: AdapterUse | None, *, use_cache: bool = True
) -> None:
    given = wish.prompt, wish.sampling
    engine.submit(wish.name, *given, namespace=wish.namespace, use_cache=use_cache, adapter=use)


def test_a_mix_of_adapters_is_each_alone(tmp_path: Path) -> None:
    """The model is a hybrid, with recurrent layers."""
    checkpoint = make_checkpoint(RECIPES["qwen3.5"], tmp_path / "base")
    place = tmp_path / "adapters"
    place.mkdir()
    told = dict[str, list[int]]()
    with engine_of(checkpoint, place, ROOMY) as engine:
        for seed, name in enumerate(NAMES):
            write_adapter(engine, place / name, seed)
        uses = uses_of(engine)
        for wish in mix():
            submit(engine, wish, uses[wish.adapter], use_cache=False)
            engine.run()
            told[wish.name] = engine.tokens(wish.name)
    assert len({tuple(tokens) for tokens in told.values()}) == len(told)
    assert set(told["3"]) <= {*MASKED}, "the control: there was a mask"

    def follows(sequence: Sequence, most: int) -> list[int]:
        return told[sequence.request_id][sequence.num_output :][:most]

    drafts = ScriptedDrafting(follows, VOCAB_SIZE, wrong=0.3, often=0.5)
    with engine_of(checkpoint, place, PRESSED, drafts) as engine:
        uses = uses_of(engine)
        for wish in mix():
            submit(engine, wish, uses[wish.adapter])
        engine.run()
        assert {wish.name: engine.tokens(wish.name) for wish in mix()} == told
        stats = engine.core.stats()
        assert max(len(set(step)) for step in engine.steps) == len(told), "all in one step"
        assert stats.preemptions > 0
        assert stats.drafts["own"].accepted_tokens > 0
        engine.expect_nothing_left()
