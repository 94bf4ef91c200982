"""The sign-in to a page with a key, which comes as JSON from the page itself within seconds.

A sign-in is read before its sender is known. It therefore takes no body memory of the operator, of
tenants or of other sign-ins. A sign-in may only be as long as a key needs, and must come within
seconds.
"""

import asyncio
from dataclasses import dataclass
from typing import Annotated

from fastapi import Request
from pydantic import Field

from gateway.config import Bounds
from gateway.errors import RequestTimeout, UnsupportedType
from gateway.http.admin_json import AdminBody, read_body
from gateway.http.body_memory import BodyMemory
from gateway.limits.refusal_throttle import RefusalThrottle
from gateway.page.files import PageFiles
from gateway.page.sessions import check_origin

MAX_BYTES = 1 << 10  # maximum bytes of a body; a key has 256 characters at most
DEADLINE_S = 5.0  # maximum seconds from the end of the head to the end of the body
_STRANGER = "sign-in"  # owner of the bodies of sign-ins; all wrong keys are throttled together
_ONE = Bounds(max_tenant_body_bytes=MAX_BYTES, max_all_body_bytes=MAX_BYTES)


class SignIn(AdminBody):
    """Body of a sign-in."""

    key: Annotated[str, Field(min_length=1, max_length=512)]


@dataclass(frozen=True, slots=True)
class SignInParts:
    """The parts of the server that both pages need to sign browsers in."""

    files: PageFiles
    throttle: RefusalThrottle
    deadline_s: float = DEADLINE_S

    async def key(self, request: Request) -> str:
        """Read the key in a sign-in's body.

        Raises Forbidden for a sign-in from another site, which could sign a browser in as somebody
        else. Raises UnsupportedType for other types than JSON, RequestTimeout, BodyTooLarge or
        BadRequest.
        """
        check_origin(request)
        _check_json(request)
        with BodyMemory(_ONE).lease(_STRANGER) as lease:
            request.state.body = lease
            try:
                async with asyncio.timeout(self.deadline_s):
                    return (await read_body(request, SignIn, max_bytes=MAX_BYTES)).key
            except TimeoutError:
                raise RequestTimeout(
                    f"a sign-in has to come whole within {self.deadline_s:g} seconds"
                ) from None

    async def refuse(self) -> None:
        """Wait before a refusal if many keys were wrong lately."""
        await self.throttle.wait(_STRANGER)


def _check_json(request: Request) -> None:
    """Require JSON, which other sites' forms, and scripts without CORS, cannot send."""
    given = request.headers.get("content-type", "")
    if given.partition(";")[0].strip().lower() != "application/json":
        raise UnsupportedType("a sign-in is JSON: send Content-Type: application/json")
