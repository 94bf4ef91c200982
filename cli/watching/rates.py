"""Tables of an engine's rates between two readings of its counters, computed without I/O."""

from collections.abc import Mapping
from typing import Any

from cli.operating.deleted import folded, name_of
from cli.tables import TableText

Stats = Mapping[str, Any]
TIER_COLUMNS = ("tier", "used", "total", "full")
_TENANT_COUNTS = ("requests", "prompt_tokens", "hit_tokens", "generated_tokens")
_DRAFT_COUNTS = ("drafts", "drafted_tokens", "accepted_tokens")
_MAX_TENANTS = 20  # maximum number of rows of tenants, since more would exceed a screen


def tables(now: Stats, before: Stats | None) -> list[TableText]:
    """Write tables of the changes between two answers of GET /admin/cache/stats.

    If `before` is None or from another engine, changes are counted from the engine's start.
    """
    if before is not None and before["engine_id"] != now["engine_id"]:
        before = None
    seconds = now["uptime_s"] - (before["uptime_s"] if before else 0.0)
    since = "since its start" if before is None else f"in {seconds:.1f} s"
    return [
        *_alarms(now["sentinel"]),
        TableText.of(f"Engine {since}", ("", ""), _engine_rows(now, before, seconds)),
        *_draft_tables(now, before),
        *_state_tables(now["states"], before and before["states"]),
        *_replica_tables(now, before),
        TableText.of("Cache (blocks)", (*TIER_COLUMNS, "hit rate"), _tier_rows(now, before)),
        TableText.of(
            "Tenants",
            ("tenant", "requests/s", "prompt tokens/s", "hit rate", "generated/s", "blocks"),
            _tenant_rows(now, before, seconds),
        ),
    ]


def _engine_rows(now: Stats, before: Stats | None, seconds: float) -> list[tuple[object, ...]]:
    window, earlier = now["windows"].get("all", {}), before and before["windows"].get("all", {})
    computed = _grown("computed_tokens", window, earlier)
    generated = _grown("generated_tokens", now, before)
    queue = now["queue"]
    rows: list[tuple[object, ...]] = [
        ("generated tokens/s", _per_s(generated, seconds)),
        ("computed prompt tokens/s", _per_s(computed, seconds)),
        ("running", queue["running"]),
        ("waiting", queue["waiting"]),
    ]
    has_ranks = not now["replicas"] and num_ranks(now) > 1
    if now["router_answers"] is not None:
        rows.append(("router", "answers" if now["router_answers"] else "no answer"))
    return [*rows, ("ranks", ranks_of(now))] if has_ranks else rows


def _alarms(sentinel: Stats) -> list[TableText]:
    wrong, damaged = sentinel["differed"], sentinel["damaged_blocks"]
    if not (wrong or damaged):
        return []
    row = (wrong, sentinel["checked"], damaged, "send us the engine's log lines about it")
    heads = ("wrong answers", "of", "damaged blocks", "what to do")
    return [TableText.of("The cache is wrong", heads, [row], is_alarm=True)]


def _draft_tables(now: Stats, before: Stats | None) -> list[TableText]:
    rows = []
    for source, drafts in sorted(now["drafts"].items()):
        earlier = before and before["drafts"].get(source)
        count, drafted, accepted = (_grown(name, drafts, earlier) for name in _DRAFT_COUNTS)
        if count:
            a_draft = f"{accepted / count:.2f}"
            rows.append((source, count, drafted, _share(accepted, drafted), a_draft))
    columns = ("source", "drafts", "tokens", "accepted", "accepted a draft")
    return [TableText.of("Drafts", columns, rows)] if rows else []


def _state_tables(now: Stats, before: Stats | None) -> list[TableText]:
    if not now["total"]:
        return []
    lower = (f"{tier} {one['used']} of {one['total']}" for tier, one in now["lower"].items())
    held = ", ".join((f"{now['checkpoints']} of {now['total']}", *lower))
    names = ("hits", "made", "evicted", "refused", "cut_tokens")
    row = (held, *(_grown(name, now, before) for name in names))
    return [TableText.of("Checkpoints", ("held", *names[:-1], "tokens cut"), [row])]


def num_ranks(engine: Stats) -> int:
    """Count the ranks of an engine."""
    return int(engine["tensor_parallel"]) * int(engine["pipeline_parallel"])


