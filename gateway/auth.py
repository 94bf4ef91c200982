"""FastAPI dependencies that authenticate a request: as a tenant, or as the operator.

A credential is `Authorization: Bearer KEY` or `x-api-key: KEY`. A request with two different
ones is refused: which of them counts must not depend on who reads first.

The operator's key is valid on the admin routes only; on tenants' routes it gets 401. A tenant's
key on an admin route gets 401 too, not 403: the answer must not reveal whether a stolen string
is anybody's key.

Knows: headers. Does not know: paths; a route is guarded because it depends on one of these.
"""
# No `from __future__ import annotations`: FastAPI reads the annotations of these instances'
# __call__ and cannot resolve strings on an object that is not a function.

import hmac

from fastapi import Request

from gateway.caller import Caller
from gateway.errors import Unauthenticated
from gateway.keyring import REFUSED, Keyring, key_digest


class Authenticator:
    """A dependency that gives the `Caller`."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    async def __call__(self, request: Request) -> Caller:
        """The tenant that calls; raises Unauthenticated or Forbidden."""
        return await self._keyring.identify(credential(request))


class AdminAuthenticator:
    """A dependency that lets only the operator in."""

    def __init__(self, pepper: bytes, admin_digest: bytes) -> None:
        self._pepper = pepper
        self._admin_digest = admin_digest

    async def __call__(self, request: Request) -> None:
        """Raises Unauthenticated unless the request bears the admin key."""
        given = key_digest(self._pepper, credential(request))
        if not hmac.compare_digest(given, self._admin_digest):
            raise Unauthenticated(REFUSED)


def credential(request: Request) -> str:
    """The request's credential; Unauthenticated if there is none or more than one."""
    given = {*request.headers.getlist("x-api-key")}
    given.update(_bearer(value) for value in request.headers.getlist("authorization"))
    if len(given) != 1:
        raise Unauthenticated(REFUSED)
    return given.pop()


def _bearer(value: str) -> str:
    scheme, _, key = value.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""
