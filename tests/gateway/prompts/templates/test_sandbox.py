"""Limits on a template's work, here so small that jinja2 could do all the work that they refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.prompts.templates import meter
from gateway.prompts.templates.compiled import CannotRender, CompiledTemplate

CHARS, VALUES = 2000, 100
TOO_MUCH = "does not come to an end"
LINES = "a\n" * 40


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "MOST_CHARS", CHARS)
    monkeypatch.setattr(meter, "MOST_VALUES", VALUES)
    monkeypatch.setattr(meter, "_MOST_WRITTEN", 2 * CHARS)


def render(source: str, **given: Any) -> str:
    return CompiledTemplate(source, {}).render({"text": "ab" * 40, "lines": LINES, **given})


@pytest.mark.parametrize(
    ("source", "most", "over"),
    [
        ("{{ 'a'.center(N) }}", CHARS, CHARS + 1),
        ("{{ 'a'.ljust(N) }}", CHARS, CHARS + 1),
        ("{{ '1'.zfill(N) }}", CHARS, CHARS + 1),
        ("{{ 'a' | center(N) }}", CHARS, CHARS + 1),
        ("{{ text | replace('a', 'b' * N) }}", 40, 60),
        ("{{ text.replace('a', 'b' * N) }}", 40, 60),
        ("{{ ('b' * N).join(text) }}", 20, 30),
        ("{{ text | join('b' * N) }}", 20, 30),
        ("{{ text | map('upper') | join('b' * N) }}", 20, 30),
        ("{{ lines | indent(N) }}", 40, 60),
        ("{{ lines | indent('b' * N) }}", 40, 60),
        ("{{ '{:>N}'.format('a') }}", 900, 1000),
        ("{{ '%Nd' % 1 }}", 900, 1000),
        ("{{ '%Nd' | format(1) }}", 900, 1000),
        ("{{ ('{0}' * N).format('a') }}", 1, 3),
        ("{{ [1, 2] | tojson(indent=N) | length }}", 64, 65),
        ("{{ ([0] * 30) | tojson(indent=N) | length }}", 4, 60),
        ("{{ ([1] * N) | length }}", VALUES, VALUES + 1),
        ("{{ ((1,) * N) | length }}", VALUES, VALUES + 1),
        ("{{ ('a' * N) | list | length }}", VALUES, VALUES + 1),
        ("{{ ('a ' * N).split() | length }}", VALUES, VALUES + 1),
        ("{{ ('a\n' * N).splitlines() | length }}", VALUES, VALUES + 1),
        ("{{ ('a.' * N).split('.') | length }}", VALUES, VALUES + 1),
        ("{{ (([[1] * 9] * N) | string) | length > 1 }}", 5, 20),
        ("{{ ([[1] * 9] * N) ~ '' }}", 5, 20),
        ("{{ [[1] * 9] * N }}", 5, 20),
        ("{{ [[1] * 9] * N == [text] }}", 5, 20),
        ("{{ ([[1] * 9] * N) | sort | length }}", 5, 20),
        ("{{ (2 ** N) > 1 }}", 9000, 70_000),
        ("{{ (2 ** 9000) * (2 ** N) > 1 }}", 9000, 60_000),
        ("{{ 1.5 | round(N) }}", 2, 1000),
        ("{{ [1] | sum(start=N) }}", 0, "[]"),
        ("{{ strftime_now('%Nd') }}", 10, 100),
        ("{% for a in range(N) %}" + "x" * 100 + "{% endfor %}", 40, 41),
        ("{% for a in range(N) %}{{ text }}{% endfor %}", 50, 51),
        (
            "{% set x = [] %}{% for a in range(N) %}{{ x.append(a) }}{% endfor %}",
            VALUES,
            VALUES + 1,
        ),
    ],
)
def test_what_grows_is_bounded_before_it_has_grown(source: str, most: Any, over: Any) -> None:
    assert render(source.replace("N", str(most)))
    with pytest.raises(CannotRender, match=TOO_MUCH):
        render(source.replace("N", str(over)))


@pytest.mark.parametrize("times", [3, 20])
def test_what_stands_in_itself_many_times_counts_each_time(times: int) -> None:
    source = (
        "{% set n = namespace(x=[1]) %}"
        "{% for a in range(TIMES) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x END }}"
    ).replace("TIMES", str(times))
    for end in ("", "| tojson", "| string", "== n.x", "== n.x == 1", "in [n.x]", "is eq(n.x)"):
        if times == 3:
            assert render(source.replace("END", end))
            continue
        with pytest.raises(CannotRender, match=TOO_MUCH):
            render(source.replace("END", end))


@pytest.mark.parametrize(
    "source",
    [
        "{{ text.translate({97: 'b'}) }}",
        "{{ text.expandtabs(3) }}",
        "{{ text.encode() }}",
        "{{ dict.fromkeys([1]) }}",
        "{{ dict.update(message, x=1) }}",
        "{{ message.update(x=1) }}",
        "{{ lipsum() }}",
        "{{ namespace(x=1) }}",
    ],
)
def test_what_no_published_template_calls_cannot_be_called(source: str) -> None:
    with pytest.raises(CannotRender):
        render(source, message={"role": "user"})


OWN = "{% set n = namespace(x=[]) %}{% for m in messages %}{% set _ = n.x.append(m) %}{% endfor %}"


def test_a_template_changes_only_lists_that_it_began() -> None:
    messages = ["a", "b"]
    template = CompiledTemplate(OWN + "{{ n.x.pop(0) }}{{ n.x }}", {})
    assert [template.render({"messages": messages}) for _ in range(2)] == 2 * ["a['b']"]
    for source in ("{{ messages.append(1) }}", "{{ messages.pop() }}", "{{ n.x.clear() }}"):
        with pytest.raises(CannotRender):
            CompiledTemplate(OWN + source, {}).render({"messages": messages})
    assert messages == ["a", "b"]


@pytest.mark.parametrize("name", ["batch(2)", "slice(2)", "wordwrap(2)", "urlize", "pprint"])
def test_a_filter_that_none_has_is_not_called(name: str) -> None:
    template = CompiledTemplate(f"{{% if go %}}{{{{ text | {name} }}}}{{% endif %}}", {})
    assert template.render({"go": False, "text": "a"}) == ""
    with pytest.raises(CannotRender):
        template.render({"go": True, "text": "a"})


def test_nothing_is_computed_while_a_template_is_compiled() -> None:
    template = CompiledTemplate(
        f"{{% if go %}}{{{{ 'a' | center({CHARS + 1}) }}}}{{% endif %}}", {}
    )
    assert not template.render({"go": False})
    with pytest.raises(CannotRender, match=TOO_MUCH):
        template.render({"go": True})


def test_memory_that_is_not_there_ends_a_rendering() -> None:
    class Full(dict[str, str]):
        def get(self, *_: object) -> str:
            raise MemoryError

    assert render("{{ m.get('a') }}", m={"a": "b"}) == "b"
    with pytest.raises(CannotRender, match=TOO_MUCH):
        render("{{ m.get('a') }}", m=Full())


def test_the_clock_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    for source in ("{{ text.upper() }}", "{{ text | upper }}", "{{ [text] is eq([text]) }}"):
        template = CompiledTemplate(source, {})
        assert template.render({"text": "a"})
        with monkeypatch.context() as patched:
            patched.setattr(meter, "_MOST_SECONDS", -1.0)
            with pytest.raises(CannotRender, match=TOO_MUCH):
                template.render({"text": "a"})


def test_the_sandbox_gives_what_jinja_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "MOST_CHARS", 1 << 16)
    tools = [{"name": "f", "é": [1, None, True, 2.5]}]
    text = render("{{ tools | tojson(indent=2) }}", tools=tools)
    assert text == json.dumps(tools, indent=2, ensure_ascii=False)
    for source, made in {
        "{{ 'a-b'.split('-') | join('+') | upper }}": "A+B",
        "{{ '{} {name:>3}'.format('a', name='b') }}": "a   b",
        "{{ '%s %03d' % ('a', 7) }}": "a 007",
        "{{ '%(x)s' | format(x=1) }}": "1",
        "{{ ['b', 'a'] | sort | list }}": "['a', 'b']",
        "{{ [{'r': 'a'}, {'r': 'b'}] | selectattr('r', 'equalto', 'b') | list | length }}": "1",
        "{{ {'b': 1, 'a': 2} | dictsort | map('first') | join }}": "ab",
        "{{ 'a' in ['a'] and ('a', 1) == ('a', 1) }}": "True",
        "{{ 5 % 3 }} {{ -2 ** 2 }} {{ [1] + [2] }} {{ (1, 2)[1] }}": "2 4 [1, 2] 2",
        "{% for a, b in {'x': 1}.items() %}{{ a ~ b }}{% endfor %}": "x1",
        "{{ missing }}{{ none }}{{ 1.5 }}": "None1.5",
    }.items():
        assert render(source) == made
