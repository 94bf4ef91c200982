"""The checks of a model's files before they are loaded.

This module does not import torch, because the command line calls it before it starts the engine.
The engine itself checks the tensors, the device and its memory when it starts.
"""

from __future__ import annotations

from pathlib import Path

from engine.config import Quantization
from engine.models.checkpoints.weight_files import weight_files
from engine.models.config import SERVED_DTYPES, ModelConfig
from engine.models.errors import UnsupportedModel
from engine.models.grid import RankGrid
from engine.models.layers.mixer import RecurrentConfig
from engine.models.served.reading import read_model_config
from engine.models.served.registry import SERVED
from engine.models.shards import MOST_RANKS, check_shards, shard_model
from engine.models.stages import split_model
from engine.models.weight_formats.plain import matrix_bytes
from kernels.errors import UnsupportedShape
from kernels.limits import MIN_BLOCK_SIZE, check_hidden_size

ALONE = RankGrid()


def check_served(
    model_dir: Path,
    *,
    block_size: int = MIN_BLOCK_SIZE,
    has_weights: bool = True,
    quantization: Quantization = "none",
    grid: RankGrid = ALONE,
) -> ModelConfig:
    """Return the model if the engine could load it. If not, raise the engine's ModelError.

    `has_weights` is False if dummy weights are used, for which no files are needed.
    """
    model = read_model_config(model_dir, SERVED, quantization)
    check_geometry(model, block_size)
    check_matrices(model)
    check_ranks(model, block_size, grid)
    if has_weights:
        weight_files(model_dir)
    return model


def check_ranks(model: ModelConfig, block_size: int, grid: RankGrid) -> None:
    """Check that the ranks of `grid` can divide a model and compute it. Raises UnsupportedModel."""
    check_grid(grid)
    check_shards(model, grid.tensor)
    split_model(model, grid.stages, SERVED_DTYPES[0])
    if grid.tensor > 1:
        check_geometry(shard_model(model, grid.tensor), block_size)


def check_grid(grid: RankGrid) -> None:
    """Raise UnsupportedModel for too many ranks."""
    if grid.num_ranks > MOST_RANKS:
        raise UnsupportedModel(
            f"tensor_parallel {grid.tensor} x pipeline_parallel {grid.stages}: "
            f"there are {MOST_RANKS} ranks at most"
        )


def check_matrices(model: ModelConfig) -> None:
    """Raise UnsupportedModel if a matrix is not served in the model's weight format.

    Only the first expert of a layer is checked, because all experts have the same sizes.
    """
    for index, layer in enumerate(model.layers):
        experts = set()
        for matrix in layer.matrices(index):
            size = matrix.size_out, matrix.size_in
            if matrix.of_expert and size in experts:
                continue
            if matrix.of_expert:
                experts.add(size)
            matrix_bytes(model.weight_format, matrix, SERVED_DTYPES[0])


def check_geometry(model: ModelConfig, block_size: int) -> None:
    """Raise UnsupportedModel if the kernels do not support a size."""
    if not model.attentions:
        raise UnsupportedModel("a model without attention is not served")
    if len({one.kept for one in model.attentions if one.window is None}) > 1:
        raise UnsupportedModel(
            "layers without a window that differ in KV heads or their size are not served"
        )
    for one in model.attentions:
        try:
            one.check(MIN_BLOCK_SIZE)
        except UnsupportedShape as error:
            raise UnsupportedModel(f"{one.fields}: {error}") from error
    try:
        check_hidden_size(model.hidden_size)
        for mixer in {one.mixer for one in model.layers}:
            if isinstance(mixer, RecurrentConfig):
                mixer.check()
        for one in model.attentions:
            one.check(block_size)
    except UnsupportedShape as error:
        raise UnsupportedModel(str(error)) from error
