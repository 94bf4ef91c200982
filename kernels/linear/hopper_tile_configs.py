"""The choice of tile configs for `hopper_linear`'s GEMMs from shapes. Needs no device.

A program multiplies a strip of 128 weight rows by `rows` rows of x, over one of `shares` of K:

    N / 128 strips  x  T / rows passes over x  x  shares of K  =  programs, for 132 multiprocessors

With more rows in a program the weight is read fewer times. More shares use more multiprocessors,
but the next kernel must then add more parts. One multiprocessor reads about 47 GB/s. If a weight
does not fit into shared memory, many multiprocessors must therefore read it. If it fits, few parts
are best. A program may compute several strips one after another, because the start of a new program
would take time.

Programs use as few registers as the compiler allows. A multiprocessor then has space for a program
of this kernel and one of the previous kernel. The configs, and the shapes that the library
computes, were chosen by measurements (decisions 163 and 182).
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.launch.rounding import cdiv, next_power_of_2

MIN_ROWS = 8  # N of the smallest WGMMA instruction
MAX_FP8_ROWS = 128  # maximum WGMMA N whose sums fit into registers; the library computes more rows

# The row counts that launch all fp8 kernels, together with the counts up to 32.
TELLING_ROWS = (64, MAX_FP8_ROWS)
STRIP = 128  # weight rows of a program: twice WGMMA's M = 64
PROCESSORS = 132  # multiprocessors of an H100 or H200
MOST_STAGES = 12
_SHARED_BYTES = 216 * 1024  # shared memory of a multiprocessor for tiles
_TILE_ROW_BYTES = 128
_MIN_TILES = 8  # minimum number of tiles in a share of K, for 16-bit weights
_MAX_SHARES = 8
_FILLED = 96  # multiprocessors for fp8 programs; others run the previous and the next kernel
# With few rows more shares are best, because x and the parts are small.
_FEW_ROWS, _FILLED_BY_FEW = 4, 128
_MOST_ROUNDS = 2  # maximum number of programs of one strip per processor; 1 for fp8 with few rows
_FEW_STRIPS = 48  # with more strips and over 64 rows, the library uses the full device


@dataclass(frozen=True, slots=True)
class TileConfig:
    """The number of rows of x in a program, and the number of shares of K."""

    rows: int
    shares: int

    @property
    def stages(self) -> int:
        """The number of tiles that a program may copy ahead."""
        return min(MOST_STAGES, _SHARED_BYTES // ((STRIP + self.rows) * _TILE_ROW_BYTES))

    def registers(self, *, by_block: bool) -> tuple[int, int]:
        """Return registers per thread at launch, and for the warps that multiply.

        The warp that copies has 40. `by_block` means that the loop multiplies by scales, which
        needs more registers.
        """
        if self.rows <= (32 if by_block else 64):
            return 80, 104
        if self.rows <= 64:
            return 104, 136
        return (168, 232) if by_block else (128, 176)


def strips_of(features: int) -> int:
    """Count the strips of a weight with `features` rows."""
    return cdiv(features, STRIP)


def programs_for(strips: int, rows: int, *, is_fp8: bool) -> int:
    """Return the number of programs for `strips`. Each computes one or several strips."""
    rounds = 1 if is_fp8 and rows <= MIN_ROWS else _MOST_ROUNDS
    if strips <= rounds * PROCESSORS:
        return strips
    return cdiv(strips, cdiv(strips, PROCESSORS))


def plain_config(features: int, tiles: int) -> TileConfig:
    """Choose the config for up to MIN_ROWS rows of 16-bit numbers.

    A row of the weight has `tiles` tiles of 128 bytes.
    """
    most = min(_MAX_SHARES, tiles // _MIN_TILES)
    return TileConfig(MIN_ROWS, max(min(PROCESSORS // strips_of(features), most), 1))


def fp8_config(
    rows: int, features: int, tiles: int, *, by_block: bool, in_parts: bool
) -> TileConfig | None:
    """Choose the config for fp8, or None if the library is faster. `in_parts` allows parts."""
    at_once = _rows_at_once(rows, features, by_block=by_block, in_parts=in_parts)
    if at_once is None:
        return None
    if not in_parts:
        return TileConfig(at_once, 1)
    filled = _FILLED_BY_FEW if rows <= _FEW_ROWS else _FILLED
    fill = filled // (strips_of(features) * cdiv(rows, at_once))
    # If a share had fewer tiles than stages, its program would copy fewer bytes ahead.
    return TileConfig(at_once, max(min(fill, tiles // MOST_STAGES, _MAX_SHARES), 1))


def _rows_at_once(rows: int, features: int, *, by_block: bool, in_parts: bool) -> int | None:
    strips = strips_of(features)
    if 0 < rows <= 64:
        return max(next_power_of_2(rows), MIN_ROWS)
    if 64 < rows <= MAX_FP8_ROWS:
        if strips <= _FEW_STRIPS:
            return MAX_FP8_ROWS if in_parts else 64
        if by_block and strips <= PROCESSORS:
            return 64
    return None
