"""`ratoon cache probe` and `warm`: show or fill the cache for a tenant's prompt."""

import asyncio
from typing import Annotated, Any, Literal

import typer

from cli.operating.admin_client import AdminClient
from cli.operating.server_target import load_target
from cli.options.options import Json, TargetFlags
from cli.output import print_answer
from cli.request_file import read_request

RequestFile = Annotated[
    str, typer.Argument(metavar="FILE", help="A request's body as JSON; - is standard input.")
]
Dialect = Literal["chat", "completions", "messages"]
DialectOption = Annotated[
    Dialect | None,
    typer.Option(
        "--as",
        help="The route that the body is for. [dim]\\[default: completions if it has a prompt, "
        "else chat][/dim]",
        show_default=False,
    ),
]
ROUTES: dict[Dialect, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "messages": "/v1/messages",
}
# maximum seconds without data: the server sends nothing while it computes the prompt
_WARM_S = 600.0


def probe(
    target: TargetFlags, file: RequestFile, dialect: DialectOption = None, as_json: Json = False
) -> None:
    """Show how much of a request's prompt is in the cache; nothing is computed.

    Example:

        ratoon cache probe request.json
    """
    found = _asked("probe", target, file, dialect)
    saved = found["saved_ms"]
    worth = "" if saved is None else f", which saves {saved:.0f} ms"
    print_answer(found, f"{_cached(found)}{worth}.", as_json=as_json)


def warm(
    target: TargetFlags, file: RequestFile, dialect: DialectOption = None, as_json: Json = False
) -> None:
    """Compute and cache a request's prompt, without an answer.

    Only the prompt is charged. Later requests with the same beginning reuse the prompt's blocks.

    Example:

        ratoon cache warm request.json
    """
    found = _asked("warm", target, file, dialect)
    print_answer(found, f"The prompt is cached. Before, {_cached(found)}.", as_json=as_json)


def body_of(request: dict[str, Any], dialect: Dialect | None) -> dict[str, Any]:
    """Wrap a request in the body that cache routes take, which also names the request's route."""
    named: Dialect = dialect or ("completions" if "prompt" in request else "chat")
    return {"body": request, "url": ROUTES[named]}


def _asked(what: str, target: TargetFlags, file: str, dialect: Dialect | None) -> dict[str, Any]:
    request = read_request(file)
    url, key = load_target(target)

    async def ask() -> dict[str, Any]:
        async with AdminClient(url, key, timeout_s=_WARM_S) as client:
            if "model" not in request:
                request["model"] = target.served_model or await client.first_model()
            path = f"/v1/cache/{what}"
            answer: dict[str, Any] = await client.call("POST", path, body_of(request, dialect))
            return answer

    return asyncio.run(ask())


def _cached(found: dict[str, Any]) -> str:
    return f"{found['cached_tokens']} of {found['prompt_tokens']} prompt tokens were in the cache"
