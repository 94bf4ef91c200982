"""The memory needs on a machine: weights in each served format, and the tokens of KV that fit."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cli.plan.decoder import BLOCK_SIZE, DecoderCounts
from cli.plan.machine import GIB, MachineModel, break_even_tokens
from cli.plan.offload import placement_of
from cli.plan.options import MemoryFlags
from cli.plan.stages import stages_of
from cli.plan.states import StateFit, divided, divided_below, state_fit
from cli.plan.units import gib
from engine.models.served.registry import SERVED, ServedModels
from storage.layouts.kv_layout import ITEM_BYTES


@dataclass(frozen=True, slots=True)
class WeightsFit:
    """The size of a model's weights in one format, and the room that they leave for KV."""

    format: str
    weight_bytes: int
    # number of tokens whose KV fits beside the weights; 0 if not even the weights fit
    device_tokens: int
    stage_layers: list[int]


@dataclass(frozen=True, slots=True)
class KvFit:
    """The tokens that fit with one KV type. A break-even length is None if loading never pays."""

    dtype: str
    bytes_per_token: int
    device_tokens: int
    host_tokens: int
    disk_tokens: int
    # prefix length, in tokens, from which loading takes no longer than computing
    host_break_even_tokens: int | None
    disk_break_even_tokens: int | None
    host_tokens_per_s: float
    disk_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class RankFit:
    """The memory use of each rank on its GPU. A rank has a part of every token's KV."""

    ranks: int
    weight_bytes: int
    kv_bytes_per_token: int
    device_tokens: int  # number of tokens whose KV fits, of which each rank has a part


def rank_fit(decoder: DecoderCounts, memory: MemoryFlags) -> RankFit | None:
    """Compute a rank's memory use. Raises UnsupportedModel if the model cannot be divided.

    Returns None if there is only one rank.
    """
    ranks = memory.tensor_parallel
    if ranks == 1 or memory.pipeline_parallel > 1:
        return None
    one = decoder.of_rank(ranks)
    tokens = device_tokens(decoder, memory)
    return RankFit(ranks, one.weight_bytes, one.kv_bytes_per_token, tokens)


def free_bytes(decoder: DecoderCounts, memory: MemoryFlags) -> float:
    """Count the bytes of all GPUs minus the weights, negative if the weights do not fit.

    All ranks are assumed to have as many bytes as the largest. Raises WrongSetting for an
    impossible --cpu-offload-gb.
    """
    freed = memory.num_ranks * _freed_bytes(decoder, memory)
    if memory.num_ranks > 1:
        fullest = max(part.weight_bytes for part in _parts(decoder, memory))
        return memory.num_ranks * (memory.gpu_gib * GIB - fullest) + freed
    return memory.gpu_gib * memory.gpus * GIB - decoder.weight_bytes + freed


def _freed_bytes(decoder: DecoderCounts, memory: MemoryFlags) -> int:
    placement = placement_of(decoder, memory)
    return 0 if placement is None else placement.freed_bytes


def _parts(decoder: DecoderCounts, memory: MemoryFlags) -> list[DecoderCounts]:
    stages = stages_of(decoder, memory.pipeline_parallel)
    return [one.of_rank(memory.tensor_parallel) for one in stages]


def weights_fits(
    decoder: DecoderCounts, memory: MemoryFlags, served: ServedModels = SERVED
) -> list[WeightsFit]:
    """Compute the memory use, without offload, of each weight format in which the model is served.

    Embeddings and the output head stay unquantised in every format.
    """
    memory = replace(memory, cpu_offload_gb=0.0)
    return [_weights_fit(one, memory) for one in in_formats(decoder, memory, served)]


def _weights_fit(decoder: DecoderCounts, memory: MemoryFlags) -> WeightsFit:
    layers = [len(part.layers) for part in stages_of(decoder, memory.pipeline_parallel)]
    name = decoder.weight_format.name
    return WeightsFit(name, decoder.weight_bytes, device_tokens(decoder, memory), layers)


def in_formats(
    decoder: DecoderCounts, memory: MemoryFlags, served: ServedModels
) -> Iterator[DecoderCounts]:
    """Yield the model in each served format that the ranks can divide."""
    changed = (decoder.with_weights_in(one) for one in served.planned_formats)
    return (one for one in changed if one.is_served and one.divides(memory.tensor_parallel))


def kv_fits(decoder: DecoderCounts, memory: MemoryFlags, machine: MachineModel) -> list[KvFit]:
    """Compute the fit of the model's KV type and narrower ones. `machine` is all GPUs together."""
    return [_kv_fit(one, memory, machine) for one in _by_kv(decoder)]


