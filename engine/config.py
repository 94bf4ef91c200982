"""The engine's settings, composed by the command line and handed to the engine process whole.

Knows: names, defaults and units. Does not know: flags or environment variables (`cli`), nor
anything derived: numbers worked out from these are returned by whoever works them out.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.step_sizes import MOST_NEW
from prefix_cache.policy_name import PolicyName

DeviceName = Literal["auto", "cpu", "cuda"]
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
LoadFormat = Literal["safetensors", "dummy"]


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine process needs to know."""

    model_dir: str
    socket: str  # path of the Unix socket it serves
    device: DeviceName = "auto"
    dtype: DtypeName = "auto"  # auto: float32 on cpu, the checkpoint's own on cuda
    load_format: LoadFormat = "safetensors"
    block_size: int = 16
    cache_tokens: int | None = None  # None: sized from free memory
    # None: a quarter of the host's free memory, at most 0.25 on cpu and 64 on cuda.
    host_cache_gib: float | None = None
    host_cache_tokens: int | None = None  # instead of host_cache_gib
    disk_cache_dir: str | None = None  # None: no disk tier
    disk_cache_gib: float = 1.0  # 0: no disk tier
    disk_encryption: bool = False  # with one data key for each flow
    cache_policy: PolicyName = "lru"
    memory_fraction: float = 0.9  # on cuda, of its free memory, when cache_tokens is None
    max_model_len: int | None = None  # None: the model's own
    max_batch_tokens: int | None = None  # a step's budget; None: 512 on cpu, 8192 on cuda
    # Prompt tokens of a step that has decodes too, at most. None: what these leave of the budget.
    max_batch_tokens_beside_decodes: int | None = None
    # Steps over which prompts that wait are spread beside decodes; 0: as few as possible.
    # None: 0 on cpu, 24 on cuda.
    backlog_steps: int | None = None
    # Prompt tokens of a step, at most, while occasional tenants come and go beside others that
    # never stop asking; more where the occasional ones' own prompts are long (`visitors.py`).
    # None: 64 on cpu, 256 on cuda.
    max_batch_tokens_beside_visitors: int | None = None
    max_running: int = 256
    max_waiting: int = 1024
    single_flight_deadline_s: float = 10.0
    grace_s: float = 5.0  # how long running requests may go on after SIGTERM
    spill_grace_s: float = 5.0  # how long blocks may then be written to disk, hottest first
    num_threads: int | None = None  # of the CPU; None: one core fewer than there are
    steps_ahead: int = 1  # steps that may be on their way when the next is decided: 0 or 1
    # On cuda a prefix of at least this many tokens that decodes have in common is read once for
    # all of them, where that saves enough. None: as many as were measured to pay; 0: never.
    least_shared_tokens: int | None = None
    graph_tokens: int = MOST_NEW  # on cuda, steps of up to so many are replayed as graphs; 0: none
