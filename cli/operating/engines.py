"""`ratoon engines`: the engines that the gateways of one state use."""

from typing import Annotated, Any

from cli.operating.admin_client import path_part, with_admin
from cli.options.options import AdminFlags, argument
from cli.output import moment, print_answer, print_rows

_PATH = "/admin/engines"
AddressArgument = Annotated[
    str, argument("ADDRESS", "Where the engine is: tcp://HOST:PORT, or the path of its socket.")
]


def list_all(admin: AdminFlags) -> None:
    """List the engines that are registered, and how the gateway sees each.

    Example:

        ratoon engines list
    """
    rows = with_admin(admin, lambda client: client.rows(_PATH, "engines"))
    columns = ("address", "state", "fingerprint", "added", "last heartbeat")
    print_rows("Engines", columns, rows, _row, as_json=admin.json)


def add(admin: AdminFlags, address: AddressArgument) -> None:
    """Add an engine that does not register itself.

    Example:

        ratoon engines add tcp://gpu1.example:7300
    """
    answer = with_admin(admin, lambda client: client.call("POST", _PATH, {"address": address}))
    print_answer(answer, f"Added the engine at {address}.", as_json=admin.json)


def remove(admin: AdminFlags, address: AddressArgument) -> None:
    """Remove an engine. Gateways send it no new requests, and its running requests go on.

    An engine that registers itself is ended where it was started, and leaves the list.

    Example:

        ratoon engines remove tcp://gpu1.example:7300
    """
    path = f"{_PATH}/{path_part(address)}"
    answer = with_admin(admin, lambda client: client.call("DELETE", path))
    print_answer(answer, f"Removed the engine at {address}.", as_json=admin.json)


def _row(engine: dict[str, Any]) -> tuple[str, ...]:
    return (
        engine["address"],
        engine["state"] or "-",
        (engine["fingerprint"] or "-")[:12],
        moment(engine["added_at"]),
        "added by hand" if engine["beat_at"] is None else moment(engine["beat_at"]),
    )
