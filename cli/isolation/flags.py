"""The flags of `ratoon verify-isolation`.

Knows: flags. Does not know: what they mean for a run (`running`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from cli.errors import BadSetting
from cli.isolation.plan import Tier
from cli.options import SERVER, flag

TESTS = "Tests"
_TIERS = [Tier.DEVICE, Tier.HOST, Tier.DISK, Tier.EVICTED]


def _own(name: str, help_text: str, **more: object) -> object:
    return typer.Option(name, help=help_text, rich_help_panel=TESTS, **more)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class VerifyFlags:
    """What is tested, and where the report goes."""

    service_url: Annotated[
        str | None,
        flag(
            "--service-url",
            "Where tenants ask, if the admin routes have a port of their own. "
            "[dim]\\[default: --url, or http://RATOON_HOST:RATOON_PORT][/dim]",
            panel=SERVER,
            show_default=False,
        ),
    ] = None
    tiers: Annotated[
        str,
        _own("--tiers", "Which of device, host, disk and evicted, with commas between."),
    ] = ",".join(_TIERS)
    samples: Annotated[
        int, _own("--samples", "Of each class of the timing test; 0 leaves it out.", min=0)
    ] = 2000
    timing_tokens: Annotated[
        int, _own("--timing-tokens", "Tokens of each prompt of the timing test.", min=32)
    ] = 512
    max_fill_tokens: Annotated[
        int,
        _own(
            "--max-fill-tokens",
            "Prompt tokens that a cell may spend on pushing its blocks into a lower tier.",
            min=1,
        ),
    ] = 2_000_000
    quick: Annotated[
        bool,
        _own("--quick", "One entry point a cell, in turn, in place of all six."),
    ] = False
    after_restart: Annotated[
        Path | None,
        _own(
            "--after-restart",
            "Test what a restart leaves: without this file the run ends before it, with it the run "
            "goes on. It holds keys; it is removed at the end.",
        ),
    ] = None
    report: Annotated[Path | None, _own("--report", "Write the report here too, as Markdown.")] = (
        None
    )


def chosen_tiers(text: str) -> tuple[Tier, ...]:
    """The tiers that `--tiers` names, in the order of testing; BadSetting for any other word."""
    words = {word.strip() for word in text.split(",") if word.strip()}
    if not words or words - set(_TIERS):
        raise BadSetting("--tiers", f"'{text}' is not a list of {', '.join(_TIERS)}")
    return tuple(tier for tier in _TIERS if tier in words)
