"""`ratoon models`: the models that can be served, from the registry of the engine.

This module imports no torch and starts no process.
"""

from __future__ import annotations

from dataclasses import dataclass
from os.path import expanduser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.echo import echo
from cli.errors import CliError, ModelNotFound, ModelRefused
from cli.models.chat_flags import check_tool_format, check_variables
from cli.models.model_check import check_defaults, served_model
from cli.models.model_source import CONFIG, ModelSource, resolve
from cli.options.engine_options import ENGINE_DEFAULTS
from cli.options.gateway_options import GATEWAY_FLAGS
from cli.options.options import Json
from cli.output import print_result, print_table
from engine.models.architectures.fields.rope_fields import ROPES
from engine.models.config import SERVED_DTYPES, ModelConfig, kv_layout, state_layout
from engine.models.served.registry import COMPRESSED_TENSORS, SERVED
from engine.models.served.unserved import UNSERVED
from engine.models.weight_formats.plain import PLAIN
from gateway.prompts.chats.template_variables import ChatSettings
from storage.layouts.kv_layout import ITEM_BYTES

if TYPE_CHECKING:
    from cli.models.chat_check import Chats

Asked = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A model's directory, its config.json, or a hub id (owner/name).",
        show_default=False,
    ),
]

Template = Annotated[str | None, GATEWAY_FLAGS["chat_template"].option("chat_template", None)]
Variables = Annotated[
    str | None,
    GATEWAY_FLAGS["default_chat_template_kwargs"].option("default_chat_template_kwargs", None),
]
ToolFormatName = Annotated[str | None, GATEWAY_FLAGS["tool_format"].option("tool_format", None)]


@dataclass(frozen=True, slots=True)
class ServedArchitecture:
    """A value of `architectures` in config.json, and models with this value."""

    name: str
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unserved:
    """Architectures that are not served, and the missing feature that they need."""

    needs: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WhatIsServed:
    """The served values of config.json: architecture, weights, dtype, rope and KV types."""

    architectures: list[ServedArchitecture]
    # served values of `quant_method`; the first is assumed if the key is missing
    weight_formats: list[str]
    # served values of `format` if `quant_method` is compressed-tensors
    compressed_tensors: list[str]
    dtypes: list[str]
    kv_dtypes: list[str]
    ropes: list[str]
    unserved: list[Unserved]  # causal models of transformers that are not served


@dataclass(frozen=True, slots=True)
class HybridState:
    """The cost of a recurrent state of a hybrid model, in the model's dtype."""

    layers: int
    state_bytes: int
    as_kv_tokens: int  # number of tokens whose KV takes as many bytes as a recurrent state


@dataclass(frozen=True, slots=True)
class Served:
    """The properties of a model that is served."""

    model: str
    family: str
    layers: int
    context: int  # maximum number of tokens of a sequence
    weight_format: str
    dtype: str | None
    chats: Chats | None
    state: HybridState | None


def models(
    model: Asked = None,
    *,
    chat_template: Template = None,
    default_chat_template_kwargs: Variables = None,
    tool_format: ToolFormatName = None,
    json: Json = False,
) -> None:
    """List the models that are served, or tell whether MODEL would be served.

    The list has architectures, formats of weights, types of KV and scalings of rope, as config.json
    names them, and what is missing for other causal models of transformers. If MODEL would not be
    served, prints the line with which 'ratoon serve' would end, and exits with 1. Opens no tensors,
    and downloads no weights. For a directory or a hub id, also prints the formats of calls and
    reasoning, and how chats that the template does not take are changed. The flags of 'ratoon
    serve' for chats can be tried here.

    Examples:

        ratoon models

        ratoon models ./my-model

        ratoon models Qwen/Qwen3-8B
    """
    if model is None:
        print_result(what_is_served(), _show, as_json=json)
        return
    check_tool_format(tool_format)
    check_variables(default_chat_template_kwargs)
    settings = ChatSettings(chat_template, default_chat_template_kwargs, tool_format)
    try:
        found = _checked(model, settings)
    except (ModelNotFound, ModelRefused) as error:
        raise CliError(error.message) from error
    print_result(found, _say, as_json=json)


def what_is_served() -> WhatIsServed:
    """Return the registry as data."""
    return WhatIsServed(
        architectures=[
            ServedArchitecture(name, one.examples) for name, one in SERVED.architectures.items()
        ],
        weight_formats=[PLAIN.name, *SERVED.formats],
        compressed_tensors=list(COMPRESSED_TENSORS),
        dtypes=list(SERVED_DTYPES),
        kv_dtypes=list(ITEM_BYTES),
        ropes=list(ROPES),
        unserved=[Unserved(needs, names) for needs, names in UNSERVED.items()],
    )


def _checked(model: str, settings: ChatSettings) -> Served:
    path = Path(expanduser(model))
    if path.is_file() and path.name == CONFIG:
        return _served(
            model, served_model(ModelSource(path.parent, model), ENGINE_DEFAULTS, has_weights=False)
        )
    from cli.models.chat_check import chats_of

    source = resolve(model, "dummy")
    config = served_model(source, ENGINE_DEFAULTS, has_weights=path.is_dir())
    check_defaults(source.directory)
    return _served(model, config, chats_of(source.directory, settings))


def _served(model: str, config: ModelConfig, chats: Chats | None = None) -> Served:
    return Served(
        model=model,
        family=config.family,
        layers=len(config.layers),
        context=config.max_positions,
        weight_format=config.weight_format.name,
        dtype=config.dtype,
        chats=chats,
        state=_state(config),
    )


def _state(config: ModelConfig) -> HybridState | None:
    dtype = config.dtype or "bfloat16"
    states = state_layout(config.layers, dtype)
    if states is None:
        return None
    kv = kv_layout(config.layers, dtype, ENGINE_DEFAULTS.cache.block_size)
    as_tokens = -(-states.state_bytes // kv.token_bytes)
    return HybridState(len(states.layers), states.state_bytes, as_tokens)


def _show(served: WhatIsServed) -> None:
    print_table(
        "architectures, as config.json names them",
        ("architecture", "such as"),
        [(one.name, ", ".join(one.examples)) for one in served.architectures],
    )
    print_table(
        "formats",
        ("", "served"),
        [
            ("weights", ", ".join(served.weight_formats)),
            ("format of compressed-tensors", ", ".join(served.compressed_tensors)),
            ("dtype of plain weights", ", ".join(served.dtypes)),
            ("KV", ", ".join(served.kv_dtypes)),
            ("rope", ", ".join(served.ropes)),
        ],
    )
    print_table(
        "not served, of the causal models of transformers",
        ("what is missing", "architectures"),
        [(one.needs, ", ".join(one.names)) for one in served.unserved],
    )


def _say(served: Served) -> None:
    echo(
        f"{served.model} is served: {served.family}, {served.layers} layers, "
        f"{served.context:,} tokens of context, {served.weight_format} weights"
        f"{'' if served.dtype is None else f' ({served.dtype})'}"
    )
    if served.state is not None:
        echo(
            f"It is a hybrid: {served.state.layers} of its layers are recurrent. A state takes "
            f"{served.state.state_bytes:,} bytes, as much as the KV of "
            f"{served.state.as_kv_tokens:,} tokens."
        )
    if served.chats is not None:
        from cli.models.chat_check import in_lines

        for line in in_lines(served.chats):
            echo(line)
