"""The tile sizes of the experts' GEMMs. They depend only on the number of tokens.

As with other products, the result of a row depends on the number of tokens in the step, but not on
the other tokens. With few rows, the time is that of reading the experts' matrices. The matrices are
then the first operand, 64 rows at a time. With many rows, the time is that of arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kernels.experts.order import CHUNKS


@dataclass(frozen=True, slots=True)
class ExpertTile:
    """The size of a tile: `rows` pairs, `features` matrix rows, read `depth` bytes at a time."""

    rows: int
    features: int
    depth: int
    weight_first: bool  # True: the matrix is the first operand of a product
    warps: int
    stages: int
    is_overlapped: bool = False  # True: use `hopper_four_bit` with this tile


FEW = ExpertTile(16, 64, 256, weight_first=True, warps=4, stages=3)
SOME = ExpertTile(32, 64, 128, weight_first=True, warps=4, stages=4)
MORE = ExpertTile(64, 128, 128, weight_first=False, warps=4, stages=4)
MANY = ExpertTile(128, 128, 128, weight_first=False, warps=8, stages=3)
_UP_TO = ((8, FEW), (24, SOME), (96, MORE))  # (pairs per expert, if evenly distributed; tile)


@dataclass(frozen=True, slots=True)
class MixtureTiles:
    """The tile sizes of both GEMMs. Their number of rows is equal."""

    gated: ExpertTile
    down: ExpertTile

    @property
    def rows(self) -> int:
        """The number of pairs in a tile."""
        return self.gated.rows

    def inner(self, factors: int) -> ExpertTile:
        """Return the tile of the first GEMM. Without a gate, it is a single product like `down`."""
        return self.gated if factors == 2 else self.down


def _four_bit(rows: int, gated: tuple[int, int, int], down: tuple[int, int, int]) -> MixtureTiles:
    """Make tiles from (features, warps, stages) for four-bit matrices. Words fix the depth."""
    of_gated, of_down = (
        ExpertTile(rows, features, 64, weight_first=True, warps=warps, stages=stages)
        for features, warps, stages in (gated, down)
    )
    return MixtureTiles(of_gated, of_down)


# Measured on an H100 (decision 143). With so few pairs, the time depends on the number of
# concurrent loads.
LONE_PAIRS = 16
FOUR_BIT_LONE = _four_bit(16, (64, 4, 6), (64, 4, 6))
FOUR_BIT_FEW = _four_bit(16, (64, 4, 4), (64, 4, 4))
FOUR_BIT_SOME = _four_bit(32, (128, 4, 3), (128, 4, 3))
FOUR_BIT_MORE = _four_bit(64, (64, 4, 3), (128, 8, 3))
FOUR_BIT_MANY = _four_bit(128, (64, 4, 3), (128, 8, 3))
# For Hopper, with numbers unpacked in pairs: 128 features each of gate and up, 256 of down.
FOUR_BIT_OVERLAPPED = MixtureTiles(
    ExpertTile(128, 128, 64, weight_first=True, warps=8, stages=4, is_overlapped=True),
    ExpertTile(128, 256, 64, weight_first=True, warps=8, stages=4, is_overlapped=True),
)
_FOUR_BIT_UP_TO = ((8, FOUR_BIT_FEW), (24, FOUR_BIT_SOME), (160, FOUR_BIT_MORE))


def tile_for(pairs: int, num_experts: int) -> ExpertTile:
    """Choose the tile for `pairs` (token, expert) pairs."""
    return next((tile for most, tile in _UP_TO if pairs <= most * num_experts), MANY)


def four_bit_tiles_for(
    pairs: int, num_experts: int, *, is_float32: bool = False, can_overlap: bool = False
) -> MixtureTiles:
    """Choose the tiles for four-bit matrices.

    In float32, larger tiles do not fit. `can_overlap` is True if `hopper_four_bit` supports the
    device and the matrices.
    """
    if is_float32:
        return FOUR_BIT_FEW
    if pairs <= LONE_PAIRS:
        return FOUR_BIT_LONE
    fits = (tiles for most, tiles in _FOUR_BIT_UP_TO if pairs <= most * num_experts)
    return next(fits, FOUR_BIT_OVERLAPPED if can_overlap else FOUR_BIT_MANY)


def telling_tokens(num_experts: int, top_k: int, most: int) -> Iterator[int]:
    """Yield numbers of tokens, up to `most`, that together launch all kernels for such numbers."""
    pairs = (
        LONE_PAIRS,
        *(up_to * num_experts for up_to, _ in (*_UP_TO, *_FOUR_BIT_UP_TO)),
        *(up_to for up_to, _ in CHUNKS),
    )
    for tokens in sorted({1, *(up_to // top_k + more for up_to in pairs for more in (0, 1))}):
        if 0 < tokens <= most:
            yield tokens
