"""The paths of Azure's clients that name a model: `/openai/deployments/{model}/chat/completions`.

As on Azure, the model in the path overrides the model in the body.
"""

import re

from fastapi import Request

from gateway.http.error_dialect import path_sent

# Azure has no other routes below a deployment. Its other paths begin with `/openai`.
BEGINNING = (
    r"/openai/deployments/([^/]+)(?=/(?:chat/completions|completions|embeddings|models)(?:/|$))"
)
_BEGINNING = re.compile(BEGINNING)


def model_of(request: Request, in_body: str | None = None) -> str | None:
    """Return the model in a request's path, or else the model `in_body`."""
    found = _BEGINNING.match(path_sent(request.scope))
    return in_body if found is None else found[1]
