"""`/tokenize` reads large chats off the event loop, where they delay no other request."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import msgspec
import pytest

from engine.link.messages import Welcome
from gateway.caller import Caller
from gateway.config import Bounds
from gateway.dialects.openai.requests.schema import TokenizeRequest
from gateway.dialects.openai.tokenize import tokenize
from gateway.errors import BadRequest
from gateway.processes.fair_executor import Steps, at_once
from gateway.prompts.generation_request import ChatPrompt
from gateway.prompts.pipeline.admission import Admission
from tests.doubles.engine.fake_engine import WELCOME

T = TypeVar("T")
ADA = Caller("tn_ada", "key_ada")


class NotingAdmission:
    """An admission that works at once, and records the sizes and prompts to tokenise."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.prompts: list[Any] = []

    async def off_the_loop(self, caller: Caller, work: Steps[T], size: int) -> T:
        del caller
        self.sizes.append(size)
        return at_once(work)

    async def engine(self) -> Welcome:
        return WELCOME

    async def tokenize(self, prompt: Any, *_: object, **__: object) -> bytes:
        assert self.sizes, "the prompt was made elsewhere"
        self.prompts.append(prompt)
        return b"{}"


async def asked(admission: NotingAdmission, body: dict[str, Any], size: int) -> bytes:
    wire = msgspec.convert({"model": "m", **body}, TokenizeRequest)
    return await tokenize(wire, ADA, cast("Admission", admission), Bounds(), size)


async def test_a_chat_is_read_by_the_threads_that_tenants_share() -> None:
    admission = NotingAdmission()
    await asked(admission, {"messages": [{"role": "user", "content": "hi"}]}, 1234)
    assert admission.sizes == [1234]
    assert [type(one) for one in admission.prompts] == [ChatPrompt]


async def test_what_cannot_be_read_is_refused_there() -> None:
    admission = NotingAdmission()
    with pytest.raises(BadRequest, match="either"):
        await asked(admission, {}, 7)
    assert (admission.sizes, admission.prompts) == ([7], [])
