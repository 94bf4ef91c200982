"""The engine's flags, each once.

The fields carry the names of those of `EngineConfig` and take their defaults from there; `compose`
puts the groups into the config.

Knows: flags and the values they take. Does not know: which commands take them (`serve`,
`standalone`) or what the settings do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from cli.options import flag
from engine.config import DeviceName, DtypeName, EngineConfig, LoadFormat
from prefix_cache.policies import PolicyName

ENGINE_DEFAULTS = EngineConfig(model_dir="", socket="")

engine_flag = partial(flag, panel="Engine")


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """The engine's settings: field for field those of `EngineConfig` that a person chooses."""

    device: Annotated[DeviceName, engine_flag("--device", "Where the model runs.")] = (
        ENGINE_DEFAULTS.device
    )
    dtype: Annotated[
        DtypeName,
        engine_flag(
            "--dtype", "Of weights and KV; auto is float32 on cpu, the checkpoint's own on cuda."
        ),
    ] = ENGINE_DEFAULTS.dtype
    load_format: Annotated[
        LoadFormat,
        engine_flag("--load-format", "'dummy' fills random weights, for benchmarks."),
    ] = ENGINE_DEFAULTS.load_format
    block_size: Annotated[
        int, engine_flag("--block-size", "Tokens per block of the cache.", min=1, max=256)
    ] = ENGINE_DEFAULTS.block_size
    cache_tokens: Annotated[
        int | None,
        engine_flag(
            "--cache-tokens", "Tokens the cache holds. Left out: sized from free memory.", min=1
        ),
    ] = ENGINE_DEFAULTS.cache_tokens
    host_cache_gib: Annotated[
        float | None,
        engine_flag(
            "--host-cache-gib",
            "Host memory for blocks that leave the device; 0: none. Left out: 0.25 on cpu; on cuda "
            "a quarter of what is free, at most 64.",
            min=0.0,
        ),
    ] = ENGINE_DEFAULTS.host_cache_gib
    host_cache_tokens: Annotated[
        int | None,
        engine_flag("--host-cache-tokens", "The same in tokens.", min=0),
    ] = ENGINE_DEFAULTS.host_cache_tokens
    disk_cache_dir: Annotated[
        str | None,
        engine_flag(
            "--disk-cache-dir",
            "Where blocks outlive the engine; one engine's alone. "
            "[dim]\\[default: DATA_DIR/blocks][/dim]",
            show_default=False,
        ),
    ] = ENGINE_DEFAULTS.disk_cache_dir
    disk_cache_gib: Annotated[
        float,
        engine_flag("--disk-cache-gib", "Most that they take on disk; 0: none.", min=0.0),
    ] = ENGINE_DEFAULTS.disk_cache_gib
    disk_encryption: Annotated[
        bool,
        engine_flag("--disk-encryption", "Encrypt blocks on disk, under a key for every tenant."),
    ] = ENGINE_DEFAULTS.disk_encryption
    cache_policy: Annotated[PolicyName, engine_flag("--cache-policy", "Which blocks go first.")] = (
        ENGINE_DEFAULTS.cache_policy
    )
    spill_grace_s: Annotated[
        float,
        engine_flag(
            "--spill-grace-s",
            "Seconds that blocks may be written to disk for, hottest first, at the end.",
            min=0.0,
        ),
    ] = ENGINE_DEFAULTS.spill_grace_s
    memory_fraction: Annotated[
        float,
        engine_flag(
            "--memory-fraction",
            "Of the device's free memory, when --cache-tokens is left out.",
            min=0.01,
            max=1.0,
        ),
    ] = ENGINE_DEFAULTS.memory_fraction
    max_model_len: Annotated[
        int | None,
        engine_flag(
            "--max-model-len",
            "Tokens of prompt and answer together. Left out: the model's own.",
            min=1,
        ),
    ] = ENGINE_DEFAULTS.max_model_len
    max_batch_tokens: Annotated[
        int | None,
        engine_flag(
            "--max-batch-tokens",
            "Tokens computed in one step. Left out: 512 on cpu, 8192 on cuda.",
            min=1,
        ),
    ] = ENGINE_DEFAULTS.max_batch_tokens
    max_batch_tokens_beside_decodes: Annotated[
        int | None,
        engine_flag(
            "--max-batch-tokens-beside-decodes",
            "Of prompts, in a step with running answers: fewer give shorter gaps between their "
            "tokens and later first tokens. Left out: all of --max-batch-tokens.",
            min=1,
        ),
    ] = ENGINE_DEFAULTS.max_batch_tokens_beside_decodes
    max_batch_tokens_beside_visitors: Annotated[
        int | None,
        engine_flag(
            "--max-batch-tokens-beside-visitors",
            "Of prompts of who asks without end, in a step, while others come and go: fewer let "
            "these wait less for their first tokens, and cost those throughput. Where visitors' "
            "own prompts are long it is an eighth of them, if that is more. Left out: 64 on cpu, "
            "384 on cuda; as many as --max-batch-tokens: no bound.",
            min=1,
        ),
    ] = ENGINE_DEFAULTS.max_batch_tokens_beside_visitors
    max_running: Annotated[
        int, engine_flag("--max-running", "Sequences that run at once.", min=1)
    ] = ENGINE_DEFAULTS.max_running
    max_waiting: Annotated[
        int,
        engine_flag("--max-waiting", "Sequences that may queue; more are 429.", min=1),
    ] = ENGINE_DEFAULTS.max_waiting
    single_flight_deadline_s: Annotated[
        float,
        engine_flag(
            "--single-flight-deadline-s",
            "Seconds a request waits for another that computes the same prefix.",
            min=0.0,
        ),
    ] = ENGINE_DEFAULTS.single_flight_deadline_s
    steps_ahead: Annotated[
        int,
        engine_flag(
            "--steps-ahead",
            "1: decide a step while the one before is computed; 0: wait for it.",
            min=0,
            max=1,
        ),
    ] = ENGINE_DEFAULTS.steps_ahead
    graph_tokens: Annotated[
        int,
        engine_flag(
            "--graph-tokens",
            "On cuda, steps of up to so many tokens are recorded once and replayed; 0: none.",
            min=0,
        ),
    ] = ENGINE_DEFAULTS.graph_tokens
    least_shared_tokens: Annotated[
        int | None,
        engine_flag(
            "--least-shared-tokens",
            "On cuda, a prefix of so many tokens that decodes have in common is read once for all "
            "of them; 0: never. Left out: as many as were measured to pay.",
            min=0,
        ),
    ] = ENGINE_DEFAULTS.least_shared_tokens
    num_threads: Annotated[
        int | None,
        engine_flag(
            "--num-threads", "CPU threads. Left out: one core fewer than there are.", min=1
        ),
    ] = ENGINE_DEFAULTS.num_threads


@dataclass(frozen=True, slots=True)
class EngineGraceFlags:
    """How an engine that is started alone stops; beside a gateway, that one's grace counts."""

    grace_s: Annotated[
        float,
        engine_flag("--grace-s", "Seconds that running requests may go on after SIGTERM.", min=0.0),
    ] = ENGINE_DEFAULTS.grace_s
