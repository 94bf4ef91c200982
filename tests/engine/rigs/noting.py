"""Which kernels buckets ask for by Triton's own rules, without a device, a compiler or a launch.

Triton compiles a kernel anew for other dtypes and constants, and for numbers that are 1 or
multiples of 16. To be run in a process of its own, since what is interpreted is never compiled:

    python -m tests.engine.rigs.noting       prints {name of a set of buckets: kernels} as JSON
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from triton.runtime import driver

from engine.execution.graphs.buckets import all_buckets
from engine.execution.graphs.inputs import GraphBucket
from engine.execution.graphs.steps import compute_step, inputs_of
from engine.models.architectures.registry import read_model_config
from engine.models.decoder import Decoder, build_decoder
from engine.models.parameters import empty_parameters
from engine.models.shortened_decoder import shortened
from engine.startup.activation import StepBounds
from engine.startup.kernel_warm_up import dry_run_buckets, small_machine, telling
from kernels.launch.compile_ahead import Notes, leaving_out_launches
from kernels.ops import triton_ops
from tests.doubles.engine.no_device import NoDevice
from tests.doubles.engine.shapes import model_directory
from tests.doubles.layouts import alike_layers

CPU = torch.device("cpu")
BOUNDS = StepBounds(
    batch_tokens=0,
    max_running=256,
    max_model_len=40_960,
    layout=alike_layers(2, 8, head_dim=128, dtype="bfloat16", block_size=16),
    graph_tokens=1024,
    group_rows=8,
)


def product_of_shape(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """In place of a product: of these every number of rows is dry-run by itself."""
    del bias
    return x.new_empty((x.shape[0], weight.shape[0]))


def two_layers(model_dir: Path) -> Decoder:
    """The first layers of a model, with weights that nobody has written."""
    config = read_model_config(model_dir)
    parameters = empty_parameters(config, torch.bfloat16, CPU)
    ops = replace(triton_ops(), linear=product_of_shape, linear_split_k=product_of_shape)
    decoder = build_decoder(config, parameters, ops, BOUNDS.max_model_len)
    return shortened(decoder)


def noted(launch: Callable[[], object]) -> list[str]:
    """The kernels that `launch` asks for, by name and by what they are specialised for."""
    notes = Notes()
    with leaving_out_launches(notes), torch.inference_mode():
        launch()
    return [f"{variant.name} {variant.data}" for variant in notes.variants]


def compute(decoder: Decoder, buckets: Sequence[GraphBucket]) -> None:
    """A step of padding in each of these buckets."""
    machine = small_machine(decoder, BOUNDS)
    for inputs in inputs_of(machine, buckets):
        compute_step(machine, inputs)


def main() -> None:
    """Print what all buckets ask for, what a dry run does, and what it would with fewer kinds."""
    driver.set_active(NoDevice())
    buckets = all_buckets(BOUNDS.max_running, BOUNDS.graph_tokens, BOUNDS.group_rows)
    kept = telling(buckets)
    kinds = {
        "all": buckets,
        "telling": kept,
        "without decodes alone": [room for room in kept if room.num_new],
        "without new tokens": [room for room in kept if not room.num_new],
        "without sharing": [room for room in kept if not room.group_rows],
    }
    with tempfile.TemporaryDirectory() as directory:
        decoder = two_layers(model_directory("qwen3-0.6b", Path(directory)))
    found = {name: noted(partial(compute, decoder, some)) for name, some in kinds.items()}
    found["dry run"] = noted(partial(dry_run_buckets, decoder, BOUNDS))
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
