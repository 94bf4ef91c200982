"""The size of a draft head, compared with counts by hand."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from cli.plan.cache_plan import make_plan
from cli.plan.decoder import read_decoder
from cli.plan.estimates import model_costs, model_rows
from cli.plan.machine import MachineModel
from cli.plan.options import MemoryFlags, RequestFlags
from cli.plan.stages import stages_of
from engine.models.checkpoints.stored_head import with_stored_head
from engine.models.served.reading import read_model_config
from engine.models.stages import split_model
from engine.models.weight_formats.fp8_checkpoints import ONLINE_FP8
from tests.engine.rigs.files.published import MIMO_7B

HIDDEN, MLP = 4096, 11008
LAYER = (
    HIDDEN * (32 + 8 + 8) * 128 + 32 * 128 * HIDDEN + 3 * HIDDEN * MLP
)  # queries, keys and values; output; gate, up and down
PROJECTION = 2 * HIDDEN * HIDDEN
OTHERS = MachineModel(), RequestFlags()
TOKEN = 2 * 8 * 128 * 2


def write(path: Path, **changes: object) -> Path:
    place = path / "config.json"
    place.write_text(json.dumps({**MIMO_7B, **changes}))
    return place


def test_its_weights_and_kv_count(tmp_path: Path) -> None:
    decoder = read_decoder(write(tmp_path))
    without = read_decoder(write(tmp_path, num_nextn_predict_layers=0))
    assert without == decoder.without_head()
    biases = decoder.head_bytes - 2 * (LAYER + PROJECTION)
    assert biases == 2 * (32 + 8 + 8) * 128
    assert decoder.weight_bytes - without.weight_bytes == decoder.head_bytes
    assert decoder.kv_bytes_per_token == 37 * TOKEN == without.kv_bytes_per_token + TOKEN
    assert decoder.parameters == without.parameters
    in_fp8 = decoder.with_weights_in(ONLINE_FP8)
    assert 2 * PROJECTION + LAYER < in_fp8.head_bytes < 2 * PROJECTION + 1.01 * LAYER
    rows = {name: (value, by) for name, value, by in model_rows(model_costs(decoder))}
    assert rows["of both, the draft head"] == ("421.5 MB, 4 KiB a token", "not with --drafts off")
    assert "of both, the draft head" not in {row[0] for row in model_rows(model_costs(without))}


def test_ranks_divide_it_and_the_last_stage_has_it_and_the_embeddings(tmp_path: Path) -> None:
    decoder = read_decoder(write(tmp_path))
    part = decoder.of_rank(2)
    assert part.head_bytes == PROJECTION * 2 + (decoder.head_bytes - PROJECTION * 2) // 2
    assert part.kv_bytes_per_token == 37 * TOKEN // 2
    stages, without = stages_of(decoder, 3), stages_of(decoder.without_head(), 3)
    assert sum(one.kv_bytes_per_token for one in stages) == 37 * TOKEN
    beside_layers = [one.weight_bytes - one.layer_bytes for one in stages]
    assert beside_layers == [decoder.table_bytes, 0, 2 * decoder.table_bytes + decoder.head_bytes]
    assert len(stages[2].layers) < len(without[2].layers), "it counts as a layer"
    stored = ("input_proj.weight", "self_attn.o_proj.weight")
    save_file(
        {f"model.mtp_layers.0.{name}": torch.zeros(1) for name in stored},
        tmp_path / "model.safetensors",
    )
    model = with_stored_head(read_model_config(tmp_path), tmp_path)
    assert split_model(model, 3, "bfloat16")[1] == 36 - len(stages[2].layers)
    plan = make_plan("", decoder, MemoryFlags(pipeline_parallel=3, gpus=3), *OTHERS)
    assert plan.pipeline is not None
    assert [one.weight_bytes for one in plan.pipeline.stages] == [
        one.weight_bytes for one in stages
    ]
