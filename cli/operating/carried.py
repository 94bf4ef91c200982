"""`ratoon prefixes export` and `import` carry a published prefix to another installation."""

from __future__ import annotations

import base64
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import typer

from cli.errors import BadSetting, CliError
from cli.operating.admin_client import GROUPS, PREFIXES, AdminClient, with_admin
from cli.operating.prefix_file import (
    FileHeader,
    PrefixFile,
    PrefixFileRefused,
    SealedWriter,
    new_salt,
    read_key,
)
from cli.options.options import AdminFlags, argument
from cli.output import print_answer
from gateway.receipts.signing import NotAPublicKey

PART_BYTES = 4 << 20  # maximum bytes of units in one request; a larger unit is requested alone
IMPORTS = "/admin/imports"
EVERYONE = "all"
KeyFile = Annotated[
    Path,
    typer.Option(
        help="A file with the key that the prefix is sealed with, at least 32 characters.",
        exists=True,
        dir_okay=False,
        show_default=False,
    ),
]


def export(
    admin: AdminFlags,
    prefix: Annotated[str, argument("PREFIX", "The prefix's name or id.")],
    file: Annotated[Path, argument("FILE", "The file to write, which must not exist yet.")],
    key_file: KeyFile,
) -> None:
    """Write a published prefix, with the KV computed for it, into a file.

    The file is sealed with the key and signed. 'ratoon prefixes import' reads it at another
    installation.

    Example:

        ratoon prefixes export rules rules.prefix --key-file prefix.key
    """
    if file.exists():
        raise BadSetting("FILE", f"{file} exists already")
    key = _key(key_file)

    async def use(client: AdminClient, content: BinaryIO) -> Any:
        path = PREFIXES.path_of(await PREFIXES.find(client, prefix))
        return await _exported(client, path, content, key)

    with new_file(file) as content:
        found = with_admin(admin, lambda client: use(client, content))
    said = f"Wrote {file}: {found['name']}, {found['tokens']} tokens, {file.stat().st_size} bytes."
    print_answer(found, said, as_json=admin.json)


def import_(
    admin: AdminFlags,
    file: Annotated[Path, argument("FILE", "A file of 'ratoon prefixes export'.")],
    key_file: KeyFile,
    signer: Annotated[
        str,
        typer.Option(help="The exporting installation's 'ratoon receipts key'."),
    ],
    name: Annotated[
        str | None, typer.Option(help="The prefix's new name.", show_default="its name there")
    ] = None,
    scope: Annotated[
        str, typer.Option(help="Who may share the prefix: 'all', or a group by name or id.")
    ] = EVERYONE,
) -> None:
    """Publish a prefix from another installation's file, without computing it.

    A file from another model or kind of device is refused.

    Example:

        ratoon prefixes import rules.prefix --key-file prefix.key --signer KEY
    """
    key = _key(key_file)

    async def use(client: AdminClient, opened: PrefixFile, text: dict[str, Any]) -> Any:
        whose = EVERYONE if scope == EVERYONE else await GROUPS.find(client, scope, "--scope")
        return await _imported(client, opened, key, text, whose)

    try:
        with file.open("rb") as content:
            opened = PrefixFile.of(content)
            opened.check_signature(signer)
            text = _text(opened.text(key), name)
            record = with_admin(admin, lambda client: use(client, opened, text))
    except OSError as error:
        raise CliError(f"{file}: {error.strerror}") from None
    except NotAPublicKey as error:
        raise BadSetting("--signer", str(error)) from None
    except PrefixFileRefused as error:
        raise CliError(f"{file}: {error}") from None
    said = "Imported {name} version {version} ({id}): {tokens} tokens.".format_map(record)
    print_answer(record, said, as_json=admin.json)


@contextmanager
def new_file(file: Path) -> Iterator[BinaryIO]:
    """Write a file under a temporary name, and rename it once it is complete. Raises CliError."""
    part = file.with_name(f"{file.name}.part")
    try:
        part.unlink(missing_ok=True)  # removes a link that another user may have put here
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as content:
            yield content
        part.rename(file)
    except OSError as error:
        raise CliError(f"{file}: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)


async def _exported(client: AdminClient, path: str, content: BinaryIO, key: str) -> Any:
    found = await client.call("GET", f"{path}/export")
    text = msgspec.json.encode({"name": found["name"], "source": found["source"]})
    header = FileHeader(
        fingerprint=found["fingerprint"],
        unit_bytes=found["unit_bytes"],
        blocks=found["blocks"],
        state_units=found["state_units"],
        units_a_part=max(PART_BYTES // found["unit_bytes"], 1),
        text_bytes=len(text),
        tokens_digest=found["tokens_digest"],
        salt=new_salt(),
    )
    writer = SealedWriter(content, header, key)
    writer.write(text)
    async for units in _units(client, path, header):
        writer.write(units)
    body = {"digest": writer.digest.hex()}
    signed = await client.call("POST", f"{path}/signature", body)
    content.write(base64.b64decode(signed["signature"]))
    return found


async def _units(client: AdminClient, path: str, header: FileHeader) -> AsyncIterator[bytes]:
    for part in range(header.num_parts):
        size, first = header.part_bytes(part), part * header.units_a_part
        count = size // header.unit_bytes
        units = await client.octets("GET", f"{path}/units?first={first}&count={count}")
        if len(units) != size:
            raise CliError("the prefix has changed meanwhile: export it again")
        yield units


async def _imported(
    client: AdminClient, opened: PrefixFile, key: str, text: dict[str, Any], scope: str
) -> Any:
    header, source = opened.header, text["source"]
    begun = await client.call(
        "POST",
        IMPORTS,
        {
            "fingerprint": header.fingerprint,
            "unit_bytes": header.unit_bytes,
            "blocks": header.blocks,
            "state_units": header.state_units,
            "tokens_digest": header.tokens_digest,
            "source": source,
            "scope": scope,
        },
    )
    path = f"{IMPORTS}/{begun['id']}"
    try:
        for first, units in opened.parts(key):
            await client.octets("PUT", f"{path}/units?first={first}", units)
        body = {"name": text["name"], "source": source, "scope": scope}
        return await client.call("POST", f"{path}/end", body)
    except (CliError, PrefixFileRefused):
        with suppress(CliError):
            await client.call("DELETE", path)
        raise


def _text(text: Any, name: str | None) -> dict[str, Any]:
    is_text = isinstance(text, dict) and isinstance(text.get("name"), str)
    if not is_text or not isinstance(text.get("source"), dict):
        raise PrefixFileRefused("it has no valid text")
    return {"name": name or text["name"], "source": text["source"]}


def _key(path: Path) -> str:
    try:
        return read_key(path)
    except OSError as error:
        raise BadSetting("--key-file", f"{path}: {error.strerror}") from None
    except PrefixFileRefused as error:
        raise BadSetting("--key-file", str(error)) from None
