"""Estimates of the time that computing and copying take.

    prefill(n tokens after p cached ones) = start + FLOPs / rate
    FLOPs = n x (2 x parameters) + attention x (sum of the positions of the n tokens)
        where attention to a window counts at most the window's positions
    load(n tokens) = n x KV bytes per token / bandwidth of the tier
    decode step(b rows of n tokens) = (weights + b x n x KV bytes per token) / device's bandwidth,
        or its FLOPs / rate where that is longer

The defaults are an 8B model of Llama 3's shape on one H200. The GPU computes 16,000 uncached tokens
in 0.5 s. Decode steps read 3.7 TB/s (a plain copy reaches 4.2). Copies from pinned memory run at 48
GB/s, and reads from an NVMe disk at 3 GB/s. The estimates leave out queues and other load of the
machine.
"""

from math import ceil, sqrt

import msgspec

GIB = 1 << 30


class WindowShape(msgspec.Struct, frozen=True):
    """The KV and the attention costs of all layers that have a window of `tokens` tokens."""

    tokens: int
    kv_bytes_per_token: int
    attention_flops: float

    def positions(self, tokens: int, behind: int) -> float:
        """Count the query-key pairs of `tokens` tokens after `behind` earlier tokens."""
        whole = max(0, min(tokens, self.tokens - behind))
        return whole * behind + whole * whole / 2 + (tokens - whole) * self.tokens


class ModelShape(msgspec.Struct, frozen=True):
    """The FLOPs and bytes of a decoder, per token and per step."""

    parameters: float = 8.03e9
    kv_bytes_per_token: int = 131072
    attention_flops: float = 524288.0  # FLOPs of attention for one token and one earlier position
    step_bytes: float = 15.01e9  # bytes of weights read by a decode step of many rows
    row_bytes: float | None = None  # bytes of weights read for a single row; None: `step_bytes`
    windows: tuple[WindowShape, ...] = ()  # layers with a window, included in the totals
    # bytes of a token's KV in freed windows, which is never copied between tiers
    freed_bytes_per_token: int = 0

    @property
    def copied_bytes_per_token(self) -> int:
        """The KV bytes of a token that lie in the cache and are copied between tiers."""
        return self.kv_bytes_per_token - self.freed_bytes_per_token

    @property
    def flops_per_token(self) -> float:
        """The FLOPs of a token, without attention."""
        return 2 * self.parameters

    def attended_flops(self, tokens: int, behind: int) -> float:
        """Count the FLOPs of attention for `tokens` tokens after `behind` earlier tokens."""
        positions = tokens * behind + tokens * tokens / 2
        outside = sum(
            (positions - one.positions(tokens, behind)) * one.attention_flops
            for one in self.windows
        )
        return positions * self.attention_flops - outside

    def context_costs(self, context: float) -> tuple[float, float]:
        """Count the KV bytes and attention FLOPs of a token after `context` earlier tokens."""
        outside = [(max(0.0, context - one.tokens), one) for one in self.windows]
        read = context * self.kv_bytes_per_token
        flops = context * self.attention_flops
        read -= sum(tokens * one.kv_bytes_per_token for tokens, one in outside)
        return read, flops - sum(tokens * one.attention_flops for tokens, one in outside)

    def read_by(self, rows: int) -> float:
        """Count the weight bytes that a step of `rows` rows reads, without unused experts."""
        one = self.step_bytes if self.row_bytes is None else self.row_bytes
        return min(self.step_bytes, rows * one)


class MachineModel(msgspec.Struct, frozen=True):
    """The rates at which a machine computes and copies."""

    tflops: float = 600.0  # TFLOP/s that prefill reaches, below the data sheet's rate
    host_gb_s: float = 48.0
    disk_gb_s: float = 3.0
    start_ms: float = 10.0  # fixed milliseconds before any request's first token
    device_gb_s: float = 3700.0  # GB/s that decode reaches, below the data sheet's rate

    def prefill_seconds(self, shape: ModelShape, tokens: int, behind: int = 0) -> float:
        """Estimate the seconds to compute `tokens` tokens after `behind` cached tokens."""
        flops = tokens * shape.flops_per_token + shape.attended_flops(tokens, behind)
        return flops / (self.tflops * 1e12)

    def step_seconds(self, shape: ModelShape, rows: int, context: float) -> float:
        """Estimate the seconds of a decode step of `rows` requests."""
        kv_bytes, attention = shape.context_costs(context)
        read = shape.read_by(rows) + rows * kv_bytes
        flops = rows * (shape.flops_per_token + attention)
        return max(read / (self.device_gb_s * 1e9), flops / (self.tflops * 1e12))

    def first_tokens_seconds(self, shape: ModelShape, prompts: int, tokens: int) -> float:
        """Estimate the seconds until prompts that are sent together have their first tokens.

        A step of few tokens takes as long as reading the weights.
        """
        compute = prompts * self.prefill_seconds(shape, tokens)
        return self.start_ms / 1000 + max(compute, shape.step_bytes / (self.device_gb_s * 1e9))

    def load_seconds(self, shape: ModelShape, from_host: int, from_disk: int = 0) -> float:
        """Estimate the seconds to copy these tokens to the device, tier after tier."""
        host, disk = from_host / self.host_gb_s, from_disk / self.disk_gb_s
        return (host + disk) * shape.copied_bytes_per_token / 1e9

    def ttft_seconds(
        self, shape: ModelShape, tokens: int, from_device: int, from_host: int, from_disk: int
    ) -> float:
        """Estimate the seconds to first token of a prompt of `tokens` on an idle machine."""
        cached = from_device + from_host + from_disk
        load = self.load_seconds(shape, from_host, from_disk)
        prefill = self.prefill_seconds(shape, tokens - cached, cached)
        return self.start_ms / 1000 + load + prefill


def break_even_tokens(
    machine: MachineModel, shape: ModelShape, gb_s: float, *, setup_ms: float = 0.0
) -> int | None:
    """Return the length in tokens from which loading is no slower than computing, if any.

    Loading the whole prefix takes `setup_ms` plus its bytes / bandwidth. This is compared with
    computing the whole prefix.
    """
    if shape.windows:
        return _searched(machine, shape, gb_s, setup_ms)
    per_token = shape.copied_bytes_per_token / (gb_s * 1e9)
    rate = machine.tflops * 1e12
    # attention / 2 * n^2 + (flops - per_token) * n - setup >= 0, in seconds
    square = shape.attention_flops / (2 * rate)
    line = shape.flops_per_token / rate - per_token
    setup = setup_ms / 1000
    if square == 0:
        return max(1, ceil(setup / line)) if line > 0 else None
    return max(1, ceil((sqrt(line * line + 4 * square * setup) - line) / (2 * square)))


def _searched(machine: MachineModel, shape: ModelShape, gb_s: float, setup_ms: float) -> int | None:
    """Find the break-even length by bisection, since loading pays for all longer prefixes, too."""

    def pays(tokens: int) -> bool:
        load = setup_ms / 1000 + tokens * shape.copied_bytes_per_token / (gb_s * 1e9)
        return machine.prefill_seconds(shape, tokens) >= load

    low, high = 0, 1 << 40
    if not pays(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high
