"""Two and four ranks in every format have the same bits on all ranks, and the accuracy of one GPU.

The tests compare each rank's own samples, not the samples that rank 0 has sent. On a CPU one format
is tested in the same way, so that the code for GPUs is known to run.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.engine.models.weight_formats.test_mxfp4 import in_mxfp4
from tests.engine.rigs.checkpoints import RECIPES, Checkpoint, Recipe, make_checkpoint
from tests.engine.rigs.gpus import Job, started, visible_gpus
from tests.engine.rigs.hand_driven import random_prompt
from tests.seams.ranks.formats import PROMPT, SIZES, Found, Served, compute

STEPS = 10_000
GPUS = visible_gpus()
RANKS = [2, 4]
# The ranks' error may be at most one GPU's error times the first number, plus the second number.
SLACK = 1.25, 0.002


@dataclass(frozen=True, slots=True)
class Model:
    """A checkpoint, and its settings."""

    checkpoint: Checkpoint
    served: Served

    def truth(self) -> Tensor:
        """Return the reference logits of `transformers`, (PROMPT, V) float32."""
        return self.checkpoint.logits(random_prompt(PROMPT, seed=7))


def sized(name: str) -> Recipe:
    recipe = RECIPES[name]
    return replace(recipe, fields={**recipe.fields, **SIZES})


def models(directory: Path) -> dict[str, Model]:
    """Make the models of each format."""
    dense, experts, sinks = (
        make_checkpoint(sized(name), directory / name) for name in ("llama", "qwen3-moe", "gpt-oss")
    )
    packed = in_mxfp4(sinks, directory / "mxfp4")
    return {
        "bf16": Model(dense, Served(dense.model_dir)),
        "fp8": Model(dense, Served(dense.model_dir, quantization="fp8")),
        "fp8 KV": Model(dense, Served(dense.model_dir, kv_dtype="fp8")),
        "mixture": Model(experts, Served(experts.model_dir)),
        "mixture in fp8": Model(experts, Served(experts.model_dir, quantization="fp8")),
        "mixture in mxfp4": Model(packed, Served(packed.model_dir)),
        "float32": Model(dense, Served(dense.model_dir, "float32", exchange="library")),
        "float32, peers": Model(dense, Served(dense.model_dir, "float32")),
    }


def error(found: Tensor, truth: Tensor) -> float:
    """Return the mean relative error."""
    return float((found - truth).norm() / truth.norm())


def expect_alike(ranks: list[Found], steps: int) -> None:
    """Check that all ranks have the same bits and samples."""
    first, *others = ranks
    assert len(first.sampled) == steps
    assert (first.sampled[:, 0] >= 0).all(), "the control: each step was noted"
    assert len(set(first.sampled[:, 0].tolist())) > 2, "the control: not always the same token"
    for other in others:
        assert torch.equal(other.sampled, first.sampled)
        assert torch.equal(other.logits, first.logits)
        assert other.texts == first.texts


def expect_near(ranks: list[Found], alone: Found, truth: Tensor) -> tuple[float, float]:
    """Check that ranks are as accurate as one GPU; return both errors."""
    of_ranks, of_one = error(ranks[0].logits, truth), error(alone.logits, truth)
    factor, beside = SLACK
    assert of_ranks < factor * of_one + beside
    return of_ranks, of_one


def test_on_a_cpu_two_ranks_of_a_mixture_in_fp8(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(sized("qwen3-moe"), tmp_path / "model")
    served = Served(checkpoint.model_dir, quantization="fp8", device="cpu", steps=8)
    model = Model(checkpoint, served)
    jobs = [Job(count, compute, (served,), tmp_path / str(count)) for count in (2, 1)]
    ranks, [alone] = (one.result() for one in started(jobs, ("0", "1", "2")))
    expect_alike(ranks, 8)
    _, of_one = expect_near(ranks, alone, model.truth())
    assert of_one > 0.01, "the control: it is not computed in full"


needs_gpus = pytest.mark.skipif(len(GPUS) < min(RANKS), reason="needs two GPUs")
Results = Callable[[str, int], list[Found]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    return models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def results(made: dict[str, Model], tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Run every format on 1, 2 and 4 GPUs as they become free; return each rank's results."""
    directory = tmp_path_factory.mktemp("ranks")
    asked = [(name, count) for count in (2, 1, 4) for name in made if count <= len(GPUS)]
    jobs = [
        Job(count, compute, (made[name].served,), directory / f"{name}, {count}")
        for name, count in asked
    ]
    found: dict[tuple[str, int], Future[list[Found]]] = dict(
        zip(asked, started(jobs, GPUS), strict=True)
    )
    return lambda name, count: found[name, count].result()


