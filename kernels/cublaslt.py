"""cuBLASLt called directly: a product by an algorithm of one's own choice.

The library has thousands of algorithms for a product, and its own rules name one that takes up
to a quarter longer than the best. Through torch the choice cannot be made, so this calls the
library that torch has loaded, by its C interface (names and numbers from cublasLt.h):

    y (T, N) = x (T, K) @ weight (N, K).T      row by row, which the library, column by column,
                                               sees as y' (N, T) = weight' (K, N).T @ x' (K, T)

bf16 in and out, sums in float32. Knows: the library's structures and calls. Does not know: which
algorithm is best (`tuned_products`), or what the product is for.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.errors import LibraryRefused

_MAPS = Path("/proc/self/maps")  # where this process has its libraries from
_BF16, _F32, _SUMS_F32 = 14, 0, 68  # cudaDataType_t twice, cublasComputeType_t
_TRANSPOSE_A, _TRANSPOSED = 3, 1  # cublasLtMatmulDescAttributes_t, cublasOperation_t
_TILE_IDS = 6  # cublasLtMatmulAlgoCapAttributes_t
# cublasLtMatmulAlgoConfigAttributes_t
_TILE, _SPLITS, _CUSTOM, _STAGES, _CLUSTER = 1, 2, 5, 6, 8
_HOPPER_KERNELS = 66  # the family of algorithms that is fastest on Hopper
_STAGES_AUTO = 35
_SCRATCH_BYTES = 256  # most algorithms keep a counter of 4 bytes


class Config(NamedTuple):
    """An algorithm, by the library's ids: its tile, cluster of programs, and further option."""

    tile: int
    cluster: int
    custom: int


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t."""

    _fields_ = (("data", ctypes.c_uint64 * 8),)


class _Verdict(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@dataclass(frozen=True, slots=True)
class Product:
    """A product of one shape by one algorithm."""

    algorithm: Algorithm
    weight: ctypes.c_void_p  # layouts
    x: ctypes.c_void_p
    out: ctypes.c_void_p
    scratch_bytes: int  # that it writes to while it computes


class CublasLt:
    """The library, with one handle. Layouts live as long as the process: there are few.

    All products have one scratch, on the device that is current here, so they must follow each
    other, as on one stream they do.
    """

    def __init__(self, library: Any) -> None:
        """`library` is what ctypes has loaded. Raises LibraryRefused."""
        self._library = library
        library.cublasLtGetVersion.restype = ctypes.c_size_t
        self.version = int(library.cublasLtGetVersion())  # 130100: 13.1.0
        self._handle = ctypes.c_void_p()
        self._call("Create", ctypes.byref(self._handle))
        self._matmul = ctypes.c_void_p()
        self._call("MatmulDescCreate", ctypes.byref(self._matmul), _SUMS_F32, _F32)
        transposed = ctypes.c_int32(_TRANSPOSED)
        self._call(
            "MatmulDescSetAttribute",
            self._matmul,
            _TRANSPOSE_A,
            ctypes.byref(transposed),
            ctypes.c_size_t(4),
        )
        self._one, self._zero = ctypes.c_float(1), ctypes.c_float(0)
        self._scratch = torch.empty(_SCRATCH_BYTES, dtype=torch.uint8, device="cuda")

    def tiles(self) -> list[int]:
        """The ids of tiles that there are."""
        algorithm, size = self._algorithm(), ctypes.c_size_t()
        ask = self._library.cublasLtMatmulAlgoCapGetAttribute
        ask(ctypes.byref(algorithm), _TILE_IDS, None, ctypes.c_size_t(0), ctypes.byref(size))
        ids = (ctypes.c_uint32 * (size.value // 4))()
        ask(ctypes.byref(algorithm), _TILE_IDS, ids, size, ctypes.byref(size))
        return list(ids)

    def product(self, rows: int, features: int, width: int, config: Config) -> Product | None:
        """x (rows, width) by weight (features, width); None: not by this algorithm."""
        algorithm = self._algorithm()
        settings = {
            _TILE: ctypes.c_uint32(config.tile),
            _STAGES: ctypes.c_uint32(_STAGES_AUTO),
            _CUSTOM: ctypes.c_uint32(config.custom),
            _CLUSTER: ctypes.c_uint16(config.cluster),
            _SPLITS: ctypes.c_uint32(1),
        }
        for name, value in settings.items():
            self._library.cublasLtMatmulAlgoConfigSetAttribute(
                ctypes.byref(algorithm),
                name,
                ctypes.byref(value),
                ctypes.c_size_t(ctypes.sizeof(value)),
            )
        layouts = (
            self._layout(width, features),
            self._layout(width, rows),
            self._layout(features, rows),
        )
        verdict = _Verdict()
        refused = self._library.cublasLtMatmulAlgoCheck(
            self._handle,
            self._matmul,
            *layouts,
            layouts[-1],
            ctypes.byref(algorithm),
            ctypes.byref(verdict),
        )
        if refused or verdict.workspace > _SCRATCH_BYTES:
            return None
        return Product(algorithm, *layouts, verdict.workspace)

    def multiply(self, product: Product, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """Write the product to `out` on the current stream; all contiguous. LibraryRefused."""
        self._call(
            "Matmul",
            self._handle,
            self._matmul,
            ctypes.byref(self._one),
            ctypes.c_void_p(weight.data_ptr()),
            product.weight,
            ctypes.c_void_p(x.data_ptr()),
            product.x,
            ctypes.byref(self._zero),
            ctypes.c_void_p(out.data_ptr()),
            product.out,
            ctypes.c_void_p(out.data_ptr()),
            product.out,
            ctypes.byref(product.algorithm),
            ctypes.c_void_p(self._scratch.data_ptr()),
            ctypes.c_size_t(_SCRATCH_BYTES),
            ctypes.c_void_p(torch.cuda.current_stream(x.device).cuda_stream),
        )

    def _algorithm(self) -> Algorithm:
        algorithm = Algorithm()
        kinds = (_SUMS_F32, _F32, _BF16, _BF16, _BF16, _BF16)
        self._call("MatmulAlgoInit", self._handle, *kinds, _HOPPER_KERNELS, ctypes.byref(algorithm))
        return algorithm

    def _layout(self, height: int, columns: int) -> ctypes.c_void_p:
        """Of a matrix of `columns` columns, one after the other, of `height` numbers each."""
        layout = ctypes.c_void_p()
        self._call(
            "MatrixLayoutCreate",
            ctypes.byref(layout),
            _BF16,
            ctypes.c_uint64(height),
            ctypes.c_uint64(columns),
            ctypes.c_int64(height),
        )
        return layout

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, f"cublasLt{name}")(*arguments)
        if status:
            raise LibraryRefused(f"cublasLt{name} answered {status}")


def open_cublaslt() -> CublasLt | None:
    """The library that torch has loaded, on the current device; None where it has none."""
    path = path_in(_MAPS.read_text())
    return None if path is None else CublasLt(ctypes.CDLL(path))


def path_in(maps: str) -> str | None:
    """Where a process has cuBLASLt from, by its maps (proc(5)); None: it has none."""
    found = re.search(r"/.*/libcublasLt\.so[.\d]*$", maps, re.MULTILINE)
    return None if found is None else found[0]
