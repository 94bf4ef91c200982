"""Errors that keep a model from being served. With any of them the engine does not start.

Knows: what is wrong. Does not know: who reads it, or with which status the process ends (`main`).

ModelError
 |- ModelNotServed      the fault is in the model's files
 |   |- UnsupportedModel    a model that is not served: architecture, weight format, window...
 |   |- BadConfig           config.json is absent, malformed or contradicts itself
 |   `- CheckpointError     the weights are absent, unreadable, or not what config.json says
 |- WrongSetting        a setting asks for what this model has not
 |- DeviceUnavailable   the device that was asked for is not there
 |- PoolTooSmall        not one block of KV fits beside the weights
 |- FilesChanged        the model's files were replaced while they were loaded
 `- NotEnoughMemory     host or device have not the memory that a start takes
"""

from __future__ import annotations


class ModelError(Exception):
    """Base of everything that keeps a model from being served."""


class ModelNotServed(ModelError):
    """The model's files are not what can be served: no other machine or setting would do."""


class UnsupportedModel(ModelNotServed):
    """A model that is not served: its architecture, weight format, window, or sizes."""


class BadConfig(ModelNotServed):
    """Config.json that is absent, malformed or contradicts itself."""


class CheckpointError(ModelNotServed):
    """The weights are absent, pickled, unreadable, or not what config.json says."""


class WrongSetting(ModelError):
    """A setting asks for what this model has not, such as more context; with another it serves."""


class DeviceUnavailable(ModelError):
    """The device that was asked for is not there."""


class PoolTooSmall(ModelError):
    """Memory in which not one block of KV fits beside the weights."""


class FilesChanged(ModelError):
    """The model's files were replaced while they were loaded."""


class NotEnoughMemory(ModelError):
    """Host or device have not the memory that a start takes, or the process may not take it."""
