"""The engine's flags."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from cli.options.flags import ConfigFlags, field, flag
from engine.config import MOST_ADAPTER_RANK, MOST_ADAPTER_SLOTS, EngineConfig
from engine.models.shards import MOST_RANKS

ENGINE_DEFAULTS = EngineConfig.of(model_dir="", socket="")

engine_flag = partial(flag, panel="Engine")

ENGINE_FLAGS = {
    "device": engine_flag("Where the model runs."),
    "dtype": engine_flag(
        "Type of weights and KV; auto: float32 on cpu, the checkpoint's own on cuda."
    ),
    "load_format": engine_flag("'dummy' uses random weights, for benchmarks."),
    "quantization": engine_flag("Quantise a plain checkpoint's weights as they are loaded."),
    "kv_dtype": engine_flag(
        "Type of KV in every tier; auto: the weights' type. fp8: nearly twice the tokens."
    ),
    "block_size": engine_flag("Tokens per block of the cache.", min=1, max=256),
    "cpu_offload_gb": engine_flag(
        "GiB of each GPU's weights that stay in host memory; every step copies them. "
        "'ratoon plan' says how many GiB a model needs, and how long a step then takes.",
        min=0.0,
    ),
    "cache_tokens": engine_flag(
        "Tokens that the cache holds on the device. Default: sized from free memory.", min=1
    ),
    "host_cache_gib": engine_flag(
        "GiB of host memory for blocks that leave the device; 0: none. Default: a quarter "
        "of free memory, at most 0.25 on cpu and 64 on cuda.",
        min=0.0,
    ),
    "host_cache_tokens": engine_flag("Size of the host tier in tokens.", min=0),
    "windows": engine_flag(
        "Whether KV before a layer's sliding window is freed; auto: on a CPU, if this makes room; "
        "never on a GPU."
    ),
    "state_cache_ratio": engine_flag(
        "With recurrent layers or freed windows: bytes of cached states per byte of KV, in each "
        "tier; at most one window for 2,048 tokens.",
        min=0.0,
        max=64.0,
    ),
    "disk_cache_dir": engine_flag(
        "Directory of this engine for blocks on disk, which survive a restart. "
        "[dim]\\[default: DATA_DIR/blocks][/dim]",
        show_default=False,
    ),
    "disk_cache_gib": engine_flag(
        "GiB of disk for blocks, less on a small disk; 0: no disk tier.", min=0.0, max=2.0**20
    ),
    "disk_encryption": engine_flag("Encrypt blocks on disk, with one key for each tenant."),
    "cache_policy": engine_flag(
        "Blocks that are evicted first: lru: the least recently used; value: those that are least "
        "likely to be used again."
    ),
    "spill_grace_s": engine_flag(
        "Seconds for writing blocks to disk at shutdown, the most valuable first.", min=0.0
    ),
    "memory_fraction": engine_flag(
        "On cuda, share of free memory to use if --cache-tokens is not set.", min=0.01, max=1.0
    ),
    "max_model_len": engine_flag(
        "Maximum tokens of prompt and answer together. Default: the model's own.", min=1
    ),
    "adapters_dir": engine_flag("Folder of the LoRA adapters that may be loaded."),
    "adapter_slots": engine_flag("Adapters on the device at once.", min=1, max=MOST_ADAPTER_SLOTS),
    "adapter_rank": engine_flag("Largest rank of an adapter.", min=1, max=MOST_ADAPTER_RANK),
    "adapter_experts": engine_flag("Reserve memory for adapters of experts."),
    "adapter_host_gib": engine_flag("GiB of adapters in host memory.", min=0.0),
    "max_batch_tokens": engine_flag(
        "Maximum tokens computed in one step. Default: 512 on cpu, 8192 on cuda.", min=1
    ),
    "target_itl_ms": engine_flag(
        "Milliseconds that 99 of 100 gaps between an answer's tokens stay within; a low target "
        "delays first tokens. 0: no target; steps with prompts then take up to 60 ms on cuda, "
        "1000 on cpu, or a fifteenth of the waiting prompts' time. A tenant may have its own.",
        min=0.0,
    ),
    "max_running": engine_flag(
        "Maximum sequences that run at once, at most half of --max-batch-tokens.", min=1
    ),
    "max_waiting": engine_flag("Maximum sequences that may wait; further requests get 429.", min=1),
    "single_flight_deadline_s": engine_flag(
        "Maximum seconds that a request waits for another request to compute the same prefix.",
        min=0.0,
    ),
    "sentinel_share": engine_flag(
        "Share of the answers to cached prompts that an idle engine computes again without the "
        "cache, and compares; 0: none.",
        min=0.0,
        max=1.0,
    ),
    "overlap_scheduling": engine_flag(
        "On a GPU, schedule a step while the previous step is computed."
    ),
    "drafts": engine_flag(
        "auto: verify several probable tokens in a step, from the prompt, the cache or a "
        "prediction, where this saves time; answers are the same. off: one token per step."
    ),
    "graph_tokens": engine_flag(
        "On cuda, record steps of up to this many tokens as CUDA graphs; 0: none.", min=0
    ),
    "least_shared_tokens": engine_flag(
        "On cuda, decodes with a common prefix of at least this many tokens read it once "
        "together; 0: never. Default: a length measured for the GPU.",
        min=0,
    ),
    "tensor_parallel": engine_flag(
        "Divide each layer among this many processes of one machine, on cuda with a GPU each.",
        min=1,
        max=MOST_RANKS,
    ),
    "peer_memory": engine_flag(
        "On cuda, let ranks write into each other's GPU memory if the GPUs can; off: only NCCL."
    ),
    "pipeline_parallel": engine_flag(
        "Divide the layers among this many stages, each of --tensor-parallel processes.",
        min=1,
        max=MOST_RANKS,
    ),
    "num_threads": engine_flag(
        "CPU threads to compute with. Default: one fewer than there are cores.", min=1, max=1024
    ),
}
# Flags of `ratoon engine` alone. Under `ratoon serve`, the gateway drains requests.
ALONE_FLAGS = {
    **ENGINE_FLAGS,
    "grace_s": engine_flag("Seconds that running requests may go on after SIGTERM.", min=0.0),
    "role": engine_flag(
        "prefill: compute prompts for other engines; decode: all other work. Without engines of "
        "the other role, an engine serves whole requests."
    ),
    "exchange": engine_flag(
        "Address at which other engines fetch cached blocks: a path, or tcp://HOST:PORT with "
        "the link's key; not for engines of several ranks. Default: none ('ratoon serve "
        "--replicas' sets it)."
    ),
}


@dataclass(frozen=True, slots=True)
class ReplicaFlags:
    """The flags for the number of engines that one gateway drives."""

    replicas: int = field(
        1,
        "Number of engines, each with its own cache and on cuda its own GPU. "
        "--host-cache-gib, --host-cache-tokens, --disk-cache-gib and --num-threads are "
        "divided among them.",
        panel="Engine",
        min=1,
        max=64,
    )
    prefill_replicas: int = field(
        0,
        "How many of --replicas only compute prompts for the others. Gaps between tokens become "
        "more even, first tokens later, so measure first. 0: all do both.",
        panel="Engine",
        min=0,
        max=63,
    )


@dataclass(frozen=True, slots=True)
class RegisterFlags:
    """The flags for the registration of a single engine."""

    register: bool = field(
        False,
        "Register the engine in the state while it is ready, for gateways with --find-engines.",
        panel="Engine",
    )
    advertise: str | None = field(
        None,
        "Address under which gateways reach the engine. [dim]\\[default: --socket][/dim]",
        panel="Engine",
        show_default=False,
    )
    redis_url: str | None = field(
        None,
        "Redis with the state of the gateways. [dim]\\[default: SQLite in --data-dir][/dim]",
        panel="Engine",
        show_default=False,
    )
    redis_password_file: str | None = field(
        None, "File with the password of --redis-url.", panel="Engine", show_default=False
    )


EngineFlags = Annotated[EngineConfig, ConfigFlags(ENGINE_DEFAULTS, ENGINE_FLAGS)]
LoneEngineFlags = Annotated[EngineConfig, ConfigFlags(ENGINE_DEFAULTS, ALONE_FLAGS)]
