"""A report on a model's chat template, read by the gateway's own code."""

from dataclasses import dataclass
from pathlib import Path

from cli.errors import ModelRefused
from gateway.prompts.answer_forms import AnswerForms
from gateway.prompts.chats.template_variables import ChatSettings
from gateway.prompts.model_chats import read_chats
from gateway.prompts.templates.files import template_sources
from gateway.prompts.templates.limits import Limit
from gateway.prompts.tokens.tokenizer import ModelFileBroken

_NO_TOOLS = "no format was recognised, requests with tools are refused without --tool-format"


@dataclass(frozen=True, slots=True)
class TemplateFound:
    """A chat template's name, and the kinds of chats that the template cannot render.

    `limits`, the list of these kinds, is None if the template is not used.
    """

    name: str
    limits: list[Limit] | None


@dataclass(frozen=True, slots=True)
class Chats:
    """A model's chat templates, and the names of its formats of tool calls and reasoning."""

    templates: list[TemplateFound]
    tools: str | None
    reasoning: str | None


def chats_of(directory: Path, settings: ChatSettings) -> Chats:
    """Read a model's chat templates and formats. Raises ModelRefused for an invalid file."""
    own = None if settings.template is None else Path(settings.template)
    try:
        _, template, forms = read_chats(directory, settings)
        names = list(template_sources(directory, own))
    except ModelFileBroken as error:
        raise ModelRefused(str(error)) from error
    limits = {} if template is None else template.limits()
    return Chats(
        templates=[TemplateFound(name, limits.get(name)) for name in names],
        tools=None if forms.tools is None else forms.tools.name,
        reasoning=_reasoning(forms),
    )


def _reasoning(forms: AnswerForms) -> str | None:
    if forms.reasoning is not None:
        return forms.reasoning.name
    tools = forms.tools
    return tools.name if tools is not None and tools.reads_reasoning else None


def in_lines(chats: Chats) -> list[str]:
    """Describe the templates and formats in words, with a line for each."""
    used = [one for one in chats.templates if one.limits is not None]
    if not used:
        return ["no default chat template: chats are refused, completions are served"]
    lines = [
        f"chat templates: {', '.join(map(_named, chats.templates))}",
        f"tools: {chats.tools or _NO_TOOLS}",
        f"reasoning: {chats.reasoning or 'no format was recognised, it stays in the text'}",
    ]
    for one in used:
        lines += _limits(one)
    return lines


def _named(one: TemplateFound) -> str:
    return one.name if one.limits is not None else f"{one.name} (not used)"


def _limits(one: TemplateFound) -> list[str]:
    if not one.limits:
        return [f"the template {one.name} takes any chat as it is sent"]
    told = [f"  {limit.cannot}: {limit.instead}" for limit in one.limits]
    return [f"the template {one.name} does not take:", *told]
