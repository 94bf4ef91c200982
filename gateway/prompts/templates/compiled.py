"""A compiled chat template, run in jinja2's immutable sandbox with a limit on its work.

The publisher of a model writes the template as code. The template gets the inputs that the library
`transformers` gives. The code is rewritten to count each round of a loop and each call of a macro.
A template that does not end is refused like a template that raises.
"""

from collections.abc import Mapping
from typing import Any

import jinja2
import jinja2.nodes
from jinja2.visitor import NodeTransformer

from gateway.prompts.templates.meter import MOST_STEPS, Meter, TooMuchWork
from gateway.prompts.templates.sandbox import MADE, METER, OWN, STEP, WHOLE, Refused, environment
from gateway.prompts.tokens.tokenizer import ModelFileBroken


class TemplateBroken(ModelFileBroken):
    """The error of a model's chat template that does not compile."""


# The errors that a template may raise. Their messages may quote the prompt.
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
    """The error of a rendering that failed. `said` is the template's reason, if any."""

    def __init__(self, said: str | None = None) -> None:
        super().__init__(said or "")
        self.said = said


class CompiledTemplate:
    """A compiled template. Immutable and thread-safe."""

    def __init__(
        self, source: str, tokens: Mapping[str, str], most_steps: int = MOST_STEPS
    ) -> None:
        """Compile the template. `tokens` are special tokens by name. Raises TemplateBroken."""
        self.source = source
        self._template = _compiled(source)
        self._tokens = dict(tokens)
        self._most_steps = most_steps

    def render(self, given: Mapping[str, Any]) -> str:
        """Render the text; raise CannotRender if the template raises an error or takes too long.

        `given` cannot replace special tokens.
        """
        meter = Meter(self._most_steps)
        try:
            text = self._template.render({**given, **self._tokens, METER: meter})
        except Refused as refused:
            raise CannotRender(str(refused)) from None
        except (RecursionError, MemoryError, TooMuchWork):
            raise CannotRender("it does not come to an end") from None
        except _BREAKS:
            raise CannotRender from None
        return text


class _Metered(NodeTransformer):
    """Rewrites templates to count steps and to limit the sizes of values."""

    def visit_For(self, node: jinja2.nodes.For) -> jinja2.nodes.Node:
        if node.test is not None:
            node.test = jinja2.nodes.And(_filtered(jinja2.nodes.Const(True), STEP), node.test)
        return self._stepping(node)

    def visit_Macro(self, node: jinja2.nodes.Macro) -> jinja2.nodes.Node:
        return self._stepping(node)

    def visit_CallBlock(self, node: jinja2.nodes.CallBlock) -> jinja2.nodes.Node:
        return self._stepping(node)

    def visit_Add(self, node: jinja2.nodes.Add) -> jinja2.nodes.Node:
        return _filtered(self.generic_visit(node), MADE)

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:
        self.generic_visit(node)
        node.nodes = [_whole(one) for one in node.nodes]
        return _filtered(node, MADE)

    def visit_List(self, node: jinja2.nodes.List) -> jinja2.nodes.Node:
        self.generic_visit(node)
        return node if node.items else _filtered(node, OWN)

    def visit_Tuple(self, node: jinja2.nodes.Tuple) -> jinja2.nodes.Node:
        self.generic_visit(node)
        return node if node.ctx != "load" or _is_constant(node) else _filtered(node, WHOLE)

    def visit_Compare(self, node: jinja2.nodes.Compare) -> jinja2.nodes.Node:
        """Limit comparisons, except with one constant, whose size limits the cost."""
        self.generic_visit(node)
        compared = [node.expr, *(one.expr for one in node.ops)]
        if len(compared) > 2 or not any(map(_is_constant, compared)):
            node.expr = _whole(node.expr)
            for one in node.ops:
                one.expr = _whole(one.expr)
        searches = any(one.op in ("in", "notin") for one in node.ops)
        return _filtered(node, STEP) if searches else node

    def _stepping(self, node: Any) -> jinja2.nodes.Node:
        chars = sum(len(data.data) for data in node.find_all(jinja2.nodes.TemplateData))
        step = jinja2.nodes.ExprStmt(
            _filtered(jinja2.nodes.Const(True), STEP, jinja2.nodes.Const(chars))
        )
        node.body.insert(0, step)
        return self.generic_visit(node)


def _whole(node: jinja2.nodes.Expr) -> jinja2.nodes.Expr:
    return node if _is_constant(node) else _filtered(node, WHOLE)


def _is_constant(node: jinja2.nodes.Node) -> bool:
    if isinstance(node, jinja2.nodes.List | jinja2.nodes.Tuple):
        return all(map(_is_constant, node.items))
    return isinstance(node, jinja2.nodes.Const)


def _filtered(node: jinja2.nodes.Node, name: str, *args: jinja2.nodes.Expr) -> jinja2.nodes.Filter:
    return jinja2.nodes.Filter(node, name, list(args), [], None, None)


def _compiled(source: str) -> jinja2.Template:
    made = environment()
    try:
        code = made.compile(_Metered().visit(made.parse(source)))
    except (jinja2.TemplateError, RecursionError, MemoryError) as error:
        raise TemplateBroken(f"the chat template does not compile: {error}") from error
    return jinja2.Template.from_code(made, code, made.make_globals(None))
