"""`ratoon plan`: what a model costs, what fits where, and when loading beats computing."""

from __future__ import annotations

from dataclasses import dataclass, field
from os.path import expanduser
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from cli.errors import BadSetting
from cli.options.flags import flag
from cli.options.options import EMBEDDED, MODEL, Json
from cli.output import print_result, print_table
from cli.plan.decoder import DecoderCounts, read_decoder
from cli.plan.estimates import (
    BatchCosts,
    ModelCosts,
    batch_costs,
    batch_rows,
    model_costs,
    model_rows,
)
from cli.plan.fits import (
    KvFit,
    RankFit,
    WeightsFit,
    free_bytes,
    kv_fits,
    rank_fit,
    rank_rows,
    tier_rows,
    weight_rows,
    weights_fits,
)
from cli.plan.gpus import on_gpu
from cli.plan.machine import GIB, MachineModel
from cli.plan.offload import LayerCopies, copies_of, placement_of
from cli.plan.offload_fits import (
    OffloadFit,
    all_needs,
    need_line,
    offload_fit,
    offload_needs,
    offload_rows,
)
from cli.plan.options import MemoryFlags, PlanMachineFlags, RequestFlags
from cli.plan.stages import (
    PipelineFit,
    checked_ranks,
    in_stages,
    pipeline_fit,
    pipeline_line,
    stage_rows,
)
from cli.plan.windows import WindowFit, window_fit, window_line
from cli.serving.model_source import resolve
from engine.models.architectures.registry import SERVED, ServedModels
from engine.models.errors import WrongSetting

ModelName = Annotated[
    str,
    flag(
        "'handbook', a directory with config.json, that file, or a hub id (owner/name).",
        panel=MODEL,
    ),
]


@dataclass(frozen=True, slots=True)
class CachePlan:
    """A plan. What stands beside `kv` is of its first, the type that was asked for."""

    model: str
    kv_bytes_per_token: int
    weight_bytes: int
    device_tokens: int
    host_tokens: int
    disk_tokens: int
    host_break_even_tokens: int | None  # from here on loading takes no longer than computing
    disk_break_even_tokens: int | None
    prefill_tokens_per_s: float  # at 4,096 tokens
    host_tokens_per_s: float
    disk_tokens_per_s: float
    costs: ModelCosts
    requests: BatchCosts
    weights: list[WeightsFit]  # in each format that is served
    kv: list[KvFit]  # in the type that was asked for, and in narrower ones
    windows: WindowFit | None  # None: every layer attends to the whole context
    rank: RankFit | None = None  # with --tensor-parallel: what each rank has
    pipeline: PipelineFit | None = None  # with --pipeline-parallel: what each stage has
    offload: OffloadFit | None = None  # with --cpu-offload-gb: what stays in host memory
    # Formats that fit with some weights in host memory, and not without.
    with_offload: list[OffloadFit] = field(default_factory=list)


