"""A compiled chat template, which runs in jinja2's immutable sandbox and within a bound of work.

The template is code by the maker of the model, given what `transformers` gives it. It counts its
own steps: each turn of a loop and each call of a macro is one. So one that does not end is refused
like one that raises.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from gateway.prompts.tokenizer import ModelFileBroken

_MOST_STEPS = 1 << 23  # a template that looks through 4,096 messages for each of them takes as many
_MOST_SECONDS = 5.0  # of processor time
_MOST_CHARS = 1 << 26  # of a text that the template makes
_LOOKS = 1 << 10  # steps from one look at the clock to the next
_LEAST_BITS = 1 << 10  # of a power, for each in its exponent
_METER, _STEP, _BOUNDED = "the meter", "a step", "bounded"  # no names that a template can spell


class TemplateBroken(ModelFileBroken):
    """The model's chat template does not compile: the model cannot be served as it is."""


# What goes wrong within a template; the messages of these may quote the prompt.
_BREAKS = (
    jinja2.TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


class CannotRender(Exception):
    """A template did not come to its end. `said`: the reason it gave itself, if it gave one."""

    def __init__(self, said: str | None = None) -> None:
        super().__init__(said or "")
        self.said = said


class CompiledTemplate:
    """One template. Immutable; for any thread."""

    def __init__(
        self, source: str, tokens: Mapping[str, str], most_steps: int = _MOST_STEPS
    ) -> None:
        """`tokens`: special tokens by name. Raises TemplateBroken."""
        self.source = source
        self._template = _compiled(source)
        self._tokens = dict(tokens)
        self._most_steps = most_steps

    def render(self, given: Mapping[str, Any]) -> str:
        """The text; CannotRender where the template raises, or takes too long.

        `given` cannot replace special tokens.
        """
        meter = _Meter(self._most_steps)
        try:
            text = self._template.render({**given, **self._tokens, _METER: meter})
        except _Refused as refused:
            raise CannotRender(str(refused)) from None
        except (RecursionError, _TooMuchWork):
            raise CannotRender("it does not come to an end") from None
        except _BREAKS:
            raise CannotRender from None
        return text


class _Refused(jinja2.TemplateError):
    """The template called `raise_exception`."""


class _TooMuchWork(Exception):
    """The template has done as much as it may."""


class _Meter:
    """Counts the steps of one rendering."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._until = time.thread_time() + _MOST_SECONDS

    def step(self) -> None:
        self._left -= 1
        if self._left < 0 or (not self._left % _LOOKS and time.thread_time() > self._until):
            raise _TooMuchWork


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks assistant text for training; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Metered(NodeTransformer):
    """Puts a step at the beginning of each loop's and each macro's body, and bounds texts."""

    def visit_For(self, node: jinja2.nodes.For) -> jinja2.nodes.Node:
        if node.test is not None:
            node.test = jinja2.nodes.And(_filtered(jinja2.nodes.Const(True), _STEP), node.test)
        return self._stepping(node)

    def visit_Macro(self, node: jinja2.nodes.Macro) -> jinja2.nodes.Node:
        return self._stepping(node)

    def visit_Add(self, node: jinja2.nodes.Add) -> jinja2.nodes.Node:
        return _filtered(self.generic_visit(node), _BOUNDED)

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:
        return _filtered(self.generic_visit(node), _BOUNDED)

    def _stepping(self, node: Any) -> jinja2.nodes.Node:
        step = jinja2.nodes.ExprStmt(_filtered(jinja2.nodes.Const(True), _STEP))
        node.body.insert(0, step)
        return self.generic_visit(node)


def _filtered(node: jinja2.nodes.Node, name: str) -> jinja2.nodes.Filter:
    return jinja2.nodes.Filter(node, name, [], [], None, None)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """`left` times `right`, or to the power of it, unless that would be long in the making."""
        if operator == "**":
            size = abs(right) * _LEAST_BITS if isinstance(right, int) else 0
        else:
            size = _repeated(left, right) or _repeated(right, left)
        if size > _MOST_CHARS:
            raise _TooMuchWork
        return super().call_binop(context, operator, left, right)


def _repeated(text: Any, times: Any) -> int:
    return len(text) * times if isinstance(text, str | list) and isinstance(times, int) else 0


def _raise_exception(message: str) -> NoReturn:
    raise _Refused(str(message))


def _listed(value: Any) -> list[Any]:
    """What a filter such as `map` gives, as JSON has it; TypeError for any other thing."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


@jinja2.pass_context
def _step(context: Context, value: Any) -> Any:
    context.parent[_METER].step()
    return value


def _bounded(value: Any) -> Any:
    if isinstance(value, str | list) and len(value) > _MOST_CHARS:
        raise _TooMuchWork
    return value


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    # Plain JSON: jinja2's own filter escapes for HTML, which models never saw in training.
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False, default=_listed)
    environment.filters |= {_STEP: _step, _BOUNDED: _bounded}
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _compiled(source: str) -> jinja2.Template:
    environment = _environment()
    try:
        code = environment.compile(_Metered().visit(environment.parse(source)))
    except (jinja2.TemplateError, RecursionError) as error:
        raise TemplateBroken(f"the chat template does not compile: {error}") from error
    return jinja2.Template.from_code(environment, code, environment.make_globals(None))
