"""Imports without the parts that serving does not use. The controls are plain imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOADS = """
import sys
{spare}
import fastapi.openapi.models as described
from fastapi import FastAPI
from fastapi.testclient import TestClient

app = FastAPI()
app.get("/items")(lambda number: number)
is_whole = described.OpenAPI.__pydantic_complete__
answered = TestClient(app).get("/openapi.json").json()
print(sys.modules.get("pydantic.v1") is not None, is_whole, sorted(answered["paths"]))
"""
SPARE = "from gateway.startup.lean_imports import spare_unused_imports; spare_unused_imports()"


@pytest.mark.parametrize(("spare", "is_there"), [(SPARE, False), ("", True)])
def test_models_of_openapi_are_built_when_they_are_used(spare: str, is_there: bool) -> None:
    run = [sys.executable, "-c", LOADS.format(spare=spare)]
    told = subprocess.run(run, capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.split("\n")[0] == f"{is_there} {is_there} ['/items']"


IMPORTS = """
import sys
{spare}
import gateway.startup.process
watched = ("click", "cryptography", "uvicorn.supervisors")
print([name for name in watched if name in sys.modules])
"""


@pytest.mark.parametrize(
    ("spare", "there"), [(SPARE, "[]"), ("", "['click', 'uvicorn.supervisors']")]
)
def test_a_gateway_does_not_import_uvicorn_s_command_line(spare: str, there: str) -> None:
    run = [sys.executable, "-c", IMPORTS.format(spare=spare)]
    told = subprocess.run(run, capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.strip() == there
