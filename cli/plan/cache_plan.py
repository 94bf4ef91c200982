"""A plan: a model's costs, the tokens that fit each tier, and when loading beats computing."""

from dataclasses import dataclass, field

import msgspec

from cli.errors import BadSetting
from cli.plan.decoder import DecoderCounts
from cli.plan.estimates import BatchCosts, ModelCosts, batch_costs, model_costs
from cli.plan.fits import (
    KvFit,
    RankFit,
    WeightsFit,
    device_states,
    free_bytes,
    kv_fits,
    rank_fit,
    weights_fits,
)
from cli.plan.machine import MachineModel
from cli.plan.offload import LayerCopies, copies_of, placement_of
from cli.plan.offload_fits import OffloadFit, all_needs, need_line, offload_fit, offload_needs
from cli.plan.options import MemoryFlags, RequestFlags
from cli.plan.stages import PipelineFit, in_stages, pipeline_fit
from cli.plan.states import StateFit
from cli.plan.units import gib
from engine.models.served.registry import SERVED, ServedModels


@dataclass(frozen=True, slots=True)
class CachePlan:
    """A plan. All fields but `kv` are for the requested KV type, the first in `kv`."""

    model: str
    kv_bytes_per_token: int
    weight_bytes: int
    device_tokens: int
    host_tokens: int
    disk_tokens: int
    # prefix length, in tokens, from which loading takes no longer than computing, if any
    host_break_even_tokens: int | None
    disk_break_even_tokens: int | None
    prefill_tokens_per_s: float  # the prefill rate for prompts of 4,096 tokens
    host_tokens_per_s: float
    disk_tokens_per_s: float
    costs: ModelCosts
    requests: BatchCosts
    weights: list[WeightsFit]
    kv: list[KvFit]
    states: StateFit | None = None
    rank: RankFit | None = None
    pipeline: PipelineFit | None = None
    offload: OffloadFit | None = None
    # Formats that fit only with some weights in host memory.
    with_offload: list[OffloadFit] = field(default_factory=list)
    not_served: str | None = None  # error with which a server's start would fail
    context_tokens: int | None = None


def make_plan(
    model: str,
    decoder: DecoderCounts,
    memory: MemoryFlags,
    machine: MachineModel,
    requests: RequestFlags,
    served: ServedModels = SERVED,
) -> CachePlan:
    """Compute the plan. Raises BadSetting if the weights do not fit."""
    weights = weights_fits(decoder, memory, served)
    if free_bytes(decoder, memory) <= 0:
        needs = [need_line(one) for one in all_needs(decoder, memory, machine, requests, served)]
        raise BadSetting("--gpu-gib", _too_large(decoder, memory, weights, needs))
    whole = _of_all_gpus(machine, memory)
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
        states=device_states(decoder, memory),
        rank=rank_fit(decoder, memory),
        pipeline=pipeline,
        offload=offload_fit(decoder, memory, machine),
        with_offload=offload_needs(decoder, memory, machine, requests, served),
    )


def _of_all_gpus(machine: MachineModel, memory: MemoryFlags) -> MachineModel:
    at_once = memory.gpus // memory.pipeline_parallel
    return msgspec.structs.replace(
        machine,
        tflops=machine.tflops * at_once,
        device_gb_s=machine.device_gb_s * at_once,
        host_gb_s=machine.host_gb_s * memory.gpus,  # in total, since each GPU has its own link
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


def _too_large(
    decoder: DecoderCounts, memory: MemoryFlags, weights: list[WeightsFit], needs: list[str]
) -> str:
    fitting = [f"in {one.format} {gib(one.weight_bytes)}" for one in weights if one.device_tokens]
    gpus = "one GPU" if memory.gpus == 1 else f"{memory.gpus} GPUs"
    taken = f"the weights take {gib(decoder.weight_bytes)} on {gpus}"
    return "; ".join([taken, *needs, *fitting])
