"""Imports of FastAPI and uvicorn without the parts that serving does not use.

FastAPI describes OpenAPI documents by pydantic models, whose validators take 5 MiB. Here they are
built when `/openapi.json` is first asked for. That answer is made in a thread and takes 0.1 s more.
FastAPI also imports `pydantic.v1`, only to recognise its models. uvicorn imports its
command line, whose modules take 1.5 MiB.
"""

import sys
from types import ModuleType

import pydantic

_COMMAND_LINE = "uvicorn.main"


def spare_unused_imports() -> None:
    """Let pydantic build models when they are used. Keep `pydantic.v1` and `uvicorn.main` out.

    Call before FastAPI and uvicorn are imported.
    """
    pydantic.BaseModel.model_config["defer_build"] = True
    sys.modules["pydantic.v1"] = None  # type: ignore[assignment]  # importing it now fails
    sys.modules[_COMMAND_LINE] = _without_command_line()


def _without_command_line() -> ModuleType:
    """Make a stand-in for `uvicorn.main` with the names that uvicorn's package imports from it."""
    stand_in = ModuleType(_COMMAND_LINE)
    stand_in.__dict__.update(Server=None, main=None, run=None)
    return stand_in
