"""The memory use and step times of a GPU with some weights in host memory."""

from dataclasses import dataclass, replace

from cli.plan.decoder import DecoderCounts
from cli.plan.fits import device_tokens, in_formats
from cli.plan.machine import GIB, MachineModel
from cli.plan.offload import copies_of, placement_of
from cli.plan.options import MemoryFlags, RequestFlags
from cli.plan.units import ms
from engine.models.served.registry import SERVED, ServedModels
from engine.offload.placement import Placement, as_gib, least_placement


@dataclass(frozen=True, slots=True)
class OffloadFit:
    """The memory use of a model in one weight format, with some weights in host memory.

    Bytes and layers are per GPU.
    """

    format: str
    cpu_offload_gb: float
    layers: int  # number of layers whose weights stay in host memory
    host_bytes: int
    freed_bytes: int
    copy_ms: float  # milliseconds of a step's copies, and so its minimum duration
    device_tokens: int


def offload_fit(
    decoder: DecoderCounts, memory: MemoryFlags, machine: MachineModel
) -> OffloadFit | None:
    """Compute the memory use with --cpu-offload-gb, if it is given. Raises WrongSetting.

    `machine` is one GPU.
    """
    placement = placement_of(decoder, memory)
    if placement is None:
        return None
    return _fit(decoder, memory, machine, placement)


def offload_needs(
    decoder: DecoderCounts,
    memory: MemoryFlags,
    machine: MachineModel,
    requests: RequestFlags,
    served: ServedModels = SERVED,
) -> list[OffloadFit]:
    """List the minimum offload that `requests` need, for each format whose weights do not fit.

    Formats that do not fit with any offload are left out. `machine` is one GPU.
    """
    plain = replace(memory, cpu_offload_gb=0.0)
    needs = (
        least_fit(one, memory, machine, requests)
        for one in in_formats(decoder, memory, served)
        if not device_tokens(one, plain)
    )
    return [one for one in needs if one is not None]


def least_fit(
    decoder: DecoderCounts, memory: MemoryFlags, machine: MachineModel, requests: RequestFlags
) -> OffloadFit | None:
    """Find the minimum number of layers in host memory with which the model fits.

    Returns None if no number of layers is enough. `machine` is one GPU.
    """
    least = _least(decoder, memory, requests)
    if least is None:
        return None
    asked = replace(memory, cpu_offload_gb=float(as_gib(least.host_bytes)))
    return _fit(decoder, asked, machine, least)


def _least(decoder: DecoderCounts, memory: MemoryFlags, requests: RequestFlags) -> Placement | None:
    if memory.gpus != memory.tensor_parallel:
        return None
    part = decoder.of_rank(memory.tensor_parallel)
    tokens = requests.batch * (requests.prompt_tokens + requests.output_tokens)
    kv_bytes = tokens * part.kv_bytes_per_token / memory.memory_fraction
    others = part.weight_bytes - part.layer_bytes
    return least_placement(part.bytes_by_layer, memory.gpu_gib * GIB - others - kv_bytes)


def all_needs(
    decoder: DecoderCounts,
    memory: MemoryFlags,
    machine: MachineModel,
    requests: RequestFlags,
    served: ServedModels = SERVED,
) -> list[OffloadFit]:
    """List the minimum offload of the model's format, and of the formats that need less."""
    own = least_fit(decoder, memory, machine, requests)
    others = offload_needs(decoder, memory, machine, requests, served)
    if own is None:
        return others
    return [own, *(one for one in others if one.host_bytes < own.host_bytes)]


def need_line(fit: OffloadFit) -> str:
    """Describe the needed offload, for the error message when weights do not fit."""
    return (
        f"with --cpu-offload-gb {fit.cpu_offload_gb:g} they fit in {fit.format}, and each step "
        f"copies weights for {ms(fit.copy_ms, 0)}"
    )


def offload_rows(fits: list[OffloadFit]) -> list[tuple[str, ...]]:
    """List format, flag, layers, milliseconds and tokens."""
    return [
        (
            one.format,
            f"{one.cpu_offload_gb:g}",
            f"{one.layers}",
            ms(one.copy_ms, 0),
            f"{one.device_tokens:,}",
        )
        for one in fits
    ]


def _fit(
    decoder: DecoderCounts, memory: MemoryFlags, machine: MachineModel, placement: Placement
) -> OffloadFit:
    return OffloadFit(
        format=decoder.weight_format.name,
        cpu_offload_gb=memory.cpu_offload_gb,
        layers=len(placement.layers),
        host_bytes=placement.host_bytes,
        freed_bytes=placement.freed_bytes,
        copy_ms=1e3 * copies_of(decoder, memory, machine, placement).step_seconds,
        device_tokens=device_tokens(decoder, memory),
    )
