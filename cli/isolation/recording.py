"""The record of a run of `ratoon verify-isolation`, made from its tests' findings."""

from collections.abc import Sequence
from importlib.metadata import version

from cli.isolation.advice import advice
from cli.isolation.cases import TierCase
from cli.isolation.eviction import EvictionFinding
from cli.isolation.report import Record
from cli.isolation.server import ServerFacts
from cli.isolation.timing.time_tenants import TimingFindings
from cli.isolation.timing.trials import TimingFinding
from cli.isolation.verdict import Finding, Outcome, eviction_outcome, overall, timing_outcome
from cli.output import utc_now

TIMING, MODULES = "timing test", "timing of modules"


def record_of(
    facts: ServerFacts,
    began: str,
    tiers: Sequence[TierCase],
    findings: list[Finding],
    timings: TimingFindings | None,
    eviction: EvictionFinding | None,
    left_out: list[str],
) -> Record:
    """Make the record of a run. An interrupted, inconclusive test counts as left out."""
    timing = gaps = modules = None
    if timings is not None:
        timing, gaps, modules = timings.first_token, timings.gaps, timings.modules
    is_cut, modules_are_cut = _is_cut(left_out, TIMING), _is_cut(left_out, MODULES)
    timed, gapped = _timed_outcome(timing, is_cut=is_cut), _timed_outcome(gaps, is_cut=is_cut)
    used = _timed_outcome(modules, is_cut=modules_are_cut)
    if timings is not None and gaps is None:
        why = "the server drafts nothing"
        findings.append(untested("gaps", "another tenant", Outcome.NOT_APPLICABLE, why))
    evicted = None if eviction is None else eviction_outcome(eviction)
    whole = (None, None) if is_cut else (timing, gaps)
    advised = advice(findings, *whole, eviction, None if modules_are_cut else modules)
    return Record(
        began=began,
        ended=utc_now(),
        server=facts,
        tool_version=version("ratoon"),
        tiers=[*tiers],
        findings=findings,
        timing=timing,
        timing_outcome=timed,
        gaps=gaps,
        gaps_outcome=gapped,
        modules=modules,
        modules_outcome=used,
        eviction=eviction,
        eviction_outcome=evicted,
        verdict=overall(findings, timed, gapped, used, evicted),
        left_out=left_out,
        advice=list(advised),
    )


def _is_cut(left_out: Sequence[str], test: str) -> bool:
    return any(line.endswith(test) for line in left_out)


def _timed_outcome(timing: TimingFinding | None, *, is_cut: bool) -> Outcome | None:
    outcome = None if timing is None else timing_outcome(timing)
    return Outcome.LEFT_OUT if is_cut and outcome is Outcome.INCONCLUSIVE else outcome


def untested(dimension: str, case: str, outcome: Outcome, why: str) -> Finding:
    """Make the finding of a case that was not tested."""
    return Finding(dimension=dimension, case=case, outcome=outcome, note=why)
