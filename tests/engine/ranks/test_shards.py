"""A model divided among ranks computes the same as the undivided model, with the same bits on all
ranks.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.models.checkpoints.weights import load_parameters
from engine.models.checks import check_ranks
from engine.models.config import ModelConfig, kv_layout, state_layout
from engine.models.errors import UnsupportedModel
from engine.models.forward.build_decoder import build_decoder
from engine.models.grid import RankGrid
from engine.models.modules import WeightFormat
from engine.models.parameters import dummy_parameters
from engine.models.rank_group import RankGroup
from engine.models.served.reading import read_model_config
from engine.models.served.registry import SERVED
from engine.models.shards import check_shards, shard_model
from engine.models.weight_formats.fp8 import Fp8Format
from engine.models.weight_formats.fp8_checkpoints import ONLINE_FP8
from engine.ranks.collectives import Collectives
from engine.startup.memory.activation import largest_batch, small_states, state_rows
from kernels.ops import Ops, torch_ops
from storage.pools.device_pool import DevicePool
from storage.pools.state_pool import StepStates
from tests.doubles.engine.shapes import FP8_BY_BLOCK, SHAPES
from tests.doubles.models.alternating_architecture import SERVED as ALTERNATING
from tests.doubles.models.alternating_architecture import make_alternating_checkpoint
from tests.doubles.ranks.gathering_norms import GatheringNorms
from tests.doubles.ranks.noted_peers import NotedPeers
from tests.engine.conftest import MakeCheckpoint
from tests.engine.models.weight_formats.test_int4_experts import recipe as int4_mixture
from tests.engine.models.weight_formats.test_mxfp4 import in_mxfp4
from tests.engine.rigs.checkpoints import (
    DIVISIBLE,
    RECIPES,
    RECURRENT,
    TOGETHER,
    Recipe,
    make_checkpoint,
)
from tests.engine.rigs.files.int4_checkpoints import KINDS, SIZES, make_int4
from tests.engine.rigs.ranks import CPU, on_ranks

BLOCK_SIZE, NUM_TOKENS = 16, 40
OPS = torch_ops()
BLOCKS = Fp8Format("fp8", "block", "group")

# Every divisible architecture runs on two ranks, and these also on four. They have two KV heads, so
# that two ranks share a head, except llama-tied-mha, which has four.
ON_FOUR = {"llama-tied-mha", "mixtral", "qwen3", "qwen3.5-moe"}
HYBRIDS = {*RECURRENT.values(), "granite-hybrid-moe", "nemotron-3-latents"}
ON_TWO = {*DIVISIBLE.values(), *HYBRIDS} - TOGETHER
DIVIDED = sorted({(name, 2) for name in ON_TWO} | {(name, 4) for name in ON_FOUR})


@torch.inference_mode()
def logits(
    model_dir: Path,
    model: ModelConfig,
    group: RankGroup | None = None,
    ops: Ops = OPS,
) -> Tensor:
    """Return the logits of a prompt of 40 tokens, computed at once."""
    num_ranks = 1 if group is None else group.num_ranks
    parameters = load_parameters(model_dir, model, torch.float32, CPU, group)
    part = shard_model(model, num_ranks)
    decoder = build_decoder(part, parameters, ops, model.max_positions, group)
    layout = kv_layout(model.layers, "float32", BLOCK_SIZE)
    pool = DevicePool(layout if group is None else layout.slice_of(group.rank, num_ranks), 4, CPU)
    batch = largest_batch(NUM_TOKENS, 64, BLOCK_SIZE, CPU)
    ids = torch.arange(NUM_TOKENS) * 7 % model.vocab_size
    states = StepStates(
        state_rows(batch.layout), small_states(state_layout(part.layers, "float32"), CPU)
    )
    return decoder.logits(ids, batch.layout, pool.layers, torch.arange(NUM_TOKENS), states)


def test_every_architecture_that_is_served_is_divided_below() -> None:
    assert SERVED.architectures.keys() == DIVISIBLE.keys() | RECURRENT.keys()


@pytest.mark.parametrize(("name", "num_ranks"), DIVIDED)
def test_ranks_compute_what_one_computes(
    checkpoint: MakeCheckpoint, name: str, num_ranks: int
) -> None:
    model_dir = checkpoint(name).model_dir
    expect_alike(model_dir, read_model_config(model_dir), num_ranks)


@pytest.mark.parametrize("name", sorted(TOGETHER))
def test_norms_of_all_heads_together_are_not_divided(checkpoint: MakeCheckpoint, name: str) -> None:
    model = read_model_config(checkpoint(name).model_dir)
    check_shards(model, 1)
    with pytest.raises(UnsupportedModel, match=r"^tensor_parallel 2: norms of all heads together"):
        check_shards(model, 2)


def expect_alike(model_dir: Path, model: ModelConfig, num_ranks: int) -> None:
    """Check that all ranks have the logits of an undivided model."""
    check_shards(model, num_ranks)
    whole = logits(model_dir, model)
    first, *others = on_ranks(num_ranks, lambda group: logits(model_dir, model, group))
    assert all(torch.equal(other, first) for other in others), "bit for bit"
    assert torch.allclose(first, whole, rtol=0, atol=1e-4)
    assert torch.equal(first.argmax(1), whole.argmax(1))


@pytest.mark.parametrize(("name", "unread"), [("qwen2", 6), ("gpt-oss", 6), ("gemma2", 0)])
def test_norms_may_be_what_exchanges(checkpoint: MakeCheckpoint, name: str, unread: int) -> None:
    """Let norms sum the products of ranks. With four norms a layer, products are summed before the
    norms.
    """
    model_dir = checkpoint(name).model_dir
    model = read_model_config(model_dir)

    def compute(group: Collectives) -> tuple[Tensor, int]:
        group.use_peers(NotedPeers(most_rows=NUM_TOKENS, gathers=False))
        norms = GatheringNorms(group)
        return logits(model_dir, model, group, norms.ops), norms.num_unread

    wanted = on_ranks(2, lambda group: logits(model_dir, model, group))
    for (got, count), over_the_library in zip(on_ranks(2, compute), wanted, strict=True):
        assert torch.equal(got, over_the_library)
        assert count == unread


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_so_do_windows_sinks_four_norms_and_packed_experts_with_biases(
    tmp_path: Path, num_ranks: int
) -> None:
    make_alternating_checkpoint(tmp_path)
    model = read_model_config(tmp_path, ALTERNATING)
    expect_alike(tmp_path, model, num_ranks)


@pytest.mark.parametrize("kind", ["awq", "gptq-asym", "packed-asym"])
def test_in_int4_each_rank_reads_its_words(tmp_path: Path, kind: str) -> None:
    # biases of summed products, which only the first rank adds
    biases = {"attention_bias": True, "mlp_bias": True}
    wide = Recipe("Llama", {**SIZES, **biases, "head_dim": 64})
    model_dir = make_int4(KINDS[kind], tmp_path, wide).int4.model_dir
    model = read_model_config(model_dir)
    expect_alike(model_dir, model, 2)
    with pytest.raises(
        UnsupportedModel, match=r"^tensor_parallel 4: .* a rank's part of .*down_proj has 64"
    ):
        check_shards(with_attention(model, head_dim=128), 4)


@pytest.mark.parametrize(
    ("name", "kind", "changed"),
    [
        ("qwen3.5", "awq", {"linear_num_value_heads": 8}),
        ("qwen3-next", "gptq-asym", {"linear_num_value_heads": 8}),
        ("nemotron-h", "packed-asym", {"mamba_num_heads": 16}),
    ],
)
def test_so_it_does_of_each_section_of_a_recurrent_layers_projection(
    tmp_path: Path, name: str, kind: str, changed: dict[str, int]
) -> None:
    heads = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 64}
    experts = {"moe_intermediate_size": 128, "shared_expert_intermediate_size": 256}
    wide = replace(RECIPES[name], fields={**RECIPES[name].fields, **heads, **experts, **changed})
    model_dir = make_int4(KINDS[kind], tmp_path, wide).int4.model_dir
    expect_alike(model_dir, read_model_config(model_dir), 2)


@pytest.mark.parametrize("kind", ["awq", "gptq-asym", "packed-asym"])
def test_so_it_does_of_matrices_that_are_one_in_the_files(tmp_path: Path, kind: str) -> None:
    phi = {**SIZES, "head_dim": 64, "num_key_value_heads": 4, "pad_token_id": None}
    model_dir = make_int4(KINDS[kind], tmp_path, Recipe("Phi3", phi)).int4.model_dir
    expect_alike(model_dir, read_model_config(model_dir), 2)


def test_experts_in_int4_each_rank_reads_its_words(tmp_path: Path) -> None:
    """Read int4 experts on each of two ranks: 96 columns for each rank are not a multiple of
    128.
    """
    recipe = int4_mixture(192)
    wide = replace(recipe, fields=recipe.fields | {"head_dim": 64})
    model_dir = make_int4(KINDS["packed-asym"], tmp_path, wide).int4.model_dir
    expect_alike(model_dir, read_model_config(model_dir), 2)


def test_in_mxfp4_each_rank_reads_its_groups(tmp_path: Path) -> None:
    sizes = {**RECIPES["gpt-oss"].fields, "hidden_size": 64, "intermediate_size": 64}
    plain = make_checkpoint(Recipe("GptOss", sizes), tmp_path / "plain")
    model_dir = in_mxfp4(plain, tmp_path / "mxfp4").model_dir
    expect_alike(model_dir, read_model_config(model_dir), 2)


@pytest.mark.parametrize("name", ["qwen3", "mixtral", "qwen3.5", "nemotron-h"])
def test_fp8_quantised_by_each_rank_is_as_near_to_the_plain_weights(
    checkpoint: MakeCheckpoint, name: str
) -> None:
    """Quantise to fp8 on each rank, with scales of its own: bits differ, but the error is that of
    fp8.
    """
    model_dir = checkpoint(name).model_dir
    plain = read_model_config(model_dir)
    model = replace(plain, weight_format=ONLINE_FP8)
    truth, whole = logits(model_dir, plain), logits(model_dir, model)
    first, second = on_ranks(2, lambda group: logits(model_dir, model, group))
    assert torch.equal(first, second)
    assert error(first, truth) < 1.25 * error(whole, truth)
    assert error(whole, truth) > 0.01, "the control: it is not computed in full"


def error(found: Tensor, truth: Tensor) -> float:
    """Return the mean relative error."""
    return float((found - truth).norm() / truth.norm())


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "num_ranks", "says"),
        [
            ("qwen3.5", 4, "tensor_parallel 4 does not divide linear_num_key_heads 2"),
            ("nemotron-h", 4, "tensor_parallel 4 does not divide the groups of Mamba-2, 2"),
            ("llama", 3, "tensor_parallel 3 does not divide num_attention_heads 4"),
            ("llama", 8, "tensor_parallel 8 does not divide num_attention_heads 4"),
            ("qwen3-moe", 4, ""),
        ],
    )
    def test_names_the_field(
        self, checkpoint: MakeCheckpoint, name: str, num_ranks: int, says: str
    ) -> None:
        model = read_model_config(checkpoint(name).model_dir)
        if not says:
            check_shards(model, num_ranks)
            return
        with pytest.raises(UnsupportedModel, match=says):
            check_shards(model, num_ranks)

    @pytest.mark.parametrize(
        ("changed", "says"),
        [
            ({"num_kv_heads": 3, "num_heads": 6}, "num_key_value_heads 3"),
            ({"num_kv_heads": 1}, ""),
        ],
    )
    def test_kv_heads_are_divided_or_kept_by_as_many_ranks_each(
        self, checkpoint: MakeCheckpoint, changed: dict[str, int], says: str
    ) -> None:
        model = with_attention(read_model_config(checkpoint("llama").model_dir), **changed)
        if not says:
            check_shards(model, 2)
            return
        with pytest.raises(UnsupportedModel, match=says):
            check_shards(model, 2)

    @pytest.mark.parametrize(
        ("size", "weight_format", "says"),
        [
            (81, None, "does not divide intermediate_size 81"),
            (384, BLOCKS, "a rank's 192 rows of model.layers.0.mlp.gate_proj are not whole blocks"),
            (512, BLOCKS, ""),
        ],
    )
    def test_of_an_mlp_and_of_what_its_format_divides(
        self, checkpoint: MakeCheckpoint, size: int, weight_format: WeightFormat | None, says: str
    ) -> None:
        model = read_model_config(checkpoint("llama").model_dir)
        model = with_attention(model, head_dim=128)
        mlp = model.layers[0].mlp
        assert mlp is not None
        layers = [replace(layer, mlp=replace(mlp, size=size)) for layer in model.layers]
        model = replace(model, layers=tuple(layers))
        if weight_format is not None:
            model = replace(model, weight_format=weight_format)
        if not says:
            check_shards(model, 2)
            return
        with pytest.raises(UnsupportedModel, match=says):
            check_shards(model, 2)

    @pytest.mark.parametrize(
        ("shape", "num_ranks", "says"),
        [
            ("qwen3-30b-a3b", 8, ""),  # 4 KV heads, each on two ranks
            (
                "qwen3-30b-a3b by block",
                4,
                "tensor_parallel 4: .* a rank's 192 rows of model.layers.0.mlp.ex",
            ),
            ("qwen3-30b-a3b by block", 2, ""),
            (
                "gpt-oss-20b",
                4,
                "tensor_parallel 4: .* a rank's 720 columns of model.layers.0.mlp.ex",
            ),
            ("gpt-oss-20b", 2, ""),
            ("qwen3.5-27b", 8, ""),
            ("qwen3.5-27b by block", 2, ""),
            ("qwen3.5-27b", 3, "tensor_parallel 3 does not divide linear_num_key_heads 16"),
            ("phi-4-mini", 3, "tensor_parallel 3 does not divide num_key_value_heads 8"),
            ("llama-3.1-8b", 16, "there are 8 ranks at most"),
        ],
    )
    def test_of_well_known_models(
        self, tmp_path: Path, shape: str, num_ranks: int, says: str
    ) -> None:
        name = shape.removesuffix(" by block")
        by_block = {"quantization_config": FP8_BY_BLOCK} if name != shape else {}
        fields = SHAPES[name] | by_block
        (tmp_path / "config.json").write_text(json.dumps(fields))
        model, grid = read_model_config(tmp_path), RankGrid(num_ranks)
        if not says:
            check_ranks(model, BLOCK_SIZE, grid)
            return
        with pytest.raises(UnsupportedModel, match=says) as refused:
            check_ranks(model, BLOCK_SIZE, grid)
        assert "\n" not in str(refused.value)


def with_attention(model: ModelConfig, **changed: int) -> ModelConfig:
    layers = [
        replace(layer, mixer=replace(layer.attention, **changed))  # type: ignore[arg-type]
        for layer in model.layers
    ]
    return replace(model, layers=tuple(layers))


def test_dummy_weights_are_the_same_where_ranks_have_all_of_a_tensor(
    checkpoint: MakeCheckpoint,
) -> None:
    """Draw the same dummy weights on all ranks, even if only one rank draws the biases of sums."""
    model = read_model_config(checkpoint("qwen3-moe").model_dir)
    biased = with_attention(model, output_bias=True)

    def router(group: RankGroup) -> Tensor:
        made = dummy_parameters(biased, torch.float32, CPU, 0, group)
        [weight] = [
            one.view
            for module in made.modules()
            for one in module.checkpoint_tensors()
            if one.name == "model.layers.2.mlp.gate.weight"
        ]
        return weight

    first, second = on_ranks(2, router)
    assert torch.equal(first, second)
