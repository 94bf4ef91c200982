"""`ratoon plan --pipeline-parallel` counts tokens by the fullest stage, and tells the slowdown."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.errors import BadSetting
from cli.plan.cache_plan import CachePlan, make_plan
from cli.plan.decoder import read_decoder
from cli.plan.machine import GIB, MachineModel
from cli.plan.options import MemoryFlags, RequestFlags
from cli.plan.stages import checked_ranks, stages_of
from engine.models.served.reading import read_model_config
from engine.models.stages import split_model
from tests.cli.console import Console
from tests.cli.plan.checkpoint import config

TABLE = 2 * 128256 * 4096  # bytes of the embedding table, and also of the output table


def planned(
    path: Path, stages: int = 1, *, batch: int = 32, ranks: int = 1, gpu_gib: float = 141.0
) -> CachePlan:
    decoder = read_decoder(path)
    memory = MemoryFlags(gpu_gib=gpu_gib, tensor_parallel=ranks, pipeline_parallel=stages)
    memory = checked_ranks(decoder, memory)
    return make_plan("m", decoder, memory, MachineModel(), RequestFlags(batch=batch))


def test_stages_are_those_of_an_engine_and_have_all_between_them(tmp_path: Path) -> None:
    more = {"max_position_embeddings": 512, "rms_norm_eps": 1e-5}
    decoder = read_decoder(config(tmp_path, **more))
    parts = stages_of(decoder, 3)
    assert sum(part.weight_bytes for part in parts) == decoder.weight_bytes
    assert sum(part.kv_bytes_per_token for part in parts) == decoder.kv_bytes_per_token
    assert parts[0].weight_bytes - parts[0].layer_bytes == TABLE
    assert parts[1].weight_bytes == parts[1].layer_bytes
    ends = split_model(read_model_config(tmp_path), 3, "bfloat16")
    made = planned(tmp_path / "config.json", 3)
    assert made.pipeline is not None
    assert [one.last_layer + 1 for one in made.pipeline.stages] == list(ends)
    assert len(parts[0].layers) > len(parts[2].layers), "which has the head"


def test_a_table_that_is_tied_is_on_the_first_and_on_the_last(tmp_path: Path) -> None:
    decoder = read_decoder(config(tmp_path, tie_word_embeddings=True))
    parts = stages_of(decoder, 3)
    tables = [part.weight_bytes - part.layer_bytes for part in parts]
    assert tables == [TABLE, 0, TABLE]


def test_what_fits_is_what_fits_the_fullest_stage(tmp_path: Path) -> None:
    path = config(tmp_path)
    made = planned(path, 2, gpu_gib=12)
    assert made.pipeline is not None
    tokens = [
        0.9 * (12 * GIB - one.weight_bytes) / one.kv_bytes_per_token for one in made.pipeline.stages
    ]
    assert made.device_tokens == int(min(tokens)) > 0
    both = planned(path, 2, gpu_gib=12, ranks=2)
    assert both.device_tokens > 2 * made.device_tokens
    with pytest.raises(BadSetting, match="--gpu-gib"):
        planned(path, gpu_gib=12)


def test_where_lighter_weights_leave_room_for_fewer_tokens_the_layers_of_stages_say_why(
    tmp_path: Path, console: Console
) -> None:
    """Explain why lighter weights can leave room for fewer tokens: the output table is not
    quantised.

    The stage without that table therefore has more layers and more KV.
    """
    path = config(tmp_path)
    plain, _, int4 = planned(path, 2).weights
    assert int4.device_tokens < plain.device_tokens
    assert plain.stage_layers == [17, 15]
    assert int4.stage_layers == [21, 11]
    told = console.type("plan", "--model", str(path), "--pipeline-parallel", "2").out
    assert "layers of the stages" in told
    assert "21 + 11" in told
    assert "layers of the stages" not in console.type("plan", "--model", str(path)).out


def test_one_request_gains_nothing_and_many_gain_what_the_stages_are(tmp_path: Path) -> None:
    path = config(tmp_path)
    one, two = planned(path, batch=1), planned(path, 2, batch=1)
    assert two.requests.tpot_ms == pytest.approx(one.requests.tpot_ms)
    # With 512 tokens a step, the GEMMs take longer than reading weights, and stages divide them.
    many, halved = planned(path, batch=512), planned(path, 2, batch=512)
    assert 0.5 < halved.requests.tpot_ms / many.requests.tpot_ms < 0.75
    assert 0.5 < halved.requests.ttft_ms / many.requests.ttft_ms < 0.6
    assert halved.pipeline is not None
    assert 0.9 < halved.pipeline.balance <= 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--pipeline-parallel", "8", "--tensor-parallel", "2"], "there are 8 ranks at most"),
        (["--pipeline-parallel", "2", "--gpus", "3"], "--gpus: 3: each of 2 ranks has one"),
    ],
)
def test_refuses_by_name(tmp_path: Path, console: Console, given: list[str], says: str) -> None:
    path = str(config(tmp_path))
    refused = console.type("plan", "--model", path, *given)
    assert refused.status != 0
    assert says in " ".join(refused.err.split())
    offloaded = console.type(
        "plan", "--model", path, "--pipeline-parallel", "2", "--cpu-offload-gb", "4"
    )
    assert "not planned beside --pipeline-parallel" in " ".join(offloaded.err.split())
    few = str(config(tmp_path, num_hidden_layers=3))
    refused = console.type("plan", "--model", few, "--pipeline-parallel", "4")
    assert "pipeline_parallel 4: the model has 3 layers" in " ".join(refused.err.split())
    fine = console.type("plan", "--model", path, "--pipeline-parallel", "2")
    assert "0 to " in fine.out
    assert "8,192 bytes a token" in " ".join(fine.out.split())
