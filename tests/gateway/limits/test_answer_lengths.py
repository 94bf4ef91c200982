"""The tokens reserved for answers without a given maximum adapt to the lengths of the tenant's
answers.
"""

from __future__ import annotations

from gateway.limits.answer_lengths import START, AnswerLengths


def of(*tokens: int) -> int:
    lengths = AnswerLengths()
    for one in tokens:
        lengths.add("tn_a", one)
    return lengths.expected("tn_a")


def test_a_tenant_of_which_nothing_is_known_begins_with_the_start_value() -> None:
    assert of() == START


def test_one_long_answer_changes_nothing_and_two_do() -> None:
    assert of(4000) == START
    assert of(4000, 3000) == 3000


def test_short_answers_lower_it_once_there_are_enough() -> None:
    assert of(*[20] * 30) == START
    assert of(*[20] * 31) == 20
    assert of(*[20] * 31, 900) == 20


def test_long_answers_of_long_ago_are_forgotten() -> None:
    assert of(*[4000] * 5, *[20] * 30) == 4000
    assert of(*[4000] * 5, *[20] * 32) == 20


def test_one_tenants_answers_say_nothing_of_anothers() -> None:
    lengths = AnswerLengths()
    for _ in range(32):
        lengths.add("tn_a", 4000)
    assert (lengths.expected("tn_a"), lengths.expected("tn_b")) == (4000, START)


def test_only_the_tenants_that_were_answered_last_are_remembered() -> None:
    lengths = AnswerLengths(max_tenants=2)
    for tenant in ("tn_a", "tn_b", "tn_a", "tn_b", "tn_a", "tn_c"):
        lengths.add(tenant, 4000)
        lengths.add(tenant, 4000)
    assert [lengths.expected(tenant) for tenant in ("tn_a", "tn_b", "tn_c")] == [4000, START, 4000]
