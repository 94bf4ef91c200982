"""The references, compared with the layers of `transformers` that define the models."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from kernels.attention.kv import rope_write_kv
from kernels.norms import rms_norm

EPS, HEADS, KV_HEADS, DIM, TOKENS = 1e-6, 4, 2, 64, 9


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rms_norm_gives_the_same_bits(dtype: torch.dtype) -> None:
    x, weight = draw(TOKENS, DIM, dtype=dtype), draw(DIM, dtype=dtype, seed=1)
    theirs = LlamaRMSNorm(DIM, EPS)
    theirs.weight = torch.nn.Parameter(weight)
    assert torch.equal(rms_norm.reference(x, weight, EPS), theirs(x))


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)], ids=str
)
def test_rope_turns_q_and_k_alike(dtype: torch.dtype, bound: float) -> None:
    qkv = draw(TOKENS, (HEADS + 2 * KV_HEADS) * DIM, dtype=dtype)
    positions = torch.arange(100, 100 + TOKENS)
    angle = positions[:, None] * 10_000.0 ** -(torch.arange(DIM // 2) / (DIM // 2))
    half = torch.cat((angle.cos(), angle.sin()), 1)
    kv = torch.zeros(2, 2, KV_HEADS, 16, DIM, dtype=dtype)
    slots = torch.arange(TOKENS)
    q = rope_write_kv.reference(
        qkv, torch.arange(TOKENS), half, None, None, EPS, kv, slots, HEADS, dtype
    )
    heads = qkv.view(1, TOKENS, -1, DIM).transpose(1, 2)
    whole = angle.repeat(1, 2)[None]
    their_q, their_k = apply_rotary_pos_emb(
        heads[:, :HEADS], heads[:, HEADS : HEADS + KV_HEADS],
        whole.cos().to(dtype), whole.sin().to(dtype),
    )  # fmt: skip
    torch.testing.assert_close(q, their_q[0].transpose(0, 1), atol=bound, rtol=0)
    torch.testing.assert_close(kv[0, 0, :, :TOKENS], their_k[0], atol=bound, rtol=0)
