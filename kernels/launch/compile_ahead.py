"""The parallel compilation of kernels before their first use.

Triton compiles a variant of a kernel at the variant's first launch, so a process compiles one
variant after another. This module first finds the variants that the process will launch:

    dry run    no launch is made, and each variant that is not in memory is noted      milliseconds
    compile    each noted variant in a separate thread, into memory and Triton's cache,
               once the compiler's key is there (`compiler_key`)
    start      finds all variants in memory

Triton's passes, LLVM, ptxas and the C compiler run without Python's lock. If the compilation of a
variant fails, the variant's first use compiles it again or raises the error.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import triton
from triton.runtime import KernelInterface, driver

from kernels.launch.garbage import uncollected

# Part of a compilation holds Python's lock. More threads would only delay the longest compilations.
MOST_AT_ONCE = 8

_log = logging.getLogger(__name__)


class Loadable(Protocol):
    """An interface to a compiled kernel."""

    @property
    def run(self) -> object:
        """The kernel's launcher, made and loaded to the device at the first access."""
        ...


class Kernel(Protocol):
    """An interface to a function compiled by `triton.jit`."""

    def preload(self, specialization_data: str) -> Loadable | None:
        """Compile a variant, or load it from the cache on disk, and keep it in memory."""
        ...


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel variant: dtypes, alignments and constants. `data` is Triton's serialised form."""

    kernel: Kernel
    name: str
    data: str

    def make(self) -> None:
        """Compile and load the variant."""
        compiled = self.kernel.preload(self.data)
        if compiled is not None:
            _ = compiled.run


class Notes:
    """A `jit_cache_hook` for Triton that records each variant that is not in memory."""

    def __init__(self) -> None:
        self._variants: dict[tuple[int, str], Variant] = {}

    def __call__(self, **what: Any) -> bool:
        """Record a variant once. Return True, so that Triton continues without this variant."""
        kernel, key = what["fn"].jit_function, str(what["key"])
        if (id(kernel), key) not in self._variants:
            data = what["compile"]["specialization_data"]
            self._variants[id(kernel), key] = Variant(kernel, what["fn"].name, data)
        return True

    @property
    def variants(self) -> list[Variant]:
        """The variants in order of their first launches."""
        return list(self._variants.values())


def compile_ahead(dry_run: Callable[[], object], key: Future[str] | None = None) -> int:
    """Compile all kernels that `dry_run` would launch.

    Return the number of kernels that were not in memory. `key` is the compiler's key, if
    `compiler_key.begin_key` has begun it. Otherwise each thread computes the key itself. No kernel
    runs in `dry_run`, so the outputs of kernels are undefined. `dry_run` must not use an output as
    an index or as the bound of a loop. No other thread may launch kernels during the dry run.
    """
    if not _can_take_notes():
        return 0
    began = time.perf_counter()
    notes = Notes()
    with leaving_out_launches(notes):
        dry_run()
    noted = time.perf_counter()
    variants = notes.variants
    if variants:
        wait((key,) if key else ())
        _make(variants)
        _log.info(
            "%d kernels made ready in %.1f s, noted in %.2f s",
            len(variants),
            time.perf_counter() - noted,
            noted - began,
        )
    return len(variants)


def _can_take_notes() -> bool:
    knobs = getattr(triton, "knobs", None)
    return hasattr(getattr(knobs, "runtime", None), "jit_cache_hook")


@contextmanager
def leaving_out_launches(hook: Callable[..., bool]) -> Iterator[None]:
    """Replace each launch by a look-up of its kernel, and call `hook` for missing kernels.

    A hook without this replacement is not enough. A kernel that is already in memory would run,
    with inputs that the skipped kernels have not written.
    """
    usual = KernelInterface.__getitem__
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.jit_cache_hook = hook
        KernelInterface.__getitem__ = _asked_for
        try:
            yield
        finally:
            KernelInterface.__getitem__ = usual


def _asked_for(kernel: Any, grid: object) -> Callable[..., object]:
    """Return a substitute for `kernel[grid]` that has the same arguments but launches nothing."""
    return partial(kernel.warmup, grid=grid)


def _make(variants: Sequence[Variant]) -> None:
    threads = min(len(os.sched_getaffinity(0)), MOST_AT_ONCE)
    # A new thread starts on the first device, even if this thread uses another device.
    on_device = partial(driver.active.set_current_device, driver.active.get_current_device())
    # Before Python 3.12 `ast.parse` fails if a garbage collection runs another thread that parses.
    with uncollected(), ThreadPoolExecutor(threads, initializer=on_device) as pool:
        made = [pool.submit(variant.make) for variant in variants]
    for variant, future in zip(variants, made, strict=True):
        if error := future.exception():
            _log.warning("kernel %s is left to its first use: %s", variant.name, error)
