"""Adapters on several ranks and stages give the same tokens as PEFT, even with few slots."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from engine.adapters.adapters import AdapterParts
from engine.config import EngineConfig
from engine.link.event_messages import Failed, Tokens
from engine.link.messages import AdapterUse, SamplingParams
from engine.link.query_messages import AdapterRead, DropAdapter, ReadAdapter
from prefix_cache.namespace import Namespace
from tests.engine.rigs.checkpoints import RECIPES, Checkpoint, make_checkpoint
from tests.engine.rigs.files.adapters import PeftAdapter, make_adapter
from tests.engine.rigs.hand_driven import random_prompt
from tests.seams.support.real_engine import CLIENT, Bounds, RealEngine

NAMES = ("one", "two", "three")
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]
JOINED = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]
TOLERANCE = 1e-4
GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, num_logprobs=0)
BOUNDS = Bounds(num_blocks=64, block_size=16, max_batch_tokens=40, max_running=6)

Truths = dict[str | None, Checkpoint | PeftAdapter]


class Served:
    """An engine of several ranks with two slots for three adapters."""

    def __init__(self, engine: RealEngine) -> None:
        self.engine = engine
        self.uses = {name: AdapterUse(self.ask(name).digest, name) for name in NAMES}

    def query(self, query: ReadAdapter | DropAdapter) -> Any:
        count = len(self.engine.link.sent[CLIENT])
        self.engine.link.say(query, CLIENT)
        while len(self.engine.link.sent[CLIENT]) == count:
            self.engine.step()
        return self.engine.link.sent[CLIENT][-1]

    def ask(self, path: str) -> AdapterRead:
        reply = self.query(ReadAdapter(query_id=path, path=path))
        assert isinstance(reply, AdapterRead)
        assert reply.error() is None
        return reply

    def say(self, request_id: str, name: str | None, prompt: list[int]) -> None:
        """Send a request with its adapter's own namespace, as a gateway does."""
        namespace = Namespace((name or "base").encode().ljust(16))
        use = None if name is None else self.uses[name]
        self.engine.submit(request_id, prompt, GREEDY, namespace=namespace, adapter=use)

    def logprobs(self, request_id: str) -> list[float]:
        told = [one for one in self.engine.link.events(request_id) if isinstance(one, Tokens)]
        return [one.chosen for event in told for one in event.logprobs or ()]


@contextmanager
def served(truths: Truths, bounds: Bounds, **fields: Any) -> Iterator[Served]:
    adapter, base = truths["one"], truths[None]
    assert isinstance(adapter, PeftAdapter)
    assert isinstance(base, Checkpoint)

    def over(config: EngineConfig) -> EngineConfig:
        place = str(adapter.folder.parent)
        own: dict[str, Any] = {"adapters_dir": place, "adapter_slots": 2, "adapter_rank": 8}
        model = msgspec.structs.replace(config.model, **own, **fields)
        return msgspec.structs.replace(config, model=model)

    with closing(RealEngine(str(base.model_dir), bounds, over=over)) as engine:
        yield Served(engine)


def truths_of(recipe: str, folder: Path, **fields: Any) -> Truths:
    base = make_checkpoint(RECIPES[recipe], folder / "base")
    place = folder / "adapters"
    return {None: base} | {
        name: make_adapter(base, place / name, seed, **fields) for seed, name in enumerate(NAMES)
    }


@pytest.fixture(scope="module")
def truths(tmp_path_factory: pytest.TempPathFactory) -> Truths:
    return truths_of("llama-biases", tmp_path_factory.mktemp("llama"))


def expect_as_peft(served: Served, truths: Truths, suffix: str = "") -> None:
    """Run requests with each adapter and with none, twice each, and compare them with PEFT."""
    prompts = {name: random_prompt(10 + 17 * at) for at, name in enumerate((None, *NAMES))}
    for name, prompt in prompts.items():
        for again in range(2):
            served.say(f"{name}{again}{suffix}", name, prompt)
    served.engine.run()
    answers = set()
    for name, prompt in prompts.items():
        for again in range(2):
            request_id = f"{name}{again}{suffix}"
            tokens = served.engine.tokens(request_id)
            logits = truths[name].logits(prompt + tokens)[len(prompt) - 1 : -1]
            assert tokens == logits.argmax(-1).tolist()
            logprobs = logits.log_softmax(-1).max(-1).values
            got = torch.tensor(served.logprobs(request_id))
            assert (got - logprobs).abs().max() < TOLERANCE
        answers.add(tuple(tokens))
        if name is not None:  # positive control: the base model answers differently
            plain = truths[None].logits(prompt + tokens)[len(prompt) - 1 : -1]
            assert (plain - logits).abs().max() > 0.1
    assert len(answers) == 4


