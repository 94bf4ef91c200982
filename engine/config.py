"""The engine's settings, composed by the command line and passed whole to the engine process.

Knows: names, defaults and units. Does not know: flags or environment variables (`cli`), nor
derived numbers: the functions that derive them return them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.link.messages import Role
from engine.step_sizes import MOST_NEW
from prefix_cache.names import PolicyName

DeviceName = Literal["auto", "cpu", "cuda"]
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
LoadFormat = Literal["safetensors", "dummy"]
KvDtype = Literal["auto", "fp8"]
Quantization = Literal["none", "fp8"]  # of plain weights, as they are loaded


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine process needs to know."""

    model_dir: str
    socket: str  # path of the Unix socket it serves, or tcp://host:port
    link_key_file: str | None = None  # needed over TCP (`link/curve.py`)
    role: Role = "both"  # what gateways send it, where they drive several engines
    # Where other engines fetch blocks: a path, tcp://host:port, or tcp://host:* for any free port.
    # None: nowhere, as with several ranks.
    exchange: str | None = None
    device: DeviceName = "auto"
    dtype: DtypeName = "auto"  # auto: float32 on cpu, the checkpoint's own on cuda
    load_format: LoadFormat = "safetensors"
    quantization: Quantization = "none"
    kv_dtype: KvDtype = "auto"  # auto: that of the weights
    block_size: int = 16
    # GiB of each rank's weights that stay in host memory, in whole layers; 0: none.
    cpu_offload_gb: float = 0.0
    cache_tokens: int | None = None  # None: sized from free memory
    # None: a quarter of the host's free memory, at most 0.25 on cpu and 64 on cuda.
    host_cache_gib: float | None = None
    host_cache_tokens: int | None = None  # instead of host_cache_gib
    # Of the host's free memory, what it may size itself by: replicas divide it. None: all.
    host_memory_bytes: int | None = None
    disk_cache_dir: str | None = None  # None: no disk tier
    disk_cache_gib: float = 1.0  # 0: no disk tier
    disk_encryption: bool = False  # with one data key for each flow
    cache_policy: PolicyName = "lru"
    memory_fraction: float = 0.9  # on cuda, of its free memory, when cache_tokens is None
    max_model_len: int | None = None  # None: the model's own
    max_batch_tokens: int | None = None  # a step's budget; None: 512 on cpu, 8192 on cuda
    # Milliseconds of a step that has decodes, at most, unless many prompts wait
    # (`prefill_budget.py`); 0: no bound. None: 1000 on cpu, 60 on cuda.
    max_step_ms: float | None = None
    max_running: int = 256
    max_waiting: int = 1024
    single_flight_deadline_s: float = 10.0
    grace_s: float = 5.0  # how long running requests may go on after SIGTERM
    spill_grace_s: float = 5.0  # how long blocks may then be written to disk, hottest first
    num_threads: int | None = None  # of the CPU; None: one core fewer than there are
    # Ranks that divide each layer, and stages that divide the layers: so many times so many
    # processes, each with a GPU of its own.
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    peer_memory: bool = True  # on cuda, ranks exchange over each other's memory where they can
    overlap_scheduling: bool = True  # on cuda, decide a step while the one before is computed
    # On cuda a prefix of at least this many tokens that decodes have in common is read once for
    # all of them, where that saves enough. None: as many as were measured to pay; 0: never.
    least_shared_tokens: int | None = None
    graph_tokens: int = MOST_NEW  # largest step that is replayed as a graph on cuda; 0: none

    @property
    def num_ranks(self) -> int:
        """Processes that compute the model together."""
        return self.tensor_parallel * self.pipeline_parallel
