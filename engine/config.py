"""The engine's settings, composed by the command line and passed whole to the engine process.

Knows: names, defaults and units. Does not know: flags or environment variables (`cli`), nor
derived numbers: the functions that derive them return them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self, TypeVar

import msgspec

from engine.link.messages import Role
from engine.step_sizes import MOST_NEW
from prefix_cache.names import PolicyName

Config = TypeVar("Config", bound=msgspec.Struct)
DeviceName = Literal["auto", "cpu", "cuda"]
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
LoadFormat = Literal["safetensors", "dummy"]
KvDtype = Literal["auto", "fp8"]
Quantization = Literal["none", "fp8"]  # of plain weights, as they are loaded


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Weights that are served, and the form in which they are."""

    model_dir: str
    dtype: DtypeName = "auto"  # auto: float32 on cpu, the checkpoint's own on cuda
    load_format: LoadFormat = "safetensors"
    quantization: Quantization = "none"
    # GiB of each rank's weights that stay in host memory, in whole layers; 0: none.
    cpu_offload_gb: float = 0.0
    max_model_len: int | None = None  # None: the model's own


class CacheSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Size of each tier of the cache, and the order of eviction."""

    block_size: int = 16
    kv_dtype: KvDtype = "auto"  # auto: that of the weights
    cache_tokens: int | None = None  # None: sized from free memory
    memory_fraction: float = 0.9  # on cuda, of its free memory, when cache_tokens is None
    # None: a quarter of the host's free memory, at most 0.25 on cpu and 64 on cuda.
    host_cache_gib: float | None = None
    host_cache_tokens: int | None = None  # instead of host_cache_gib
    disk_cache_dir: str | None = None  # None: no disk tier
    disk_cache_gib: float = 1.0  # 0: no disk tier
    disk_encryption: bool = False  # with one data key for each flow
    spill_grace_s: float = 5.0  # how long blocks are written to disk at a stop, hottest first
    cache_policy: PolicyName = "lru"
    single_flight_deadline_s: float = 10.0


class StepSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one step, and the way in which it is launched."""

    max_batch_tokens: int | None = None  # a step's budget; None: 512 on cpu, 8192 on cuda
    # Milliseconds of a step that has decodes, at most, unless many prompts wait
    # (`prefill_budget.py`); 0: no bound. None: 1000 on cpu, 60 on cuda.
    max_step_ms: float | None = None
    max_running: int = 256
    max_waiting: int = 1024
    overlap_scheduling: bool = True  # on cuda, decide a step while the one before is computed
    # On cuda a prefix of at least this many tokens that decodes have in common is read once for
    # all of them, where that saves enough. None: as many as were measured to pay; 0: never.
    least_shared_tokens: int | None = None
    graph_tokens: int = MOST_NEW  # largest step that is replayed as a graph on cuda; 0: none


class RankSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that divide each layer, and stages that divide the layers.

    So many times so many processes, on cuda each with a GPU of its own.
    """

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    peer_memory: bool = True  # on cuda, ranks exchange over each other's memory where they can

    @property
    def num_ranks(self) -> int:
        """Processes that compute the model together."""
        return self.tensor_parallel * self.pipeline_parallel


class ProcessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Address of the process, and what it may use of its machine."""

    socket: str  # path of the Unix socket it serves, or tcp://host:port
    link_key_file: str | None = None  # needed over TCP (`link/curve.py`)
    role: Role = "both"  # what gateways send it, where they drive several engines
    # Where other engines fetch blocks: a path, tcp://host:port, or tcp://host:* for any free port.
    # None: nowhere, as with several ranks.
    exchange: str | None = None
    device: DeviceName = "auto"
    # Of the host's free memory, what it may size itself by: replicas divide it. None: all.
    host_memory_bytes: int | None = None
    num_threads: int | None = None  # of the CPU; None: one core fewer than there are
    grace_s: float = 5.0  # how long running requests may go on after SIGTERM


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one engine process."""

    model: ModelSettings
    process: ProcessSettings
    cache: CacheSettings = CacheSettings()
    steps: StepSettings = StepSettings()
    ranks: RankSettings = RankSettings()

    @classmethod
    def of(cls, *, model_dir: str, socket: str, **settings: Any) -> Self:
        """Make a config of these settings, each in the part that has it; the others by default."""
        bare = cls(model=ModelSettings(model_dir=model_dir), process=ProcessSettings(socket=socket))
        return bare.changed(**settings)

    def changed(self, **settings: Any) -> Self:
        """Return the config with other values of these settings, in whichever part; KeyError."""
        return with_settings(self, settings)


def part_with(config: msgspec.Struct, name: str) -> msgspec.Struct:
    """Find the config or its part that has a setting of this name; KeyError."""
    parts = (config, *(getattr(config, field) for field in config.__struct_fields__))
    for part in parts:
        if isinstance(part, msgspec.Struct) and name in part.__struct_fields__:
            return part
    raise KeyError(name)


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """Return the config with other values of some settings, each in its part; KeyError."""
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
