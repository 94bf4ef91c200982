"""The compiled kernels on a GPU, in the dtypes of serving, compared with float64.

This includes tests that need size: long contexts, a pool of more than 2^31 numbers, a captured
launch.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.attention.prefill import prefill_attention
from kernels.attention.tuning import hopper_tuning, prefill_tuning
from kernels.launch.capability import HOPPER, capability
from kernels.norms.gate import GELU_TANH, SILU, Gate
from kernels.ops import torch_ops, triton_ops
from tests.kernels import naive
from tests.kernels.cases import (
    Case,
    Geometry,
    make_case,
    make_layout,
    poisoned_memory,
    relative_error,
)
from tests.kernels.test_shared_prefix import grow

pytestmark = pytest.mark.gpu

OPS = triton_ops()
BOUNDS = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}
DTYPES = pytest.mark.parametrize("dtype", list(BOUNDS), ids=str)
EPS = 1e-6
MIXED = [(1, 30), (1, 1), (1, 1029), (1, 4096), (9, 9), (300, 700), (1, 5), (129, 129), (2, 65)]
SHAPES = [(1, 1, 16), (4, 2, 32), (16, 1, 64), (6, 2, 80), (10, 2, 96), (32, 8, 128), (4, 2, 256)]


def draw(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


def attend(case: Case) -> Tensor:
    with poisoned_memory():
        return OPS.paged_attention(case.q, case.kv, case.layout, *case.how)


def assert_right(case: Case) -> None:
    assert relative_error(attend(case), case.truth()) < BOUNDS[case.q.dtype]


@DTYPES
@pytest.mark.parametrize("size", [100, 1024, 4096, 16_384])
def test_norms(size: int, dtype: torch.dtype) -> None:
    x, residual = draw(33, size, dtype=dtype), draw(33, size, dtype=dtype, seed=1)
    weight = draw(size, dtype=dtype, seed=2)
    with poisoned_memory():
        alone = OPS.rms_norm(x, weight, EPS)
        normed, total = OPS.add_rms_norm(x, residual, weight, EPS)
    assert relative_error(alone, naive.rms_norm(x, weight, EPS)) < BOUNDS[dtype]
    assert torch.equal(total, x + residual)
    assert relative_error(normed, naive.rms_norm(total, weight, EPS)) < BOUNDS[dtype]


@DTYPES
def test_gate_mul(dtype: torch.dtype) -> None:
    gate_up = draw(33, 2 * 14_336, dtype=dtype) * 8
    with poisoned_memory():
        got = OPS.gate_mul(gate_up, SILU)
    assert relative_error(got, naive.gate_mul(gate_up)) < BOUNDS[dtype]
    assert OPS.gate_mul(torch.full_like(gate_up, -200.0), SILU).isfinite().all()
    for gate in (GELU_TANH, Gate(limit=1.5, alpha=1.702)):
        got = OPS.gate_mul(gate_up, gate)
        assert relative_error(got, naive.gate_mul(gate_up, gate)) < BOUNDS[dtype]
        assert OPS.gate_mul(torch.full_like(gate_up, -200.0), gate).isfinite().all()


@DTYPES
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rope_write_kv(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    q_heads, kv_heads, head_dim = shape
    tokens, blocks, size = 37, 8, 16
    qkv = draw(tokens, (q_heads + 2 * kv_heads) * head_dim, dtype=dtype)
    q_norm, k_norm = draw(head_dim, dtype=dtype, seed=1), draw(head_dim, dtype=dtype, seed=2)
    positions = torch.randint(0, 131_072, (tokens,), device="cuda")
    slots = torch.randperm(blocks * size, device="cuda")[:tokens]
    half = head_dim // 2
    angle = torch.arange(131_072, device="cuda").double()[:, None] * 5e5 ** -(
        torch.arange(half, device="cuda").double() / half
    )
    cos_sin = torch.cat((angle.cos(), angle.sin()), 1).float()
    pool = torch.full((blocks, 2, 2, kv_heads, size, head_dim), torch.nan, device="cuda")
    got, wanted = pool.to(dtype), pool.to(dtype)
    with poisoned_memory():
        q = OPS.rope_write_kv(
            qkv, positions, cos_sin, q_norm, k_norm, EPS, got[:, 1], slots, q_heads, dtype
        )
    # The reference was itself compared with float64 on the CPU. After rounding, the last bit may
    # differ.
    wanted_q = torch_ops().rope_write_kv(
        qkv, positions, cos_sin, q_norm, k_norm, EPS, wanted[:, 1], slots, q_heads, dtype
    )
    assert relative_error(q, wanted_q.double()) < BOUNDS[dtype]
    assert torch.equal(got.isnan(), wanted.isnan())
    assert relative_error(got.nan_to_num(), wanted.nan_to_num().double()) < BOUNDS[dtype]


@DTYPES
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_of_mixed_rows(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    assert_right(make_case(Geometry(*shape, 16, dtype, "cuda"), MIXED))


@pytest.mark.parametrize("block_size", [32, 64, 256])
def test_attention_of_longer_blocks(block_size: int) -> None:
    assert_right(make_case(Geometry(8, 2, 128, block_size, torch.bfloat16, "cuda"), MIXED))


@DTYPES
@pytest.mark.parametrize("rows", [[(1, 32_768)], [(1, 32_768), (1, 77)], [(257, 32_768)]], ids=str)
def test_long_contexts(rows: list[tuple[int, int]], dtype: torch.dtype) -> None:
    assert_right(make_case(Geometry(8, 2, 128, 16, dtype, "cuda"), rows))


def test_the_longest_context() -> None:
    geometry = Geometry(8, 2, 128, 16, torch.bfloat16, "cuda")
    assert_right(make_case(geometry, [(1, 131_072), (65, 131_072)]))


def test_many_rows_in_one_split_and_few_in_many() -> None:
    geometry = Geometry(32, 8, 128, 16, torch.bfloat16, "cuda")
    case = make_case(geometry, [(1, 700 + 3 * row) for row in range(200)])
    assert_right(case)
    assert_right(replace(case, layout=replace(case.layout, max_context_len=131_072)))


def test_a_pool_beyond_two_to_the_31_numbers() -> None:
    blocks, layers, geometry = 4_400, 32, Geometry(32, 8, 128, 16, torch.bfloat16, "cuda")
    pool = torch.empty((blocks, layers, 2, 8, 16, 128), dtype=torch.bfloat16, device="cuda")
    assert pool.numel() > 2**32
    kv = pool[:, layers - 1]
    kv[-200:] = torch.nan
    case = make_case(geometry, [(1, 333), (90, 250)])
    shifted = case.layout.block_tables + (blocks - case.kv.shape[0])
    kv[blocks - case.kv.shape[0] :] = case.kv
    at_the_end = replace(case, kv=kv, layout=replace(case.layout, block_tables=shifted))
    assert_right(at_the_end)

    OPS.copy_blocks(pool, torch.tensor([blocks - 2], device="cuda"), torch.tensor([3]).cuda())
    assert torch.equal(pool[3].view(torch.int16), pool[blocks - 2].view(torch.int16))

    slots = torch.tensor([(blocks - 1) * 16 + 7], device="cuda")
    qkv = draw(1, 48 * 128, dtype=torch.bfloat16)
    still = torch.cat((torch.ones(1, 64), torch.zeros(1, 64)), 1).cuda()
    OPS.rope_write_kv(qkv, slots * 0, still, None, None, EPS, kv, slots, 32, kv.dtype)
    assert torch.equal(kv[-1, :, :, 7].flatten(), qkv[0, 32 * 128 :])


@DTYPES
def test_copy_blocks(dtype: torch.dtype) -> None:
    pool = draw(300, 4, 2, 2, 16, 128, dtype=dtype)
    expected = pool.clone()
    order = torch.randperm(300, device="cuda")
    source, target = order[:140], order[140:280]
    expected[target] = expected[source]
    OPS.copy_blocks(pool, source, target)
    assert torch.equal(pool, expected)


def test_a_captured_decode_follows_lengths_that_change_on_the_device() -> None:
    geometry = Geometry(32, 8, 128, 16, torch.bfloat16, "cuda")
    case = make_case(geometry, [(1, 3000), (1, 2999), (1, 640), (1, 5)])
    static = replace(case.layout, context_lens=case.layout.context_lens.clone())
    OPS.paged_attention(case.q, case.kv, static, *case.how)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = OPS.paged_attention(case.q, case.kv, static, *case.how)
    for shrink in (1, 2, 5):
        static.context_lens.copy_((case.layout.context_lens // shrink).clamp(min=1))
        graph.replay()
        contexts = static.context_lens.tolist()
        rows = tuple(
            (q, k[:context], v[:context])
            for (q, k, v), context in zip(case.rows, contexts, strict=True)
        )
        assert relative_error(out, replace(case, rows=rows).truth()) < 1e-2


def test_padding_in_a_captured_decode_gives_zero() -> None:
    case = make_case(Geometry(32, 8, 128, 16, torch.bfloat16, "cuda"), [(1, 3000), (1, 200)])
    OPS.paged_attention(case.q, case.kv, case.layout, *case.how)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = OPS.paged_attention(case.q, case.kv, case.layout, *case.how)
    for empty in (0, 1):
        contexts = torch.tensor([3000, 200], dtype=torch.int32)
        contexts[empty] = 0
        case.layout.context_lens.copy_(contexts)
        out.fill_(torch.nan)
        graph.replay()
        truth = case.truth()
        truth[empty] = 0
        assert relative_error(out, truth) < 1e-2
        assert not out[empty].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads", [(8, 8), (8, 2), (14, 2), (16, 1), (32, 8)], ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_prefill_of_every_group_size(
    heads: tuple[int, int], head_dim: int, dtype: torch.dtype
) -> None:
    rows = [(1, 1), (1, 128), (2, 128), (129, 129), (128, 257), (700, 1500), (64, 64), (3, 4000)]
    assert_right(make_case(Geometry(*heads, head_dim, 16, dtype, "cuda"), rows, decodes=0))


GPT_OSS, GEMMA = (64, 8, 64), (8, 4, 256)


@pytest.mark.parametrize("heads", [GPT_OSS, GEMMA, (32, 8, 128)], ids=str)
@pytest.mark.parametrize("window", [None, 1, 128, 1000, 4096])
@pytest.mark.parametrize("cap", [None, 20.0])
def test_windows_caps_and_sinks(
    heads: tuple[int, int, int], window: int | None, cap: float | None
) -> None:
    case = make_case(Geometry(*heads, 16, torch.bfloat16, "cuda"), MIXED)
    sinks = torch.linspace(-3.0, 6.0, heads[0], device="cuda").bfloat16()
    assert_right(replace(case, window=window, softcap=cap, sinks=sinks))
    assert_right(replace(case, window=window, softcap=cap))


@pytest.mark.parametrize("window", [None, 1, 128, 1000, 2048])
@pytest.mark.parametrize("heads", [GPT_OSS, (32, 8, 128), (24, 4, 256)], ids=str)
@pytest.mark.parametrize("rows", [[(300, 3000), (129, 129), (700, 2500)], [(40, 5000)]], ids=str)
def test_prompts_by_both_kernels(
    rows: list[tuple[int, int]], heads: tuple[int, int, int], window: int | None
) -> None:
    """Compute prompts with both kernels; Hopper's also with windows for which it would not be
    chosen.
    """
    case = make_case(Geometry(*heads, 16, torch.bfloat16, "cuda"), rows)
    sinks = torch.linspace(-3.0, 6.0, heads[0], device="cuda").bfloat16()
    case = replace(case, window=window, sinks=sinks)
    by_hopper = (hopper_tuning(heads[2]),) if capability(case.q.device) == HOPPER else ()
    for tuning in (prefill_tuning(heads[2], torch.bfloat16), *by_hopper):
        out = torch.empty_like(case.q)
        with poisoned_memory():
            prefill_attention.launch_tuned(case.q, case.kv, case.layout, *case.how, tuning, out)
        assert relative_error(out, case.truth()) < BOUNDS[torch.bfloat16]


@pytest.mark.parametrize("window", [128, 1000])
def test_a_captured_window_follows_lengths_that_change_on_the_device(window: int) -> None:
    geometry = Geometry(*GPT_OSS, 16, torch.bfloat16, "cuda")
    case = make_case(geometry, [(1, 3000), (1, 2999), (1, 640), (1, 5)])
    sinks = torch.linspace(-3.0, 6.0, 64, device="cuda").bfloat16()
    case = replace(case, window=window, sinks=sinks)
    static = replace(case.layout, context_lens=case.layout.context_lens.clone())
    OPS.paged_attention(case.q, case.kv, static, *case.how)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = OPS.paged_attention(case.q, case.kv, static, *case.how)
    for shrink in (1, 2, 5):
        static.context_lens.copy_((case.layout.context_lens // shrink).clamp(min=1))
        graph.replay()
        contexts = static.context_lens.tolist()
        rows = tuple(
            (q, k[:context], v[:context])
            for (q, k, v), context in zip(case.rows, contexts, strict=True)
        )
        assert relative_error(out, replace(case, rows=rows).truth()) < 1e-2


@pytest.mark.parametrize("block_size", [16, 64, 128, 256])
@pytest.mark.parametrize("context", [64, 2_111, 8_192, 20_000])
def test_a_short_suffix_of_a_long_prefix(context: int, block_size: int) -> None:
    geometry = Geometry(32, 8, 128, block_size, torch.bfloat16, "cuda")
    assert_right(make_case(geometry, [(64, context)]))
    assert_right(make_case(geometry, [(1, 100), (17, context), (30, 30)]))


def test_a_captured_mixed_batch_follows_rows_that_change_on_the_device() -> None:
    geometry = Geometry(32, 8, 128, 16, torch.bfloat16, "cuda")
    case = make_case(geometry, [(1, 300), (1, 2000), (60, 1000), (4, 900)])
    call = (case.q, case.kv, case.layout, *case.how)
    OPS.paged_attention(*call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = OPS.paged_attention(*call)
    graph.replay()
    assert relative_error(out, case.truth()) < 1e-2
    case.layout.query_starts[3] -= 20
    graph.replay()
    q = case.q
    (_, k2, v2), (_, k3, v3) = case.rows[2:]
    rows = (*case.rows[:2], (q[2:42], k2, v2), (q[42:], k3, v3))
    assert relative_error(out, replace(case, rows=rows).truth()) < 1e-2


@pytest.mark.parametrize(
    "groups", [[(3, 2048)] * 16, [(40, 1600), (8, 0)]], ids=["of-three", "of-forty"]
)
def test_rows_that_share_a_prefix(groups: list[tuple[int, int]]) -> None:
    lengths = [(1, 2500 + 37 * row) for row in range(48)]
    case = make_case(Geometry(32, 8, 128, 16, torch.bfloat16, "cuda"), lengths)
    assert_right(grow(case, groups))


def test_the_same_inputs_give_the_same_bits() -> None:
    case = make_case(Geometry(32, 8, 128, 16, torch.bfloat16, "cuda"), MIXED)
    first = attend(case)
    assert all(torch.equal(attend(case), first) for _ in range(20))


@pytest.mark.parametrize("vocabulary", [40, 2_048, 128_256])
@pytest.mark.parametrize(("top_k", "top_p"), [(None, 0.9), (50, 2.0), (1_000, 0.5)])
@DTYPES
def test_filters_keep_what_sorting_keeps(
    dtype: torch.dtype, vocabulary: int, top_k: int | None, top_p: float
) -> None:
    logits = draw(7, vocabulary, dtype=dtype) * 3
    logits[3] = logits[3].round()  # makes many logits equal
    ones = torch.ones(7, device="cuda")
    rows = torch.arange(7, device="cuda")
    wishes = (ones * 0.8, torch.full((7,), top_k or vocabulary, device="cuda"), ones * top_p)
    outcomes = []
    for ops in (OPS, torch_ops()):
        left = logits.clone()
        ops.top_k_top_p(left, rows, *wishes, ones * -9.0)
        outcomes.append(left)
    assert torch.equal(*outcomes)
    assert (outcomes[0] == -torch.inf).any()


@pytest.mark.parametrize("vocabulary", [40, 4_096, 128_256])
def test_penalties_are_those_of_the_reference(vocabulary: int) -> None:
    logits = draw(9, vocabulary, dtype=torch.float32) * 4
    rows, batch_slots = (
        torch.tensor([8, 0, 3], device="cuda"),
        torch.tensor([1, 4, 0], device="cuda"),
    )
    seen = torch.randint(0, 4, (5, vocabulary), dtype=torch.int32, device="cuda")
    strengths = (torch.tensor(values, device="cuda") for values in ([0.5], [-0.3], [1.7]))
    asked = [strength.expand(3).contiguous() for strength in strengths]
    outcomes = []
    for ops in (OPS, torch_ops()):
        left = logits.clone()
        ops.penalise(left, rows, batch_slots, seen, *asked)
        outcomes.append(left)
    torch.testing.assert_close(*outcomes, rtol=1e-6, atol=1e-6)
    assert not torch.equal(outcomes[0][rows], logits[rows])
    untouched = [row for row in range(9) if row not in (8, 0, 3)]
    assert torch.equal(outcomes[0][untouched], logits[untouched])


def test_the_reference_serves_on_the_gpu_too() -> None:
    case = make_case(Geometry(dtype=torch.float32, device="cuda"), MIXED)
    got = torch_ops().paged_attention(case.q, case.kv, case.layout, *case.how)
    assert relative_error(got, case.truth()) < 1e-3


def test_importing_the_kernels_does_not_touch_the_device() -> None:
    program = "import kernels.ops, torch; print(torch.cuda.is_initialized())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_layouts_of_the_cases_are_what_the_tests_say() -> None:
    """Cross the rows' block tables (positive control of this file): the results are wrong."""
    case = make_case(Geometry(dtype=torch.bfloat16, device="cuda"), [(1, 64), (30, 64)])
    tables = case.layout.block_tables.flip(0).contiguous()
    crossed = make_layout([(1, 64), (30, 64)], tables, 16, decodes=1)
    assert relative_error(attend(replace(case, layout=crossed)), case.truth()) > 0.5
