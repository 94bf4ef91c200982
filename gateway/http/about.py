"""The page at `/`, for visitors without a key, and the version at `/version`."""

import msgspec
from fastapi import APIRouter, Response

from gateway.http.openapi import described

_PAGE = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>Ratoon</title>
<h1>Ratoon</h1>
<p>An API for a language model, which computes the beginning of a prompt once and reuses it.</p>
<p>You need a key, in <code>Authorization: Bearer KEY</code>, <code>x-api-key</code>,
<code>x-goog-api-key</code> or <code>api-key</code>. Clients of OpenAI take this address with
<code>/v1</code> as their base URL, clients of Anthropic and Google take it as it is.</p>
<ul>
<li><code>POST /v1/chat/completions</code>, <code>/v1/completions</code>,
<code>/v1/responses</code>, <code>/v1/messages</code>,
<code>/v1beta/models/MODEL:generateContent</code></li>
<li><code>GET /v1/models</code>: the model, and how long its context is</li>
<li><code>GET /v1/usage</code>: what your tenant has used</li>
<li><a href="docs">/docs</a>: every route and field; <a href="openapi.json">/openapi.json</a>: the
same for programs</li>
<li><a href="usage">/usage</a>: your tenant's page; <a href="admin/ui">/admin/ui</a>: the
operator's</li>
<li><a href="health">/health</a>: whether requests are served</li>
</ul>
</html>
"""
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "max-age=3600",
}


class VersionReply(msgspec.Struct, frozen=True):
    """Answer of `/version`."""

    version: str


def about_router(version: str) -> APIRouter:
    """Serve `/` and `/version` without a key. These answers are the same for every visitor."""
    router = APIRouter()
    told = msgspec.json.encode(VersionReply(version))

    html = described(None, texts=["text/html"])

    @router.get("/", response_class=Response, openapi_extra=html)
    async def page() -> Response:
        return Response(_PAGE, media_type="text/html; charset=utf-8", headers=_PAGE_HEADERS)

    @router.get("/version", openapi_extra=described(VersionReply))
    async def show_version() -> Response:
        return Response(told, media_type="application/json")

    return router