def plan(
    context: typer.Context,
    model: ModelName = EMBEDDED,
    *,
    memory: MemoryFlags,
    machine: PlanMachineFlags,
    requests: RequestFlags,
    json: Json = False,
) -> None:
    """Show what a model costs, what fits each tier, and when loading beats computing.

    Weights, also in each format that is served, KV and FLOPs, the predicted times of a batch of
    requests, how many tokens fit each tier, from what length on loading beats computing, and, of a
    model whose layers attend over windows, what it would give to free KV outside of them.
    Everything comes from the model's
    config.json and the flags, by default those of an H200; nothing is measured. Loading takes
    --setup-ms and then bytes by bandwidth, computing takes FLOPs by --tflops times --gpus, a step
    of decoding reads weights and KV by --device-gb-s times --gpus. Stages compute one after the
    other: of --pipeline-parallel one request gains nothing, and several at once do. Weights that
    stay in host memory (--cpu-offload-gb) are copied by every step by --host-gb-s; of formats that
    do not fit without, the least that has to stay there is shown.

    Examples: an 8B on one H200 with 256 GiB of host memory and a terabyte of disk; on one L4;
    32 requests of 4,096 tokens at once; a 70B divided between two ranks, and between two stages;
    on one H100:

        ratoon plan --model Qwen/Qwen3-8B --gpu-gib 141 --host-gib 256 --disk-gib 1000

        ratoon plan --model Qwen/Qwen3-8B --gpu l4

        ratoon plan --model Qwen/Qwen3-8B --batch 32 --prompt-tokens 3840 --output-tokens 256

        ratoon plan --model meta-llama/Llama-3.3-70B-Instruct --tensor-parallel 2

        ratoon plan --model meta-llama/Llama-3.3-70B-Instruct --pipeline-parallel 2

        ratoon plan --model meta-llama/Llama-3.3-70B-Instruct --gpu h100 --cpu-offload-gb 64
    """
    decoder = read_decoder(_config_of(model), memory.kv_dtype)
    memory, machine = on_gpu(memory.gpu, memory, machine, _given(context))
    memory = checked_ranks(decoder, memory)
    check_offload(decoder, memory)
    made = make_plan(model, decoder, memory, machine, requests)

    def show(made: CachePlan) -> None:
        _show(made)
        typer.echo(_assumed(memory, machine))

    print_result(made, show, as_json=json)


def make_plan(
    model: str,
    decoder: DecoderCounts,
    memory: MemoryFlags,
    machine: MachineModel,
    requests: RequestFlags,
    served: ServedModels = SERVED,
) -> CachePlan:
    """Compute the plan; BadSetting if the weights do not fit."""
    weights = weights_fits(decoder, memory, served)
    if free_bytes(decoder, memory) <= 0:
        needs = [need_line(one) for one in all_needs(decoder, memory, machine, requests, served)]
        raise BadSetting("--gpu-gib", _too_large(decoder, memory, weights, needs))
    at_once = memory.gpus // memory.pipeline_parallel  # that compute one step together
    whole = msgspec.structs.replace(
        machine,
        tflops=machine.tflops * at_once,
        device_gb_s=machine.device_gb_s * at_once,
        host_gb_s=machine.host_gb_s * memory.gpus,  # each GPU has a link of its own
    )
    pipeline = pipeline_fit(decoder, memory, whole, requests)
    kv = kv_fits(decoder, memory, whole)
    copies = _copies(decoder, memory, machine)
    return CachePlan(
        model=model,
        kv_bytes_per_token=kv[0].bytes_per_token,
        weight_bytes=decoder.weight_bytes,
        device_tokens=kv[0].device_tokens,
        host_tokens=kv[0].host_tokens,
        disk_tokens=kv[0].disk_tokens,
        host_break_even_tokens=kv[0].host_break_even_tokens,
        disk_break_even_tokens=kv[0].disk_break_even_tokens,
        prefill_tokens_per_s=4096 / _prefill_seconds(decoder, whole, copies),
        host_tokens_per_s=kv[0].host_tokens_per_s,
        disk_tokens_per_s=kv[0].disk_tokens_per_s,
        costs=model_costs(decoder),
        requests=in_stages(batch_costs(decoder, whole, requests, copies), pipeline, whole),
        weights=weights,
        kv=kv,
        rank=rank_fit(decoder, memory),
        pipeline=pipeline,
        offload=offload_fit(decoder, memory, machine),
        with_offload=offload_needs(decoder, memory, machine, requests, served),
        windows=window_fit(
            decoder, kv[0].device_tokens, requests.prompt_tokens + requests.output_tokens
        ),
    )


def _copies(
    decoder: DecoderCounts, memory: MemoryFlags, machine: MachineModel
) -> LayerCopies | None:
    placement = placement_of(decoder, memory)
    return None if placement is None else copies_of(decoder, memory, machine, placement)


def _prefill_seconds(
    decoder: DecoderCounts, whole: MachineModel, copies: LayerCopies | None
) -> float:
    computed = whole.prefill_seconds(decoder.shape, 4096)
    return computed if copies is None else copies.beside_prompts(computed, 4096)


