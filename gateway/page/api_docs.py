"""`/docs`: the API's description by Swagger UI, to read and to try, from the gateway's files.

The page reads the description from `/openapi.json`. A visitor who tries a route enters a key, which
stays in the visitor's browser tab.
"""

from fastapi import APIRouter, Request, Response

from gateway.page.files import PageFiles


def api_docs_router(files: PageFiles) -> APIRouter:
    """Serve `/docs` and all paths below it without a key, like `/openapi.json`."""
    router = APIRouter(include_in_schema=False)

    @router.get("/docs")
    async def page(request: Request) -> Response:
        return files.answer("index.html", request)

    @router.get("/docs/{file:path}")
    async def file(file: str, request: Request) -> Response:
        return files.answer(file, request)

    return router
