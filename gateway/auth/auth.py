"""FastAPI dependencies that authenticate a request: as a tenant, or as the operator.

A credential is `Authorization: Bearer KEY`, `x-api-key: KEY`, or Azure's and Google's `api-key:
KEY` and `x-goog-api-key: KEY`. A request with two different credentials is refused. Otherwise the
order in which code reads the headers would decide which credential counts. A browser that is signed
in to the operator's page sends a cookie in place of the key.

The operator's key is valid only on the admin routes, and gets 401 on tenants' routes. A tenant's
key on an admin route gets 401 too, not 403. The answer must not reveal whether a stolen string is
anybody's key. On a tenant's route the operator may add `X-Ratoon-Operator: KEY` to a tenant's key.
This allows requests that only the operator may make.

A route is guarded if it depends on one of these classes, whatever its path. FastAPI also reads this
dependency to describe which key the route takes.
"""
# `from __future__ import annotations` would break FastAPI: it reads the annotations of the
# authenticators' __call__, and resolves strings only on functions.

import hmac
from typing import Protocol

from fastapi import Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from msgspec.structs import replace

from gateway.auth.keyring import REFUSED, Keyring, key_digest
from gateway.auth.running_requests import RunningRequests
from gateway.caller import Caller
from gateway.errors import Unauthenticated
from gateway.http.body_memory import OPERATOR
from gateway.http.request_head import route_of, running_request, tell_owner

OPERATOR_HEADER = "x-ratoon-operator"
_PLAIN_HEADERS = ("x-api-key", "api-key", "x-goog-api-key")
_KEY_HEADERS = (*_PLAIN_HEADERS, "authorization")


class CookieSessions(Protocol):
    """The sessions of a page's signed-in browsers (`gateway.page.sessions`)."""

    def is_given(self, request: Request) -> bool:
        """Return whether the request has a session cookie, valid or not."""
        ...

    def of(self, request: Request) -> object:
        """Raise Unauthenticated or Forbidden unless the session cookie admits the request."""
        ...


class Authenticator(SecurityBase):
    """A dependency that authenticates a request and returns its `Caller`."""

    scheme_name = "tenant"
    model = HTTPBearer(description="A tenant's key.")

    def __init__(
        self,
        keyring: Keyring,
        operator: "AdminAuthenticator | None" = None,
        running: RunningRequests | None = None,
    ) -> None:
        """Authenticate tenants. Without `operator`, no request has the operator's rights.

        `running` lists each authenticated request until the request is over.
        """
        self._keyring = keyring
        self._operator = operator
        self._running = running

    async def __call__(self, request: Request) -> Caller:
        key = self._keyring.read(credential(request))
        caller = await self._keyring.check(key.digest, may_be_made_up=not key.is_marked)
        tell_owner(request.scope, caller.tenant_id)
        if self._running is not None:
            running = running_request(request.scope)
            running.tenant_id, running.key_id = caller.tenant_id, caller.key_id
            running.group_id = caller.group_id
            running.route = route_of(request.scope)
            self._running.add(key.digest, running)
        is_operator = self._operator is not None and self._operator.vouches_for(request)
        return replace(caller, is_operator=True) if is_operator else caller


class AdminAuthenticator(SecurityBase):
    """A dependency that admits only the operator."""

    scheme_name = "operator"
    model = HTTPBearer(description="The operator's key: `RATOON_ADMIN_KEY`.")

    def __init__(
        self, pepper: bytes, admin_digest: bytes, sessions: "CookieSessions | None" = None
    ) -> None:
        self._pepper = pepper
        self._admin_digest = admin_digest
        self._sessions = sessions

    async def __call__(self, request: Request) -> None:
        """Raise Unauthenticated unless the request has the admin key, or a session's cookie.

        Raises Forbidden for a change with a cookie but without the CSRF token. If a request has a
        key and a cookie, the key counts.
        """
        sessions = self._sessions
        if sessions is not None and sessions.is_given(request) and not _has_key(request):
            sessions.of(request)
        else:
            self.check(credential(request))
        tell_owner(request.scope, OPERATOR)

    def vouches_for(self, request: Request) -> bool:
        """Return whether a request also has the operator's key.

        Raises Unauthenticated for a wrong operator's key.
        """
        given = request.headers.getlist(OPERATOR_HEADER)
        if not given:
            return False
        if len(given) > 1:
            raise Unauthenticated(REFUSED)
        self.check(given[0])
        return True

    def check(self, key: str) -> None:
        """Raise Unauthenticated unless `key` is the operator's key."""
        if not hmac.compare_digest(key_digest(self._pepper, key), self._admin_digest):
            raise Unauthenticated(REFUSED)


class MetricsAuthenticator(SecurityBase):
    """A dependency that admits readers of `/metrics`: the operator, or the metrics key."""

    scheme_name = AdminAuthenticator.scheme_name
    model = AdminAuthenticator.model

    def __init__(self, operator: AdminAuthenticator, pepper: bytes, metrics_digest: bytes) -> None:
        self._operator = operator
        self._pepper = pepper
        self._digest = metrics_digest

    async def __call__(self, request: Request) -> None:
        if _has_key(request):
            digest = key_digest(self._pepper, credential(request))
            if hmac.compare_digest(digest, self._digest):
                tell_owner(request.scope, OPERATOR)
                return
        await self._operator(request)


def credential(request: Request) -> str:
    """Read the request's credential.

    Raises Unauthenticated if the request has no credential, or two different credentials.
    """
    given = {key for name in _PLAIN_HEADERS for key in request.headers.getlist(name)}
    given.update(_bearer(value) for value in request.headers.getlist("authorization"))
    if len(given) != 1:
        raise Unauthenticated(REFUSED)
    return given.pop()


def _has_key(request: Request) -> bool:
    return any(header in request.headers for header in _KEY_HEADERS)


def _bearer(value: str) -> str:
    scheme, _, key = value.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""
