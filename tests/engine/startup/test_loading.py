"""An opened model computes and reports its sizes. A model that does not open raises its error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.config import DtypeName, EngineConfig
from engine.execution.runner import ModelRunner
from engine.models.errors import CheckpointError, PoolTooSmall, UnsupportedModel, WrongSetting
from engine.startup.device import resolve_device
from engine.startup.loading import SCRATCH_BLOCKS, OpenedModel, open_model
from engine.startup.memory.activation import largest_batch
from engine.startup.metadata import read_metadata
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.hand_driven import HandDriven, output, random_prompt, sampling


def opened(checkpoint: MakeCheckpoint, name: str = "llama", **settings: Any) -> OpenedModel:
    fields = {"socket": "", "device": "cpu", "cache_tokens": 1024, **settings}
    return open_model(EngineConfig.of(model_dir=str(checkpoint(name).model_dir), **fields))


def runner_of(model: OpenedModel) -> ModelRunner:
    assert isinstance(model.runner, ModelRunner)
    return model.runner


def test_an_opened_model_computes(checkpoint: MakeCheckpoint) -> None:
    driven = HandDriven(runner_of(opened(checkpoint)))
    prompt = random_prompt(19)
    sequence = driven.add(prompt, sampling(5))
    driven.generate(sequence)
    assert output(sequence) == checkpoint("llama").greedy(prompt, 5)


def test_an_opened_model_reports_its_sizes_device_and_dtype(checkpoint: MakeCheckpoint) -> None:
    model = opened(checkpoint)
    assert (model.num_blocks, model.welcome.block_size) == (64, 16)
    assert (model.welcome.device, model.welcome.dtype) == ("cpu", "float32")
    assert model.max_batch_tokens == 512
    assert model.welcome.vocab_size == 300
    assert model.welcome.eos_token_ids == (2,)
    assert len(model.welcome.fingerprint) == 32
    assert opened(checkpoint).welcome.engine_id != model.welcome.engine_id, "new for every start"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 512),
        ({"max_model_len": 100}, 100),
        ({"cache_tokens": 320}, 320),
        ({"cache_tokens": 320, "max_model_len": 100}, 100),
    ],
)
def test_the_context_is_the_smallest_of_model_wish_and_pool(
    checkpoint: MakeCheckpoint, settings: dict[str, Any], expected: int
) -> None:
    assert opened(checkpoint, **settings).welcome.max_model_len == expected


def test_without_cache_tokens_the_pool_is_sized_from_memory(checkpoint: MakeCheckpoint) -> None:
    model = opened(checkpoint, cache_tokens=None)
    pool = runner_of(model).pool.tensor
    assert 1 <= model.num_blocks == pool.shape[0] - SCRATCH_BLOCKS
    assert pool[SCRATCH_BLOCKS:].numel() * pool.element_size() <= 4 * 1024**3


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"max_model_len": 513}, WrongSetting),
        ({"cache_tokens": 15}, PoolTooSmall),
        ({"block_size": 12}, UnsupportedModel),
    ],
)
def test_a_config_that_cannot_be_opened_raises_its_error(
    checkpoint: MakeCheckpoint, settings: dict[str, Any], error: type[Exception]
) -> None:
    assert opened(checkpoint).num_blocks == 64
    with pytest.raises(error):
        opened(checkpoint, **settings)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_outline_tells_the_bytes_of_a_block_before_there_is_one(
    checkpoint: MakeCheckpoint, tmp_path: Path, dtype: DtypeName
) -> None:
    (tmp_path / "config.json").write_bytes(
        (checkpoint("llama").model_dir / "config.json").read_bytes()
    )
    fields: dict[str, Any] = {
        "model_dir": str(tmp_path),
        "socket": "",
        "device": "cpu",
        "dtype": dtype,
    }
    metadata = read_metadata(EngineConfig.of(**fields, load_format="dummy"))
    assert metadata.device == resolve_device("cpu")
    assert metadata.layout.block_bytes == opened(checkpoint, dtype=dtype).pool.block_bytes
    with pytest.raises(CheckpointError, match="has neither"):
        open_model(EngineConfig.of(**fields), metadata)


@pytest.mark.parametrize(
    ("settings", "error"),
    [({"max_model_len": 513}, WrongSetting), ({"block_size": 12}, UnsupportedModel)],
)
def test_what_no_weights_could_mend_is_known_with_the_outline(
    checkpoint: MakeCheckpoint, settings: dict[str, Any], error: type[Exception]
) -> None:
    fields = {"socket": "", "device": "cpu", **settings}
    with pytest.raises(error):
        read_metadata(EngineConfig.of(model_dir=str(checkpoint("llama").model_dir), **fields))


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3-biases"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dummy_weights_give_lively_finite_answers(
    checkpoint: MakeCheckpoint, name: str, dtype: str
) -> None:
    driven = HandDriven(runner_of(opened(checkpoint, name, load_format="dummy", dtype=dtype)))
    sequence = driven.add(random_prompt(30), sampling(20, num_logprobs=0))
    logprobs = driven.generate(sequence)
    assert len(set(output(sequence))) > 2
    assert all(one is not None and -6.0 < one.chosen < -0.01 for one in logprobs)


def test_the_largest_batch_fills_its_budget(checkpoint: MakeCheckpoint) -> None:
    device = resolve_device("cpu")
    for batch_tokens, max_model_len in ((512, 200), (64, 512), (200, 200)):
        batch = largest_batch(batch_tokens, max_model_len, 16, device)
        assert batch.token_ids.shape == batch.layout.positions.shape == (batch_tokens,)
        assert batch.layout.max_context_len <= max_model_len
        assert int(batch.layout.query_starts[-1]) == batch_tokens
        assert batch.outputs.tolist() == (batch.layout.query_starts[1:] - 1).tolist()


def test_the_largest_batch_is_one_that_a_decoder_computes(checkpoint: MakeCheckpoint) -> None:
    runner = runner_of(opened(checkpoint))
    batch = largest_batch(300, 128, 16, resolve_device("cpu"))
    decoder = replace(runner.decoder)
    logits = decoder.logits(batch.token_ids, batch.layout, runner.pool.layers, batch.outputs)
    assert logits.shape == (3, 300)
    assert bool(logits.isfinite().all())


def test_a_model_with_recurrent_layers_opens_a_pool_of_states(checkpoint: MakeCheckpoint) -> None:
    model = opened(checkpoint, "qwen3.5", max_running=4, state_cache_ratio=0.5)
    runner = runner_of(model)
    assert runner.states is not None
    kv_bytes = model.num_blocks * runner.pool.block_bytes
    assert model.num_states == 1 + 12 + kv_bytes // 2 // runner.states.layout.state_bytes
    assert runner.states.num_slots == model.num_states
    driven, prompt = HandDriven(runner), random_prompt(19)
    sequence = driven.add(prompt, sampling(5))
    driven.generate(sequence)
    assert output(sequence) == checkpoint("qwen3.5").greedy(prompt, 5)
    assert opened(checkpoint, "llama").num_states == 0


def test_without_cache_tokens_states_are_sized_from_memory_too(checkpoint: MakeCheckpoint) -> None:
    model = opened(checkpoint, "qwen3.5", cache_tokens=None)
    states = runner_of(model).states
    assert states is not None
    assert model.num_states > 1 + 3 * 256
    taken = states.tensor.numel() + model.num_blocks * runner_of(model).pool.block_bytes
    assert taken <= 4 * 1024**3


def test_an_engine_of_such_a_model_may_compute_prompts_for_others(
    checkpoint: MakeCheckpoint,
) -> None:
    assert opened(checkpoint, "qwen3.5", role="prefill").welcome.role == "prefill"
