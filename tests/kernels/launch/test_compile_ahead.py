"""Kernels compiled before their first use, with doubles and with Triton's own compiler.

The compiler needs no device: until the launch, it needs only a driver that names a device.
"""

from __future__ import annotations

import gc
import logging
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import JITFunction, KernelInterface, driver
from triton.runtime.cache import triton_key

from kernels.launch.compile_ahead import compile_ahead
from kernels.launch.compiler_key import begin_key
from tests.doubles.engine.device.no_device import NoDevice

GRID = (1,)
DEVICE = 3


class CannotCompile(Exception):
    """The error of a kernel that the compiler refuses."""


@dataclass
class Compiled:
    """A compiled variant of a `NamedKernel`."""

    launched: list[str]
    variant: str

    @property
    def run(self) -> str:
        self.launched.append(f"load {self.variant}")
        return self.variant


@dataclass(eq=False)
class NamedKernel(KernelInterface):  # type: ignore[misc]
    """A stand-in for a `triton.jit` kernel, whose compiled variants are only names."""

    name: str
    broken: frozenset[str] = frozenset()
    memory: dict[str, Compiled] = field(default_factory=dict)
    compiled: list[str] = field(default_factory=list)
    devices: list[int] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)
    done: list[str] = field(default_factory=list)  # names of the loads and launches, in order

    def run(self, variant: str, *, grid: tuple[int, ...], warmup: bool) -> None:
        compiled = self.memory.get(variant) or self._compile(variant)
        if compiled is not None and not warmup:
            self.done.append(f"launch {variant}")

    def preload(self, data: str) -> Compiled | None:
        return self._compile(data.removeprefix("data of "))

    def _compile(self, variant: str) -> Compiled | None:
        hook = triton.knobs.runtime.jit_cache_hook
        info = SimpleNamespace(name=self.name, jit_function=self)
        what = {"specialization_data": f"data of {variant}"}
        if hook is not None and hook(key=variant, fn=info, compile=what, repr=variant):
            return None
        self.devices.append(driver.active.get_current_device())
        self.threads.add(threading.current_thread().name)
        if variant in self.broken:
            raise CannotCompile(variant)
        self.compiled.append(variant)
        self.memory[variant] = Compiled(self.done, variant)
        return self.memory[variant]


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> NoDevice:
    """Replace Triton's driver by a double, whose current device is not device 0."""
    double = NoDevice()
    double.set_current_device(DEVICE)
    monkeypatch.setattr(driver, "_active", double)
    return double


def test_each_variant_is_compiled_once_and_none_is_launched() -> None:
    one, other = NamedKernel("one"), NamedKernel("other")

    def dry_run() -> None:
        for _ in range(3):
            one[GRID]("a")
            other[GRID]("a")
            one[GRID]("b")

    assert compile_ahead(dry_run) == 3
    assert sorted(one.compiled) == ["a", "b"]
    assert sorted(one.done) == ["load a", "load b"]
    assert other.compiled == ["a"]
    one[GRID]("a")
    assert one.compiled.count("a") == 1
    assert one.done[-1] == "launch a", "the control: afterwards launches are launches"


def test_a_kernel_that_is_in_memory_is_neither_compiled_nor_launched() -> None:
    kernel = NamedKernel("known")
    kernel[GRID]("a")
    assert (kernel.compiled, kernel.done) == (["a"], ["launch a"])
    assert compile_ahead(lambda: kernel[GRID]("a")) == 0
    assert (kernel.compiled, kernel.done) == (["a"], ["launch a"])


def test_kernels_are_compiled_for_the_device_of_the_caller_and_not_by_it() -> None:
    kernel = NamedKernel("kernel")
    compile_ahead(lambda: [kernel[GRID](variant) for variant in "abc"])
    assert kernel.devices == [DEVICE] * 3
    assert threading.current_thread().name not in kernel.threads
    kernel[GRID]("d")
    assert threading.current_thread().name in kernel.threads, "the control"


