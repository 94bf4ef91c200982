"""`ratoon lint`: reads one request or two and prints what keeps them from the cache.

`findings.py` decides what is wrong with a request.
"""

from pathlib import Path
from typing import Annotated

import typer

from cli.echo import echo
from cli.errors import CliError
from cli.lint.findings import LintFinding, lint_against
from cli.lint.findings import lint as findings_of
from cli.lint.request_parts import parts_of
from cli.output import print_result, print_table
from cli.request_file import read_request

_COLUMNS = ("part", "character", "what", "excerpt", "what to do")


def lint(
    request: Annotated[str, typer.Argument(help="A request's body as JSON; - is standard input.")],
    against: Annotated[
        Path | None, typer.Option(help="An earlier request, to find the first difference.")
    ] = None,
    block_size: Annotated[int, typer.Option(help="Tokens of a block of the cache.", min=1)] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find what will keep a request from the cache, before it is sent.

    Finds dates, times, ids and Claude Code's billing header (except where harmless) in tools,
    system texts and all messages but the last; '--against' also finds differences from an earlier
    request. Takes bodies in OpenAI's, Anthropic's or Gemini's form, and sends nothing. Exits with 1
    if anything is found.

    Examples:

        ratoon lint request.json

        ratoon lint request.json --against earlier.json --json
    """
    sent = read_request(request)
    if not parts_of(sent):
        raise CliError(f"{request} has no text of a prompt, in any API's form")
    found = findings_of(sent, block_size)
    if against is not None:
        found = [*lint_against(sent, read_request(str(against))), *found]
    print_result(found, _show, as_json=as_json)
    if found:
        raise typer.Exit(1)


def _show(found: list[LintFinding]) -> None:
    if not found:
        echo("Nothing was found.")
        return
    rows = ((one.part, one.character, one.what, repr(one.excerpt), one.advice) for one in found)
    print_table("What keeps this request from the cache", _COLUMNS, rows)
