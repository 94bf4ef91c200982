"""`ratoon prefixes`: publish prompts that many tenants begin with.

Knows: the admin routes of prefixes and how prefixes are shown. Does not know: how requests are
made (`admin_client`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer

from cli.admin_client import AdminClient, with_admin
from cli.client_options import AdminFlags
from cli.errors import BadSetting
from cli.groups import find_group
from cli.output import moment, print_answer, print_json, print_table

PREFIXES = "/admin/prefixes"
EVERYONE = "all"
PrefixArgument = Annotated[
    str, typer.Argument(metavar="PREFIX", help="The prefix's name or id.", show_default=False)
]


def _file(help_text: str) -> Any:
    """An option that names a file."""
    return typer.Option(
        help=help_text, exists=True, dir_okay=False, readable=True, show_default=False
    )


async def find_prefix(client: AdminClient, name_or_id: str) -> str:
    """The id of a prefix given by id or by name; BadSetting when there is none."""
    for prefix in await client.rows(PREFIXES, "prefixes"):
        if name_or_id in (prefix["id"], prefix["name"]):
            return str(prefix["id"])
    raise BadSetting("PREFIX", f"there is no prefix '{name_or_id}'; see 'ratoon prefixes list'")


def create(
    admin: AdminFlags,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Its name; publishing a name again makes a new version.",
            show_default=False,
        ),
    ],
    system: Annotated[Path | None, _file("A system message, as text.")] = None,
    messages: Annotated[Path | None, _file("The first messages of a chat, in JSON.")] = None,
    text: Annotated[Path | None, _file("The beginning of a completion's prompt.")] = None,
    tools: Annotated[Path | None, _file("Tools of a chat, in JSON.")] = None,
    scope: Annotated[
        str, typer.Option(help="Who may share it: 'all', or a group by name or id.")
    ] = EVERYONE,
) -> None:
    """Publish a prefix: a file with a system message, with messages in JSON, or with a text.

    --tools is a file with a list of tools in JSON, as chats send them: beside a system message or
    messages, or alone, for what all conversations with these tools begin with.

    It is computed at once and kept on the device, so it is cached for the first request of every
    tenant that may share it.

    Example:

        ratoon prefixes create handbook --system handbook.txt
    """
    source = _source({"--system": system, "--messages": messages, "--text": text}, tools)

    async def use(client: AdminClient) -> Any:
        whose = scope if scope == EVERYONE else await find_group(client, scope)
        return await client.call("POST", PREFIXES, {"name": name, "scope": whose, **source})

    made = with_admin(admin, use)
    words = f"Published {made['name']} version {made['version']} ({made['id']}): "
    print_answer(made, words + f"{made['tokens']} tokens, {made['state']}.", as_json=admin.json)


def list_all(admin: AdminFlags) -> None:
    """List what is published.

    Example:

        ratoon prefixes list --json
    """
    prefixes = with_admin(admin, lambda client: client.rows(PREFIXES, "prefixes"))
    if admin.json:
        print_json(prefixes)
        return
    _table(prefixes)


def show(admin: AdminFlags, prefix: PrefixArgument) -> None:
    """Show one prefix and, if it cannot be used, the reason.

    Example:

        ratoon prefixes show handbook
    """

    async def use(client: AdminClient) -> Any:
        return await client.call("GET", await _path(client, prefix))

    found = with_admin(admin, use)
    if admin.json:
        print_json(found)
        return
    _table([found])
    if found["reason"]:
        typer.echo(found["reason"])


def delete(admin: AdminFlags, prefix: PrefixArgument) -> None:
    """Withdraw a prefix: from now on each tenant computes it for itself.

    Example:

        ratoon prefixes delete handbook
    """

    async def use(client: AdminClient) -> Any:
        return await client.call("DELETE", await _path(client, prefix))

    print_answer(with_admin(admin, use), f"Deleted prefix {prefix}.", as_json=admin.json)


async def _path(client: AdminClient, prefix: str) -> str:
    return f"{PREFIXES}/{quote(await find_prefix(client, prefix), safe='')}"


def _source(files: dict[str, Path | None], tools: Path | None) -> dict[str, Any]:
    """What is published; BadSetting unless exactly one file is named, or only tools."""
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
        return msgspec.json.decode(_read(flag, file))
    except msgspec.DecodeError as error:
        raise BadSetting(flag, f"{file} is not JSON") from error


def _read(flag: str, file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(flag, f"{file} cannot be read as text") from error


def _table(prefixes: list[dict[str, Any]]) -> None:
    columns = ("name", "version", "id", "scope", "tokens", "blocks", "state", "created")
    rows = (
        (
            prefix["name"],
            str(prefix["version"]),
            prefix["id"],
            prefix["scope"],
            str(prefix["tokens"]),
            "-" if prefix["blocks"] is None else str(prefix["blocks"]),
            prefix["state"],
            moment(prefix["created_at"]),
        )
        for prefix in prefixes
    )
    print_table("Published prefixes", columns, rows)
