"""Compiles for Hopper, without a GPU, the kernels that models of every architecture launch.

    python -m tests.kernels.compiled [llama qwen3-moe ...] [--only attend]

Triton's interpreter computes in NumPy, so it does not notice a product without an instruction,
wrong inline assembly, or too much shared memory. The compiler does. The models are small and in
bfloat16; their tensors are uninitialised and on the CPU. Kernels are not launched, as in
`compile_ahead`, which records the variants that are needed. Each variant is compiled by Triton and
its own ptxas; those that fail are printed.

The first run takes about 40 s of a core, so it is no part of `make test`; later runs use Triton's
cache.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import torch
import typer
from torch import Tensor
from triton.errors import TritonError
from triton.runtime import driver

from engine.execution.shared_prefixes import MIN_GROUP_ROWS
from engine.models.adapters.adapted import with_adapters
from engine.models.config import ModelConfig, kv_layout, state_layout
from engine.models.forward.build_decoder import build_decoder
from engine.models.forward.decoder import Decoder
from engine.models.modules import WeightFormat
from engine.models.parameters import empty_parameters
from engine.models.served.reading import read_model_config
from engine.models.shards import shard_model
from engine.models.weight_formats.fp8 import Fp8Format
from engine.models.weight_formats.fp8_checkpoints import ONLINE_FP8
from engine.models.weight_formats.int4_checkpoints import PLANNED_INT4
from engine.models.weight_formats.mxfp4 import MXFP4
from engine.models.weight_formats.plain import PLAIN
from engine.sampling.planner import Planner
from engine.sampling.sampler import Sampler
from engine.sampling.tables import SlotTables
from engine.startup import kernel_warm_up
from engine.startup.memory.activation import StepBounds, largest_batch, small_states, state_rows
from kernels.launch import capability as capabilities
from kernels.launch.compile_ahead import Notes, Variant, leaving_out_launches
from kernels.ops import triton_ops
from storage.layouts.kv_layout import FP8
from storage.pools.device_pool import empty_blocks, layer_views
from storage.pools.state_pool import StepStates
from tests.doubles.engine.device.no_device import NoDevice
from tests.doubles.ranks.paper_ranks import PaperRanks
from tests.engine.rigs.checkpoints import RECIPES, SHAPE, Recipe, config_of

CPU = torch.device("cpu")
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 256,
    "head_dim": 128,
    "num_attention_heads": 8,
}
# More strips than multiprocessors, so that a program of `hopper_gemm` gets several.
MANY_STRIPS = {"intermediate_size": 17_024, "vocab_size": 33_920}
GEMMA4_HEADS = {"head_dim": 256, "global_head_dim": 512, "sliding_window": 1024}
SHARED_BYTES = 227 * 1024  # bytes of shared memory that a program has on Hopper
BLOCK_SIZE, BATCH_SLOTS, BATCH_TOKENS, MODEL_LEN, GRAPH_TOKENS = 16, 16, 256, 256, 64
LATENTS = {  # the sizes of GLM-4.7-Flash
    "kv_lora_rank": 512,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "head_dim": 64,
    "v_head_dim": 256,
    "num_attention_heads": 20,
}
ADAPTER_RANK = 32
MIXTURE_TOKENS = 2048  # tokens, so many that each expert gets enough pairs for the largest tiles
FORMATS: dict[str, WeightFormat] = {
    "fp8": ONLINE_FP8,
    "fp8 by block": Fp8Format("fp8", "block", "group"),
    "int4": PLANNED_INT4,
    "mxfp4": MXFP4,
}


@dataclass(frozen=True, slots=True)
class Served:
    """A model, the formats of its weights and KV, and its rank among several."""

    name: str
    recipe: Recipe
    weight_format: WeightFormat = PLAIN
    kv_dtype: str = "bfloat16"
    rank: int = 0
    num_ranks: int = 1
    # sizes that are added to `SIZES` or replace its values
    sizes: Mapping[str, int] = field(default_factory=dict)
    num_adapters: int = 0


def all_served() -> Iterator[Served]:
    """Return each family unquantised, and representative families in each format."""
    families = {recipe.family: (name, recipe) for name, recipe in reversed(RECIPES.items())}
    for name, recipe in families.values():
        yield Served(name, recipe)
    for name in ("fp8", "fp8 by block", "int4"):
        yield Served(f"llama, {name}", RECIPES["llama"], FORMATS[name])
    yield Served("gpt-oss, mxfp4", RECIPES["gpt-oss"], FORMATS["mxfp4"])
    for name in ("fp8", "fp8 by block", "int4"):
        yield Served(f"qwen3-moe, {name}", RECIPES["qwen3-moe"], FORMATS[name])
    for name, weight_format in {"plain": PLAIN, **FORMATS}.items():
        if weight_format is not MXFP4:
            sizes = {"moe_shared_expert_intermediate_size": 256, "mamba_head_dim": 32}
            experts = f"nemotron-3, {name}"
            yield Served(experts, RECIPES["nemotron-3"], weight_format, sizes=sizes)
    yield Served("llama, fp8 KV", RECIPES["llama"], kv_dtype=FP8)
    for name in ("gemma4", "gemma4-shared"):
        yield Served(f"{name}, its heads", RECIPES[name], sizes=GEMMA4_HEADS)
    yield Served("gemma4, fp8 KV", RECIPES["gemma4"], kv_dtype=FP8, sizes=GEMMA4_HEADS)
    for dtype in ("bfloat16", FP8):
        named = f"glm4-moe-lite, its latents, {dtype} KV"
        yield Served(named, RECIPES["glm4-moe-lite"], kv_dtype=dtype, sizes=LATENTS)
    for name, weight_format in (("plain", PLAIN), ("fp8", FORMATS["fp8"])):
        adapted = f"llama, {name}, adapters"
        yield Served(adapted, RECIPES["llama"], weight_format, num_adapters=3)
    for name, weight_format in (
        ("plain", PLAIN),
        ("fp8", FORMATS["fp8"]),
        ("int4", FORMATS["int4"]),
    ):
        adapted = f"qwen3-moe, {name}, adapters of experts"
        yield Served(adapted, RECIPES["qwen3-moe"], weight_format, num_adapters=3)
    for rank, num_ranks in ((0, 2), (1, 2), (3, 4), (7, 8)):
        name = f"llama, rank {rank} of {num_ranks}"
        yield Served(name, RECIPES["llama"], rank=rank, num_ranks=num_ranks)
    yield Served("llama, fp8, a rank", RECIPES["llama"], FORMATS["fp8"], num_ranks=2)
    for name in ("fp8", "fp8 by block"):
        strips = f"llama, {name}, many strips"
        yield Served(strips, RECIPES["llama"], FORMATS[name], sizes=MANY_STRIPS)


def main(
    models: Annotated[
        list[str] | None, typer.Argument(help="Names that begin so; all without any.")
    ] = None,
    only: Annotated[str, typer.Option(help="Kernels whose name has this in it.")] = "",
) -> None:
    """Print the number of new kernels of each model.

    Exit with status 1 if a kernel does not compile.
    """
    failed = 0
    with on_paper():
        for served in all_served():
            if models and not served.name.startswith(tuple(models)):
                continue
            began = time.perf_counter()
            found = [one for one in variants_of(served) if only in named(one)]
            failed += sum(not compiles(one) for one in found)
            typer.echo(f"{served.name}: {len(found)} kernels, {time.perf_counter() - began:.0f} s")
    sys.exit(bool(failed))


def named(variant: Variant) -> str:
    """Return the kernel's name with its module."""
    module: str = getattr(variant.kernel, "__module__", "")
    return f"{module}.{variant.name}"