@pytest.mark.parametrize(("ranks", "stages"), [(1, 1), (2, 1), (1, 3), (2, 2)])
def test_mixed_adapters_are_each_as_peft_computes_it(
    truths: Truths, ranks: int, stages: int
) -> None:
    with served(truths, replace(BOUNDS, ranks=ranks, stages=stages)) as one:
        expect_as_peft(one, truths)
        one.engine.expect_nothing_left()


@pytest.mark.parametrize(
    ("recipe", "ranks", "stages", "targets", "experts"),
    [
        ("qwen3-moe", 4, 1, ATTENTION, EXPERTS),
        ("gpt-oss", 2, 2, [], EXPERTS),
        ("phi3", 2, 1, JOINED, []),
    ],
)
def test_of_other_models(
    recipe: str, ranks: int, stages: int, targets: list[str], experts: list[str], tmp_path: Path
) -> None:
    """Each KV head is on two of four ranks. Joined matrices are divided separately."""
    truths = truths_of(recipe, tmp_path, target_modules=targets, target_parameters=experts)
    bounds = replace(BOUNDS, ranks=ranks, stages=stages)
    with served(truths, bounds, adapter_experts=bool(experts)) as one:
        expect_as_peft(one, truths)


def test_each_rank_holds_its_part(truths: Truths) -> None:
    """A rank has a part of LoRA's B for matrices divided by rows, and of A for other matrices."""
    with served(truths, replace(BOUNDS, ranks=2)) as one:
        parts = one.engine.adapters
        assert isinstance(parts, AdapterParts)
        use = one.uses["one"]
        adapter = parts.host.get(use.digest, use.path)
        assert adapter is not None
        a, b = adapter.matrices["model.layers.0.self_attn.q_proj"]
        assert (a.shape, b.shape) == ((8, 48), (32, 8))
        a, b = adapter.matrices["model.layers.0.mlp.down_proj"]
        assert (a.shape, b.shape) == ((8, 40), (48, 8))
        held = sum(one.nbytes for pair in adapter.matrices.values() for one in pair)
        assert adapter.num_bytes == 2 * held
    with served(truths, replace(BOUNDS, stages=3)) as one:
        assert one.engine.adapters is not None
        adapter = one.engine.adapters.host.get(use.digest, use.path)
        assert adapter is not None
        assert {name.split(".")[2] for name in adapter.matrices} == {"2"}


@pytest.mark.parametrize(("ranks", "stages"), [(2, 1), (1, 2)])
def test_host_memory_of_all_ranks_forgets_and_reads_again(
    truths: Truths, ranks: int, stages: int
) -> None:
    """Host memory has room for only one adapter, the last one read. Others are read again."""
    with served(truths, replace(BOUNDS, ranks=ranks, stages=stages), adapter_host_gib=0.0) as one:
        for turn in range(3):
            expect_as_peft(one, truths, f"-{turn}")
        assert one.engine.adapters is not None
        [digest] = one.engine.adapters.host._adapters
        dropped = one.query(DropAdapter(query_id="d", digest=digest, flow="t"))
        assert dropped.error() is None
        expect_as_peft(one, truths, "-again")


def test_an_adapter_that_cannot_be_read_again_ends_its_request_alone(
    truths: Truths, tmp_path: Path
) -> None:
    adapter = truths["one"]
    assert isinstance(adapter, PeftAdapter)
    place = Path(shutil.copytree(adapter.folder.parent, tmp_path / "adapters"))
    moved = {**truths, "one": replace(adapter, folder=place / "one")}
    with served(moved, replace(BOUNDS, ranks=2), adapter_host_gib=0.0) as one:
        (place / "one" / "adapter_config.json").unlink()
        one.say("gone", "one", random_prompt(9))
        one.say("there", "two", random_prompt(9))
        one.engine.run()
        failed = one.engine.link.last("gone")
        assert isinstance(failed, Failed)
        assert failed.code == "adapter_not_served"
        assert len(one.engine.tokens("there")) == GREEDY.max_tokens
        assert isinstance(adapter, PeftAdapter)
        shutil.copy(adapter.folder / "adapter_config.json", place / "one")
        expect_as_peft(one, truths)
