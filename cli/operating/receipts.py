"""`ratoon receipts`: signed proofs that deleted tenants' cached data was erased."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from cli.echo import echo
from cli.errors import BadSetting, CliError
from cli.operating.admin_client import AdminClient, with_admin
from cli.options.options import AdminFlags, argument
from cli.output import print_answer, print_json, print_table
from gateway.receipts.receipt import Receipt
from gateway.receipts.signing import MAX_BYTES, NotAPublicKey, NotAReceipt, verified

PATH = "/admin/receipts"
# seconds for an erasure, which ends once every gateway knows of the deletion
WAIT_S = 15.0
_COLUMNS = ("engine", "tier", "blocks", "states", "bytes")
NewFile = Annotated[Path, argument("FILE", "The file to write, which must not exist yet.")]


def create(
    admin: AdminFlags,
    tenant: Annotated[str, argument("TENANT", "The id of a tenant that was deleted.")],
    file: NewFile,
) -> None:
    """Write a signed receipt of a deleted tenant's erasure into a file.

    The command waits some seconds for the erasure's end. The receipt lists data not erased by then.

    Example:

        ratoon receipts create tn_0a66642de67d5b65 acme.json
    """
    must_be_new(file)

    async def use(client: AdminClient) -> Any:
        return await receipt_of(client, tenant)

    signed = with_admin(admin, use)
    write(file, signed)
    print_answer(signed, f"Wrote {file}: {summary(signed['receipt'])}", as_json=admin.json)


def key(admin: AdminFlags) -> None:
    """Print the public key that verifies this installation's receipts.

    Example:

        ratoon receipts key
    """
    answer = with_admin(admin, lambda client: client.call("GET", f"{PATH}/key"))
    print_answer(answer, answer["public_key"], as_json=admin.json)


def verify(
    file: Annotated[Path, argument("FILE", "A receipt, as 'ratoon receipts create' wrote it.")],
    key: Annotated[str, typer.Option(help="The public key, as 'ratoon receipts key' prints it.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check that a receipt was signed by the installation with this key, and show it.

    Contacts no server, and refuses a changed receipt.

    Example:

        ratoon receipts verify acme.json --key gMdjjQT50YmKEdXO6wbn8Rj7wQpD_nPrWbW4OaXsQxw
    """
    try:
        with file.open("rb") as opened:
            receipt = verified(opened.read(MAX_BYTES + 1), key)
    except OSError as error:
        raise CliError(f"{file}: {error.strerror}") from None
    except NotAPublicKey as error:
        raise BadSetting("--key", str(error)) from None
    except NotAReceipt as error:
        raise CliError(f"{file}: {error}") from None
    if as_json:
        print_json(receipt)
    else:
        _show(receipt)


async def receipt_of(client: AdminClient, tenant_id: str) -> Any:
    """Request a receipt of a deleted tenant's erasure, and wait for the erasure's end."""
    return await client.call("POST", PATH, {"tenant": tenant_id, "wait_s": WAIT_S})


def must_be_new(file: Path) -> None:
    """Raise BadSetting if a receipt's file exists or cannot be created."""
    if file.exists() or not file.absolute().parent.is_dir():
        raise BadSetting("FILE", f"{file} exists already, or its directory does not")


def write(file: Path, signed: dict[str, Any]) -> None:
    """Write a receipt into a new file. Raises CliError."""
    content = msgspec.json.format(msgspec.json.encode(signed), indent=2)
    try:
        with file.open("xb") as opened:
            opened.write(content + b"\n")
    except OSError as error:
        raise CliError(f"{file}: {error.strerror}; 'ratoon audit --json' has the receipt") from None


def summary(receipt: dict[str, Any]) -> str:
    """Say in words that all is erased, or name the parts that are not erased."""
    still = receipt["open"]
    return "all is erased." if not still else f"still open: {'; '.join(still)}."


def _show(receipt: Receipt) -> None:
    echo(f"Genuine: {receipt.id} of tenant {receipt.name} ({receipt.tenant}), at {receipt.at}.")
    echo(f"Deleted at {receipt.deleted_at} with {receipt.keys} keys, {receipt.responses} stored")
    echo(f"responses, {receipt.schemas} module schemas and {receipt.adapters} adapters.")
    echo(f"Kept: {', '.join(receipt.kept)}.")
    rows = [
        (name, one.tier, one.blocks, one.states, one.num_bytes)
        for name, engine in receipt.engines.items()
        for one in engine.tiers or ()
    ]
    print_table("Copies erased", _COLUMNS, rows)
    for name, engine in receipt.engines.items():
        echo(f"Engine {name}, disk: {engine.disk}.")
    echo(f"By {receipt.by}: {summary(msgspec.to_builtins(receipt))}")
