"""The GPU generation is read from each device once. Devices without CUDA count as oldest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernels.launch.capability import capability


@pytest.fixture(autouse=True)
def nothing_looked_up() -> Iterator[None]:
    """Clear the cached look-ups before and after a test."""
    capability.cache_clear()
    yield
    capability.cache_clear()


def test_what_is_not_cudas_is_older_than_any_that_is() -> None:
    assert capability(torch.device("cpu")) == (0, 0)
    assert capability(torch.device("meta")) < (7, 0)


def test_torch_is_asked_once_for_each_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []

    def chips(device: torch.device) -> tuple[int, int]:
        asked.append(device)
        return (9, 0) if device.index else (8, 6)

    monkeypatch.setattr(torch.cuda, "get_device_capability", chips)
    first, second = torch.device("cuda", 0), torch.device("cuda", 1)
    said = [capability(device) for device in (first, second, first, second)]
    assert said == [(8, 6), (9, 0), (8, 6), (9, 0)]
    assert asked == [first, second]


@pytest.mark.gpu
def test_a_devices_own() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    assert capability(device) == torch.cuda.get_device_capability(device)