def compiles(variant: Variant) -> bool:
    """Return whether a variant compiles and fits into shared memory; if not, print the reason."""
    why = ""
    try:
        compiled: Any = variant.kernel.preload(variant.data)
        if compiled.metadata.shared > SHARED_BYTES:
            why = f"{compiled.metadata.shared} bytes of shared memory, at most {SHARED_BYTES}"
    except (TritonError, RuntimeError) as error:
        why = str(error)
    if why:
        typer.echo(f"{named(variant)} does not compile: {why}\n    {variant.data}", err=True)
    return not why


@contextmanager
def on_paper() -> Iterator[None]:
    """Replace Triton's device by a Hopper GPU that runs nothing; let kernels accept CPU tensors."""
    known = capabilities.capability
    users = [module for module in sys.modules.values() if vars(module).get("capability") is known]
    with ExitStack() as patched:
        for place, name, instead in (
            (driver, "_active", NoDevice()),
            (torch.Tensor, "is_cuda", True),
            (torch, "_scaled_mm", _scaled_mm),
            (torch.backends.cuda, "preferred_blas_library", lambda _=None: None),
            *((module, "capability", lambda _: capabilities.HOPPER) for module in users),
        ):
            patched.enter_context(patch.object(place, name, instead))
        yield


def _scaled_mm(x: Tensor, weight: Tensor, *, out_dtype: torch.dtype, **_: object) -> Tensor:
    """Check the shapes of a scaled product, in place of PyTorch's own function."""
    return x.new_empty((x.shape[0], weight.shape[1]), dtype=out_dtype)


