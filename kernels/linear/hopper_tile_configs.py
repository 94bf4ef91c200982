"""The tile configs of `hopper_linear`'s GEMMs: arithmetic on shapes, without a device.

A program has a strip of 128 rows of the weight, `rows` rows of x, and one of `shares` of K:

    N / 128 strips  x  T / rows passes over x  x  shares of K  =  programs, for 132 multiprocessors

With more rows in a program the weight is read fewer times. More shares use more multiprocessors,
but leave more parts for the next kernel to add. One multiprocessor reads some 47 GB/s, so many must
read a weight that does not fit into shared memory. For a weight that fits, few parts are best. A
program may compute several strips in turn, since a new program would have to start first.

Registers are as few as the compiler allows, so a program of this kernel fits beside a program of
the previous kernel. Measurements chose the configs, and the shapes left to the library (decisions
163 and 182).
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.launch.rounding import cdiv, next_power_of_2

MIN_ROWS = 8  # N of the smallest WGMMA instruction
MAX_FP8_ROWS = 128  # maximum WGMMA N whose sums fit registers; the library serves more rows

# Together with the counts up to 32, these row counts launch all fp8 kernels.
TELLING_ROWS = (64, MAX_FP8_ROWS)
STRIP = 128  # weight rows of a program: twice WGMMA's M = 64
PROCESSORS = 132  # multiprocessors of an H100 or H200
MOST_STAGES = 12
_SHARED_BYTES = 216 * 1024  # shared memory of a multiprocessor for tiles
_TILE_ROW_BYTES = 128
_MIN_TILES = 8  # minimum number of tiles in a share of K, for 16-bit weights
_MAX_SHARES = 8
_FILLED = 96  # multiprocessors for fp8 programs; the rest run the kernels before and after
_FEW_ROWS, _FILLED_BY_FEW = 4, 128  # with few rows, x and the parts to add are small
_MOST_ROUNDS = 2  # maximum number of one-strip programs per processor; 1 for fp8 with few rows
_FEW_STRIPS = 48  # with more strips and more than 64 rows, the library fills the device


@dataclass(frozen=True, slots=True)
class TileConfig:
    """The rows of x in a program, and the shares of K."""

    rows: int
    shares: int

    @property
    def stages(self) -> int:
        """The number of tiles in flight in a program."""
        return min(MOST_STAGES, _SHARED_BYTES // ((STRIP + self.rows) * _TILE_ROW_BYTES))

    def registers(self, *, by_block: bool) -> tuple[int, int]:
        """Return registers per thread at launch and in multiplying warps.

        Copying warps have 40. `by_block` means that the loop multiplies by scales, which takes more
        registers.
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
    """Count the programs for the strips. A program computes one strip, or several in turn."""
    rounds = 1 if is_fp8 and rows <= MIN_ROWS else _MOST_ROUNDS
    if strips <= rounds * PROCESSORS:
        return strips
    return cdiv(strips, cdiv(strips, PROCESSORS))


def plain_config(features: int, tiles: int) -> TileConfig:
    """Choose the config for up to MIN_ROWS rows of 16 bits.

    A weight row has `tiles` of 128 bytes.
    """
    most = min(_MAX_SHARES, tiles // _MIN_TILES)
    return TileConfig(MIN_ROWS, max(min(PROCESSORS // strips_of(features), most), 1))


def fp8_config(
    rows: int, features: int, tiles: int, *, by_block: bool, in_parts: bool
) -> TileConfig | None:
    """Choose the config for fp8, with parts if `in_parts`, or None if the library is faster."""
    at_once = _rows_at_once(rows, features, by_block=by_block, in_parts=in_parts)
    if at_once is None:
        return None
    if not in_parts:
        return TileConfig(at_once, 1)
    filled = _FILLED_BY_FEW if rows <= _FEW_ROWS else _FILLED
    fill = filled // (strips_of(features) * cdiv(rows, at_once))
    # A share with fewer tiles than stages would have fewer bytes in flight.
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
