"""The gateway imports only some of the engine's modules, which `make check` cannot test."""

from __future__ import annotations

import subprocess
import sys

import grimp
import pytest

PACKAGES = ("cli", "gateway", "engine", "prefix_cache", "storage", "kernels", "handbook")
OF_OTHER_PACKAGES = {
    "engine.link.address",
    "engine.link.cache_events",
    "engine.link.gateway_end.client",
    "engine.link.tcp.curve",
    "engine.link.gateway_end.in_time",
    "engine.link.interface",
    "engine.errors",
    "engine.link.carrying_messages",
    "engine.link.erasure",
    "engine.link.event_messages",
    "engine.link.messages",
    "engine.grammars.schemas.json_value",
    "engine.grammars.syntax.expression",
    "engine.grammars.syntax.lark_pattern",
    # the gateway converts a tool's grammar into a pattern
    "engine.grammars.syntax.lark_reader",
    "engine.link.gateway_end.outlasting",
    "engine.link.prompt_module",
    "engine.link.query_messages",
    "engine.link.query",
    "engine.link.stats.engine_stats",
    "engine.link.stats.flow_stats",
    "engine.link.stats.gap_stats",
    "engine.link.stats.tier_stats",
    "engine.link.view_messages",
    "engine.system.core_dumps",
    "engine.system.freed_memory",  # both read a model's tokenizer, whose libraries free much memory
    # gateway and engine both write logs by a thread, so that a slow reader delays neither
    "engine.system.line_writer",
    "engine.models.model_files",  # gateway and engine read the same folder, within the same bounds
    "engine.models.token_marks",  # both ends of the link use the same set of control tokens
    "prefix_cache.hashing",
    "prefix_cache.namespace",
}
HEAVY = ("torch", "triton", "transformers", "lmdb", "opentelemetry.sdk")


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES)


def modules_of(graph: grimp.ImportGraph, package: str) -> set[str]:
    return {module for module in graph.modules if module.split(".")[0] == package}


def test_the_gateway_knows_only_what_crosses_the_link(graph: grimp.ImportGraph) -> None:
    known = {
        imported
        for module in modules_of(graph, "gateway")
        for imported in graph.find_modules_directly_imported_by(module)
        if imported.split(".")[0] not in ("gateway",)
    }
    assert known <= OF_OTHER_PACKAGES
    # Positive control: the search finds imports.
    assert {"engine.link.gateway_end.client", "engine.link.messages"} <= known


def test_the_prefix_cache_knows_of_storage_only_moves(graph: grimp.ImportGraph) -> None:
    known = {
        imported
        for module in modules_of(graph, "prefix_cache")
        for imported in graph.find_modules_directly_imported_by(module)
        if imported.split(".")[0] != "prefix_cache"
    }
    assert known == {"storage.move"}


@pytest.mark.parametrize(
    "code", ["import gateway.startup.process", "from cli.main import build_app; build_app()"]
)
def test_importing_loads_nothing_heavy(code: str) -> None:
    probe = f"import sys; {code}; print([name for name in {HEAVY!r} if name in sys.modules])"
    seen = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "[]"


def test_the_probe_would_see_it() -> None:
    code = "import torch, gateway.telemetry.span_export"
    probe = f"import sys; {code}; print([name for name in {HEAVY!r} if name in sys.modules])"
    seen = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "['torch', 'opentelemetry.sdk']"
