"""The costs of a model, and of a batch of requests, by the usual formulas for inference.

    P                   all parameters; the layers have about 12 L d^2
    FLOPs of n tokens   2 n P; attention, which grows with n^2, is left out
    KV                  batch x length x bytes per token
    whole request       TTFT + TPOT x N for N tokens of output

TTFT and TPOT come from `MachineModel`, which also counts attention.
"""

from dataclasses import dataclass

from cli.plan.decoder import DecoderCounts
from cli.plan.machine import MachineModel
from cli.plan.offload import LayerCopies
from cli.plan.options import RequestFlags
from cli.plan.units import count, gb, gib, ms, operations
from engine.models.weight_formats.plain import PLAIN

KEYS_AND_VALUES = "2 x layers x KV heads x head size x bytes"
LATENTS = "layers x (kv_lora_rank + qk_rope_head_dim) x bytes"


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """The costs of a model: parameters and FLOPs."""

    parameters: int
    active_parameters: int  # parameters that a token uses, fewer than all in mixtures of experts
    layer_parameters: int  # parameters of all layers
    layers: int
    rule_of_thumb: int  # parameters of all layers, estimated as 12 L d^2
    weight_bytes: int
    weight_format: str
    kv_bytes_per_token: int
    flops_per_token: int
    has_latents: bool = False  # the KV of a token is one latent per layer, without values
    head_bytes: int = 0  # bytes of the draft head's weights, included in `weight_bytes`
    # bytes of a token's KV in the draft head, included in `kv_bytes_per_token`
    head_kv_bytes: int = 0


@dataclass(frozen=True, slots=True)
class BatchCosts:
    """The costs of a batch of equal requests that arrive together on an idle machine."""

    batch: int
    prompt_tokens: int
    output_tokens: int
    kv_bytes: int
    prompt_flops: int
    ttft_ms: float
    tpot_ms: float  # milliseconds per output token, in the middle of the output
    request_ms: float
    output_tokens_per_s: float
    copy_ms: float = 0.0  # milliseconds of a step's copies of weights from host memory


def model_costs(decoder: DecoderCounts) -> ModelCosts:
    """Count the costs of a model that do not depend on the requests."""
    return ModelCosts(
        parameters=decoder.parameters,
        active_parameters=decoder.active_parameters,
        layer_parameters=decoder.layer_parameters,
        layers=len(decoder.layers),
        rule_of_thumb=decoder.rule_of_thumb,
        weight_bytes=decoder.weight_bytes,
        weight_format=decoder.weight_format.name,
        kv_bytes_per_token=decoder.kv_bytes_per_token,
        flops_per_token=2 * decoder.active_parameters,
        has_latents=not any(group.has_values for group in decoder.kv.groups),
        head_bytes=decoder.head_bytes,
        head_kv_bytes=decoder.head_kv_bytes,
    )


def batch_costs(
    decoder: DecoderCounts,
    machine: MachineModel,
    requests: RequestFlags,
    copies: LayerCopies | None = None,
) -> BatchCosts:
    """Estimate a batch's costs on a machine. With `copies`, steps also wait for copied weights."""
    batch, prompt, output = requests.batch, requests.prompt_tokens, requests.output_tokens
    start = machine.start_ms / 1e3
    computed = machine.first_tokens_seconds(decoder.shape, batch, prompt) - start
    step = machine.step_seconds(decoder.shape, batch, prompt + output / 2)
    if copies is not None:
        computed = copies.beside_prompts(computed, batch * prompt)
        step = copies.beside(step)
    ttft_ms, tpot_ms = 1e3 * (start + computed), 1e3 * step
    return BatchCosts(
        batch=batch,
        prompt_tokens=prompt,
        output_tokens=output,
        kv_bytes=batch * (prompt + output) * decoder.kv_bytes_per_token,
        prompt_flops=2 * prompt * decoder.active_parameters,
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        request_ms=ttft_ms + tpot_ms * output,
        output_tokens_per_s=batch / tpot_ms * 1e3,
        copy_ms=0.0 if copies is None else 1e3 * copies.step_seconds,
    )


def model_rows(costs: ModelCosts) -> list[tuple[str, str, str]]:
    """List each cost of a model, its amount, and its formula."""
    per_layer = costs.layer_parameters / costs.layers
    item = (costs.weight_bytes - costs.head_bytes) // costs.parameters
    plain = costs.weight_format == PLAIN.name
    by = f"P x {item} bytes" if plain else costs.weight_format
    return [
        ("parameters P", count(costs.parameters), ""),
        *_active_row(costs),
        (
            f"of its {costs.layers} layers",
            count(costs.layer_parameters),
            f"about 12 L d^2 = {count(costs.rule_of_thumb)}",
        ),
        (
            "a layer",
            count(per_layer, 1),
            f"about 12 d^2 = {count(costs.rule_of_thumb / costs.layers, 1)}",
        ),
        ("weights", gb(costs.weight_bytes), f"{by}, {gib(costs.weight_bytes)}"),
        (
            "KV of a token",
            f"{costs.kv_bytes_per_token / 1024:,.0f} KiB",
            LATENTS if costs.has_latents else KEYS_AND_VALUES,
        ),
        *_head_row(costs),
        ("FLOPs of a token", operations(costs.flops_per_token, most="G"), "2 P"),
    ]


def _head_row(costs: ModelCosts) -> list[tuple[str, str, str]]:
    if not costs.head_bytes:
        return []
    kib = f"{costs.head_kv_bytes / 1024:,.0f} KiB a token"
    return [("of both, the draft head", f"{gb(costs.head_bytes)}, {kib}", "not with --drafts off")]


def _active_row(costs: ModelCosts) -> list[tuple[str, str, str]]:
    if costs.active_parameters == costs.parameters:
        return []
    return [("of them active", count(costs.active_parameters), "P of a token's FLOPs")]


def batch_rows(costs: BatchCosts) -> list[tuple[str, str, str]]:
    """List each cost of a batch, its amount, and its formula."""
    length = costs.prompt_tokens + costs.output_tokens
    beside = ", beside copies of weights" if costs.copy_ms else ""
    return [
        ("KV", gib(costs.kv_bytes, 2), f"{costs.batch} x {length:,} tokens x KV of a token"),
        ("FLOPs of a prompt", operations(costs.prompt_flops, 2), "2 n P"),
        (
            "TTFT",
            ms(costs.ttft_ms),
            f"start + batch x FLOPs / rate, or weights / bandwidth{beside}",
        ),
        ("TPOT", ms(costs.tpot_ms, 2), f"(weights + KV) / bandwidth{beside}"),
        ("a request", f"{costs.request_ms / 1e3:,.3f} s", "TTFT + TPOT x N"),
        ("output tokens/s", f"{costs.output_tokens_per_s:,.0f}", "batch / TPOT"),
    ]
