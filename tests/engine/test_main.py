"""The whole engine process with a tiny model: cached answers, settings, and lengths of steps."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine.config import EngineConfig
from engine.link.gateway_end.client import EngineClient
from engine.link.messages import Generate, SamplingParams
from engine.link.query_messages import StatsQuery
from engine.main import main, step_limits
from engine.process import EXIT_CANNOT_START, EXIT_NOT_SERVED, EXIT_STOPPED
from engine.scheduling.step_builder import StepLimits
from tests.engine.rigs.rig import generate
from tests.engine.rigs.streams import collect, welcomed

ROOT = Path(__file__).parents[2]
BLOCK_SIZE = 16
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def config(model_dir: Path, socket: str) -> EngineConfig:
    return EngineConfig.of(
        model_dir=str(model_dir),
        socket=socket,
        device="cpu",
        load_format="dummy",
        block_size=BLOCK_SIZE,
        cache_tokens=512,  # fewer than all prompts need, so blocks are evicted
        max_batch_tokens=64,
        max_running=8,
        num_threads=1,
    )


def request(request_id: str, prompt: list[int], *, use_cache: bool) -> Generate:
    return generate(
        request_id,
        prompt,
        block_size=BLOCK_SIZE,
        use_cache=use_cache,
        sampling=SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True),
    )


def prompts() -> list[list[int]]:
    random = np.random.default_rng(7)
    common = random.integers(3, 256, 200).tolist()
    return [
        common[: random.integers(20, 200)]
        + random.integers(3, 256, random.integers(1, 30)).tolist()
        for _ in range(12)
    ]


async def test_cached_equals_uncached_on_a_real_model(tmp_path: Path, socket_path: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    settings = msgspec.json.encode(config(tmp_path, socket_path)).decode()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "engine", settings),
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    client = EngineClient(socket_path)
    await client.start()
    try:
        assert (await welcomed(client)).max_model_len == 512  # as many tokens as the pool holds
        plain = [
            await collect(client, request(f"plain {n}", prompt, use_cache=False))
            for n, prompt in enumerate(prompts())
        ]
        cached = await asyncio.gather(
            *(
                collect(client, request(f"cached {n}", prompt, use_cache=True))
                for n, prompt in enumerate(prompts())
            )
        )
        assert [tokens for tokens, _ in cached] == [tokens for tokens, _ in plain]
        assert sum(end.reused.tokens for _, end in cached) > 0
        assert sum(end.reused.tokens for _, end in plain) == 0
        stats = (await client.ask(StatsQuery())).stats
        assert sum(flow.evictions_caused for flow in stats.flows.values()) > 0
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == EXIT_STOPPED
    finally:
        await client.close()
        if process.returncode is None:
            process.kill()
            await process.wait()


class TestStepLimits:
    def limits(self, device: str, **asked: float) -> StepLimits:
        settings = EngineConfig.of(model_dir="", socket="", **asked)
        return step_limits(settings, device, 8_192)

    @pytest.mark.parametrize(("device", "max_step_s"), [("cpu", 1.0), ("cuda:1", 0.06)])
    def test_steps_without_a_target_are_as_long_as_the_device_allows(
        self, device: str, max_step_s: float
    ) -> None:
        assert self.limits(device).max_step_s == max_step_s

    @pytest.mark.parametrize("device", ["cpu", "cuda:0"])
    @pytest.mark.parametrize(("asked", "target_itl_s"), [(0.0, None), (25.0, 0.025)])
    def test_a_target_is_in_seconds_and_zero_is_none(
        self, device: str, asked: float, target_itl_s: float | None
    ) -> None:
        assert self.limits(device, target_itl_ms=asked).target_itl_s == target_itl_s

    @pytest.mark.parametrize(("tokens", "most"), [(512, 256), (511, 255), (256, 128), (1, 1)])
    def test_sequences_that_decode_leave_half_of_a_step_to_prompts(
        self, tokens: int, most: int
    ) -> None:
        settings = EngineConfig.of(model_dir="", socket="", max_running=256)
        limits = step_limits(settings, "cpu", tokens)
        assert (limits.max_batch_tokens, limits.max_running) == (tokens, most)

    def test_the_longest_step_is_divided_between_stages(self) -> None:
        limits = self.limits("cuda:0", pipeline_parallel=3)
        assert (limits.max_step_s, limits.stages) == (0.02, 3)


@pytest.mark.parametrize("arguments", [[], ["not json"], ["{}"], ["{}", "{}"]])
def test_settings_that_are_none(arguments: list[str]) -> None:
    assert main(arguments) == EXIT_CANNOT_START


def test_a_model_that_is_not_there(
    tmp_path: Path, socket_path: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = msgspec.json.encode(config(tmp_path / "nowhere", socket_path)).decode()
    assert main([settings]) == EXIT_NOT_SERVED
    assert "nowhere" in caplog.text
