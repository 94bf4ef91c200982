"""The errors that prevent the engine from starting because a model cannot be served.

ModelError
 |- ModelNotServed      the fault is in the model's files
 |   |- UnsupportedModel    a model that is not served: architecture, weight format, window...
 |   |- BadConfig           config.json is absent, malformed or contradicts itself
 |   `- CheckpointError     the weights are absent, unreadable, or not what config.json says
 |- WrongSetting        a setting requires a feature that this model lacks
 |- DeviceUnavailable   the configured device does not exist
 |- PoolTooSmall        the weights leave no memory for a block of KV
 |- FilesChanged        the model's files were replaced while they were loaded
 `- NotEnoughMemory     host or device lack the memory for a start

Elsewhere: the process's exit status (`main`).
"""

from __future__ import annotations


class ModelError(Exception):
    """The base of all errors that prevent a model from being served."""


class ModelNotServed(ModelError):
    """An error: the model's files cannot be served on any machine or with any setting."""


class UnsupportedModel(ModelNotServed):
    """An error: the model's architecture, weight format, window or sizes are not served."""


class BadConfig(ModelNotServed):
    """An error: config.json is absent, malformed or contradicts itself."""


class CheckpointError(ModelNotServed):
    """An error: weights are absent, pickled, unreadable, or contradict config.json."""


class WrongSetting(ModelError):
    """An error: a setting does not fit the model, such as a context longer than its maximum."""


class DeviceUnavailable(ModelError):
    """An error: the configured device does not exist."""


class PoolTooSmall(ModelError):
    """An error: the weights leave too little memory for a single KV block."""


class FilesChanged(ModelError):
    """An error: the model's files were replaced during loading."""


class NotEnoughMemory(ModelError):
    """An error: host or device have too little memory for a start."""
