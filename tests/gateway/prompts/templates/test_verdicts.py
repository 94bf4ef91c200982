"""A verdict on a template is never reused for another tenant, so timing reveals nothing."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gateway.processes.fair_executor import at_once
from gateway.prompts.chats.template_variables import PRESERVE_THINKING, Scalar
from gateway.prompts.generation_request import ChatPrompt
from gateway.prompts.pipeline.prompt_tokens import PromptTokens
from gateway.prompts.pipeline.tokenised import PromptContext
from gateway.prompts.templates.verdicts import Verdicts
from prefix_cache.namespace import Namespace
from tests.gateway.prompts.templates.chats import messages
from tests.gateway.support.families import FAMILIES
from tests.gateway.support.manual_clock import ManualClock

CHAT = "u ar u"


class Judging:
    """A tokenisation of chats by a published template, which counts the newly found verdicts."""

    def __init__(self) -> None:
        family = FAMILIES["qwen3"]()
        self.verdicts = Verdicts(ManualClock())
        self._tokens = PromptTokens(family.ours, family.template, None, None, self.verdicts)

    def new(
        self,
        tenant_id: str,
        namespace: bytes = b"own",
        variables: Mapping[str, Scalar] | None = None,
    ) -> int:
        asked = PromptContext(tenant_id, Namespace(namespace), 10_000, 1, 1 << 20, ())
        before = self.verdicts.size
        chat = ChatPrompt(tuple(messages(CHAT)), variables=variables)
        at_once(self._tokens.tokenised(chat, asked, add_special_tokens=False))
        return (self.verdicts.size - before) // 1024


@pytest.fixture
def judging() -> Judging:
    return Judging()


def test_each_tenant_and_each_namespace_of_it_has_its_own(judging: Judging) -> None:
    assert judging.new("ada") == 1
    assert judging.new("ada") == 0, "the control: it is kept"
    assert judging.new("bob") == 1
    assert judging.new("ada", b"salted") == 1


def test_variables_of_other_values_are_judged_anew(judging: Judging) -> None:
    values: tuple[Scalar, ...] = ("a", 1, True, 1.0, "1")
    assert [judging.new("ada", variables={"project": one}) for one in values] == [1] * 5
    assert [judging.new("bob", variables={"project": one}) for one in values] == [1] * 5
    assert [judging.new("ada", variables={"project": one}) for one in values] == [0] * 5


def test_whether_thoughts_are_kept_is_a_tenants_own_verdict_too(judging: Judging) -> None:
    template, found = FAMILIES["qwen3"]().template, []
    for tenant_id in ("ada", "ada", "bob"):
        judged = judging.verdicts.of(tenant_id, b"own")
        before = judging.verdicts.size
        assert not template.keeps_thoughts({PRESERVE_THINKING: True}, judged)
        found.append(judging.verdicts.size > before)
    assert found == [True, False, True]


def test_who_has_many_loses_its_own_and_no_others(judging: Judging) -> None:
    judging.new("bob")
    for number in range(300):
        judging.new("ada", variables={"project": number})
    assert judging.new("bob") == 0
    assert judging.new("ada", variables={"project": 299}) == 0
    judging.new("ada", variables={"project": 0})
    assert judging.verdicts.size < 300 * 1024, "the first ones are gone"
