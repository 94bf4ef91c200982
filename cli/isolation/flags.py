"""The flags of `ratoon verify-isolation`.

Knows: flags. Does not know: what they mean for a run (`running`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from cli.errors import BadSetting
from cli.isolation.cells import Tier
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
            "URL of the tenants' routes, if the admin routes have a port of their own. "
            "[dim]\\[default: --url, or http://RATOON_HOST:RATOON_PORT][/dim]",
            panel=SERVER,
            show_default=False,
        ),
    ] = None
    tiers: Annotated[
        str,
        _own("--tiers", "Which of device, host, disk and evicted to test, separated by commas."),
    ] = ",".join(_TIERS)
    samples: Annotated[
        int,
        _own("--samples", "Samples of each class in the timing test; 0: no timing test.", min=0),
    ] = 2000
    timing_tokens: Annotated[
        int, _own("--timing-tokens", "Tokens of each prompt of the timing test.", min=32)
    ] = 512
    max_fill_tokens: Annotated[
        int,
        _own(
            "--max-fill-tokens",
            "Most prompt tokens that a cell may spend on pushing its blocks into a lower tier.",
            min=1,
        ),
    ] = 2_000_000
    quick: Annotated[
        bool,
        _own("--quick", "Test each cell through one entry point instead of all six."),
    ] = False
    after_restart: Annotated[
        Path | None,
        _own(
            "--after-restart",
            "Test a restart too. The first run writes this file and ends; restart the server and "
            "give the same command again to continue. The file contains keys, and is removed at "
            "the end.",
        ),
    ] = None
    report: Annotated[
        Path | None, _own("--report", "Also write the report to this file, as Markdown.")
    ] = None


def chosen_tiers(text: str) -> tuple[Tier, ...]:
    """The tiers that `--tiers` names, in the order of testing; BadSetting for any other word."""
    words = {word.strip() for word in text.split(",") if word.strip()}
    if not words or words - set(_TIERS):
        raise BadSetting("--tiers", f"'{text}' is not a list of {', '.join(_TIERS)}")
    return tuple(tier for tier in _TIERS if tier in words)
