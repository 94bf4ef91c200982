"""The flags of `ratoon plan`, some of which `ratoon simulate` has, too."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from cli.options.flags import ConfigFlags, field, flag
from cli.plan.machine import MachineModel
from engine.models.shards import MOST_RANKS

CACHE = "Cache"
MACHINE = "Machine (for estimates)"

cache_field = partial(field, panel=CACHE)
machine_flag = partial(flag, panel=MACHINE)
machine_field = partial(field, panel=MACHINE)
request_field = partial(field, panel="Requests (for estimates)")

RATES = {
    "tflops": machine_flag("TFLOP/s that prefill reaches.", min=0.001),
    "host_gb_s": machine_flag("GB/s from host to device.", min=0.001),
    "disk_gb_s": machine_flag("GB/s from disk to device.", min=0.001),
    "start_ms": machine_flag("Fixed time of any request before its first token, in ms.", min=0.0),
}
_DECODE_RATE = machine_flag("GB/s that decode reads from the device's memory.", min=0.001)
PlanMachineFlags = Annotated[
    MachineModel, ConfigFlags(MachineModel(), {**RATES, "device_gb_s": _DECODE_RATE})
]


@dataclass(frozen=True, slots=True)
class RequestFlags:
    """The flags for the requests whose times are predicted."""

    batch: int = request_field(1, "Requests at once.", min=1)
    prompt_tokens: int = request_field(1024, "Tokens of every prompt.", min=1)
    output_tokens: int = request_field(256, "Tokens of every answer.", min=0)


@dataclass(frozen=True, slots=True)
class MemoryFlags:
    """The flags for the sizes of the KV tiers."""

    gpu: str | None = machine_field(
        None, "A GPU such as h100 or l4: sets its memory, and the rates that are not given."
    )
    gpu_gib: float = cache_field(141.0, "Memory of one GPU, in GiB.", min=0.001)
    gpus: int = cache_field(1, "GPUs that one model is split over.", min=1)
    tensor_parallel: int = cache_field(
        1, "Ranks among which each layer is divided, each with a GPU.", min=1, max=MOST_RANKS
    )
    pipeline_parallel: int = cache_field(
        1,
        "Stages among which the layers are divided, each with --tensor-parallel GPUs.",
        min=1,
        max=MOST_RANKS,
    )
    cpu_offload_gb: float = cache_field(
        0.0, "GiB of weights of each GPU that stay in host memory; every step copies them.", min=0.0
    )
    host_gib: float = cache_field(0.0, "Pinned host memory for KV, in GiB.", min=0.0)
    disk_gib: float = cache_field(0.0, "Disk for KV, in GiB.", min=0.0)
    memory_fraction: float = cache_field(
        0.9, "Share of the GPU's memory without the weights to use for KV.", min=0.01, max=1.0
    )
    setup_ms: float = machine_field(
        1.0, "Fixed time of a load before its first byte, in ms.", min=0.0
    )
    kv_dtype: Literal["auto", "fp8", "float32", "bfloat16", "float16"] = cache_field(
        "auto", "Type of weights and KV; auto: the checkpoint's own. fp8: only of KV."
    )

    @property
    def num_ranks(self) -> int:
        """The number of processes that compute a model together."""
        return self.tensor_parallel * self.pipeline_parallel