def check_offload(decoder: DecoderCounts, memory: MemoryFlags) -> None:
    """BadSetting for weights in host memory that an engine would refuse."""
    if memory.cpu_offload_gb and memory.pipeline_parallel > 1:
        raise BadSetting("--cpu-offload-gb", "is not planned beside --pipeline-parallel")
    if memory.cpu_offload_gb and memory.gpus != memory.tensor_parallel:
        raise BadSetting(
            "--cpu-offload-gb", f"counts what each GPU has: of {memory.gpus} with --tensor-parallel"
        )
    try:
        placement_of(decoder, memory)
    except WrongSetting as error:
        said = str(error).removeprefix("cpu_offload_gb ")
        raise BadSetting("--cpu-offload-gb", said) from error


def _too_large(
    decoder: DecoderCounts, memory: MemoryFlags, weights: list[WeightsFit], needs: list[str]
) -> str:
    """What the weights take, which formats would fit, and what else could be in host memory."""
    fitting = [
        f"in {one.format} {one.weight_bytes / GIB:.1f}" for one in weights if one.device_tokens
    ]
    gpus = "one GPU" if memory.gpus == 1 else f"{memory.gpus} GPUs"
    taken = f"the weights take {decoder.weight_bytes / GIB:.1f} GiB on {gpus}"
    return "; ".join([taken, *needs, *fitting])


def _given(context: typer.Context) -> frozenset[str]:
    """The names of the flags that have not their defaults."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(name for name, one in sources.items() if one and one.name != "DEFAULT")


def _config_of(model: str) -> Path:
    path = Path(expanduser(model))
    if model != EMBEDDED and path.is_dir():
        return path / "config.json"
    if model != EMBEDDED and path.is_file():
        return path
    return resolve(model, "dummy").directory / "config.json"


def _show(made: CachePlan) -> None:
    asked = made.requests
    print_table(made.model, ("", "", "by"), model_rows(made.costs))
    print_table(
        f"{asked.batch} at once: {asked.prompt_tokens:,} tokens in, {asked.output_tokens:,} out",
        ("", "", "by"),
        batch_rows(asked),
    )
    print_table(
        "weights in each format; embedding and head are plain in all",
        ("format", "weights", "tokens that fit the device"),
        weight_rows(made.weights),
    )
    if made.rank is not None:
        print_table(f"each of {made.rank.ranks} ranks", ("", ""), rank_rows(made.rank))
    if made.pipeline is not None:
        header = ("layers", "weights", "KV of a token", "a step")
        print_table(f"{len(made.pipeline.stages)} stages", header, stage_rows(made.pipeline))
        typer.echo(pipeline_line(made.pipeline))
    _show_offload(made)
    print_table(
        f"{made.model}: {made.kv_bytes_per_token:,} bytes of KV a token, "
        f"{made.weight_bytes / GIB:.1f} GiB of weights",
        ("tier", "KV", "tokens that fit", "tokens/s", "beats computing from"),
        tier_rows(made.kv, made.prefill_tokens_per_s),
    )
    if made.windows is not None:
        typer.echo(window_line(made.windows, made.costs.layers))


def _show_offload(made: CachePlan) -> None:
    """What stays in host memory, as it was asked for, and as other formats would need it."""
    columns = ("format", "--cpu-offload-gb", "layers", "copies of a step", "tokens that fit")
    if made.offload is not None:
        print_table("weights in host memory", columns, offload_rows([made.offload]))
    if made.with_offload:
        title = "formats that fit with weights in host memory alone"
        print_table(title, columns, offload_rows(made.with_offload))


def _assumed(memory: MemoryFlags, machine: MachineModel) -> str:
    """What the plan is for, which need not be what this machine has."""
    return (
        f"Assumed, and not looked for on this machine: {memory.gpus} x {memory.gpu_gib:g} GiB "
        f"(--gpus, --gpu-gib), {machine.tflops:,.4g} TFLOP/s (--tflops) and "
        f"{machine.device_gb_s:,.0f} GB/s (--device-gb-s) each."
    )
