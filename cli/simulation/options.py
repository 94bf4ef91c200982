"""The flags of `simulate` and `plan`.

Knows: flags and their defaults. Does not know: what follows from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from cli.options import Json, flag
from cli.simulation.machine import Machine, ModelShape
from prefix_cache.policy_name import PolicyName

SettleName = Literal["at-once", "in-time"]

CACHE = "Cache"
MACHINE_DEFAULTS = Machine()
SHAPE_DEFAULTS = ModelShape()
SETUP_MS = 1.0

cache_flag = partial(flag, panel=CACHE)
machine_flag = partial(flag, panel="Machine (for estimates)")
output_flag = partial(flag, panel="Output")


@dataclass(frozen=True, slots=True)
class TierTokenFlags:
    """What each tier holds, and what is evicted."""

    device_tokens: Annotated[
        int, cache_flag("--device-tokens", "Tokens in the device tier.", min=1)
    ] = 500_000
    host_tokens: Annotated[
        int, cache_flag("--host-tokens", "Tokens in the host tier; 0: none.", min=0)
    ] = 0
    disk_tokens: Annotated[
        int, cache_flag("--disk-tokens", "Tokens in the disk tier; 0: none.", min=0)
    ] = 0
    policy: Annotated[PolicyName, cache_flag("--policy", "Which blocks are evicted first.")] = (
        "value"
    )
    block_size: Annotated[
        int,
        typer.Option(
            "--block-size",
            help="Tokens that one id of the trace stands for.",
            rich_help_panel=CACHE,
            min=1,
        ),
    ] = 512
    settle: Annotated[
        SettleName,
        cache_flag(
            "--settle",
            "When copies between tiers end: 'at-once', or 'in-time', as long as their bytes take.",
        ),
    ] = "at-once"


@dataclass(frozen=True, slots=True)
class MachineFlags:
    """What computes and copies; the defaults are one H200."""

    tflops: Annotated[
        float, machine_flag("--tflops", "TFLOP/s that prefill reaches.", min=0.001)
    ] = MACHINE_DEFAULTS.tflops
    host_gb_s: Annotated[
        float, machine_flag("--host-gb-s", "GB/s from host to device.", min=0.001)
    ] = MACHINE_DEFAULTS.host_gb_s
    disk_gb_s: Annotated[
        float, machine_flag("--disk-gb-s", "GB/s from disk to device.", min=0.001)
    ] = MACHINE_DEFAULTS.disk_gb_s
    start_ms: Annotated[
        float,
        machine_flag(
            "--start-ms", "Fixed time of any request before its first token, in ms.", min=0.0
        ),
    ] = MACHINE_DEFAULTS.start_ms

    def machine(self) -> Machine:
        """The machine they describe."""
        return Machine(self.tflops, self.host_gb_s, self.disk_gb_s, self.start_ms)


@dataclass(frozen=True, slots=True)
class ShapeFlags:
    """The model; the defaults are an 8B of Llama 3's shape in bfloat16."""

    parameters: Annotated[
        float,
        machine_flag("--parameters", "Parameters that each token is multiplied with.", min=1.0),
    ] = SHAPE_DEFAULTS.parameters
    kv_bytes_per_token: Annotated[
        int, machine_flag("--kv-bytes-per-token", "As 'ratoon plan' prints.", min=1)
    ] = SHAPE_DEFAULTS.kv_bytes_per_token
    attention_flops: Annotated[
        float,
        machine_flag(
            "--attention-flops",
            "FLOPs of one token and one position before it: 4 x layers x query heads x head size.",
            min=0.0,
        ),
    ] = SHAPE_DEFAULTS.attention_flops

    def shape(self) -> ModelShape:
        """The model they describe."""
        return ModelShape(self.parameters, self.kv_bytes_per_token, self.attention_flops)


@dataclass(frozen=True, slots=True)
class OutputFlags:
    """What comes out, and where."""

    sizes: Annotated[
        str,
        output_flag(
            "--sizes",
            "Further total sizes to replay, divided among the tiers alike: 250k,1M,2M. "
            "[dim]\\[with --plot: a quarter, half, 1, 2 and 4 times the total][/dim]",
        ),
    ] = ""
    plot: Annotated[
        Path | None,
        output_flag(
            "--plot", "Write a plot of hit rate against size, with LRU's for comparison, as SVG."
        ),
    ] = None
    json: Json = False


@dataclass(frozen=True, slots=True)
class MemoryFlags:
    """Where KV can lie."""

    gpu_gib: Annotated[float, cache_flag("--gpu-gib", "Memory of one GPU, in GiB.", min=0.001)] = (
        141.0
    )
    gpus: Annotated[int, cache_flag("--gpus", "GPUs that one model is split over.", min=1)] = 1
    host_gib: Annotated[
        float, cache_flag("--host-gib", "Pinned host memory for KV, in GiB.", min=0.0)
    ] = 0.0
    disk_gib: Annotated[float, cache_flag("--disk-gib", "Disk for KV, in GiB.", min=0.0)] = 0.0
    memory_fraction: Annotated[
        float,
        cache_flag(
            "--memory-fraction",
            "Share of the GPU's memory without the weights to use for KV.",
            min=0.01,
            max=1.0,
        ),
    ] = 0.9
    setup_ms: Annotated[
        float,
        machine_flag("--setup-ms", "Fixed time of a load before its first byte, in ms.", min=0.0),
    ] = SETUP_MS
    kv_dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        cache_flag("--kv-dtype", "Type of weights and KV; auto: the checkpoint's own."),
    ] = "auto"