def _by_kv(decoder: DecoderCounts) -> Iterator[DecoderCounts]:
    yield decoder
    seen = {ITEM_BYTES[decoder.kv.groups[0].dtype]}
    for dtype, item_bytes in ITEM_BYTES.items():
        if item_bytes < min(seen):
            seen.add(item_bytes)
            yield decoder.with_kv_in(dtype)


def _kv_fit(decoder: DecoderCounts, memory: MemoryFlags, machine: MachineModel) -> KvFit:
    per_token, shape = decoder.block_bytes_per_token, decoder.shape

    def break_even(gb_s: float) -> int | None:
        return break_even_tokens(machine, shape, gb_s, setup_ms=memory.setup_ms)

    return KvFit(
        dtype=decoder.kv.groups[0].dtype,
        bytes_per_token=per_token,
        device_tokens=device_tokens(decoder, memory),
        host_tokens=_tokens_below(decoder, memory.host_gib),
        disk_tokens=_tokens_below(decoder, memory.disk_gib),
        host_break_even_tokens=break_even(machine.host_gb_s),
        disk_break_even_tokens=break_even(machine.disk_gb_s),
        host_tokens_per_s=machine.host_gb_s * 1e9 / per_token,
        disk_tokens_per_s=machine.disk_gb_s * 1e9 / per_token,
    )


def _tokens_below(decoder: DecoderCounts, tier_gib: float) -> int:
    if decoder.states is None:
        return int(tier_gib * GIB / decoder.block_bytes_per_token)
    return divided_below(decoder, tier_gib * GIB).num_blocks * BLOCK_SIZE


def device_tokens(decoder: DecoderCounts, memory: MemoryFlags) -> int:
    """Count the tokens whose KV fits on every GPU beside the weights.

    Returns 0 if the weights do not fit.
    """
    fitting = [
        (
            room / part.block_bytes_per_token
            if part.states is None
            else divided(part, part.states, room)[0]
        )
        for part, room in _rooms(decoder, memory)
    ]
    return max(0, int(min(fitting)))


def device_states(decoder: DecoderCounts, memory: MemoryFlags) -> StateFit | None:
    """Count the recurrent states or attention windows that fit beside the KV, if there are any."""
    [*_, (part, room)] = _rooms(decoder, memory)
    return state_fit(part, room, memory.host_gib * GIB, memory.disk_gib * GIB)


def _rooms(decoder: DecoderCounts, memory: MemoryFlags) -> Iterator[tuple[DecoderCounts, float]]:
    """Yield one rank's part of each stage, and its GPU's usable bytes beside its weights."""
    gpus = memory.gpus if memory.num_ranks == 1 else 1
    room = memory.gpu_gib * gpus * GIB + _freed_bytes(decoder, memory)
    for part in _parts(decoder, memory):
        yield part, (room - part.weight_bytes) * memory.memory_fraction


def rank_rows(fit: RankFit) -> list[tuple[str, str]]:
    """List each count of a rank, and its amount."""
    return [
        ("weights", gib(fit.weight_bytes)),
        ("KV of a token", f"{fit.kv_bytes_per_token:,} bytes"),
        ("tokens that fit all ranks", f"{fit.device_tokens:,}"),
    ]


def weight_rows(fits: list[WeightsFit]) -> list[tuple[str, ...]]:
    """List format, GiB and tokens. With several stages, also list the layers of each stage.

    The layers explain why lighter weights may leave room for fewer tokens. Embeddings and head stay
    unquantised. So stages without them get more layers, and more of every token's KV.
    """
    return [
        (one.format, gib(one.weight_bytes), f"{one.device_tokens:,}", *_layers(one.stage_layers))
        for one in fits
    ]


def _layers(of_stages: list[int]) -> list[str]:
    return [" + ".join(map(str, of_stages))] if len(of_stages) > 1 else []


def tier_rows(fits: list[KvFit], computed_per_s: float) -> list[tuple[str, ...]]:
    """List tier, KV type, tokens, tokens a second, and the length from which loading pays."""
    rows: list[tuple[str, ...]] = []
    for one in fits:
        tiers = (
            ("host", one.host_tokens, one.host_tokens_per_s, one.host_break_even_tokens),
            ("disk", one.disk_tokens, one.disk_tokens_per_s, one.disk_break_even_tokens),
        )
        rows.append(
            ("device", one.dtype, f"{one.device_tokens:,}", f"{computed_per_s:,.0f} computed", "")
        )
        rows += (
            (tier, one.dtype, f"{tokens:,}", f"{rate:,.0f} loaded", _from(pays))
            for tier, tokens, rate, pays in tiers
        )
    return rows


def _from(tokens: int | None) -> str:
    return "never" if tokens is None else f"{tokens:,} tokens"