def test_a_variant_that_fails_is_logged_and_left_to_its_first_use(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kernel = NamedKernel("kernel", frozenset({"bad"}))
    with caplog.at_level(logging.WARNING):
        assert compile_ahead(lambda: [kernel[GRID](variant) for variant in ("bad", "good")]) == 2
    assert kernel.compiled == ["good"]
    assert caplog.messages == ["kernel kernel is left to its first use: bad"]
    with pytest.raises(CannotCompile):
        kernel[GRID]("bad")


def test_a_rehearsal_that_raises_leaves_triton_as_it_was() -> None:
    kernel = NamedKernel("kernel")

    def dry_run() -> None:
        kernel[GRID]("a")
        raise CannotCompile

    def usual(**what: object) -> bool:
        return False

    with triton.knobs.runtime.scope():
        triton.knobs.runtime.jit_cache_hook = usual
        with pytest.raises(CannotCompile):
            compile_ahead(dry_run)
        assert triton.knobs.runtime.jit_cache_hook is usual
    assert kernel.compiled == []
    kernel[GRID]("a")
    assert kernel.done == ["launch a"]


def test_kernels_are_made_once_the_compilers_key_is_there() -> None:
    """Make kernels once the compiler's key is known, which is during the dry run, not after it."""
    dry_ran, made = threading.Event(), []

    def make_key() -> str:
        assert dry_ran.wait(10)
        made.append("key")
        return "key"

    class Ordered(NamedKernel):
        def preload(self, data: str) -> Compiled | None:
            made.append(data)
            return super().preload(data)

    kernel, key = Ordered("kernel"), begin_key(make_key)

    def dry_run() -> None:
        kernel[GRID]("a")
        assert not key.done()
        dry_ran.set()

    assert compile_ahead(dry_run, key) == 1
    assert made == ["key", "data of a"]


def test_a_key_that_cannot_be_made_holds_up_nothing() -> None:
    def make_key() -> str:
        raise CannotCompile

    kernel, key = NamedKernel("kernel"), begin_key(make_key)
    assert compile_ahead(lambda: kernel[GRID]("a"), key) == 1
    assert kernel.compiled == ["a"]
    assert isinstance(key.exception(), CannotCompile), "the control"


@pytest.mark.parametrize("collects", [True, False])
def test_the_garbage_collector_is_left_as_it_was(collects: bool) -> None:
    seen: list[bool] = []

    class Looking(NamedKernel):
        def preload(self, data: str) -> Compiled | None:
            seen.append(gc.isenabled())
            return super().preload(data)

    kernel = Looking("kernel")
    was_enabled = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        compile_ahead(lambda: kernel[GRID]("a"))
        assert gc.isenabled() is collects
    finally:
        (gc.enable if was_enabled else gc.disable)()
    assert seen == [False]


def _floor(
    x: tl.tensor, out: tl.tensor, least: tl.tensor, count: tl.tensor, SIZE: tl.constexpr
) -> None:
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    value = tl.load(x + at, mask=at < count)
    if least is not None:
        value = tl.maximum(value, least)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=at < count)


def test_with_tritons_own_compiler(
    compilations: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Compile with Triton's own compiler: first uses find variants for None, numbers of several
    kinds, and dtypes.
    """
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = JITFunction(_floor)
    x, half = torch.zeros(64), torch.zeros(64, dtype=torch.bfloat16)

    def ask(size: int = 32) -> None:
        for out, least, count in ((x, None, 1), (x, None, 7), (x, 0.5, 64), (half, 2, 64)):
            kernel.warmup(x, out, least, count, SIZE=size, grid=GRID)

    assert compile_ahead(ask, begin_key()) == 4
    assert len(compilations) == 4
    ask()
    assert len(compilations) == 4, "all were found"
    ask(size=16)
    assert len(compilations) == 8, "the control: constants that nobody has asked for"


def test_tritons_key_is_made_once_for_all_threads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel, x = JITFunction(_floor), torch.zeros(64)

    def ask() -> None:
        for size in (32, 64, 128):
            kernel.warmup(x, x, None, 1, SIZE=size, grid=GRID)

    triton_key.cache_clear()
    assert compile_ahead(ask, begin_key()) == 3
    asked = triton_key.cache_info()
    assert asked.misses == 1
    assert asked.hits >= 3, "the control: it is what kernels are looked up by"
