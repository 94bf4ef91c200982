"""The engine's settings. The command line builds them and passes them to the engine process.

Numbers derived from settings are not stored here. The functions that derive them return them.

Elsewhere: environment variables (`cli`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self, TypeVar

import msgspec

from engine.link.messages import Role
from engine.step_sizes import MOST_NEW
from prefix_cache.names import PolicyName

Config = TypeVar("Config", bound=msgspec.Struct)
MOST_ADAPTER_SLOTS, MOST_ADAPTER_RANK = 256, 128
DeviceName = Literal["auto", "cpu", "cuda"]
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
LoadFormat = Literal["safetensors", "dummy"]
KvDtype = Literal["auto", "fp8"]
DraftsName = Literal["auto", "off"]
WindowsName = Literal["auto", "freed", "whole"]
Quantization = Literal["none", "fp8"]  # how unquantised weights are quantised while loading


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The weights that are served, and their data type."""

    model_dir: str
    dtype: DtypeName = "auto"  # auto: float32 on cpu, the dtype of the model files on cuda
    load_format: LoadFormat = "safetensors"
    quantization: Quantization = "none"
    # The GiB of each rank's weights that stay in host memory. Whole layers stay there. 0: none.
    cpu_offload_gb: float = 0.0
    max_model_len: int | None = None  # maximum context in tokens; None: the model's maximum
    adapters_dir: str | None = None  # folder of loadable LoRA adapters; None: no adapters
    adapter_slots: int = 8
    adapter_rank: int = 16
    adapter_experts: bool = False  # True: reserve memory for adapters of expert layers
    adapter_host_gib: float = 1.0


class CacheSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The size of each cache tier, and the order of eviction."""

    block_size: int = 16
    kv_dtype: KvDtype = "auto"  # auto: the dtype of the weights
    cache_tokens: int | None = None  # tokens of the device tier; None: sized from free memory
    memory_fraction: float = 0.9  # share of free GPU memory to use if cache_tokens is None

    # The GiB of the host tier. None: a quarter of the free host memory, at most 0.25 GiB on cpu and
    # 64 GiB on cuda.
    host_cache_gib: float | None = None
    host_cache_tokens: int | None = None  # tokens of the host tier, instead of host_cache_gib

    # How the KV of sliding-window layers is kept. freed: a running sequence keeps only the KV of
    # its last window, and the cache keeps a window's KV only at positions where later prompts may
    # continue. auto: freed if this saves memory.
    windows: WindowsName = "auto"
    # On the device, the bytes reserved for cached recurrent states or windows per byte of KV.
    state_cache_ratio: float = 0.25
    disk_cache_dir: str | None = None
    disk_cache_gib: float = 1.0  # GiB of the disk tier; 0: no disk tier
    disk_encryption: bool = False  # True: encrypt each flow's disk records with a key of the flow
    spill_grace_s: float = 5.0  # at shutdown, seconds to write blocks to disk, hottest first
    cache_policy: PolicyName = "lru"
    single_flight_deadline_s: float = 10.0
    # The share of answers to cached prompts that are recomputed without the cache, as a check.
    sentinel_share: float = 0.001


class StepSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one step, and how it is launched."""

    max_batch_tokens: int | None = None  # tokens of one step; None: 512 on cpu, 8192 on cuda

    # The target for the 99th percentile of the gap between an answer's tokens, in milliseconds. 0:
    # no target.
    target_itl_ms: float = 0.0
    max_running: int = 256
    max_waiting: int = 1024
    overlap_scheduling: bool = True  # True: on cuda, schedule a step while another is computed
    drafts: DraftsName = "auto"  # auto: draft and verify tokens where this saves time

    # The minimum length, in tokens, of a common prefix that several decodes read together, on cuda.
    # None: the measured break-even length. 0: never.
    least_shared_tokens: int | None = None
    # Maximum tokens of a step that is replayed as a CUDA graph; 0: no graphs.
    graph_tokens: int = MOST_NEW


class RankSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The number of ranks that split each layer, and of stages that split the sequence of layers.

    The number of processes is the product of both. On cuda each process has its own GPU.
    """

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    peer_memory: bool = True  # True: on cuda, ranks exchange data over peer memory if possible

    @property
    def num_ranks(self) -> int:
        """The number of processes that compute the model together."""
        return self.tensor_parallel * self.pipeline_parallel


class ProcessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The address of the engine's process, and its share of the machine."""

    socket: str  # path of the Unix socket that the engine serves, or tcp://host:port
    link_key_file: str | None = None  # required over TCP (`link/tcp/curve.py`)

    # The phases of requests that gateways send this engine, if there are several engines.
    role: Role = "both"
    # The address at which other engines fetch blocks from this engine: a path, tcp://host:port, or
    # tcp://host:*. None: other engines cannot fetch blocks.
    exchange: str | None = None
    device: DeviceName = "auto"
    # The bytes of free host memory on which this replica bases its sizes. None: all free memory.
    host_memory_bytes: int | None = None
    num_threads: int | None = None  # number of CPU threads; None: one less than the cores
    grace_s: float = 5.0  # seconds that running requests may continue after SIGTERM


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one engine process."""

    model: ModelSettings
    process: ProcessSettings
    cache: CacheSettings = CacheSettings()
    steps: StepSettings = StepSettings()
    ranks: RankSettings = RankSettings()

    @classmethod
    def of(cls, *, model_dir: str, socket: str, **settings: Any) -> Self:
        """Make a config of settings given by name. Other settings have their defaults."""
        bare = cls(model=ModelSettings(model_dir=model_dir), process=ProcessSettings(socket=socket))
        return bare.changed(**settings)

    def changed(self, **settings: Any) -> Self:
        """Return the config with other values of the named settings. Raises KeyError."""
        return with_settings(self, settings)


def part_with(config: msgspec.Struct, name: str) -> msgspec.Struct:
    """Return the config or the nested config that has the setting `name`. Raises KeyError."""
    parts = (config, *(getattr(config, field) for field in config.__struct_fields__))
    for part in parts:
        if isinstance(part, msgspec.Struct) and name in part.__struct_fields__:
            return part
    raise KeyError(name)


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """Return the config with other values of the named settings. Raises KeyError."""
    changed: dict[int, tuple[msgspec.Struct, dict[str, Any]]] = {}
    for name, value in settings.items():
        part = part_with(config, name)
        changed.setdefault(id(part), (part, {}))[1][name] = value
    _, own = changed.pop(id(config), (config, {}))
    for field in config.__struct_fields__:
        part, given = changed.get(id(getattr(config, field)), (config, {}))
        if given:
            own[field] = msgspec.structs.replace(part, **given)
    return msgspec.structs.replace(config, **own)
