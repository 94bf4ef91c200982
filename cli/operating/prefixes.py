"""`ratoon prefixes`: published prompts that many tenants begin with."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from cli.echo import echo
from cli.errors import BadSetting
from cli.json_text import NotJson, decode_json
from cli.operating.admin_client import GROUPS, PREFIXES, AdminClient, with_admin
from cli.options.options import AdminFlags, argument
from cli.output import moment, print_answer, print_result, print_rows, print_table

EVERYONE = "all"
_TITLE = "Published prefixes"
_COLUMNS = ("name", "version", "id", "scope", "tokens", "blocks", "state", "created")
PrefixArgument = Annotated[str, argument("PREFIX", "The prefix's name or id.")]


def _file(help_text: str) -> Any:
    return typer.Option(
        help=help_text, exists=True, dir_okay=False, readable=True, show_default=False
    )


def create(
    admin: AdminFlags,
    name: Annotated[
        str, argument("NAME", "The prefix's name; publishing it again makes a new version.")
    ],
    system: Annotated[Path | None, _file("A system message, as text.")] = None,
    messages: Annotated[Path | None, _file("The first messages of a chat, in JSON.")] = None,
    text: Annotated[Path | None, _file("The beginning of a completion's prompt.")] = None,
    tools: Annotated[Path | None, _file("Tools of a chat, in JSON.")] = None,
    scope: Annotated[
        str, typer.Option(help="Who may share the prefix: 'all', or a group by name or id.")
    ] = EVERYONE,
) -> None:
    """Publish a prefix: a file with a system message, with messages in JSON, or with a text.

    --tools is a file with a list of tools in JSON, as chats send them. Given without a system
    message or messages, it publishes the beginning of all conversations with these tools.

    The prefix is computed at once and kept on the device, so it is cached for the first request of
    every tenant that may share it.

    Example:

        ratoon prefixes create handbook --system handbook.txt
    """
    source = _source({"--system": system, "--messages": messages, "--text": text}, tools)

    async def use(client: AdminClient) -> tuple[Any, bool]:
        before = {one["id"] for one in await client.rows(PREFIXES.path, PREFIXES.plural)}
        whose = EVERYONE if scope == EVERYONE else await GROUPS.find(client, scope, "--scope")
        body = {"name": name, "scope": whose, **source}
        made = await client.call("POST", PREFIXES.path, body)
        return made, made["id"] not in before

    made, is_new = with_admin(admin, use)
    words = "{name} version {version} ({id}): {tokens} tokens, {state}.".format_map(made)
    said = f"Published {words}" if is_new else f"Nothing new, this is published as it is: {words}"
    print_answer(made, said, as_json=admin.json)


def list_all(admin: AdminFlags) -> None:
    """List the published prefixes.

    Example:

        ratoon prefixes list --json
    """

    async def use(client: AdminClient) -> tuple[list[dict[str, Any]], dict[str, str]]:
        return await client.rows(PREFIXES.path, PREFIXES.plural), await GROUPS.names(client)

    prefixes, groups = with_admin(admin, use)
    print_rows(_TITLE, _COLUMNS, prefixes, lambda one: _row(one, groups), as_json=admin.json)


def show(admin: AdminFlags, prefix: PrefixArgument) -> None:
    """Show a published prefix: its content and, if it cannot be used, the reason.

    Example:

        ratoon prefixes show handbook
    """

    async def use(client: AdminClient) -> tuple[dict[str, Any], dict[str, str]]:
        path = PREFIXES.path_of(await PREFIXES.find(client, prefix))
        return await client.call("GET", path), await GROUPS.names(client)

    found, groups = with_admin(admin, use)
    print_result(found, lambda one: _show(one, groups), as_json=admin.json)


def _show(found: dict[str, Any], groups: Mapping[str, str]) -> None:
    print_table(_TITLE, _COLUMNS, [_row(found, groups)])
    if found["reason"]:
        echo(found["reason"])
    for title, content in _contents(found["source"]):
        echo(f"\n{title}:\n{content}")


def _contents(source: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for tool in source["tools"] or ():
        yield "tool", msgspec.json.encode(tool).decode()
    for message in source["messages"] or ():
        content = message["content"] if set(message) == {"role", "content"} else None
        whole = msgspec.json.encode(message).decode()
        yield message["role"], content if isinstance(content, str) else whole
    if source["text"] is not None:
        yield "text", source["text"]


def delete(admin: AdminFlags, prefix: PrefixArgument) -> None:
    """Withdraw a prefix: from now on each tenant computes it for itself.

    Example:

        ratoon prefixes delete handbook
    """
    PREFIXES.change(admin, "DELETE", prefix, said=f"Deleted prefix {prefix}.")


def _source(files: dict[str, Path | None], tools: Path | None) -> dict[str, Any]:
    named = [(flag, file) for flag, file in files.items() if file is not None]
    if len(named) > 1 or not (named or tools):
        raise BadSetting("--system", "name one file: --system, --messages or --text; or --tools")
    if tools is None:
        return _content(*named[0])
    if files["--text"] is not None:
        raise BadSetting("--tools", "goes with --system or --messages, or alone; not with --text")
    said = _content(*named[0]) if named else {}
    return {**said, "tools": _json("--tools", tools)}


def _content(flag: str, file: Path) -> dict[str, Any]:
    if flag == "--messages":
        return {"messages": _json(flag, file)}
    content = _read(flag, file)
    if flag == "--text":
        return {"text": content}
    return {"messages": [{"role": "system", "content": content}]}


def _json(flag: str, file: Path) -> Any:
    try:
        return decode_json(_read(flag, file), Any)
    except NotJson as error:
        raise BadSetting(flag, f"{file} is not JSON") from error


def _read(flag: str, file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(flag, f"{file} cannot be read as text") from error


def _row(prefix: dict[str, Any], groups: Mapping[str, str]) -> tuple[str, ...]:
    scope = prefix["scope"]
    return (
        prefix["name"],
        str(prefix["version"]),
        prefix["id"],
        groups.get(scope, scope),
        str(prefix["tokens"]),
        "-" if prefix["blocks"] is None else str(prefix["blocks"]),
        prefix["state"],
        moment(prefix["created_at"]),
    )
