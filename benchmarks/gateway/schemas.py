"""Whether answers follow their schemas: one answer of a running server for each schema of a set.

    make serve &
    RATOON_DEMO_KEY=... python -m benchmarks.gateway.schemas DIRECTORY [--bounded]

`DIRECTORY` has a JSON schema a file, at any depth. Each is sent as the `response_format` of a chat,
as it is, and its answer is validated by the `jsonschema` library. An answer's values are random:
the temperature is high. Tokens that end a text, a list or an object are made more likely, so that
a schema without bounds has an end, too. With `--bounded` every schema has bounds put on its values
(`bounded_schemas.py`), so that an answer of any model comes to its end.

Prints JSON lines: each answer that is not valid or not at its end, each failure, and the counts.

- `valid`: ended with `stop`, and follows the schema
- `cut`: `max_tokens` was reached first
- `refused`: a 400 whose `param` begins with `response_format`, counted by what it names
- `not_comparable`: the validator itself cannot use the schema
- `invalid` and `failed` (any other status, or a refusal without that `param`) are defects
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import httpx
import typer

from benchmarks.gateway.bounded_schemas import bounded
from benchmarks.record import emit

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

CLOSERS = ('"', '"}', '"]', '",', "}", "]", "}}", "]}")
_KEYS = re.compile(r"Unimplemented keys: \[(.*?)\]")
_OWN = re.compile(r"""'[^']*'|"[^"]*"|/\S*/|\[.*?\]|\d+""")  # what of a message is the schema's own
_REST = re.compile(r": |; | while ")  # what follows is, too


class Outcome(NamedTuple):
    """What came of a schema; `detail` says why, where it is not valid."""

    kind: str
    detail: str = ""
    tokens: int = 0


def causes(message: str) -> list[str]:
    """What a refusal names: keywords, or its words without what is the schema's own."""
    found = _KEYS.search(message)
    if found is not None:
        return [key.strip('" ') for key in found[1].split(",")]
    said = message.partition("cannot be used: ")[2] or message
    return [_OWN.sub("...", _REST.split(said)[0])]


def judged(schema: Any, text: str, finish_reason: str) -> Outcome:
    """What an answer is worth."""
    from jsonschema import exceptions, validators  # slow to load
    from referencing.exceptions import Unresolvable

    if finish_reason != "stop":
        return Outcome("cut")
    validator = validators.validator_for(schema, default=validators.Draft202012Validator)
    try:
        error = exceptions.best_match(validator(schema).iter_errors(json.loads(text)))
    except (Unresolvable, RecursionError, re.error, exceptions.SchemaError) as reason:
        return Outcome("not_comparable", f"{type(reason).__name__}: {reason}"[:200])
    except ValueError as reason:
        return Outcome("invalid", f"no JSON: {reason}: {text[:200]!r}")
    if error is None or _is_a_multiple(error):
        return Outcome("valid")
    return Outcome("invalid", f"{error.json_path}: {error.message[:200]} ({error.validator})")


def _is_a_multiple(error: ValidationError) -> bool:
    """Whether the library misses a multiple, since 2119.6 / 0.1 is no whole number in binary."""
    if error.validator != "multipleOf":
        return False
    return Decimal(str(error.instance)) % Decimal(str(error.validator_value)) == 0


class Runner:
    """Asks one server for answers."""

    def __init__(
        self, client: httpx.AsyncClient, at_once: int, max_tokens: int, bias: float, seed: int
    ) -> None:
        self._client = client
        self._bias = bias
        self._turns = asyncio.Semaphore(at_once)
        self._max_tokens = max_tokens
        self._seed = seed
        self._fields: dict[str, Any] = {}

    async def begin(self) -> None:
        """Learn the model's name and the tokens that end something."""
        models = (await self._client.get("/v1/models")).json()
        model = models["data"][0]["id"]
        bias: dict[str, float] = {}
        for text in CLOSERS:
            body = {"model": model, "prompt": text, "add_special_tokens": False}
            ids = (await self._client.post("/tokenize", json=body)).json()["tokens"]
            bias |= {str(ids[0]): self._bias} if len(ids) == 1 else {}
        self._fields = {"model": model, "logit_bias": bias, "temperature": 1.5}

    async def outcome(self, schema: Any) -> Outcome:
        """Ask for one answer, when it is its turn."""
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        body = {
            **self._fields,
            "messages": [{"role": "user", "content": "Answer."}],
            "max_tokens": self._max_tokens,
            "seed": self._seed,
            "response_format": form,
        }
        async with self._turns:
            answer = await self._client.post("/v1/chat/completions", json=body)
        said = answer.json()
        if answer.status_code == 200:
            choice = said["choices"][0]
            found = await asyncio.to_thread(
                judged, schema, choice["message"]["content"] or "", choice["finish_reason"]
            )
            return found._replace(tokens=said["usage"]["completion_tokens"])
        error = said["error"]
        named = str(error["param"]).startswith("response_format")
        kind = "refused" if answer.status_code == 400 and named else "failed"
        return Outcome(kind, error["message"] if named else f"{answer.status_code} {error}")


def schemas_in(directory: Path) -> dict[str, Any]:
    """The schemas, by the files that they are in; a file that is no JSON object is passed over."""
    found = {}
    for file in sorted(directory.rglob("*.json")):
        try:
            schema = json.loads(file.read_bytes())
        except ValueError:
            continue
        if isinstance(schema, dict):
            found[str(file.relative_to(directory))] = schema
    return found


async def measure(
    url: str, key: str, schemas: dict[str, Any], runner_of: Callable[[httpx.AsyncClient], Runner]
) -> list[Outcome]:
    """The outcome of each schema; tells those that are defects as they come."""
    async with httpx.AsyncClient(
        base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=600
    ) as client:
        runner = runner_of(client)
        await runner.begin()

        async def one(name: str) -> Outcome:
            outcome = await runner.outcome(schemas[name])
            if outcome.kind in ("invalid", "failed", "not_comparable", "cut"):
                emit(outcome.kind, schema=name, why=outcome.detail)
            return outcome

        return await asyncio.gather(*map(one, schemas))


def main(
    directory: Annotated[Path, typer.Argument(exists=True, file_okay=False)],
    url: str = "http://127.0.0.1:8000",
    max_tokens: Annotated[int, typer.Option(min=1)] = 3000,
    at_once: Annotated[int, typer.Option(min=1)] = 16,
    bias: Annotated[float, typer.Option(help="Of tokens that end something.")] = 8.0,
    seed: int = 1,
    bound: Annotated[bool, typer.Option("--bounded", help="Put bounds on all values.")] = False,
) -> None:
    """Ask for an answer of each schema; exits with 1 where one is invalid or failed."""
    schemas = schemas_in(directory)
    if bound:
        schemas = {name: bounded(schema) for name, schema in schemas.items()}
    began = time.perf_counter()
    outcomes = asyncio.run(
        measure(
            url,
            os.environ["RATOON_DEMO_KEY"],
            schemas,
            lambda client: Runner(client, at_once, max_tokens, bias, seed),
        )
    )
    kinds = Counter(outcome.kind for outcome in outcomes)
    refused = [causes(one.detail) for one in outcomes if one.kind == "refused"]
    for cause, count in Counter(each for one in refused for each in set(one)).most_common():
        emit("refused", names=cause, schemas=count)
    emit(
        "schemas",
        asked=len(schemas),
        seconds=time.perf_counter() - began,
        tokens=sum(outcome.tokens for outcome in outcomes),
        **kinds,
    )
    if kinds["invalid"] or kinds["failed"]:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
