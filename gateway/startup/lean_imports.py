"""The saving of memory that importing FastAPI takes for models and modules that are not used.

FastAPI describes OpenAPI documents by pydantic models, whose validators take 5 MiB. The validators
are built when `/openapi.json` is first asked for. That answer is made in a thread and takes 0.1 s
longer. FastAPI also imports pydantic's first version, only to recognise its models.
"""

import sys

import pydantic


def spare_unused_models() -> None:
    """Let pydantic build models when they are used, and keep `pydantic.v1` out.

    Call before FastAPI is imported.
    """
    pydantic.BaseModel.model_config["defer_build"] = True
    sys.modules["pydantic.v1"] = None  # type: ignore[assignment]  # importing it now fails
