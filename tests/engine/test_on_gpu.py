"""The engine on a CUDA device, compared with `transformers` on the same device."""

from __future__ import annotations

import copy
from pathlib import Path

import msgspec
import pytest
import torch

from engine.config import EngineConfig
from engine.execution.runner import ModelRunner
from engine.link.messages import SamplingParams
from engine.main import main
from engine.process import EXIT_NOT_SERVED
from engine.scheduling.row_data import step_of
from engine.scheduling.scheduled_rows import row_of
from engine.startup.loading import open_model
from storage.move import Move, Tier
from storage.pools.host_pool import HostPool
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.checkpoints import RECIPES, Checkpoint
from tests.engine.rigs.hand_driven import (
    EVERY_WISH,
    HandDriven,
    build_runner,
    data_row,
    output,
    random_prompt,
    sampling,
)

pytestmark = pytest.mark.gpu

FLOAT32_TOLERANCE = 1e-3  # a GPU sums in another order than a CPU
BFLOAT16_AGREEMENT = 0.9  # share of positions; elsewhere rounding decides between close tokens
MIXTURES = (
    *("mixtral", "qwen3-moe", "gpt-oss", "granite-moe", "olmoe", "qwen2-moe"),
    *("glm4-moe", "dots1", "minimax-m2", "glm4-moe-lite", "deepseek-v2", "deepseek-v3", "mistral4"),
    *("qwen3-next", "qwen3.5-moe", "granite-hybrid-moe", "nemotron-3", "nemotron-3-latents"),
    "gemma4-moe",
)
# Share of positions by which the engine may agree less often with float32 than `transformers` does.
# On a CPU it is 0.03 for Mixtral, and less for other models.
MIXTURE_MARGIN = 0.06
CLEAR_MARGIN = 0.5  # difference of the two largest logits; rounding to bfloat16 changes it less


def on_gpu(saved: Checkpoint, dtype: torch.dtype = torch.float32) -> Checkpoint:
    """Return the same checkpoint, with the reference on the GPU."""
    return Checkpoint(saved.model_dir, copy.deepcopy(saved.truth).to("cuda", dtype))


def driven_on_gpu(
    saved: Checkpoint, dtype: torch.dtype = torch.float32, *, frees_windows: bool = False
) -> HandDriven:
    device = torch.device("cuda")
    return HandDriven(
        build_runner(saved.model_dir, device=device, dtype=dtype, frees_windows=frees_windows)
    )


def all_logits(driven: HandDriven, prompt: list[int], chunks: list[int]) -> torch.Tensor:
    """Return the logits of every token of a prompt, computed in chunks; a chunk of 1 is a
    decode.
    """
    sequence, start, parts = driven.add(prompt), 0, []
    for chunk in chunks:
        every = torch.arange(chunk, device="cuda")
        parts.append(driven.logits([data_row(sequence, start, chunk)], every))
        start += chunk
    return torch.cat(parts)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("chunks", [[131], [17, 64, 1, 1, 48], [1] * 20])
def test_float32_logits_are_those_of_transformers(
    checkpoint: MakeCheckpoint, name: str, chunks: list[int]
) -> None:
    truth = on_gpu(checkpoint(name))
    prompt = random_prompt(sum(chunks))
    got = all_logits(driven_on_gpu(truth), prompt, chunks)
    assert (got - truth.logits(prompt)).abs().max() < FLOAT32_TOLERANCE


@pytest.mark.parametrize("name", ["gpt-oss", "gemma2", "gemma3", "gemma4-shared"])
@pytest.mark.parametrize("chunks", [[131], [17, 64, 1, 1, 48], [1] * 60])
def test_freed_windows_give_the_logits_of_transformers(
    checkpoint: MakeCheckpoint, name: str, chunks: list[int]
) -> None:
    truth = on_gpu(checkpoint(name))
    driven = driven_on_gpu(truth, frees_windows=True)
    assert driven.runner.rings is not None
    prompt = random_prompt(sum(chunks))
    got = all_logits(driven, prompt, chunks)
    assert (got - truth.logits(prompt)).abs().max() < FLOAT32_TOLERANCE


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in MIXTURES])
def test_bfloat16_agrees_on_the_likeliest_token(checkpoint: MakeCheckpoint, name: str) -> None:
    truth = on_gpu(checkpoint(name))
    prompt = random_prompt(300)
    got = all_logits(driven_on_gpu(truth, torch.bfloat16), prompt, [100, 1, 1, 198])
    expected = truth.logits(prompt)
    agrees = got.argmax(-1) == expected.argmax(-1)
    assert agrees.float().mean() >= BFLOAT16_AGREEMENT
    best = expected.topk(2).values
    clear = best[:, 0] - best[:, 1] > CLEAR_MARGIN
    assert clear.float().mean() > 0.1
    assert bool(agrees[clear].all())


