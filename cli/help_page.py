"""A command's help at any width: each flag on its own line, its meaning below.

No word is ever cut, so a flag and its variable can be copied. Groups of commands have typer's help.
"""

import inspect
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from typer.core import MARKUP_MODE_KEY, TyperCommand

_MAX_WIDTH = 100  # maximum number of characters of a line, since longer lines are hard to read
_INDENT = "    "


class HelpPage(TyperCommand):
    """A command whose help gives each flag its own line, and the flag's meaning below."""

    allow_extra_args = True  # so that surplus arguments reach `parse_args`, which refuses them

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse like typer, but treat a surplus argument as a usage error."""
        rest = super().parse_args(ctx, args)
        if ctx.args and not ctx.resilient_parsing:
            flags = {flag for one in self.get_params(ctx) for flag in one.opts}
            hint = f"; a model is named by a flag: --model {ctx.args[0]}"
            surplus = f"Got unexpected extra argument(s) ({' '.join(map(str, ctx.args))})"
            ctx.fail(surplus + (hint if "--model" in flags else ""))
        return rest

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Print the help page."""
        # The import takes a tenth of a command's start-up time, and only the help needs it.
        from rich.console import Console
        from rich.padding import Padding
        from rich.text import Text

        console = Console(force_terminal=sys.stdout.isatty(), highlight=False)
        console.width = min(console.width, _MAX_WIDTH)
        # typer reads the mode here, and escapes brackets in the help of flags
        ctx.ensure_object(dict)[MARKUP_MODE_KEY] = self.rich_markup_mode
        console.print(Text(f"{self.get_usage(ctx)}\n"))
        for paragraph in paragraphs(self.help or ""):
            console.print(Text.from_markup(f"{paragraph}\n"), soft_wrap=paragraph[:1] == " ")
        for panel, flags in self._panels(ctx).items():
            console.print(Text(panel, style="bold"))
            for name, meaning in flags:
                console.print(
                    Padding(Text(name.replace(" range>", ">"), "cyan"), (0, 0, 0, 2), expand=False)
                )
                console.print(Padding(Text.from_markup(meaning), (0, 0, 0, 6), expand=False))
            console.print()

    def _panels(self, ctx: Any) -> dict[str, list[tuple[str, str]]]:
        panels = dict[str, list[tuple[str, str]]]()
        for kind, title in (("argument", "Arguments"), ("option", "Options")):
            own: list[Any] = [one for one in self.get_params(ctx) if one.param_type_name == kind]
            for one in sorted(own, key=lambda one: one.rich_help_panel is not None):
                record = one.get_help_record(ctx)
                if record is not None:
                    panels.setdefault(one.rich_help_panel or title, []).append(record)
        return panels


def paragraphs(text: str) -> Iterator[str]:
    """Yield a docstring's paragraphs, each as one line, with indented examples unchanged."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        is_example = paragraph.startswith(_INDENT)
        yield paragraph if is_example else _one_line(paragraph.splitlines())


def _one_line(lines: Iterable[str]) -> str:
    return " ".join(line.strip() for line in lines)
