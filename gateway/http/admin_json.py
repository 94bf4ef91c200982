"""The reading and writing of JSON in the admin routes.

A body is a pydantic model of limited size. A body with a repeated name or an unknown field is
refused, so that a misspelt `tenant` does not mean "all tenants". A route takes the body as
`Annotated[Model, Depends(sent(Model))]`. FastAPI would read a plain parameter without a limit, and
before it checks the key. If a record stores a field as a msgspec Struct, the body has the same
Struct (`http/struct_field.py`).
"""

import unicodedata
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import Request, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from gateway.errors import BadRequest
from gateway.http.bodies import body, reading
from gateway.http.bodies.names import check_all_names
from gateway.http.struct_field import IN_A_STRUCT

M = TypeVar("M", bound="AdminBody")

MAX_BODY_BYTES = 64 << 10
MAX_DEPTH = 64
_JSON = msgspec.json.Decoder()


class AdminBody(BaseModel):
    """The base of every admin request body."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    def given(self) -> dict[str, Any]:
        """Return the fields that the body contains, in the model's order."""
        names = (name for name in type(self).model_fields if name in self.model_fields_set)
        return {name: getattr(self, name) for name in names}


def left_out() -> Any:
    """Make the default of a field whose absence changes nothing (see `AdminBody.given`)."""
    return Field(default_factory=lambda: None)


def _clean(name: str) -> str:
    """Normalise `name` to NFC; raise ValueError for a name that terminals cannot show."""
    name = unicodedata.normalize("NFC", name)
    if not name.isprintable() or name != name.strip():
        raise PydanticCustomError(
            "name", "a name must be printable and must not begin or end with a blank"
        )
    return name


Name = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_clean)]


def sent(model: type[M], *, max_bytes: int = MAX_BODY_BYTES) -> Callable[[Request], Awaitable[M]]:
    """Make a dependency that reads the request's body as `model`, by `read_body`."""

    async def read(request: Request) -> M:
        return await read_body(request, model, max_bytes=max_bytes)

    return read


async def read_body(request: Request, model: type[M], *, max_bytes: int = MAX_BODY_BYTES) -> M:
    """Read the request's body as `model`. An absent body reads as an empty object.

    Raises BodyTooLarge for more than `max_bytes`, and BadRequest for a body that does not match the
    model. Uses the body memory that `admin_router` leases for every request.
    """
    content = await reading.read_body(request, max_bytes, request.state.body)
    value = body.parse(_JSON, content or b"{}", MAX_DEPTH)
    check_all_names(content or b"{}")
    if not isinstance(value, dict):
        raise BadRequest("the body must be a JSON object")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_input=False)[0]) from None


def _refusal(found: ErrorDetails) -> BadRequest:
    at = _path(found["loc"])
    if found["type"] == IN_A_STRUCT:
        return body.invalid(found["ctx"]["found"], below=at)
    if found["type"] == "missing":
        missing = f"Object missing required field `{at}`"
        return BadRequest(missing, code="missing_required_parameter", param=at)
    if found["type"] == "extra_forbidden":
        return BadRequest(f"Object contains unknown field `{at}`", param=at)
    return BadRequest(f"`{at}`: {found['msg']}" if at else found["msg"], param=at or None)


def _path(places: tuple[int | str, ...]) -> str:
    """Write a field's path, such as `limits.budget.units` or `messages[0].content`."""
    spelled = (f"[{place}]" if isinstance(place, int) else f".{place}" for place in places)
    return "".join(spelled).removeprefix(".")


def json_response(value: Any, status: int = 200) -> Response:
    """Return `value`, a Struct or plain types, as a JSON response."""
    return Response(
        msgspec.json.encode(value),
        status_code=status,
        media_type="application/json",
        headers={"cache-control": "no-store"},
    )
