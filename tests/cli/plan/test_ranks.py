"""`ratoon plan --tensor-parallel` counts each rank's weights, and the tokens that all hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.errors import BadSetting
from cli.plan.cache_plan import make_plan
from cli.plan.decoder import read_decoder
from cli.plan.fits import rank_fit
from cli.plan.machine import GIB, MachineModel
from cli.plan.options import MemoryFlags, RequestFlags
from cli.plan.stages import checked_ranks
from tests.cli.console import Console
from tests.cli.plan.checkpoint import config

TABLE = 2 * 128256 * 4096  # bytes of the embedding table, and also of the output table


def test_a_rank_has_its_part_of_all_but_the_embedding(tmp_path: Path) -> None:
    decoder = read_decoder(config(tmp_path))
    fit = rank_fit(decoder, MemoryFlags(tensor_parallel=2))
    assert fit is not None
    assert fit.weight_bytes == TABLE + (decoder.weight_bytes - TABLE) // 2
    assert fit.kv_bytes_per_token == decoder.kv_bytes_per_token // 2
    free = 0.9 * (141 * GIB - fit.weight_bytes)
    assert fit.device_tokens == int(free / fit.kv_bytes_per_token)
    assert rank_fit(decoder, MemoryFlags()) is None, "the control: one rank is no part"


def test_kv_heads_fewer_than_ranks_are_kept_twice_and_tables_that_do_not_divide(
    tmp_path: Path,
) -> None:
    decoder = read_decoder(config(tmp_path, num_key_value_heads=2, vocab_size=128257))
    fit = rank_fit(decoder, MemoryFlags(tensor_parallel=4))
    assert fit is not None
    assert fit.kv_bytes_per_token == decoder.kv_bytes_per_token // 2
    layers = decoder.of_rank(4).layer_bytes
    assert fit.weight_bytes == layers + 2 * 2 * 128257 * 4096


def test_the_plan_counts_what_fits_all_ranks(tmp_path: Path) -> None:
    decoder = read_decoder(config(tmp_path))
    memory = checked_ranks(decoder, MemoryFlags(gpu_gib=12.0, tensor_parallel=2))
    assert memory.gpus == 2
    made = make_plan("m", decoder, memory, MachineModel(), RequestFlags())
    assert made.rank is not None
    assert made.device_tokens == made.rank.device_tokens > 0
    with pytest.raises(BadSetting, match="--gpu-gib"):
        make_plan("m", decoder, MemoryFlags(gpu_gib=12.0), MachineModel(), RequestFlags())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--tensor-parallel", "5"], "tensor_parallel 5 does not divide num_attention_heads 32"),
        (["--tensor-parallel", "2", "--gpus", "3"], "--gpus: 3: each of 2 ranks has one"),
    ],
)
def test_refuses_by_name_what_does_not_divide(
    tmp_path: Path, console: Console, given: list[str], says: str
) -> None:
    path = str(config(tmp_path))
    refused = console.type("plan", "--model", path, *given)
    assert refused.status != 0
    assert says in " ".join(refused.err.split())
    fine = console.type("plan", "--model", path, "--tensor-parallel", "2", "--json")
    assert fine.json["rank"]["ranks"] == 2


def test_a_format_that_ranks_cannot_divide_is_left_out(console: Console) -> None:
    def formats(*flags: str) -> list[str]:
        printed = console.type("plan", "--json", *flags)
        assert printed.status == 0, printed.err
        return [one["format"] for one in json.loads(printed.out)["weights"]]

    assert formats() == ["plain", "fp8", "int4"], "the control"
    assert formats("--tensor-parallel", "2") == ["plain", "fp8"], "320 columns in groups of 128"
