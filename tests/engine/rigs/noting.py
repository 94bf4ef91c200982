"""The kernels that graph buckets need by Triton's own rules, without a device, compilation or
launches.

Triton compiles a kernel anew for other dtypes and constants, and for numbers that are 1 or
multiples of 16. This module runs in its own process, since interpreted kernels are not compiled:

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

from engine.execution.graphs.bucket import GraphBucket
from engine.execution.graphs.buckets import all_buckets
from engine.execution.graphs.steps import compute_step, inputs_of
from engine.models.forward.build_decoder import build_decoder
from engine.models.forward.decoder import Decoder
from engine.models.forward.shortened_decoder import shortened
from engine.models.parameters import empty_parameters
from engine.models.served.reading import read_model_config
from engine.startup.kernel_warm_up import dry_run_buckets, small_machine, telling
from engine.startup.memory.activation import StepBounds
from kernels.launch.compile_ahead import Notes, leaving_out_launches
from kernels.ops import triton_ops
from tests.doubles.engine.device.no_device import NoDevice
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
    """Return an uncomputed product: the dry run handles products separately, for each number of
    rows.
    """
    del bias
    return x.new_empty((x.shape[0], weight.shape[0]))


def two_layers(model_dir: Path) -> Decoder:
    """Return a decoder of the model's first two layers, with uninitialised weights."""
    config = read_model_config(model_dir)
    parameters = empty_parameters(config, torch.bfloat16, CPU)
    ops = replace(triton_ops(), linear=product_of_shape, linear_split_k=product_of_shape)
    decoder = build_decoder(config, parameters, ops, BOUNDS.max_model_len)
    return shortened(decoder)


def noted(launch: Callable[[], object]) -> list[str]:
    """Return the kernels that `launch` needs, each by its name and specialisation."""
    notes = Notes()
    with leaving_out_launches(notes), torch.inference_mode():
        launch()
    return [f"{variant.name} {variant.data}" for variant in notes.variants]


def compute(decoder: Decoder, buckets: Sequence[GraphBucket]) -> None:
    """Compute a step of padding in each of these buckets."""
    machine = small_machine(decoder, BOUNDS)
    for inputs in inputs_of(machine, buckets):
        compute_step(machine, inputs)


def main() -> None:
    """Print the kernels of all buckets, of a dry run, and of dry runs that lack some kinds of
    buckets.
    """
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
