"""The Responses API's tools that the client runs, except functions: shells and patches.

The model is shown each tool as a function whose parameters are the fields of the tool's call items.
A call by the model becomes a call item in the answer. Call and output items of the input become
messages.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gateway.dialects.responses.schema import Item, ItemPart
from gateway.prompts.chats.forms import Tool

ClientKind = Literal["local_shell", "shell", "apply_patch"]
_TEXT, _WHOLE = {"type": "string"}, {"type": "integer"}
_TEXTS = {"type": "array", "items": _TEXT}
_OPERATIONS = ("create_file", "update_file", "delete_file")


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool of a fixed type. The model calls the tool by its type."""

    kind: ClientKind
    # name of the call item's field with the arguments
    field: Literal["action", "operation"]
    form: Tool

    @property
    def call_item(self) -> str:
        """The type of the tool's call items."""
        return f"{self.kind}_call"

    @property
    def output_item(self) -> str:
        """The type of the tool's output items."""
        return f"{self.kind}_call_output"


def _form(name: str, description: str, properties: dict[str, Any], *required: str) -> Tool:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def _described(schema: Mapping[str, Any], description: str) -> dict[str, Any]:
    return {**schema, "description": description}


_TOOLS = (
    ClientTool(
        "local_shell",
        "action",
        _form(
            "local_shell",
            "Runs a command on the user's machine and returns its output.",
            {
                "command": _described(_TEXTS, "The program and its arguments."),
                "working_directory": _TEXT,
                "timeout_ms": _WHOLE,
            },
            "command",
        ),
    ),
    ClientTool(
        "shell",
        "action",
        _form(
            "shell",
            "Runs shell commands on the user's machine and returns the output of each.",
            {
                "commands": _described(_TEXTS, "Command lines, run in this order."),
                "timeout_ms": _WHOLE,
                "max_output_length": _described(_WHOLE, "The most characters to return."),
            },
            "commands",
        ),
    ),
    ClientTool(
        "apply_patch",
        "operation",
        _form(
            "apply_patch",
            "Creates, updates or deletes a file.",
            {
                "type": {"type": "string", "enum": [*_OPERATIONS]},
                "path": _described(_TEXT, "The file, from the root of the workspace."),
                "diff": _described(
                    _TEXT,
                    "Lines with + before those that come, - before those that go and a space "
                    "before those that stay, and @@ where another place begins. A new file has "
                    "lines with + alone.",
                ),
            },
            "type",
            "path",
        ),
    ),
)
CLIENT_TOOLS: Mapping[str, ClientTool] = {one.kind: one for one in _TOOLS}
CLIENT_CALLS: Mapping[str, ClientTool] = {one.call_item: one for one in _TOOLS}
CLIENT_OUTPUTS: Mapping[str, ClientTool] = {one.output_item: one for one in _TOOLS}


def client_tool(kind: str, environment: Mapping[str, Any] | None) -> ClientTool | None:
    """Find the tool of a type, or return None.

    The result is None for an unknown type, and for a shell that the server would have to run.
    """
    where = "local" if environment is None else environment.get("type")
    return CLIENT_TOOLS.get(kind) if where == "local" else None


def asked_of(kind: ClientKind, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the arguments of the model's call into the action of a call item."""
    match kind:
        case "local_shell":
            said = {"type": "exec", "env": {}, **arguments}
            return {**said, "command": _listed(arguments.get("command"))}
        case "shell":
            said = {"timeout_ms": None, "max_output_length": None, **arguments}
            return {**said, "commands": _listed(arguments.get("commands"))}
        case "apply_patch":
            return {"type": "update_file", "path": "", **arguments}


def _listed(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [] if value is None else [value]
    return [one if isinstance(one, str) else str(one) for one in values]


def arguments_in(item: Item) -> dict[str, Any]:
    """Read the arguments from a call item, without the fields that `asked_of` adds.

    Clients may reorder the arguments. They are put back in the order in which the model sees them.
    """
    tool = CLIENT_CALLS[item.type or ""]
    given: Mapping[str, Any] = getattr(item, tool.field) or {}
    told = tool.form["function"]["parameters"]["properties"]
    names = [
        *(name for name in told if name in given),
        *(name for name in given if name not in told),
    ]
    kept = {name: given[name] for name in names if given[name] not in (None, {})}
    if kept.get("type") == "exec":
        del kept["type"]
    return kept


def output_text(item: Item) -> str:
    """Write a call's output as the text that the model is shown."""
    if isinstance(item.output, str):
        return item.output
    if item.output is None:
        return item.status or ""
    return "\n".join(_lines(item.output))


def _lines(parts: Sequence[ItemPart]) -> Iterator[str]:
    for part in parts:
        yield from filter(None, (part.stdout, part.stderr, part.text))
        outcome = part.outcome or {}
        if outcome.get("type") == "timeout":
            yield "It took too long and was ended."
        elif outcome.get("exit_code"):
            yield f"It ended with the exit code {outcome['exit_code']}."
