"""The plan of a model with recurrent layers divides memory between states and tokens."""

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
from cli.plan.stages import checked_ranks, stages_of
from cli.plan.states import state_line
from storage.layouts.stage import Stage
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
    # 48 recurrent layers, each with 48 heads of 128 x 128 numbers in float32, and 3 inputs of
    # 10,240 channels in bfloat16.
    assert made.states.state_bytes == 48 * (48 * 128 * 128 * 4 + 3 * 10240 * 2)
    assert made.kv_bytes_per_token == 16 * 2 * 4 * 256 * 2
    assert made.states.as_kv_tokens == 2349
    assert "48 of 64 layers are recurrent: a state takes 146.8 MiB" in state_line(made.states, 64)


def test_states_and_tokens_share_the_device(tmp_path: Path) -> None:
    made = planned(tmp_path, "qwen3.5-35b-a3b")
    assert made.states is not None
    kv, states = made.device_tokens * made.kv_bytes_per_token, made.states
    free = 0.9 * (MemoryFlags().gpu_gib * GIB - made.weight_bytes)
    block_bytes = 16 * made.kv_bytes_per_token
    slot_bytes = -(-states.state_bytes // block_bytes) * block_bytes
    taken = kv + (states.device_states + 1) * slot_bytes
    assert free - slot_bytes - 2**20 < taken <= free
    assert planned(tmp_path, "qwen3-30b-a3b").states is None


def test_checkpoints_take_their_ratio_of_each_tier_below(tmp_path: Path) -> None:
    made, memory = planned(tmp_path, "qwen3.5-35b-a3b"), MemoryFlags()
    assert made.states is not None
    for tier_gib, tokens, states in (
        (memory.host_gib, made.host_tokens, made.states.host_states),
        (memory.disk_gib, made.disk_tokens, made.states.disk_states),
    ):
        kv, kept = tokens * made.kv_bytes_per_token, states * made.states.state_bytes
        assert kept == pytest.approx(0.25 * kv, rel=0.05)
        assert 0.97 * tier_gib * GIB <= kv + kept <= tier_gib * GIB
    assert f"{made.states.host_states:,} checkpoints fit the host" in state_line(made.states, 40)


def test_each_rank_has_its_share_of_a_state(tmp_path: Path) -> None:
    decoder = decoder_of(tmp_path, "qwen3.5-27b")
    whole, part = decoder.states, decoder.of_rank(2).states
    assert whole is not None
    assert part is not None
    assert 2 * part.state_bytes == whole.state_bytes
    with pytest.raises(BadSetting, match="does not divide linear_num_key_heads 16"):
        checked_ranks(decoder, MemoryFlags(tensor_parallel=3))


def test_each_stage_has_its_recurrent_layers(tmp_path: Path) -> None:
    decoder = decoder_of(tmp_path, "qwen3.5-27b")
    assert checked_ranks(decoder, MemoryFlags(pipeline_parallel=2)).gpus == 2
    parts = [one.states for one in stages_of(decoder, 2)]
    assert decoder.states is not None
    assert sum(0 if one is None else one.num_layers for one in parts) == decoder.states.num_layers
    check_offload(decoder, MemoryFlags(cpu_offload_gb=2.0))


def test_windows_that_are_freed_leave_room_for_more_tokens(tmp_path: Path) -> None:
    made = planned(tmp_path, "gpt-oss-20b")
    assert made.states is not None
    # 12 of 24 layers have a window: 8 heads of 64 numbers, keys and values in bfloat16, in 10
    # blocks of 16 tokens.
    assert made.states.state_bytes == 12 * 2 * 8 * 64 * 2 * 160
    assert made.kv_bytes_per_token == 12 * 2 * 8 * 64 * 2
    assert made.states.tokens_kept_whole is not None
    assert 1.8 < made.device_tokens / made.states.tokens_kept_whole < 2
    line = state_line(made.states, 24)
    assert line.startswith(
        "12 of 24 layers free what lies before their window with --windows freed"
    )
    assert "(without it 2,5" in line
    assert planned(tmp_path, "gemma-2-9b").states is None, "a window of half the context"


def test_each_rank_has_its_share_of_a_window_and_stages_keep_windows_whole(tmp_path: Path) -> None:
    decoder = decoder_of(tmp_path, "gpt-oss-20b")
    part = decoder.of_rank(2)
    assert part.states is not None
    assert part.states.state_bytes == 12 * 2 * 4 * 64 * 2 * 160
    assert part.block_bytes_per_token == 12 * 2 * 4 * 64 * 2
    stage = decoder.of_stage(Stage(0, (12, 24)))
    assert stage.states is None
    assert stage.block_bytes_per_token == stage.kv_bytes_per_token == 12 * 2 * 8 * 64 * 2


def test_loads_have_no_freed_window(tmp_path: Path) -> None:
    shape = decoder_of(tmp_path, "gpt-oss-20b").shape
    assert shape.kv_bytes_per_token == 2 * shape.copied_bytes_per_token
    assert shape.context_costs(1128)[0] == 12 * 2048 * 1128 + 12 * 2048 * 128
