"""The restriction of a request's callable tools by its tool choice, common to all dialects."""

from collections.abc import Collection
from dataclasses import replace

from gateway.errors import BadRequest
from gateway.prompts.generation_request import AnswerForm


def only(form: AnswerForm, names: Collection[str], *, least_calls: int) -> AnswerForm:
    """Allow only calls of the tools in `names`; raise BadRequest for unknown names."""
    if not form.tools:
        raise BadRequest("this `tool_choice` needs `tools`", param="tool_choice")
    wanted = set(names)
    if not wanted or wanted - {tool.name for tool in form.tools}:
        raise BadRequest("`tool_choice` names a tool that is not in `tools`", param="tool_choice")
    callable_ = tuple(tool for tool in form.tools if tool.name in wanted)
    return replace(form, tools=callable_, least_calls=least_calls)


def must_call(form: AnswerForm) -> AnswerForm:
    """Require a call of at least one tool."""
    return only(form, [tool.name for tool in form.tools], least_calls=1)