def ranks_of(engine: Stats) -> str:
    """Describe how an engine's ranks divide its model."""
    if num_ranks(engine) == 1:
        return "1"
    return f"TP {engine['tensor_parallel']} x PP {engine['pipeline_parallel']}"


def _replica_tables(now: Stats, before: Stats | None) -> list[TableText]:
    if not now["replicas"]:
        return []
    earlier = {one["name"]: one["counted"] for one in before["replicas"]} if before else {}
    columns = (
        "replica",
        "role",
        "ranks",
        "state",
        "running",
        "waiting",
        "generated/s",
        "hit rate",
        "blocks used",
    )
    rows = [_replica_row(one, earlier.get(one["name"])) for one in now["replicas"]]
    return [TableText.of("Engines", columns, rows)]


def _replica_row(replica: Stats, before: Stats | None) -> tuple[object, ...]:
    now = replica["counted"]
    if now is None:
        return (replica["name"], replica["role"], "-", replica["state"], *"-----")
    before = before if before and before["engine_id"] == now["engine_id"] else None
    seconds = now["uptime_s"] - (before["uptime_s"] if before else 0.0)
    window, earlier = now["windows"].get("all", {}), before and before["windows"].get("all", {})
    hits, queried = (_grown(name, window, earlier) for name in ("hit_tokens", "queried_tokens"))
    return (
        replica["name"],
        replica["role"],
        ranks_of(now),
        replica["state"],
        now["queue"]["running"],
        now["queue"]["waiting"],
        _per_s(_grown("generated_tokens", now, before), seconds),
        _share(hits, queried),
        f"{now['pool']['blocks']['used']} of {now['pool']['blocks']['total']}",
    )


def _tier_rows(now: Stats, before: Stats | None) -> list[tuple[object, ...]]:
    window, earlier = now["windows"].get("all", {}), before and before["windows"].get("all", {})
    queried = _grown("queried_tokens", window, earlier)
    hits, hits_before = now["tiers"]["hit_tokens"], before and before["tiers"]["hit_tokens"]
    return [
        (*row, _share(_grown(str(row[0]), hits, hits_before), queried)) for row in tier_rows(now)
    ]


def _tenant_rows(now: Stats, before: Stats | None, seconds: float) -> list[tuple[object, ...]]:
    """Write rows of the busiest tenants, busiest first. Deleted tenants share a row."""
    earlier = {one["id"]: one for one in before["tenants"]} if before else {}
    grown = [_grown_tenant(tenant, earlier.get(tenant["id"])) for tenant in now["tenants"]]
    rows = sorted(
        folded(grown), key=lambda one: (-one["prompt_tokens"], -one["requests"], one["id"])
    )
    return [
        (
            name_of(tenant),
            _per_s(tenant["requests"], seconds),
            _per_s(tenant["prompt_tokens"], seconds),
            _share(tenant["hit_tokens"], tenant["prompt_tokens"]),
            _per_s(tenant["generated_tokens"], seconds),
            tenant["blocks_held"],
        )
        for tenant in rows[:_MAX_TENANTS]
    ]


def _grown_tenant(now: Stats, before: Stats | None) -> dict[str, Any]:
    grown = {name: _grown(name, now, before) for name in _TENANT_COUNTS}
    return {**{name: now[name] for name in ("id", "name", "blocks_held")}, **grown}


def _grown(name: str, now: Stats, before: Stats | None) -> int:
    return int(now.get(name, 0)) - int(before.get(name, 0) if before else 0)


def _per_s(count: int, seconds: float) -> str:
    return f"{count / seconds:.1f}" if seconds > 0 else "-"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole > 0 else "-"


def tier_rows(stats: Stats) -> list[tuple[object, ...]]:
    """Write a row for each tier in the answer of GET /admin/cache/stats, in blocks."""
    pool = stats["pool"]["blocks"]
    lower = stats["tiers"]["lower"].items()
    return [
        _row("device", pool["used"], pool["total"]),
        *(_row(name, tier["used_blocks"], tier["total_blocks"]) for name, tier in lower),
    ]


def _row(tier: str, used: int, total: int) -> tuple[object, ...]:
    return tier, used, total, f"{used / total:.0%}" if total else "-"
