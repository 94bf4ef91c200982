"""A device chooses its set of ops. Two sets share no op, and a chosen set does not change."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest
import torch

from kernels.norms import rms_norm
from kernels.ops import ops_for, torch_ops, triton_ops


def test_the_device_chooses() -> None:
    assert ops_for(torch.device("cpu")) == torch_ops()
    assert ops_for(torch.device("cuda", 1)) == triton_ops()


def test_the_two_sets_share_no_op() -> None:
    for field in fields(torch_ops()):
        if field.name == "adapters":  # a field of a step, not an op
            continue
        assert getattr(torch_ops(), field.name) is not getattr(triton_ops(), field.name)


def test_a_set_is_not_changed_after_it_was_chosen() -> None:
    ops = torch_ops()
    with pytest.raises(FrozenInstanceError):
        ops.rms_norm = rms_norm.launch  # type: ignore[misc]
