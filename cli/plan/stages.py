"""The stages of a pipeline: their parts of the model and step times (`--pipeline-parallel`).

    rows of a step in a stage             requests / stages
    time per output token                 stages x the longest step of a stage; with fewer requests
                                          than stages, at least the sum of all stages' steps
    n chunks of prompts over s stages     (n + s - 1) x the longest time of a stage for a chunk

Bytes sent between stages are counted, but not their time, which depends on the link.
"""

from dataclasses import dataclass, replace

from cli.errors import BadSetting
from cli.plan.decoder import DecoderCounts
from cli.plan.estimates import BatchCosts
from cli.plan.machine import MachineModel
from cli.plan.options import MemoryFlags, RequestFlags
from cli.plan.units import gib, ms
from engine.models.checks import check_grid
from engine.models.errors import UnsupportedModel
from engine.models.grid import RankGrid
from engine.models.stages import check_stages, layer_bytes, split_layers
from storage.layouts.kv_layout import ITEM_BYTES
from storage.layouts.stage import Stage

CHUNK_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class StageFit:
    """The memory use and time of a stage, which is divided equally among its ranks."""

    first_layer: int
    last_layer: int
    weight_bytes: int  # bytes of weights, on all the stage's ranks together
    kv_bytes_per_token: int
    step_ms: float  # time of a step of the stage's requests, at half of the output length


@dataclass(frozen=True, slots=True)
class PipelineFit:
    """The memory use and times of all stages.

    `balance` is the mean step time, divided by the longest step time.
    """

    stages: list[StageFit]
    balance: float
    bytes_between: int


def stages_of(decoder: DecoderCounts, num_stages: int) -> list[DecoderCounts]:
    """Divide the model into stages, as an engine does. Raises UnsupportedModel."""
    costs = layer_bytes(decoder.layers, decoder.weight_format, decoder.dtype)
    ends = split_layers(costs, decoder.table_bytes + decoder.head_bytes, num_stages)
    check_stages(decoder.layers, ends)
    return [decoder.of_stage(Stage(index, ends)) for index in range(num_stages)]


def checked_ranks(decoder: DecoderCounts, memory: MemoryFlags) -> MemoryFlags:
    """Return `memory` with a GPU for each rank.

    Raises BadSetting if --gpus is another number, or if ranks cannot divide the model.
    """
    ranks = memory.num_ranks
    if ranks == 1:
        return memory
    if memory.gpus not in (1, ranks):
        raise BadSetting("--gpus", f"{memory.gpus}: each of {ranks} ranks has one")
    try:
        check_grid(RankGrid(memory.tensor_parallel, memory.pipeline_parallel))
        decoder.of_rank(memory.tensor_parallel)
        stages_of(decoder, memory.pipeline_parallel)
    except UnsupportedModel as error:
        flag = "--tensor-parallel" if memory.pipeline_parallel == 1 else "--pipeline-parallel"
        raise BadSetting(flag, str(error)) from error
    return replace(memory, gpus=ranks)


def pipeline_fit(
    decoder: DecoderCounts, memory: MemoryFlags, machine: MachineModel, requests: RequestFlags
) -> PipelineFit | None:
    """Compute each stage's fit, if there are several. `machine` is one stage's GPUs together."""
    if memory.pipeline_parallel == 1:
        return None
    parts, first, stages = stages_of(decoder, memory.pipeline_parallel), 0, []
    for part in parts:
        last = first + len(part.layers) - 1
        ms = 1e3 * _step_seconds(part, memory, machine, requests)
        stages.append(StageFit(first, last, part.weight_bytes, part.kv_bytes_per_token, ms))
        first = last + 1
    times = [one.step_ms for one in stages]
    between = decoder.hidden_size * ITEM_BYTES[decoder.dtype]
    return PipelineFit(stages, sum(times) / len(times) / max(times), between)


def _step_seconds(
    part: DecoderCounts, memory: MemoryFlags, machine: MachineModel, requests: RequestFlags
) -> float:
    rows = -(-requests.batch // memory.pipeline_parallel)
    context = requests.prompt_tokens + requests.output_tokens / 2
    return machine.step_seconds(part.shape, rows, context)


def in_stages(costs: BatchCosts, fit: PipelineFit | None, machine: MachineModel) -> BatchCosts:
    """Convert a batch's costs on one stage's GPUs to the batch's costs on all stages."""
    if fit is None:
        return costs
    times, count = [one.step_ms for one in fit.stages], len(fit.stages)
    tpot_ms = max(sum(times), min(count, costs.batch) * max(times))
    chunks = -(-costs.batch * costs.prompt_tokens // (CHUNK_TOKENS // count))
    computing = (costs.ttft_ms - machine.start_ms) * (chunks + count - 1) / (chunks * count)
    ttft_ms = machine.start_ms + computing / fit.balance
    return replace(
        costs,
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        request_ms=ttft_ms + tpot_ms * costs.output_tokens,
        output_tokens_per_s=costs.batch / tpot_ms * 1e3,
    )


def stage_rows(fit: PipelineFit) -> list[tuple[str, ...]]:
    """List each stage's layers, weights, KV bytes per token, and step time."""
    return [
        (
            f"{one.first_layer} to {one.last_layer}",
            gib(one.weight_bytes),
            f"{one.kv_bytes_per_token:,} bytes",
            ms(one.step_ms, 2),
        )
        for one in fit.stages
    ]


def pipeline_line(fit: PipelineFit) -> str:
    """Describe the balance of the stages, and the bytes sent between stages."""
    return (
        f"A stage computes {fit.balance:.0%} of the time on average, once as many requests run as "
        f"there are stages; from one to the next go {fit.bytes_between:,} bytes a token."
    )
