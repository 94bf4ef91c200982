"""The engine's flags.

The fields have the names and the defaults of those of `EngineConfig`; `compose` turns the groups
into the config.

Knows: flags and the values they take. Does not know: which commands take them (`serve`,
`standalone`) or what the settings do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from cli.options import flag
from engine.config import DeviceName, DtypeName, EngineConfig, LoadFormat
from prefix_cache.policy_name import PolicyName

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
            "--dtype", "Type of weights and KV; auto: float32 on cpu, the checkpoint's own on cuda."
        ),
    ] = ENGINE_DEFAULTS.dtype
    load_format: Annotated[
        LoadFormat,
        engine_flag("--load-format", "'dummy' uses random weights, for benchmarks."),
    ] = ENGINE_DEFAULTS.load_format
    block_size: Annotated[
        int, engine_flag("--block-size", "Tokens per block of the cache.", min=1, max=256)
    ] = ENGINE_DEFAULTS.block_size
    cache_tokens: Annotated[
        int | None,
        engine_flag(
            "--cache-tokens",
            "Tokens that the cache holds on the device. Left out: sized from free memory.",
            min=1,
        ),
    ] = ENGINE_DEFAULTS.cache_tokens
    host_cache_gib: Annotated[
        float | None,
        engine_flag(
            "--host-cache-gib",
            "GiB of host memory for blocks that leave the device; 0: no host tier. Left out: a "
            "quarter of what is free, at most 0.25 on cpu and 64 on cuda.",
            min=0.0,
        ),
    ] = ENGINE_DEFAULTS.host_cache_gib
    host_cache_tokens: Annotated[
        int | None,
        engine_flag("--host-cache-tokens", "The size of the host tier in tokens.", min=0),
    ] = ENGINE_DEFAULTS.host_cache_tokens
    disk_cache_dir: Annotated[
        str | None,
        engine_flag(
            "--disk-cache-dir",
            "Directory for blocks on disk, which survive a restart; not shared with other engines. "
            "[dim]\\[default: DATA_DIR/blocks][/dim]",
            show_default=False,
        ),
    ] = ENGINE_DEFAULTS.disk_cache_dir
    disk_cache_gib: Annotated[
        float,
        engine_flag("--disk-cache-gib", "GiB of disk for blocks; 0: no disk tier.", min=0.0),
    ] = ENGINE_DEFAULTS.disk_cache_gib
    disk_encryption: Annotated[
        bool,
        engine_flag("--disk-encryption", "Encrypt blocks on disk, with one key for each tenant."),
    ] = ENGINE_DEFAULTS.disk_encryption
    cache_policy: Annotated[
        PolicyName, engine_flag("--cache-policy", "Which blocks are evicted first.")
    ] = ENGINE_DEFAULTS.cache_policy
    spill_grace_s: Annotated[
        float,
        engine_flag(
            "--spill-grace-s",
            "Seconds for writing blocks to disk at shutdown, the most valuable first.",
            min=0.0,
        ),
    ] = ENGINE_DEFAULTS.spill_grace_s
    memory_fraction: Annotated[
        float,
        engine_flag(
            "--memory-fraction",
            "On cuda, the share of its free memory to use when --cache-tokens is left out.",
            min=0.01,
            max=1.0,
        ),
    ] = ENGINE_DEFAULTS.memory_fraction
    max_model_len: Annotated[
        int | None,
        engine_flag(
            "--max-model-len",
            "Most tokens of prompt and answer together. Left out: the model's own.",
            min=1,
        ),
    ] = ENGINE_DEFAULTS.max_model_len
    max_batch_tokens: Annotated[
        int | None,
        engine_flag(
            "--max-batch-tokens",
            "Most tokens computed in one step. Left out: 512 on cpu, 8192 on cuda.",
            min=1,
        ),
    ] = ENGINE_DEFAULTS.max_batch_tokens
    max_batch_tokens_beside_decodes: Annotated[
        int | None,
        engine_flag(
            "--max-batch-tokens-beside-decodes",
            "Most prompt tokens in a step that also decodes: fewer give shorter gaps between the "
            "tokens of running answers, and later first tokens. Left out: --max-batch-tokens.",
            min=1,
        ),
    ] = ENGINE_DEFAULTS.max_batch_tokens_beside_decodes
    backlog_steps: Annotated[
        int | None,
        engine_flag(
            "--backlog-steps",
            "Spread prompts that wait over about so many steps beside decodes: shorter gaps "
            "between the tokens of running answers, and a step's weights are read for both. Large "
            "backlogs are computed in large steps all the same, and tenants that had nothing "
            "running wait for nobody. 0: each step takes as much as it can. Left out: 0 on cpu, 24 "
            "on cuda.",
            min=0,
        ),
    ] = ENGINE_DEFAULTS.backlog_steps
    max_batch_tokens_beside_visitors: Annotated[
        int | None,
        engine_flag(
            "--max-batch-tokens-beside-visitors",
            "Most prompt tokens in a step for tenants that send requests all the time, while a "
            "visitor (a tenant that sends one now and then) is served: fewer give visitors earlier "
            "first tokens and the others less throughput. An eighth of the visitor's own prompt, "
            "if that is more. Left out: 64 on cpu, 256 on cuda. As large as --max-batch-tokens: "
            "no bound.",
            min=1,
        ),
    ] = ENGINE_DEFAULTS.max_batch_tokens_beside_visitors
    max_running: Annotated[
        int, engine_flag("--max-running", "Most sequences that run at once.", min=1)
    ] = ENGINE_DEFAULTS.max_running
    max_waiting: Annotated[
        int,
        engine_flag("--max-waiting", "Most sequences that may wait; further ones get 429.", min=1),
    ] = ENGINE_DEFAULTS.max_waiting
    single_flight_deadline_s: Annotated[
        float,
        engine_flag(
            "--single-flight-deadline-s",
            "Most seconds that a request waits for another one that computes the same prefix.",
            min=0.0,
        ),
    ] = ENGINE_DEFAULTS.single_flight_deadline_s
    steps_ahead: Annotated[
        int,
        engine_flag(
            "--steps-ahead",
            "1: schedule a step while the one before is computed; 0: wait for it.",
            min=0,
            max=1,
        ),
    ] = ENGINE_DEFAULTS.steps_ahead
    graph_tokens: Annotated[
        int,
        engine_flag(
            "--graph-tokens",
            "On cuda, record steps of up to this many tokens as CUDA graphs; 0: none.",
            min=0,
        ),
    ] = ENGINE_DEFAULTS.graph_tokens
    least_shared_tokens: Annotated[
        int | None,
        engine_flag(
            "--least-shared-tokens",
            "On cuda, read a prefix of this many tokens or more, which several decodes have in "
            "common, once for all of them; 0: never. Left out: as many as were measured to pay.",
            min=0,
        ),
    ] = ENGINE_DEFAULTS.least_shared_tokens
    num_threads: Annotated[
        int | None,
        engine_flag(
            "--num-threads",
            "CPU threads to compute with. Left out: one fewer than there are cores.",
            min=1,
        ),
    ] = ENGINE_DEFAULTS.num_threads


@dataclass(frozen=True, slots=True)
class EngineGraceFlags:
    """How an engine that is started alone stops; under `ratoon serve` the gateway drains."""

    grace_s: Annotated[
        float,
        engine_flag("--grace-s", "Seconds that running requests may go on after SIGTERM.", min=0.0),
    ] = ENGINE_DEFAULTS.grace_s
