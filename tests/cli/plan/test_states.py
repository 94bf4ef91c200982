"""The plan of a model with recurrent layers: what a state takes, and how many fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.errors import BadSetting
from cli.plan.cache_plan import CachePlan, make_plan
from cli.plan.decoder import DecoderCounts, read_decoder
from cli.plan.machine import GIB, MachineModel
from cli.plan.options import MemoryFlags, RequestFlags
from cli.plan.plan import check_offload
from cli.plan.stages import checked_ranks
from cli.plan.states import state_line
from tests.doubles.engine.shapes import SHAPES


def decoder_of(tmp_path: Path, name: str) -> DecoderCounts:
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(SHAPES[name]))
    return read_decoder(path)


def planned(tmp_path: Path, name: str) -> CachePlan:
    decoder = decoder_of(tmp_path, name)
    return make_plan(name, decoder, MemoryFlags(), MachineModel(), RequestFlags())


def test_a_state_has_all_recurrent_layers(tmp_path: Path) -> None:
    made = planned(tmp_path, "qwen3.5-27b")
    assert made.states is not None
    # Of 48 layers: 48 heads of 128 x 128 in float32, and 3 inputs of 10,240 channels in bfloat16.
    assert made.states.state_bytes == 48 * (48 * 128 * 128 * 4 + 3 * 10240 * 2)
    assert made.kv_bytes_per_token == 16 * 2 * 4 * 256 * 2
    assert made.states.as_kv_tokens == 2349
    assert "48 of 64 layers are recurrent: a state takes 146.8 MiB" in state_line(made.states, 64)


def test_states_and_tokens_share_the_device(tmp_path: Path) -> None:
    made = planned(tmp_path, "qwen3.5-35b-a3b")
    assert made.states is not None
    kv, states = made.device_tokens * made.kv_bytes_per_token, made.states
    free = 0.9 * (MemoryFlags().gpu_gib * GIB - made.weight_bytes)
    taken = kv + (states.device_states + 1) * states.state_bytes
    assert free - states.state_bytes - 2**20 < taken <= free
    assert planned(tmp_path, "qwen3-30b-a3b").states is None


def test_what_such_a_model_is_not_served_with_is_not_planned(tmp_path: Path) -> None:
    decoder = decoder_of(tmp_path, "qwen3.5-27b")
    for flags in (MemoryFlags(tensor_parallel=2), MemoryFlags(pipeline_parallel=2)):
        with pytest.raises(BadSetting, match="recurrent layers"):
            checked_ranks(decoder, flags)
    with pytest.raises(BadSetting, match="recurrent layers"):
        check_offload(decoder, MemoryFlags(cpu_offload_gb=2.0))
