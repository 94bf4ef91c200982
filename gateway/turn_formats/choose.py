"""The choice of a model's tool format and reasoning format by its chat template.

A template renders turns as the model writes them, so a rendered turn shows the format. If the
template renders no calls, its source is searched. If calls are rendered as JSON without a marker,
the tokenizer's special tokens show whether the model knows a marker. A name in `--tool-format`
overrides this choice.
"""

import re
from collections.abc import Mapping

from msgspec import Struct

from gateway.turn_formats.families.named import (
    deepseek,
    functionary,
    gemma,
    glm4,
    harmony,
    kimi,
    pythonic,
    solar,
)
from gateway.turn_formats.families.objects import cohere, hermes, llama, mistral, object_lists
from gateway.turn_formats.families.tagged import elements, kimi_k3, muse, tagged_families
from gateway.turn_formats.pieces import CallStarted
from gateway.turn_formats.reasoning import (
    APRIEL,
    COHERE,
    GEMMA,
    KIMI_K3,
    MAGISTRAL,
    MUSE,
    SOLAR,
    THINK,
    ReasoningFormat,
    marks_around,
)
from gateway.turn_formats.turn_format import ToolFormat, ToolSpec

_FORMATS = (
    hermes.HermesFormat,
    cohere.CohereFormat,
    llama.LlamaFormat,
    mistral.MistralFormat,
    mistral.MistralV11Format,
    deepseek.DeepSeekV3Format,
    deepseek.DeepSeekV31Format,
    tagged_families.Qwen3CoderFormat,
    harmony.HarmonyFormat,
    pythonic.PythonicFormat,
    gemma.FunctionGemmaFormat,
    gemma.Gemma4Format,
    glm4.Glm4Format,
    tagged_families.Glm45Format,
    tagged_families.Glm47Format,
    kimi.KimiK2Format,
    pythonic.Lfm2Format,
    pythonic.Olmo3Format,
    tagged_families.MiniMaxM2Format,
    tagged_families.SeedOssFormat,
    object_lists.AprielFormat,
    object_lists.ApertusFormat,
    object_lists.GigaChat3Format,
    object_lists.GigaChat31Format,
    object_lists.Phi4MiniFormat,
    object_lists.GraniteFormat,
    object_lists.MiniMaxM1Format,
    object_lists.NemotronNano2Format,
    tagged_families.DeepSeekV32Format,
    tagged_families.DeepSeekV4Format,
    tagged_families.Hy3Format,
    tagged_families.MiniCpm5Format,
    elements.MiniMaxM3Format,
    kimi_k3.KimiK3Format,
    solar.SolarOpenFormat,
    muse.MuseFormat,
    functionary.FunctionaryV31Format,
    functionary.FunctionaryV32Format,
    object_lists.NemotronMiniFormat,
    object_lists.FunctoolsFormat,
    object_lists.Granite20bFormat,
    object_lists.InternLm2Format,
    cohere.CommandRFormat,
)
_BARE = re.compile(r"\s*\[?\s*\{")  # matches a JSON call without a marker
# words of xLAM's template; its calls have no marker, even if the tokenizer has markers
_LISTED = "make calls in a single JSON array"
_REASONING = (THINK, MAGISTRAL, GEMMA, COHERE, APRIEL)
# formats found only in rendered turns, since their templates build the tags from parts
_SHOWN_REASONING = (KIMI_K3, MUSE, SOLAR)


class UnknownToolFormat(ValueError):
    """The error for a name that no tool format has."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no tool format {name!r}; there are {', '.join(tool_format_names())}")


class ShownTurns(Struct, frozen=True):
    """The assistant turns that a chat template renders, and the template's source.

    `call` is a rendered turn with a call of `tool`. `thought` is a rendered chat with the reasoning
    `thinks`. Either is None if the template does not show it.
    """

    source: str
    tool: ToolSpec | None = None
    call: str | None = None
    thinks: str = ""
    thought: str | None = None


def tool_format_names() -> tuple[str, ...]:
    """List the values of `--tool-format`."""
    return tuple(one.name for one in _FORMATS)


def tool_format(
    shown: ShownTurns | None,
    name: str | None = None,
    special_tokens: Mapping[str, int] | None = None,
) -> ToolFormat | None:
    """Return the tool format `name`, or by default the format of the template.

    Returns None if the template's format is unknown. Raises UnknownToolFormat for an unknown name.
    """
    formats: list[ToolFormat] = [made(special_tokens) for made in _FORMATS]
    if name is not None:
        named = next((one for one in formats if one.name == name), None)
        if named is None:
            raise UnknownToolFormat(name)
        return named
    if shown is None:
        return None
    if shown.call is None:
        return next((one for one in formats if one.is_in(shown.source)), None)
    found = next((one for one in formats if _reads(one, shown)), None)
    # the model may know markers that its template does not write
    if found is None and _BARE.match(shown.call):
        if object_lists.FunctoolsFormat().is_in(shown.source):
            return object_lists.FunctoolsFormat(special_tokens)
        if _LISTED in shown.source:
            return llama.LlamaFormat(special_tokens)
        tokens = frozenset(special_tokens or ())
        marked = (one for one in formats if one.call_marks)
        return next((one for one in marked if tokens.issuperset(one.call_marks)), None)
    return found


def _reads(format_: ToolFormat, shown: ShownTurns) -> bool:
    if shown.call is None or shown.tool is None or not format_.is_in(shown.call):
        return False
    parser = format_.parser([shown.tool])
    return any(
        isinstance(piece, CallStarted) for piece in [*parser.feed(shown.call), *parser.end()]
    )


def reasoning_format(shown: ShownTurns | None) -> ReasoningFormat | None:
    """Find the reasoning tags that a template uses.

    Returns None for unknown tags, and for Harmony, which has no tags.
    """
    if shown is None:
        return None
    known = next((one for one in _REASONING if one.is_in(shown.source)), None)
    if known is not None or not shown.thought:
        return known
    found = (one for one in _SHOWN_REASONING if one.is_around(shown.thinks, shown.thought))
    return next(found, None) or marks_around(shown.thinks, shown.thought)
