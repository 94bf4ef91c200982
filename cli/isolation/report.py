"""The record of a run, and its report: tables in the terminal, Markdown in the file."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from cli.echo import echo
from cli.isolation.eviction import LEVELS, EvictionFinding
from cli.isolation.server import ServerFacts
from cli.isolation.timing.trials import TimingFinding
from cli.isolation.verdict import CONTROL_AUC, CONTROL_BITS, MOST_BITS, TOLERANCE, Finding, Outcome
from cli.output import print_table

_UNTESTED = (Outcome.NOT_APPLICABLE, Outcome.LEFT_OUT)
Row = Mapping[str, object]
Section = tuple[str, str, Sequence[Row]]  # title, text and table

_WORDS = {
    Outcome.PASSED: "Isolated: nothing leaked, and every control found what it should.",
    Outcome.LEAKS: "LEAKS: a tenant was given, or could time, what it must not know.",
    Outcome.INCONCLUSIVE: "Inconclusive: nothing leaked, but not every test could show it.",
}


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a whole run, without keys or prompts."""

    began: str  # date and time of the start, in UTC
    ended: str
    server: ServerFacts
    tool_version: str
    tiers: list[str]
    findings: list[Finding]
    timing: TimingFinding | None
    timing_outcome: Outcome | None
    gaps: TimingFinding | None = None  # gaps between the tokens after the first
    gaps_outcome: Outcome | None = None
    modules: TimingFinding | None = None  # times of first tokens after a prompt module
    modules_outcome: Outcome | None = None
    eviction: EvictionFinding | None
    eviction_outcome: Outcome | None
    verdict: Outcome
    left_out: list[str] = []
    advice: list[str] = []  # sentences that say which flags to change for inconclusive parts


def show(record: Record) -> None:
    """Print the report without the list of all cells."""
    for title, text, rows in _sections(record)[:-1]:
        if rows:
            print_table(title, list(rows[0]), [list(map(_cell, row.values())) for row in rows])
        echo(text or "" if rows else f"{title}: {text or 'nothing'}")


def markdown(record: Record) -> str:
    """Write the report that an operator files, in Markdown."""
    parts = list[str]()
    for title, text, rows in _sections(record):
        parts += [f"## {title}", text, _table(rows) if rows or not text else ""]
    return "# Isolation of tenants\n\n" + "\n\n".join(filter(None, parts)) + "\n"


def _sections(record: Record) -> list[Section]:
    bad = [f for f in record.findings if f.outcome in (Outcome.LEAKS, Outcome.INCONCLUSIVE)]
    facts = [{"": name, " ": value} for name, value in _facts(record).items()]
    return [
        ("The run", "", facts),
        (
            "Paired test",
            "The same tokens sent by two who differ in one thing. `reused` is what the second was "
            "given from the cache; the control is the first asking again.",
            _by_case(record.findings),
        ),
        ("What did not pass", "", list(map(_cell_row, bad))),
        _timing(record.timing, record.timing_outcome),
        *_gaps(record.gaps, record.gaps_outcome),
        *_modules(record.modules, record.modules_outcome),
        _eviction(record.eviction, record.eviction_outcome),
        ("Left out for lack of time", "; ".join(record.left_out), []),
        ("Verdict", " ".join([_verdict(record), *record.advice]), []),
        ("Every cell", "", list(map(_cell_row, record.findings))),
    ]


def _verdict(record: Record) -> str:
    if not record.left_out:
        return _WORDS[record.verdict]
    words = _WORDS[record.verdict]
    if record.verdict is Outcome.PASSED:
        words = "Isolated as far as it was tested."
    return f"{words} Left out: {'; '.join(record.left_out)}."