def variants_of(served: Served) -> list[Variant]:
    """Return the kernels that the model launches, at representative step sizes."""
    with tempfile.TemporaryDirectory() as directory:
        model = _model(served, Path(directory))
    ranks, dtype = served.num_ranks, torch.bfloat16
    group = PaperRanks(served.rank, ranks, model.hidden_size, dtype) if ranks > 1 else None
    parameters = empty_parameters(model, dtype, CPU, group)
    part = shard_model(model, ranks)
    if served.num_adapters:
        parameters, slots = with_adapters(
            model, parameters, served.num_adapters, ADAPTER_RANK, of_experts=True
        )
    decoder = build_decoder(part, parameters, triton_ops(), MODEL_LEN, group)
    if served.num_adapters:
        decoder = replace(decoder, num_slots=slots.num_slots)
    notes = Notes()
    with leaving_out_launches(notes):
        _launch_all(decoder, served.kv_dtype)
    return notes.variants


def _model(served: Served, directory: Path) -> ModelConfig:
    fields = {**served.recipe.fields, **SIZES, **served.sizes}
    rope: dict[str, Any] = dict(fields.get("rope_parameters") or {})
    # one factor for each pair of a head's numbers
    for name in rope.keys() & {"short_factor", "long_factor"}:
        rope[name] = rope[name] * (SIZES["head_dim"] // SHAPE["head_dim"])
    fields |= {"rope_parameters": rope} if rope else {}
    config = config_of(replace(served.recipe, fields=fields)).to_dict()
    config["architectures"] = [f"{served.recipe.family}ForCausalLM"]
    (directory / "config.json").write_text(json.dumps(config))
    return replace(read_model_config(directory), weight_format=served.weight_format)


@torch.inference_mode()
def _launch_all(decoder: Decoder, kv_dtype: str) -> None:
    """Launch everything that `kernel_warm_up.dry_run` launches, except queries of the memory in
    use.
    """
    bounds = StepBounds(
        batch_tokens=BATCH_TOKENS,
        max_running=BATCH_SLOTS,
        max_model_len=MODEL_LEN,
        layout=kv_layout(decoder.config.layers, kv_dtype, BLOCK_SIZE),
        graph_tokens=GRAPH_TOKENS,
        group_rows=MIN_GROUP_ROWS,
        states=state_layout(decoder.config.layers, "bfloat16"),
    )
    batch = largest_batch(BATCH_TOKENS, MODEL_LEN, BLOCK_SIZE, CPU)
    blocks = empty_blocks(bounds.layout, -(-BATCH_TOKENS // BLOCK_SIZE), CPU)
    pool = layer_views(blocks, bounds.layout)
    states = StepStates(state_rows(batch.layout), small_states(bounds.states, CPU))
    decoder.logits(batch.token_ids, batch.layout, pool, batch.outputs, states)
    kernel_warm_up.dry_run_buckets(decoder, bounds)
    kernel_warm_up.dry_run_gemms(decoder, bounds)
    kernel_warm_up.dry_run_mixtures(decoder, replace(bounds, batch_tokens=MIXTURE_TOKENS))
    kernel_warm_up.dry_run_adapters(decoder)
    kernel_warm_up.dry_run_copies(decoder, bounds)
    vocab_size = decoder.config.vocab_size
    planner = Planner(vocab_size, (), lambda: 1, BATCH_SLOTS)
    sampler = Sampler(planner, decoder.ops, SlotTables(BATCH_SLOTS, vocab_size))
    sampler.warm_up(vocab_size, CPU, torch.bfloat16)


if __name__ == "__main__":
    typer.run(main)
