"""A run's record for people: tables in the terminal, Markdown for the file.

Knows: layout. Does not know: how anything was measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from cli.isolation.findings import Finding, Outcome
from cli.isolation.record import Record
from cli.isolation.statistics import Separation
from cli.isolation.verdict import CONTROL_AUC, TOLERANCE
from cli.output import print_table

_COLUMNS = ("dimension", "difference", "tier", "entry points", "may reuse", "reused", "outcome")
_TIMING = ("", "samples a class", "AUC", "95 %", "TPR - FPR", "AUC of tens", "hit", "miss (median)")
_WORDS = {
    Outcome.PASSED: "Isolated: nothing leaked, and every control found what it should.",
    Outcome.LEAKS: "LEAKS: a tenant was given, or could time, what it must not know.",
    Outcome.INCONCLUSIVE: "Inconclusive: nothing leaked, but not every test could show it.",
}


def show(record: Record) -> None:
    """The tables on standard output."""
    print_table("Paired test (tokens)", _COLUMNS, paired_rows(record.findings))
    troubles = trouble_rows(record.findings)
    if troubles:
        print_table("What did not pass", ("test", "outcome", "reused", "control", "note"), troubles)
    if record.timing is not None:
        title = f"Timing test ({record.timing.prompt_tokens} tokens): {record.timing_outcome}"
        print_table(title, _TIMING, timing_rows(record))
    print_table("Verdict", ("",), [(_WORDS[record.verdict],)])


def markdown(record: Record) -> str:
    """The report that an operator files."""
    parts = [
        "# Isolation of tenants",
        f"**{_WORDS[record.verdict]}**",
        _table(("", ""), _fact_rows(record)),
        "## Paired test",
        "The same tokens asked by two who differ in one thing. `reused` is what the second was "
        "given from the cache; the control is the first asking again.",
        _table(_COLUMNS, paired_rows(record.findings)),
        "## Not applicable here",
        _table(("what", "why"), _not_applicable(record.findings)),
        "## What did not pass",
        _table(("test", "outcome", "reused", "control", "note"), trouble_rows(record.findings)),
        "## Timing test",
        *_timing(record),
        "## Every cell",
        _table(
            ("dimension", "difference", "tier", "entry point", "reused", "control", "outcome"),
            map(_cell_row, record.findings),
        ),
    ]
    return "\n\n".join(parts) + "\n"


def paired_rows(findings: Sequence[Finding]) -> list[tuple[str, ...]]:
    """A row for each dimension, difference and tier, its entry points counted together."""
    rows: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        rows.setdefault((finding.dimension, finding.case, finding.tier), []).append(finding)
    return [(*name, *_together(group)) for name, group in rows.items()]


def trouble_rows(findings: Iterable[Finding]) -> list[tuple[str, ...]]:
    """The cells that leaked or showed nothing."""
    return [
        (
            f"{finding.dimension}: {finding.case}; {finding.tier}; {finding.entry}",
            finding.outcome,
            _number(finding.reused),
            finding.control,
            finding.note,
        )
        for finding in findings
        if finding.outcome in (Outcome.LEAKS, Outcome.INCONCLUSIVE)
    ]


def timing_rows(record: Record) -> list[tuple[str, ...]]:
    """Across tenants, and the control."""
    if record.timing is None:
        return []
    return [
        ("across tenants", *_separation(record.timing.across)),
        ("control: one tenant", *_separation(record.timing.control)),
    ]


def _together(group: Sequence[Finding]) -> tuple[str, ...]:
    reused = [finding.reused for finding in group if finding.reused is not None]
    counts = Counter(finding.outcome for finding in group)
    return (
        str(len(group)),
        "any" if group[0].outcome is Outcome.ALLOWED else _number(group[0].may_reuse),
        f"{max(reused)}" if reused else "-",
        ", ".join(f"{count} {outcome}" for outcome, count in counts.items()),
    )


def _separation(found: Separation) -> tuple[str, ...]:
    return (
        str(found.samples),
        f"{found.auc:.4f}",
        f"{found.low:.4f} to {found.high:.4f}",
        f"{found.best_advantage:.3f}",
        "-" if found.auc_of_tens is None else f"{found.auc_of_tens:.3f}",
        f"{found.hit_median_s * 1e3:.2f} ms",
        f"{found.miss_median_s * 1e3:.2f} ms",
    )


def _timing(record: Record) -> list[str]:
    if record.timing is None:
        return ["Left out."]
    return [
        f"{record.timing_outcome}. A prompt's first token, {record.timing.prompt_tokens} tokens "
        "each, timed at the socket; hit: the victim has asked the same. The interval must lie "
        f"within {TOLERANCE} of 0.5 across tenants, and the control's AUC above {CONTROL_AUC}.",
        _table(_TIMING, timing_rows(record)),
    ]


def _fact_rows(record: Record) -> list[tuple[str, ...]]:
    server = record.server
    sizes = ", ".join(f"{tier} {tokens}" for tier, tokens in server.tier_tokens.items())
    controls = sum(finding.control_full for finding in record.findings)
    tested = sum(f.outcome is not Outcome.NOT_APPLICABLE for f in record.findings)
    return [
        ("began, ended (UTC)", f"{record.began}, {record.ended}"),
        ("server version", server.version or "not told"),
        ("ratoon verify-isolation", record.tool_version),
        ("model", server.model),
        ("fingerprint", server.fingerprint),
        ("block size", f"{server.block_size} tokens"),
        ("tiers (tokens)", sizes),
        ("loads from lower tiers", "insisted on" if server.always_load else "the server's choice"),
        ("tiers asked for", ", ".join(record.tiers)),
        ("cells tested, controls full", f"{tested}, {controls}"),
    ]


def _not_applicable(findings: Iterable[Finding]) -> list[tuple[str, ...]]:
    rows = {
        (f"{finding.dimension}: {finding.case}; {finding.tier}", finding.note): None
        for finding in findings
        if finding.outcome is Outcome.NOT_APPLICABLE
    }
    return [*rows]


def _cell_row(finding: Finding) -> tuple[str, ...]:
    return (
        finding.dimension,
        finding.case,
        finding.tier,
        finding.entry,
        _number(finding.reused),
        finding.control,
        finding.outcome + (f" ({finding.note})" if finding.note else ""),
    )


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_line(columns), _line(["--"] * len(columns)), *map(_line, rows)]
    return "\n".join(lines) if len(lines) > 2 else "Nothing."


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
