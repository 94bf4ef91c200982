"""The model's sampling defaults for requests that set none, from generation_config.json.

The publisher of a model sets the file, and a request's own fields override it. vLLM's
`--generation-config auto` reads the same fields. As in vLLM, `do_sample` has no effect.
"""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from engine.models.model_files import decode, read_file
from gateway.config import GenerationConfigSource

FILE = "generation_config.json"


class GenerationConfigBroken(ValueError):
    """The error for a model's default that would be invalid in a request."""


class SamplingDefaults(msgspec.Struct, frozen=True):
    """The sampling values for requests that set none, with the names of `SamplingParams`."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    # maximum tokens of the answer to a chat or a response request; None: the server's default
    max_tokens: int | None = None


DIALECT_DEFAULTS = SamplingDefaults()


class _File(msgspec.Struct):
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10)] | None = None
    max_new_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


def read_sampling_defaults(
    model_dir: Path, source: GenerationConfigSource = "auto"
) -> SamplingDefaults:
    """Read a model directory's defaults.

    The setting `none` and an absent file give the dialects' defaults. Raises GenerationConfigBroken
    for a value out of range or of another type.
    """
    path = model_dir / FILE
    if source == "none" or not path.exists():
        return DIALECT_DEFAULTS
    try:
        read = decode(read_file(path), _File)
    except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
        raise GenerationConfigBroken(
            f"{path}: {error}; --generation-config none leaves it alone"
        ) from error
    given = {
        name: value for name, value in msgspec.structs.asdict(read).items() if value is not None
    }
    if "max_new_tokens" in given:
        given["max_tokens"] = given.pop("max_new_tokens")
    if "top_k" in given:
        given["top_k"] = max(0, given["top_k"])  # -1 turns top-k off, like 0
    return SamplingDefaults(**given)


def in_words(defaults: SamplingDefaults) -> str:
    """Describe the defaults that differ from the dialects' defaults; return "" if none differs."""
    plain = msgspec.structs.asdict(DIALECT_DEFAULTS)
    given = msgspec.structs.asdict(defaults).items()
    return ", ".join(f"{name} {value:g}" for name, value in given if value != plain[name])
