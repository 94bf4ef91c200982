"""Products by the algorithm of cuBLASLt that was measured to be the fastest.

A table (`product_table`) says which, by the shape of the weight and the number of rows; all other
products, and all on other devices or with another version of the library, whose ids may mean
something else, are left to `linear`.

Knows: when the table holds. Does not know: the library's interface (`cublaslt`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from kernels.capability import HOPPER, capability
from kernels.cublaslt import Config, Product, open_cublaslt
from kernels.errors import LibraryRefused
from kernels.linear import Linear
from kernels.product_table import TABLE, VERSION

Shape = tuple[int, int, int]  # rows, features, width


class Library(Protocol):
    """What is asked of cuBLASLt."""

    @property
    def version(self) -> int:
        """Of the library."""
        ...

    def product(self, rows: int, features: int, width: int, config: Config) -> Product | None:
        """A product by this algorithm; None: not by this one."""
        ...

    def multiply(self, product: Product, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """Compute it."""
        ...


class TunedProducts:
    """The products of the table, those of them that the library has."""

    def __init__(self, library: Library, configs: Mapping[Shape, Config]) -> None:
        self._library = library
        made = {shape: library.product(*shape, config) for shape, config in configs.items()}
        self._products = {shape: product for shape, product in made.items() if product is not None}

    def __len__(self) -> int:
        return len(self._products)

    def before(self, other: Linear) -> Linear:
        """A linear layer that leaves to `other` what is not in the table."""

        def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            product = self._products.get((x.shape[0], *weight.shape))
            if product is None or bias is not None or not _is_plain(x, weight):
                return other(x, weight, bias)
            out = x.new_empty((x.shape[0], weight.shape[0]))
            self._library.multiply(product, x, weight, out)
            return out

        return linear


def _is_plain(x: Tensor, weight: Tensor) -> bool:
    return x.dtype == weight.dtype == torch.bfloat16 and x.is_contiguous()


def open_tuned_products(device: torch.device) -> TunedProducts | None:
    """The table's products on a CUDA `device`; None: the table is for another one or version."""
    if not torch.cuda.is_available() or capability(device) != HOPPER:
        return None
    with torch.cuda.device(device):
        return tuned_products(open_cublaslt)


def tuned_products(open_library: Callable[[], Library | None]) -> TunedProducts | None:
    """The table's products; None where there is no library, or not the one of the table.

    Nor where the library does not open: what is left to torch is right, if slower.
    """
    try:
        library = open_library()
    except LibraryRefused:
        return None
    if library is None or library.version != VERSION:
        return None
    return TunedProducts(library, configs())


def configs() -> dict[Shape, Config]:
    """The table by whole shapes."""
    return {
        (rows, *weight): Config(*ids)
        for weight, by_rows in TABLE.items()
        for rows, ids in by_rows.items()
    }
