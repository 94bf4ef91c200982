"""`ratoon plan`: computes a plan (`cache_plan.py`) and shows it."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from cli.echo import echo
from cli.errors import BadSetting
from cli.models.model_source import CONFIG, config_of
from cli.options.flags import flag
from cli.options.options import EMBEDDED, MODEL, Json
from cli.output import print_result, print_table
from cli.plan.cache_plan import CachePlan, make_plan
from cli.plan.decoder import DecoderCounts, read_decoder
from cli.plan.estimates import batch_rows, model_rows
from cli.plan.fits import rank_rows, tier_rows, weight_rows
from cli.plan.gpus import on_gpu
from cli.plan.machine import MachineModel
from cli.plan.offload import placement_of
from cli.plan.offload_fits import offload_rows
from cli.plan.options import MemoryFlags, PlanMachineFlags, RequestFlags
from cli.plan.stages import checked_ranks, pipeline_line, stage_rows
from cli.plan.states import state_line
from cli.plan.units import gib
from engine.models.checks import check_served
from engine.models.errors import ModelNotServed, UnsupportedModel, WrongSetting

ModelName = Annotated[
    str,
    flag(
        "'handbook', a directory with config.json, that file, or a hub id (owner/name).",
        panel=MODEL,
    ),
]


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

    Shows weights in each format, KV and FLOPs, the times of a batch of requests, how many tokens
    fit each tier, and from what length on loading beats computing. All numbers follow from
    config.json and the flags, whose defaults describe an H200; nothing is measured. A load takes
    --setup-ms plus bytes / bandwidth; computing, FLOPs / (--tflops x --gpus); a decode step, bytes
    of weights and KV / (--device-gb-s x --gpus); copies of --cpu-offload-gb, bytes / --host-gb-s.
    Stages compute one after the other, so only several requests at once gain by them.

    Examples: an 8B on an H200, on an L4, and for 32 requests; a 70B on two ranks, in two stages,
    and on one H100:

        ratoon plan --model Qwen/Qwen3-8B --gpu-gib 141 --host-gib 256 --disk-gib 1000

        ratoon plan --model Qwen/Qwen3-8B --gpu l4

        ratoon plan --model Qwen/Qwen3-8B --batch 32 --prompt-tokens 3840 --output-tokens 256

        ratoon plan --model meta-llama/Llama-3.3-70B-Instruct --tensor-parallel 2

        ratoon plan --model meta-llama/Llama-3.3-70B-Instruct --pipeline-parallel 2

        ratoon plan --model meta-llama/Llama-3.3-70B-Instruct --gpu h100 --cpu-offload-gb 64
    """
    config = config_of(model)
    decoder = read_decoder(config, memory.kv_dtype)
    memory, machine = on_gpu(memory.gpu, memory, machine, _given(context))
    memory = checked_ranks(decoder, memory)
    check_offload(decoder, memory)
    made = as_served(make_plan(model, decoder, memory, machine, requests), config)

    def show(made: CachePlan) -> None:
        _show(made)
        echo(_assumed(memory, machine))

    print_result(made, show, as_json=json)


def as_served(made: CachePlan, config: Path) -> CachePlan:
    """Add the model's context to the plan, or the error that a server's start would give."""
    if config.name != CONFIG:
        return made  # files beside a config of another name may belong to another model
    try:
        model = check_served(config.parent, has_weights=False)
    except ModelNotServed as error:
        return replace(made, not_served=str(error))
    return replace(made, context_tokens=model.max_positions)


def check_offload(decoder: DecoderCounts, memory: MemoryFlags) -> None:
    """Raise BadSetting for a --cpu-offload-gb that an engine would refuse."""
    if memory.cpu_offload_gb and memory.pipeline_parallel > 1:
        raise BadSetting("--cpu-offload-gb", "is not planned beside --pipeline-parallel")
    if memory.cpu_offload_gb and memory.gpus != memory.tensor_parallel:
        raise BadSetting(
            "--cpu-offload-gb", f"counts what each GPU has: of {memory.gpus} with --tensor-parallel"
        )
    try:
        placement_of(decoder, memory)
    except (WrongSetting, UnsupportedModel) as error:
        said = str(error).removeprefix("cpu_offload_gb ")
        raise BadSetting("--cpu-offload-gb", said) from error


def _given(context: typer.Context) -> frozenset[str]:
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(name for name, one in sources.items() if one and one.name != "DEFAULT")


def _show(made: CachePlan) -> None:
    asked = made.requests
    print_table(made.model, ("", "", "by"), model_rows(made.costs))
    print_table(
        f"{asked.batch} at once: {asked.prompt_tokens:,} tokens in, {asked.output_tokens:,} out",
        ("", "", "by"),
        batch_rows(asked),
    )
    columns = ("format", "weights", "tokens that fit the device")
    print_table(
        "weights in each format; embedding and head are plain in all",
        columns if made.pipeline is None else (*columns, "layers of the stages"),
        weight_rows(made.weights),
    )
    if made.rank is not None:
        print_table(f"each of {made.rank.ranks} ranks", ("", ""), rank_rows(made.rank))
    if made.pipeline is not None:
        header = ("layers", "weights", "KV of a token", "a step")
        print_table(f"{len(made.pipeline.stages)} stages", header, stage_rows(made.pipeline))
        echo(pipeline_line(made.pipeline))
    _show_offload(made)
    print_table(
        f"{made.model}: {made.kv_bytes_per_token:,} bytes of KV a token, "
        f"{gib(made.weight_bytes)} of weights",
        ("tier", "KV", "tokens that fit", "tokens/s", "beats computing from"),
        tier_rows(made.kv, made.prefill_tokens_per_s),
    )
    if made.states is not None:
        echo(state_line(made.states, made.costs.layers))
    asked_tokens = asked.prompt_tokens + asked.output_tokens
    if made.context_tokens is not None and asked_tokens > made.context_tokens:
        echo(_too_long_line(asked_tokens, made.context_tokens))
    if made.not_served is not None:
        echo(_not_served_line(made.not_served))


def _not_served_line(why: str) -> str:
    counted = "What is not known of it is counted as a Llama's, in plain weights."
    return f"Would not be served: {why}. {counted}"


def _too_long_line(asked: int, context: int) -> str:
    return (
        f"The model's context is {context:,} tokens: requests of {asked:,} "
        "(--prompt-tokens, --output-tokens) would be refused."
    )


def _show_offload(made: CachePlan) -> None:
    columns = ("format", "--cpu-offload-gb", "layers", "copies of a step", "tokens that fit")
    if made.offload is not None:
        print_table("weights in host memory", columns, offload_rows([made.offload]))
    if made.with_offload:
        title = "formats that fit with weights in host memory alone"
        print_table(title, columns, offload_rows(made.with_offload))


def _assumed(memory: MemoryFlags, machine: MachineModel) -> str:
    return (
        f"Assumed, and not looked for on this machine: {memory.gpus} x {memory.gpu_gib:g} GiB "
        f"(--gpus, --gpu-gib), {machine.tflops:,.4g} TFLOP/s (--tflops) and "
        f"{machine.device_gb_s:,.0f} GB/s (--device-gb-s) each."
    )
