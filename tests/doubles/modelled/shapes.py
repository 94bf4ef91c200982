"""The modelled device's seconds of a step, given the step's shape."""

from __future__ import annotations

from dataclasses import replace

from engine.scheduling.step_times import StepShape
from engine.step_sizes import MOST_NEW, SHARING_NEW_TOKENS
from tests.doubles.modelled.device import StepModel


def seconds_of(model: StepModel, shape: StepShape) -> float:
    """Return the seconds that the device takes. In some steps each row reads its own keys."""
    if SHARING_NEW_TOKENS[-1] < shape.new <= MOST_NEW:
        model = replace(model, read_once=0.0)
    products = model.products(shape.decodes, shape.new)
    keys = model.decode_key * shape.keys * (1 - model.read_once)
    return model.of_itself + products + model.pair * shape.pairs + keys
