from __future__ import annotations

import pytest

from gateway.prompts.templates.compiled import CannotRender, CompiledTemplate

MESSAGES = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
DOES_NOT_END = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) if a < 0 %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}",
    "{% set n = namespace(s='ab') %}{% for a in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "{% set n = namespace(s='ab') %}{% for a in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "{{ ('a' * 1000000000) | length }}",
    "{{ ([1] * 1000000000) | length }}",
    "{{ 10 ** (10 ** 9) }}",
]


@pytest.mark.parametrize("source", DOES_NOT_END)
def test_a_template_that_would_not_end_is_ended(source: str) -> None:
    with pytest.raises(CannotRender, match="does not come to an end"):
        CompiledTemplate(source, {}, most_steps=100_000).render({"messages": MESSAGES})


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for m in messages %}{{ loop.index ~ m.content + '.' }}{% endfor %}", "1a.2b."),
        (
            "{% for m in messages %}{{ loop.last }} {{ loop.length }},{% endfor %}",
            "False 2,True 2,",
        ),
        ("{% for m in messages if m.content == 'b' %}{{ loop.length }}{% endfor %}", "1"),
        ("{% for m in [] %}{{ m }}{% else %}none{% endfor %}", "none"),
        ("{% for a in [1, [2]] recursive %}{{ a if a is number else loop(a) }}{% endfor %}", "12"),
        ("{% macro f(n) %}{{ n }}{{ f(n - 1) if n }}{% endmacro %}{{ f(3) }}", "3210"),
        ("{{ 2 * 3.5 + 1 }} {{ 2 ** 10 }} {{ '-' * 3 }} {{ [1] + [2] }}", "8.0 1024 --- [1, 2]"),
        ("{{ messages | map(attribute='content') | tojson }}", '["a", "b"]'),
        ("{% generation %}{% for m in messages %}x{% endfor %}{% endgeneration %}", "xx"),
    ],
)
def test_one_that_ends_is_rendered_as_jinja_does(source: str, text: str) -> None:
    assert CompiledTemplate(source, {}, most_steps=9).render({"messages": MESSAGES}) == text


def test_the_bound_is_of_a_rendering() -> None:
    template = CompiledTemplate("{% for m in messages %}{% endfor %}", {}, most_steps=2)
    for _ in range(3):
        assert not template.render({"messages": MESSAGES})
    with pytest.raises(CannotRender):
        template.render({"messages": [*MESSAGES, *MESSAGES]})


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ raise_exception('take turns') }}", "take turns"),
        ("{{ messages[9].content.x }}", None),
        ("{{ 'a' | dictsort }}", None),
        ("{{ raise_exception | tojson }}", None),
        ("{{ strftime_now(1) }}", None),
    ],
)
def test_a_template_that_breaks(source: str, said: str | None) -> None:
    with pytest.raises(CannotRender) as refused:
        CompiledTemplate(source, {}).render({"messages": MESSAGES})
    assert refused.value.said == said
