"""A model equals plain PyTorch, although its architecture has its own file and unlike layers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.models.errors import UnsupportedModel
from engine.models.forward.memories import LayerPlace
from engine.models.forward.shortened_decoder import unlike_layers
from engine.models.layers.sandwich import SandwichLayer
from engine.models.served.reading import planned_layers, read_model_config
from engine.startup.kernel_warm_up import compute_each_once
from engine.startup.metadata import read_metadata
from engine.step import Row
from kernels.linear import linear
from kernels.ops import torch_ops
from tests.doubles.models.odd_architecture import SERVED, make_odd_checkpoint, truth
from tests.engine.rigs.hand_driven import HandDriven, build_runner, data_row, random_prompt

CPU = torch.device("cpu")
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    model_dir = tmp_path_factory.mktemp("odd")
    return model_dir, make_odd_checkpoint(model_dir)


def logits_of(driven: HandDriven, rows: list[Row]) -> Tensor:
    batch = driven.batch(rows)
    every, pool = torch.arange(len(batch.token_ids)), driven.runner.pool.layers
    return driven.runner.decoder.logits(batch.token_ids, batch.layout, pool, every)


@pytest.mark.parametrize("chunks", [[1], [75], [16, 16, 16, 27], [5, 40, 1, 29]])
def test_logits_are_those_of_plain_pytorch(
    odd: tuple[Path, dict[str, Tensor]], chunks: list[int]
) -> None:
    model_dir, weights = odd
    driven = HandDriven(build_runner(model_dir, served=SERVED))
    prompt = random_prompt(sum(chunks))
    sequence = driven.add(prompt)
    starts = [sum(chunks[:index]) for index in range(len(chunks))]
    parts = [
        logits_of(driven, [data_row(sequence, start, new)])
        for start, new in zip(starts, chunks, strict=True)
    ]
    got, expected = torch.cat(parts), truth(weights, prompt)
    assert expected.std() > 0.5, "logits this flat would agree whatever they are"
    assert (got - expected).abs().max() < TOLERANCE


@pytest.mark.parametrize("part", ["rope", "mlp", "norm"])
def test_each_thing_that_is_odd_about_it_shows(
    odd: tuple[Path, dict[str, Tensor]], part: str
) -> None:
    """Change each odd property of the model (positive control): with another layer's value, or
    Llama's, logits differ.
    """
    model_dir, weights = odd
    driven = HandDriven(build_runner(model_dir, served=SERVED))
    prompt = random_prompt(20)
    decoder = driven.runner.decoder
    parameters = decoder.parameters
    first, *others = parameters.layers
    if part == "rope":
        table = decoder.places[1].cos_sin
        decoder = replace(decoder, places={**decoder.places, 0: LayerPlace(0, table)})
    else:
        changed: dict[str, Any] = {"mlp": others[1].mlp}
        if part == "norm":
            assert isinstance(first, SandwichLayer)
            changed = {"attention_norm": first.mlp_norm}
        layers = (replace(first, **changed), *others)
        decoder = replace(decoder, parameters=replace(parameters, layers=layers))
    driven.runner = replace(driven.runner, decoder=decoder)
    got = logits_of(driven, [data_row(driven.add(prompt), 0, 20)])
    assert (got - truth(weights, prompt)).abs().max() > 100 * TOLERANCE


def test_without_being_entered_it_is_refused(odd: tuple[Path, dict[str, Tensor]]) -> None:
    with pytest.raises(UnsupportedModel, match="OddForCausalLM"):
        read_model_config(odd[0])
    assert read_model_config(odd[0], SERVED).family == "odd"


def test_a_model_whose_kv_differs_between_layers_is_refused(
    odd: tuple[Path, dict[str, Tensor]],
) -> None:
    class Uneven:
        """The odd model, with larger heads in its last layer."""

        examples = ("none",)

        def read(self, path: Path) -> Any:
            model = SERVED.architectures["OddForCausalLM"].read(path)
            last = model.layers[-1]
            wider = replace(last, mixer=replace(last.attention, head_dim=32))
            return replace(model, layers=(*model.layers[:-1], wider))

        def sizes(self, path: Path) -> Any:
            return SERVED.architectures["OddForCausalLM"].sizes(path)

        def layers(self, path: Path) -> Any:
            return self.read(path).layers

    config = EngineConfig.of(model_dir=str(odd[0]), socket="", device="cpu")
    served = replace(SERVED, architectures={"OddForCausalLM": Uneven()})
    with pytest.raises(UnsupportedModel, match="KV heads"):
        read_metadata(config, served)
    assert len(read_metadata(config, SERVED).model.layers) == 7


def test_the_planner_counts_each_layer_by_itself(odd: tuple[Path, dict[str, Tensor]]) -> None:
    _, weights = odd
    layers = planned_layers(odd[0] / "config.json", SERVED)
    for index, layer in enumerate(layers):
        own = [w for name, w in weights.items() if f"layers.{index}." in name and w.dim() == 2]
        assert layer.num_weights == sum(weight.numel() for weight in own)
        assert layer.num_held_weights == layer.num_weights
        rows = {row for matrix in layer.matrices(index) for row in matrix.rows}
        shapes = {(name.removesuffix(".weight"), len(w)) for name, w in weights.items()}
        assert len(rows) == 7
        assert rows <= shapes, "under the names that checkpoints have"
    assert len({layer.num_weights for layer in layers}) == 2


@pytest.mark.parametrize(
    ("kinds", "kept"),
    [
        ("A", [0]),
        ("AA", [0, 1]),
        ("AAAAAA", [0, 1]),
        ("AB", [0, 1]),
        ("ABBBBB", [0, 1, 2]),
        ("AAAAAB", [0, 1, 5]),
        ("ABABABAB", [0, 1, 2, 3]),
        ("AABAABAAB", [0, 1, 2, 3, 5]),
        ("ABCABCABC", [0, 1, 2, 3, 5]),
    ],
)
def test_as_few_layers_are_kept_as_launch_what_all_do(kinds: str, kept: list[int]) -> None:
    assert unlike_layers(kinds) == kept


def test_the_kept_layers_write_the_kv_that_is_theirs(odd: tuple[Path, dict[str, Tensor]]) -> None:
    runner = build_runner(odd[0], served=SERVED)
    decoder = runner.decoder
    layers = decoder.parameters.layers
    some = replace(decoder, parameters=replace(decoder.parameters, layers=layers[::3]))
    driven = HandDriven(replace(runner, decoder=some))
    runner.pool.tensor.zero_()
    logits_of(driven, [data_row(driven.add(random_prompt(9)), 0, 9)])
    written = [bool(kv.any()) for kv in runner.pool.layers]
    assert written == [index % 3 == 0 for index in range(len(layers))]


def test_products_of_every_shape_are_computed_before_the_first_step(
    odd: tuple[Path, dict[str, Tensor]],
) -> None:
    shapes: set[tuple[int, ...]] = set()

    def computed(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        shapes.add(tuple(weight.shape))
        return linear.reference(x, weight, bias)

    ops = replace(torch_ops(), linear=computed, linear_split_k=computed)
    decoder = build_runner(odd[0], ops=ops, served=SERVED).decoder
    compute_each_once(decoder, max_rows=1, batch_tokens=1)
    head, even, odd_ones = {(300, 48)}, {(128, 48), (48, 64), (128, 48)}, {(96, 48), (48, 32)}
    assert shapes == head | even | odd_ones | {(192, 48), (48, 96)}
