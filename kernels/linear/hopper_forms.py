"""How a GEMM of `hopper_linear` is cut among programs: arithmetic on shapes, without a device.

A program has a strip of 128 rows of the weight, `rows` rows of x, and one of `shares` of K:

    N / 128 strips  x  T / rows passes over x  x  shares of K  =  programs, for 132 multiprocessors

More rows in a program read the weight fewer times, more shares use more multiprocessors, but leave
more parts for the next kernel to add. Each multiprocessor has one program at once, with all shared
memory and many registers, or two with half of both.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.launch.rounding import cdiv, next_power_of_2

MIN_ROWS = 8  # N of the smallest WGMMA instruction
MAX_FP8_ROWS = 256  # with more, products take as long as their arithmetic: the library's
# With numbers of rows up to these, and up to 32, all kernels of fp8 are launched.
TELLING_ROWS = (64, 128, MAX_FP8_ROWS)
STRIP = 128  # rows of the weight in a program: M = 64 of WGMMA, twice
PROCESSORS = 132  # multiprocessors of an H100 or H200
MOST_STAGES = 12  # tiles in flight in a program
_SHARED_BYTES = 216 * 1024  # of a multiprocessor, for tiles
_TILE_ROW_BYTES = 128
_MIN_TILES = 8  # of a share of K
_MAX_SHARES = 8
_MOST_PART_BYTES = 8 << 20  # of a product left in parts, which stay in the L2 cache
_HALF = 128  # rows of x of one WGMMA instruction: more would leave too few registers


@dataclass(frozen=True, slots=True)
class Form:
    """Rows of x in a program, shares of K, and programs on a multiprocessor (1 or 2)."""

    rows: int
    shares: int
    resident: int

    @property
    def stages(self) -> int:
        """Tiles in flight in a program."""
        tile = (STRIP + self.rows) * _TILE_ROW_BYTES
        return min(MOST_STAGES, _SHARED_BYTES // self.resident // tile)

    @property
    def registers(self) -> tuple[int, int]:
        """Of a thread at launch, and of one that multiplies; one that copies keeps 40."""
        if self.resident == 2:
            return 80, 104
        return (152, 152) if self.rows <= 64 else (168, 232)

    def programs(self, rows: int, features: int) -> int:
        """How many a product of x (rows, K) by a weight (features, K) takes."""
        return strips_of(features) * cdiv(rows, self.rows) * self.shares


def strips_of(features: int) -> int:
    """How many strips a weight of `features` rows has."""
    return cdiv(features, STRIP)


def form_of(
    rows: int, features: int, tiles: int, *, in_parts: bool, by_block: bool = False
) -> Form:
    """The form that fills the device; `tiles` of 128 bytes in a row, parts only if `in_parts`."""
    # Scales of blocks are multiplied by in the loop, which takes registers.
    most = _HALF if by_block else 2 * _HALF
    at_once = min(_rows_at_once(rows, features, in_parts=in_parts), most)
    passes = cdiv(rows, at_once)
    shares = _shares(features, tiles, passes, rows) if in_parts else 1
    programs = strips_of(features) * passes * shares
    two = programs > PROCESSORS and at_once <= most // 4  # for more two have too few registers
    return Form(at_once, shares, 2 if two else 1)


def fp8_form(
    rows: int, features: int, tiles: int, *, by_block: bool, in_parts: bool
) -> Form | None:
    """As `form_of`, for a product in fp8; None: the library's is better."""
    if not 0 < rows <= MAX_FP8_ROWS:
        return None
    if rows > _HALF and not in_parts and _has_few_strips(features):
        return None
    return form_of(rows, features, tiles, in_parts=in_parts, by_block=by_block)


def _rows_at_once(rows: int, features: int, *, in_parts: bool) -> int:
    """Rows of x in a program: all, but where there are few strips 128, or 64 without parts."""
    if rows > 64 and _has_few_strips(features):
        return _HALF if in_parts else 64
    return min(max(next_power_of_2(rows), MIN_ROWS), 2 * _HALF)


def _has_few_strips(features: int) -> bool:
    return 2 * strips_of(features) <= PROCESSORS


def _shares(features: int, tiles: int, passes: int, rows: int) -> int:
    """Among how many programs K is cut: as many as fill the device, with 8 tiles each."""
    most = min(
        _MAX_SHARES,
        tiles // _MIN_TILES,
        _MOST_PART_BYTES // (4 * rows * features),
        PROCESSORS // (passes * strips_of(features)),
    )
    return max(most, 1)