@pytest.mark.parametrize("name", MIXTURES)
def test_a_mixture_in_bfloat16_is_as_near_to_float32_as_that_of_transformers(
    checkpoint: MakeCheckpoint, name: str
) -> None:
    """Compare errors against float32.

    Rounding chooses other experts for some tokens, also in `transformers`.
    """
    prompt = random_prompt(300)
    plain = on_gpu(checkpoint(name)).logits(prompt).argmax(-1)
    rounded = on_gpu(checkpoint(name), torch.bfloat16)
    got = all_logits(driven_on_gpu(rounded, torch.bfloat16), prompt, [100, 1, 1, 198])
    found = (got.argmax(-1) == plain).float().mean()
    expected = (rounded.logits(prompt).argmax(-1) == plain).float().mean()
    assert found > expected - MIXTURE_MARGIN


@pytest.mark.parametrize("name", ["llama3-rope", "qwen2", "qwen3", "mistral"])
def test_greedy_tokens_in_a_mixed_batch_are_those_of_transformers(
    checkpoint: MakeCheckpoint, name: str
) -> None:
    truth = on_gpu(checkpoint(name))
    driven = driven_on_gpu(truth)
    prompts = [random_prompt(length, seed=length) for length in (5, 33, 70)]
    sequences = [driven.add(prompt, sampling(16)) for prompt in prompts]
    while unfinished := [s for s in sequences if s.num_output < 16]:
        driven.step(*((s, min(s.num_tokens - s.num_computed, 24)) for s in unfinished))
    for prompt, sequence in zip(prompts, sequences, strict=True):
        assert output(sequence) == truth.greedy(prompt, 16)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_launching_a_step_waits_for_nothing(checkpoint: MakeCheckpoint, no_waiting: None) -> None:
    driven = driven_on_gpu(checkpoint("qwen3"))
    sequences = [driven.add(random_prompt(20, seed=i), wish) for i, wish in enumerate(EVERY_WISH)]
    driven.step(*((sequence, 20) for sequence in sequences))  # compiles the kernels
    driven.step(*((sequence, 1) for sequence in sequences))
    move = Move(Tier.DEVICE, 200, Tier.DEVICE, 201)
    step = step_of([row_of(sequence, 1) for sequence in sequences], [move]).step
    torch.cuda.set_sync_debug_mode("error")
    launched = driven.runner.launch(step)
    torch.cuda.set_sync_debug_mode(0)
    assert all(sampled.token_id is not None for sampled in launched.collect())


@pytest.mark.parametrize("wish", EVERY_WISH)
def test_the_gpu_chooses_what_the_cpu_chooses(
    checkpoint: MakeCheckpoint, wish: SamplingParams
) -> None:
    outputs = []
    for driven in (
        driven_on_gpu(checkpoint("llama")),
        HandDriven(build_runner(checkpoint("llama").model_dir)),
    ):
        sequence = driven.add(random_prompt(20), wish)
        driven.generate(sequence)
        outputs.append(output(sequence))
    assert outputs[0] == outputs[1]


def test_a_row_with_nan_fails_alone(checkpoint: MakeCheckpoint) -> None:
    driven = driven_on_gpu(checkpoint("llama"))
    with torch.inference_mode():
        driven.runner.decoder.parameters.embedding[299] = float("nan")
    good = driven.add(random_prompt(20, vocab_size=299))
    bad = driven.add([7, 299])
    samples = driven.step((bad, 2), (good, 20))
    assert samples[0].token_id is None
    assert [samples[1].token_id] == checkpoint("llama").greedy(random_prompt(20, 0, 299), 1)


def test_a_pool_sized_from_memory_keeps_to_its_fraction(checkpoint: MakeCheckpoint) -> None:
    torch.cuda.empty_cache()  # memory cached by torch counts as free
    free, _ = torch.cuda.mem_get_info()
    config = EngineConfig.of(
        model_dir=str(checkpoint("llama").model_dir),
        socket="",
        device="cuda",
        dtype="bfloat16",
        memory_fraction=0.2,
        graph_tokens=0,
    )
    opened = open_model(config)
    assert isinstance(opened.runner, ModelRunner)
    taken = opened.runner.pool.tensor.numel() * 2
    assert 0.1 * free < taken < 0.2 * free
    driven = HandDriven(opened.runner)
    sequence = driven.add(random_prompt(40), sampling(4))
    driven.generate(sequence)
    assert len(output(sequence)) == 4


def block_memories() -> int:
    """Count the pools that this process has mapped."""
    return Path("/proc/self/maps").read_text().count("ratoon-blocks")


def test_host_memory_is_given_back_where_the_model_cannot_be_opened(
    checkpoint: MakeCheckpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved = checkpoint("llama").model_dir / "config.json"
    (tmp_path / "config.json").write_bytes(saved.read_bytes())
    config = EngineConfig.of(
        model_dir=str(tmp_path), socket=str(tmp_path / "socket"), device="cuda", host_cache_gib=0.25
    )
    before = block_memories()
    assert main([msgspec.json.encode(config).decode()]) == EXIT_NOT_SERVED
    assert "has neither" in caplog.text
    assert block_memories() == before
    pool = HostPool(2, 4096, torch.device("cuda"))
    assert block_memories() == before + 1, "the control"
    pool.close()