def _facts(record: Record) -> dict[str, object]:
    server, findings = msgspec.structs.asdict(record.server), record.findings
    missing = dict.fromkeys(f.note for f in findings if f.outcome is Outcome.NOT_APPLICABLE)
    return {
        "began, ended (UTC)": f"{record.began}, {record.ended}",
        "ratoon verify-isolation": record.tool_version,
        **{f"server: {name}": value for name, value in server.items()},
        "tiers asked for": ", ".join(record.tiers),
        "not applicable": "; ".join(missing),
        "cells tested": sum(f.outcome not in _UNTESTED for f in findings),
        "controls full": sum(f.control_full for f in findings),
    }


def _by_case(findings: Sequence[Finding]) -> list[Row]:
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.dimension, finding.case, finding.tier), []).append(finding)
    rows = list[Row]()
    for (dimension, case, tier), group in groups.items():
        counts = Counter(finding.outcome for finding in group)
        rows.append(
            {
                "dimension": dimension,
                "case": case,
                "tier": tier,
                "entries": len(group),
                "reused": max((f.reused for f in group if f.reused is not None), default=None),
                "may_reuse": "any" if Outcome.ALLOWED in counts else group[0].may_reuse,
                "outcome": ", ".join(f"{count} {outcome}" for outcome, count in counts.items()),
            }
        )
    return rows


def _timing(timing: TimingFinding | None, outcome: Outcome | None) -> Section:
    if timing is None:
        return ("Timing test", "Left out.", [])
    text = (
        f"{outcome}. A prompt's first token, {timing.prompt_tokens} tokens each, timed at the "
        "socket; hit: the victim has asked the same. The 95 % interval of the AUC, low to high, "
        f"must lie within {TOLERANCE} of 0.5 across tenants, and the control's AUC above "
        f"{CONTROL_AUC}."
    )
    return ("Timing test", text, _across_and_control(timing.across, timing.control))


def _gaps(gaps: TimingFinding | None, outcome: Outcome | None) -> list[Section]:
    if gaps is None:
        return []
    text = (
        f"{outcome}. The tokens after the first of the same answers, from the first to the last: "
        "drafts from what a tenant was answered must make no other's faster. By the same bounds."
    )
    return [("Gaps between tokens", text, _across_and_control(gaps.across, gaps.control))]


def _modules(modules: TimingFinding | None, outcome: Outcome | None) -> list[Section]:
    if modules is None:
        return []
    text = (
        f"{outcome}. The first token of a prompt of one module of about {modules.prompt_tokens} "
        "tokens, which both tenants have stored; hit: the victim has used the same. By the same "
        "bounds."
    )
    return [("Timing of modules", text, _across_and_control(modules.across, modules.control))]


def _eviction(eviction: EvictionFinding | None, outcome: Outcome | None) -> Section:
    if eviction is None:
        return ("Eviction test", "Left out.", [])
    text = (
        f"{outcome}. The attacker asks for {eviction.filled_tokens} tokens, the victim for "
        f"{', '.join(map(str, LEVELS))}, and the attacker asks for its own again: what is cached, "
        "and in which tier, must not tell how many the victim asked for. In half of the trials "
        "across tenants the victim's prompts are marked, which must change nothing. Less than "
        f"{MOST_BITS} bits may be learnt across tenants, more than {CONTROL_BITS} in the control."
    )
    return ("Eviction test", text, _across_and_control(eviction.across, eviction.control))


def _across_and_control(across: msgspec.Struct, control: msgspec.Struct) -> list[Row]:
    return [
        {"": name, "across tenants": value, "control: one tenant": getattr(control, name)}
        for name, value in msgspec.structs.asdict(across).items()
    ]


def _cell_row(finding: Finding) -> Row:
    parts = (finding.dimension, finding.case, finding.tier, finding.entry)
    return {
        "cell": "; ".join(parts),
        "outcome": finding.outcome,
        "reused": finding.reused,
        "control": finding.control,
        "note": finding.note,
    }


def _table(rows: Sequence[Row]) -> str:
    if not rows:
        return "Nothing."
    lines = [list(rows[0]), ["--"] * len(rows[0]), *([*map(_cell, row.values())] for row in rows)]
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    return f"{value:.4f}" if isinstance(value, float) else "-" if value is None else str(value)
