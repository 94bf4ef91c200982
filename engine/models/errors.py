"""Errors that keep the engine from starting, since a model cannot be served.

Knows: the fault. Does not know: who reads the message, or the process's exit status (`main`).

ModelError
 |- ModelNotServed      the fault is in the model's files
 |   |- UnsupportedModel    a model that is not served: architecture, weight format, window...
 |   |- BadConfig           config.json is absent, malformed or contradicts itself
 |   `- CheckpointError     the weights are absent, unreadable, or not what config.json says
 |- WrongSetting        a setting asks for something that this model lacks
 |- DeviceUnavailable   the device that was asked for is not there
 |- PoolTooSmall        not one block of KV fits beside the weights
 |- FilesChanged        the model's files were replaced while they were loaded
 `- NotEnoughMemory     host or device lack the memory for a start
"""

from __future__ import annotations


class ModelError(Exception):
    """Base of all errors that keep a model from being served."""


class ModelNotServed(ModelError):
    """Model files that cannot be served on any machine or with any setting."""


class UnsupportedModel(ModelNotServed):
    """A model whose architecture, weight format, window or sizes are not served."""


class BadConfig(ModelNotServed):
    """Config.json that is absent, malformed or contradicts itself."""


class CheckpointError(ModelNotServed):
    """Weights that are absent, pickled, unreadable, or that contradict config.json."""


class WrongSetting(ModelError):
    """A setting that the model cannot fulfil, such as a longer context; other values may work."""


class DeviceUnavailable(ModelError):
    """The configured device does not exist."""


class PoolTooSmall(ModelError):
    """Memory in which not one block of KV fits beside the weights."""


class FilesChanged(ModelError):
    """The model's files were replaced during loading."""


class NotEnoughMemory(ModelError):
    """Too little host or device memory for a start, or a limit on the process's memory."""
