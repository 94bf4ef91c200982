"""Kernels compiled ahead on a GPU: they do not run before their first use, and then give right
results.
"""

from __future__ import annotations

import pytest
import torch

from kernels.launch.compile_ahead import compile_ahead
from kernels.ops import Ops, torch_ops, triton_ops

pytestmark = pytest.mark.gpu

OPS = triton_ops()
VOCABULARY = 12_343  # no other test uses this size, so its kernels are not in this process yet


def drawn(ops: Ops = OPS, vocabulary: int = VOCABULARY) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(0)
    logits = torch.randn((5, vocabulary), generator=generator, device="cuda")
    keys = torch.arange(10, dtype=torch.int32, device="cuda").view(5, 2)
    return ops.sample(logits, torch.full((5,), 0.7, device="cuda"), keys)[0]


def test_what_was_compiled_ahead_is_found_and_right(compilations: list[str]) -> None:
    count = compile_ahead(drawn)
    assert count == len(compilations) >= 1
    tokens = drawn()
    assert len(compilations) == count
    assert torch.equal(tokens, drawn(torch_ops()))
    drawn(vocabulary=VOCABULARY + 1)
    assert len(compilations) > count, "the control"


def test_a_second_rehearsal_finds_nothing_to_compile(compilations: list[str]) -> None:
    compile_ahead(drawn)
    before = len(compilations)
    assert compile_ahead(drawn) == 0
    assert len(compilations) == before


def test_hopper_kernels_with_descriptors_are_found_and_right(compilations: list[str]) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn((3, 4096), generator=generator, device="cuda").bfloat16()
    weight = torch.randn((3968, 4096), generator=generator, device="cuda").bfloat16()

    def product() -> torch.Tensor:
        parts = OPS.linear_split_k(x, weight, None)
        return parts.sum(0) if parts.dim() == 3 else parts

    compile_ahead(product)
    before = len(compilations)
    got = product().float()
    assert len(compilations) == before
    truth = x.double() @ weight.double().T
    assert ((got - truth).norm() / truth.norm()) < 1e-2


def test_no_kernel_runs_in_a_rehearsal() -> None:
    """Run no kernel in a rehearsal, not even a kernel that is already loaded."""
    pool = torch.randn((4, 1, 2, 1, 16, 16), device="cuda")
    source, target = (torch.tensor([block], device="cuda") for block in (1, 2))
    OPS.copy_blocks(pool.clone(), source, target)
    before = pool.clone()
    assert compile_ahead(lambda: OPS.copy_blocks(pool, source, target)) == 0
    torch.cuda.synchronize()
    assert torch.equal(pool, before)
    OPS.copy_blocks(pool, source, target)
    assert torch.equal(pool[2], before[1]), "the control: outside it does"
    assert not torch.equal(pool, before)