@needs_gpus
@pytest.mark.gpu
@pytest.mark.parametrize("num_ranks", RANKS)
@pytest.mark.parametrize(
    "name",
    ["bf16", "fp8", "fp8 KV", "mixture", "mixture in fp8", "mixture in mxfp4"],
)
def test_ranks_are_alike_and_as_near_to_the_truth_as_one(
    made: dict[str, Model], results: Results, name: str, num_ranks: int
) -> None:
    expect_gpus(num_ranks)
    ranks, [alone] = results(name, num_ranks), results(name, 1)
    print_line(name, ranks, alone, made[name].truth())
    assert ranks[0].has_peers
    expect_alike(ranks, made[name].served.steps)
    expect_near(ranks, alone, made[name].truth())


@needs_gpus
@pytest.mark.gpu
@pytest.mark.parametrize("num_ranks", RANKS)
@pytest.mark.parametrize("name", ["float32", "float32, peers"])
def test_in_float32_ranks_give_the_text_of_one(
    made: dict[str, Model], results: Results, name: str, num_ranks: int
) -> None:
    """In float32, the order of sums over ranks changes only tokens with nearly equal logits."""
    expect_gpus(num_ranks)
    ranks, [alone] = results(name, num_ranks), results(name, 1)
    print_line(name, ranks, alone, made[name].truth())
    assert ranks[0].has_peers == (name != "float32")
    expect_alike(ranks, made[name].served.steps)
    assert ranks[0].texts == alone.texts


@needs_gpus
@pytest.mark.gpu
@pytest.mark.parametrize("num_ranks", RANKS)
def test_all_ranks_sample_the_same_in_many_steps(
    made: dict[str, Model], num_ranks: int, tmp_path: Path
) -> None:
    expect_gpus(num_ranks)
    served = replace(made["bf16"].served, steps=STEPS)
    [ranks] = (
        one.result() for one in started([Job(num_ranks, compute, (served,), tmp_path)], GPUS)
    )
    told = f"{len(ranks[0].sampled):,} steps in {ranks[0].seconds:.1f} s"
    print(f"\nbf16, {num_ranks} ranks: {told}")  # noqa: T201
    assert ranks[0].has_peers
    expect_alike(ranks, STEPS)


def expect_gpus(count: int) -> None:
    if len(GPUS) < count:
        pytest.skip(f"needs {count} GPUs")


def print_line(name: str, ranks: list[Found], alone: Found, truth: Tensor) -> None:
    """Print a line for a manual run with -s."""
    equal = sum(a == b for a, b in zip(ranks[0].texts, alone.texts, strict=True))
    alike = all(torch.equal(ranks[0].sampled, other.sampled) for other in ranks)
    way = "peer memory" if ranks[0].has_peers else "NCCL"
    print(  # noqa: T201
        f"\n{name}, {len(ranks)} ranks over {way}: alike {alike} in {len(ranks[0].sampled)} steps, "
        f"error {error(ranks[0].logits, truth):.4f}, of one GPU {error(alone.logits, truth):.4f}, "
        f"texts of one GPU {equal} of {len(alone.texts)}, {ranks[0].seconds:.1f} s"
    )
