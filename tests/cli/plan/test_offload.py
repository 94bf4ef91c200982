"""`ratoon plan --cpu-offload-gb` counts the room that weights in host memory leave, and the
slowdown.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from cli.errors import BadSetting
from cli.plan.cache_plan import CachePlan, make_plan
from cli.plan.decoder import DecoderCounts, read_decoder
from cli.plan.machine import MachineModel
from cli.plan.offload import LayerCopies
from cli.plan.options import MemoryFlags, RequestFlags
from engine.offload.placement import GIB
from tests.cli.console import Console
from tests.cli.plan.checkpoint import config

LAYER = 2 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336)  # bytes of one of the 32 layers
TABLES = 2 * 2 * 128256 * 4096
SMALL = MemoryFlags(gpu_gib=12.0)
MACHINE = MachineModel(host_gb_s=24.0)


@pytest.fixture
def decoder(tmp_path: Path) -> DecoderCounts:
    return read_decoder(config(tmp_path))


def planned(decoder: DecoderCounts, memory: MemoryFlags) -> CachePlan:
    return make_plan("m", decoder, memory, MACHINE, RequestFlags())


def test_layers_in_host_memory_leave_room_and_are_copied_by_every_step(
    decoder: DecoderCounts,
) -> None:
    made = planned(decoder, replace(SMALL, cpu_offload_gb=6.0))
    fit = made.offload
    assert fit is not None
    assert fit.layers == -(-6 * GIB // LAYER) == 15
    assert (fit.host_bytes, fit.freed_bytes) == (15 * LAYER, 13 * LAYER)
    free = 12 * GIB - TABLES - (32 - 13) * LAYER
    assert made.device_tokens == fit.device_tokens == int(0.9 * free / 131072)
    copies_ms = 1e3 * 15 * LAYER / 24e9
    assert fit.copy_ms == pytest.approx(copies_ms)
    step_ms = 1e3 * MACHINE.step_seconds(decoder.shape, 1, 1024 + 128)
    assert made.requests.tpot_ms == pytest.approx(copies_ms + step_ms / 32)
    assert made.weight_bytes == decoder.weight_bytes


def test_on_a_gpu_that_has_room_it_costs_and_is_not_needed(decoder: DecoderCounts) -> None:
    roomy = MemoryFlags(gpu_gib=80.0)
    plain, offloaded = planned(decoder, roomy), planned(decoder, replace(roomy, cpu_offload_gb=6.0))
    assert plain.offload is None
    assert plain.with_offload == [] == offloaded.with_offload
    assert offloaded.device_tokens > plain.device_tokens
    assert offloaded.requests.tpot_ms > 10 * plain.requests.tpot_ms
    assert offloaded.requests.ttft_ms > plain.requests.ttft_ms
    assert offloaded.prefill_tokens_per_s < plain.prefill_tokens_per_s


def test_the_least_that_is_named_is_the_least_that_fits(decoder: DecoderCounts) -> None:
    """Name the smallest offload with which the model fits.

    In fp8 and int4 the model fits without offloading; unquantised, some layers must be in host
    memory.
    """
    enough = planned(decoder, replace(SMALL, cpu_offload_gb=6.0))
    assert [one.format for one in enough.with_offload] == ["plain"]
    [need] = enough.with_offload
    made = planned(decoder, replace(SMALL, cpu_offload_gb=need.cpu_offload_gb))
    assert made.offload == need
    assert made.device_tokens >= 1280, "the requests fit"
    fewer = replace(SMALL, cpu_offload_gb=need.cpu_offload_gb - LAYER / GIB)
    with pytest.raises(BadSetting):
        planned(decoder, fewer)


def test_weights_that_do_not_fit_are_refused_with_the_flag_that_helps(
    decoder: DecoderCounts,
) -> None:
    with pytest.raises(BadSetting) as refused:
        planned(decoder, SMALL)
    said = str(refused.value)
    assert "take 15.0 GiB on one GPU; with --cpu-offload-gb 4.06 they fit in plain, and" in said
    assert "each step copies weights for 182 ms; in fp8 8.5 GiB; in int4" in said
    with pytest.raises(BadSetting) as tight:
        planned(decoder, replace(SMALL, gpu_gib=5.0))
    words = str(tight.value)
    assert words.index("they fit in plain") < words.index("they fit in fp8")
    with pytest.raises(BadSetting) as hopeless:
        planned(decoder, MemoryFlags(gpu_gib=2.0))
    assert "--cpu-offload-gb" not in str(hopeless.value), "not even the tables fit"


def test_each_rank_copies_its_part_over_its_own_link(decoder: DecoderCounts) -> None:
    alone = planned(decoder, replace(SMALL, cpu_offload_gb=6.0)).offload
    two = replace(SMALL, gpu_gib=6.0, tensor_parallel=2, gpus=2, cpu_offload_gb=3.0)
    each = planned(decoder, two).offload
    assert alone is not None
    assert each is not None
    assert each.layers == alone.layers
    assert each.host_bytes == alone.host_bytes // 2
    assert each.copy_ms == pytest.approx(alone.copy_ms / 2)


def test_prompts_are_computed_in_as_few_steps_as_they_fit() -> None:
    copies = LayerCopies(4, {1: 1.0, 3: 1.0})
    assert copies.step_seconds == 2.0
    assert copies.beside(0.0) == 2.0
    assert copies.beside_prompts(0.0, 8192) == 2.0
    assert copies.beside_prompts(0.0, 8193) == 4.0
    assert copies.beside(40.0) == 40.0, "copies hide"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["14"], "--cpu-offload-gb: 14: the layers have 12.99"),
        (["0.5"], "in host memory free none; 1.218 would free some"),
        (["6", "--gpus", "2"], "--cpu-offload-gb: counts what each GPU has: of 2 with --tensor-"),
    ],
)
def test_refuses_by_name_what_cannot_be(
    tmp_path: Path, console: Console, given: list[str], says: str
) -> None:
    words = "plan", "--model", str(config(tmp_path)), "--gpu-gib", "24", "--cpu-offload-gb"
    refused = console.type(*words, *given)
    assert refused.status != 0
    assert says in " ".join(refused.err.split())
    fine = console.type(*words, "6", "--json")
    assert fine.json["offload"]["layers"] == 15
    shown = console.type(*words, "6")
    for text in ("weights in host memory", "(weights + KV) / bandwidth, beside copies of weights"):
        assert text in shown.out


def test_of_a_mixture_all_experts_are_copied(tmp_path: Path) -> None:
    """Copy all experts of a mixture.

    A layer is copied as one run of bytes, whichever experts a token needs.
    """
    fields = {"num_local_experts": 8, "num_experts_per_tok": 2}
    mixtral = config(tmp_path, architectures=["MixtralForCausalLM"], **fields)
    counted = read_decoder(mixtral)
    made = planned(counted, MemoryFlags(gpu_gib=48.0, cpu_offload_gb=60.0))
    assert made.offload is not None
    layer = counted.bytes_by_layer[0]
    assert layer > 6 * LAYER
    assert made.offload.copy_ms == pytest.approx(1e3 * made.offload.layers * layer / 24e9)
    assert msgspec.json.decode(msgspec.json.encode(made.offload))["layers"] == made.offload.layers
