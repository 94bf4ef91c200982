"""CUDA graphs are recorded beside other threads, after errors, and without garbage collection."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from engine.execution.graphs.capture import cuda_capture
from storage.pools.host_pool import HostPool
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.hand_driven import (
    HandDriven,
    build_runner,
    output,
    random_prompt,
    sampling,
    with_graphs,
)

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")
NUM_BLOCKS, BLOCK_BYTES = 64, 1 << 20
DEADLINE_S = 30.0


class Pinning:
    """A thread that allocates, pins and frees memory in a loop."""

    def __init__(self) -> None:
        self.times = 0
        self._stop = threading.Event()
        self._first = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self._done = self._thread.submit(self._run)

    def __enter__(self) -> Pinning:
        assert self._first.wait(DEADLINE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.shutdown()
        self._done.result()  # re-raises the thread's error

    def _run(self) -> None:
        while not self._stop.is_set():
            HostPool(NUM_BLOCKS, BLOCK_BYTES, CUDA).close()
            self.times += 1
            self._first.set()


def pin_and_give_back() -> bool:
    pool = HostPool(2, BLOCK_BYTES, CUDA)
    pinned = pool.tensor.is_pinned()
    pool.close()
    return pinned


def pinned_by_another_thread() -> bool:
    """Pin memory in another thread, since the recording thread cannot; return whether it was
    pinned.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(pin_and_give_back).result()


class Doubling:
    """A captured function that doubles a tensor in two launches, and calls `between` between
    them.
    """

    def __init__(self) -> None:
        self.source = torch.ones(1000, device=CUDA)

    def __call__(self) -> tuple[Tensor, ...]:
        half = self.source * 1.0
        self.between()
        return (half + self.source,)

    def between(self) -> None:
        """Do nothing."""


class DoublingWhilePinning(Doubling):
    pinned = 0

    def between(self) -> None:
        self.pinned += pinned_by_another_thread()


class Broken(Doubling):
    def between(self) -> None:
        raise ValueError("broken")


def test_another_thread_may_pin_memory_in_the_midst_of_a_recording() -> None:
    doubling = DoublingWhilePinning()
    with cuda_capture() as capture:
        captured = capture.record(Doubling(), doubling)
    assert doubling.pinned == 1
    doubling.source.fill_(7.0)
    captured.replay()
    assert captured.outputs[0].tolist() == [14.0] * 1000


def test_what_goes_wrong_while_recording_is_raised_and_the_next_recorder_is_right() -> None:
    with pytest.raises(ValueError, match="broken"), cuda_capture() as capture:
        capture.record(Doubling(), Broken())
    assert not torch.cuda.is_current_stream_capturing()
    doubling = Doubling()
    with cuda_capture() as capture:
        captured = capture.record(doubling, doubling)
    doubling.source.fill_(3.0)
    captured.replay()
    assert captured.outputs[0].tolist() == [6.0] * 1000


def test_a_trial_is_run_and_not_recorded() -> None:
    total = torch.zeros(1, device=CUDA)

    def counted() -> tuple[Tensor, ...]:
        total.add_(1.0)
        return (total,)

    with cuda_capture() as capture:
        captured = capture.record(counted, counted)
    assert total.item() == 1.0
    captured.replay()
    assert total.item() == 2.0


@pytest.mark.parametrize("error", [False, True])
def test_no_garbage_is_collected_between_recordings_and_afterwards_it_is(error: bool) -> None:
    def record() -> None:
        with cuda_capture():
            assert not gc.isenabled()
            if error:
                raise ValueError("broken")

    assert gc.isenabled()
    if error:
        with pytest.raises(ValueError, match="broken"):
            record()
    else:
        record()
    assert gc.isenabled()


def test_what_trials_took_is_given_back() -> None:
    source = torch.ones(1 << 20, device=CUDA)

    def large() -> tuple[Tensor, ...]:
        return (torch.cat([source] * 64).sum(),)

    with cuda_capture() as capture:
        capture.record(large, Doubling())
        within = torch.cuda.memory_reserved()
    assert torch.cuda.memory_reserved() <= within - 64 * source.nbytes


def test_steps_recorded_while_memory_is_pinned_give_the_tokens_of_eager_steps(
    checkpoint: MakeCheckpoint,
) -> None:
    prompts = [random_prompt(length, seed=length) for length in (1, 5, 33, 50)]
    answers = []
    for records in (False, True):
        runner = build_runner(checkpoint("llama").model_dir, device=CUDA)
        driven = HandDriven(runner)
        if records:
            with Pinning() as pinning, cuda_capture() as capture:
                before = pinning.times
                driven = HandDriven(runner, with_graphs(runner, capture))
            assert pinning.times > before, "else nothing was pinned meanwhile"
        sequences = [driven.add(prompt, sampling(12)) for prompt in prompts]
        while left := [one for one in sequences if one.num_output < 12]:
            driven.step(*((one, one.num_tokens - one.num_computed) for one in left))
        answers.append([output(sequence) for sequence in sequences])
    assert answers[0] == answers[1]
