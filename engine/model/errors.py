"""What can keep a model from being served, as types. With any of them the engine does not start.

Knows: what is wrong. Does not know: who reads it, or with which status the process ends (`main`).

ModelError
 |- UnsupportedModel    a model this decoder does not describe: architecture, activation, window...
 |- BadConfig           config.json is absent, malformed or contradicts itself
 |- CheckpointError     the weights are not what config.json says
 |   |- NoWeights           no safetensors in the directory
 |   |- PickledWeights      only pickled weights, which are never opened
 |   |- UnreadableWeights   a damaged or absent file
 |   |- MissingTensor       the model needs it, no file has it
 |   |- SurplusTensor       a file has it, the model has no place for it
 |   |- MisshapenTensor     another shape than the config gives
 |   `- UnsupportedTensor   neither float32, bfloat16, float16 nor float64
 |- DeviceUnavailable   the device that was asked for is not there
 `- PoolTooSmall        not one block of KV fits beside the weights
"""

from __future__ import annotations


class ModelError(Exception):
    """Base of everything that keeps a model from being served."""


class UnsupportedModel(ModelError):
    """A model that this decoder does not describe."""


class BadConfig(ModelError):
    """config.json is absent, malformed or contradicts itself."""


class CheckpointError(ModelError):
    """The weights are not what config.json says."""


class NoWeights(CheckpointError):
    """No safetensors in the directory."""


class PickledWeights(CheckpointError):
    """Only pickled weights in the directory; they can run code and are never opened."""


class UnreadableWeights(CheckpointError):
    """A damaged or absent file."""


class MissingTensor(CheckpointError):
    """The model needs a tensor that no file has."""


class SurplusTensor(CheckpointError):
    """A file has a tensor that the model has no place for."""


class MisshapenTensor(CheckpointError):
    """A tensor has another shape than the config gives."""


class UnsupportedTensor(CheckpointError):
    """A tensor is of a type that no unquantised weight has."""


class DeviceUnavailable(ModelError):
    """The device that was asked for is not there."""


class PoolTooSmall(ModelError):
    """Not one block of KV fits beside the weights."""
