"""The filters and methods of published templates in jinja2's immutable sandbox, with limits.

Other filters and methods cannot be called, but a template may name them in a branch that is not
taken. If a result can be much larger than its inputs, `growth.py` checks the size beforehand. The
clock is read at each call. All filters take the context, so that no filter runs while the template
is compiled. Templates made for llama.cpp append items to lists that begin as `[]`, and take items
from them. No template can change another list.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from types import BuiltinMethodType, MethodDescriptorType
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, _PassArg

from gateway.prompts.templates import growth
from gateway.prompts.templates.growth import Growth
from gateway.prompts.templates.meter import Meter, check_count, check_size, extent

# Names with spaces, which no template can use.
METER, STEP, MADE, WHOLE, OWN = "the meter", "a step", "what was made", "a whole", "own"


def _words(listed: str) -> list[str]:
    return listed.split()


_PLAIN_FILTERS = _words("""
    abs attr d default first float int items last length count map reject rejectattr reverse safe
    select selectattr
""")
_FILTERS: Mapping[str, Growth | None] = {
    **dict.fromkeys(_PLAIN_FILTERS),
    **dict.fromkeys(("dictsort", "groupby", "max", "min", "sort", "unique"), growth.written),
    **dict.fromkeys(("capitalize", "e", "escape", "lower", "string", "title"), growth.as_text),
    **dict.fromkeys(("trim", "truncate", "upper"), growth.as_text),
    "center": growth.padded,
    "format": growth.percent_formatted,
    "indent": growth.indented,
    "join": growth.filter_joined,
    "list": growth.listed,
    "replace": growth.replaced,
    "round": growth.rounded,
    "sum": growth.summed,
    "tojson": growth.as_json,
}
_PLAIN_METHODS = _words("""
    capitalize casefold count endswith find get index isalnum isalpha isascii isdecimal isdigit
    isidentifier islower isnumeric isspace istitle isupper items keys lower lstrip partition
    removeprefix removesuffix rfind rindex rpartition rstrip startswith strip swapcase title upper
    values copy is_integer bit_length
""")
_METHODS: Mapping[str, Growth | None] = {
    **dict.fromkeys((*_PLAIN_METHODS, "pop")),
    "append": growth.appended,
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), growth.padded),
    **dict.fromkeys(("rsplit", "split", "splitlines"), growth.split),
    "format": growth.formatted,
    "join": growth.joined,
    "replace": growth.replaced,
}
# comparisons, whose size the meter limits
_TESTS = _words("eq equalto == ne != lt lessthan < le <= gt greaterthan > ge >= in")
_GLOBALS = ("range", "dict", "namespace")


class Refused(jinja2.TemplateError):
    """The error of a template that has called `raise_exception`."""


class _GenerationTag(jinja2.ext.Extension):
    """The tag `{% generation %}`, which encloses text for training. Only its body is rendered."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _OwnList(list[Any]):
    """A list that a template began as `[]`."""


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(growth.OF_OPERATORS)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, _OwnList) and attr in ("append", "pop"):
            return True
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        growth.OF_OPERATORS[operator](left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a macro, a function or a listed method; raise SecurityError for other callables."""
        _meter(__context).look()
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps `format`
        if isinstance(method, BuiltinMethodType):
            args = tuple(map(growth.as_list, args)) if method.__name__ == "join" else args
            _check_method(method, args, kwargs)
        if isinstance(method, MethodDescriptorType):  # a type's method could change shared objects
            raise SecurityError("a method is called of a value")
        return super().call(__context, __obj, *args, **kwargs)


def _check_method(method: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    if method.__name__ not in _METHODS:
        raise SecurityError(f"no template calls {method.__name__}")
    grows = _METHODS[method.__name__]
    if grows is not None:
        grows(method.__self__, *args, **kwargs)


def _bounded(run: Callable[..., Any], grows: Growth | None) -> Callable[..., Any]:
    """Wrap a filter or a test: read the clock first, and check the result's size."""
    wants = _PassArg.from_obj(run)

    @jinja2.pass_context
    def bounded(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        _meter(context).look()
        if grows is not None:
            value = growth.as_list(value)
            grows(value, *args, **kwargs)
        if wants is _PassArg.context:
            return run(context, value, *args, **kwargs)
        if wants is _PassArg.eval_context:
            return run(context.eval_ctx, value, *args, **kwargs)
        if wants is _PassArg.environment:
            return run(context.environment, value, *args, **kwargs)
        return run(value, *args, **kwargs)

    return bounded


def _refused(name: str) -> Callable[..., Any]:
    @jinja2.pass_context
    def refused(context: Context, *args: Any, **kwargs: Any) -> NoReturn:
        del context, args, kwargs
        raise SecurityError(f"no template uses the filter {name}")

    return refused


def _meter(context: Context) -> Meter:
    meter: Meter = context.parent[METER]
    return meter


@jinja2.pass_context
def _step(context: Context, value: Any, chars: int = 0) -> Any:
    """Count a step, at which `chars` characters of the template are written."""
    meter = _meter(context)
    meter.step()
    meter.wrote(chars)
    return value


@jinja2.pass_context
def _made(context: Context, value: Any) -> Any:
    """Count a step with the result `value`; raise TooMuchWork if this value is too large."""
    _meter(context).step()
    if isinstance(value, str):
        check_size(len(value))
    elif isinstance(value, list | tuple):
        check_count(len(value))
    return value


@jinja2.pass_context
def _whole(context: Context, value: Any) -> Any:
    """Return `value`; raise TooMuchWork if this value is too large to be written or compared."""
    if isinstance(value, list | tuple | dict | Namespace):
        _meter(context).look()
        extent(value)
    return value


@jinja2.pass_context
def _own(context: Context, value: list[Any]) -> list[Any]:
    del context  # is taken so that each rendering makes a list of its own
    return _OwnList(value)


@jinja2.pass_context
def _written(context: Context, value: Any) -> Any:
    _meter(context).wrote(len(value) if isinstance(value, str) else extent(value))
    return value


def _raise_exception(message: str) -> NoReturn:
    raise Refused(str(message))


def _strftime_now(form: str) -> str:
    growth.strftime(form)
    return datetime.now().strftime(form)


def _listed(value: Any) -> Any:
    if isinstance(value, Iterator):
        return growth.as_list(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


def environment() -> ImmutableSandboxedEnvironment:
    """Make an environment whose renderings receive a Meter by the name METER."""
    made = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, jinja2.ext.loopcontrols],
        finalize=_written,
    )
    # Writes plain JSON. jinja2's own filter escapes characters for HTML, which models never saw in
    # training.
    to_json = partial(json.dumps, ensure_ascii=False, default=_listed)
    runs = {**made.filters, "tojson": to_json}
    made.filters = {name: _refused(name) for name in runs}
    made.filters |= {name: _bounded(runs[name], grows) for name, grows in _FILTERS.items()}
    made.filters |= {STEP: _step, MADE: _made, WHOLE: _whole, OWN: _own}
    tests: dict[str, Any] = {**made.tests}
    made.tests |= {name: _bounded(tests[name], growth.compared) for name in _TESTS}
    made.globals = {name: made.globals[name] for name in _GLOBALS}
    made.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return made
