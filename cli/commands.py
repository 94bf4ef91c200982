"""The commands, in the order and panels of the help.

Each command is given as module:function. This module imports no command. The list of commands reads
each summary from the command's source file.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """Commands that share their first word."""

    help_text: str
    commands: Commands


Commands = Mapping[str, str | CommandGroup]

KEYS = CommandGroup(
    "A tenant's keys. An issued key is shown once.",
    {
        "create": "cli.operating.tenancy.tenant_keys:create",
        "list": "cli.operating.tenancy.tenant_keys:list_all",
        "rotate": "cli.operating.tenancy.tenant_keys:rotate",
        "revoke": "cli.operating.tenancy.tenant_keys:revoke",
    },
)
TENANTS = CommandGroup(
    "Tenants of a running server, their keys, limits and cache quotas.",
    {
        "create": "cli.operating.tenancy.tenants:create",
        "list": "cli.operating.tenancy.tenants:list_all",
        "show": "cli.operating.tenancy.tenant_view:show",
        "limits": "cli.operating.tenancy.tenant_limits:limits",
        "quota": "cli.operating.tenancy.tenant_limits:quota",
        "usage-tiers": "cli.operating.tenancy.tenants:usage_tiers",
        "canonical-prompts": "cli.operating.tenancy.tenants:canonical_prompts",
        "disable": "cli.operating.tenancy.tenants:disable",
        "enable": "cli.operating.tenancy.tenants:enable",
        "delete": "cli.operating.tenancy.tenants:delete",
        "keys": KEYS,
    },
)
GROUPS = CommandGroup(
    "Groups of tenants that trust each other and share the cache.",
    {
        "create": "cli.operating.tenancy.groups:create",
        "list": "cli.operating.tenancy.groups:list_all",
        "join": "cli.operating.tenancy.groups:join",
        "leave": "cli.operating.tenancy.groups:leave",
        "delete": "cli.operating.tenancy.groups:delete",
    },
)
PREFIXES = CommandGroup(
    "Published prefixes: prompts that many tenants begin with.",
    {
        "create": "cli.operating.prefixes:create",
        "list": "cli.operating.prefixes:list_all",
        "show": "cli.operating.prefixes:show",
        "delete": "cli.operating.prefixes:delete",
        "export": "cli.operating.carried:export",
        "import": "cli.operating.carried:import_",
    },
)
RECEIPTS = CommandGroup(
    "Signed receipts of what was erased of deleted tenants.",
    {
        "create": "cli.operating.receipts:create",
        "key": "cli.operating.receipts:key",
        "verify": "cli.operating.receipts:verify",
    },
)
ADAPTERS = CommandGroup(
    "LoRA adapters of tenants.",
    {
        "load": "cli.operating.tenancy.adapters:load",
        "list": "cli.operating.tenancy.adapters:list_all",
        "drop": "cli.operating.tenancy.adapters:drop",
        "allow": "cli.operating.tenancy.adapters:allow",
    },
)
ENGINES = CommandGroup(
    "Engines on other machines, as gateways with --find-engines find them.",
    {
        "list": "cli.operating.engines:list_all",
        "add": "cli.operating.engines:add",
        "remove": "cli.operating.engines:remove",
    },
)
CLUSTER = CommandGroup(
    "Engines on several machines, placed by Ray.",
    {
        "up": "cli.cluster.cluster:up",
        "status": "cli.cluster.cluster:status",
        "down": "cli.cluster.cluster:down",
    },
)
CACHE = CommandGroup(
    "The prefix cache of a running server.",
    {
        "stats": "cli.operating.cache:stats",
        "evictions": "cli.operating.cache:evictions",
        "tree": "cli.operating.cache_tree:tree",
        "probe": "cli.asking.cached:probe",
        "warm": "cli.asking.cached:warm",
        "flush": "cli.operating.cache:flush",
    },
)
COMMANDS: Mapping[str, Commands] = {
    "Serve": {
        "serve": "cli.serving.serve:serve",
        "gateway": "cli.serving.serve:gateway",
        "engine": "cli.cluster.engine:engine",
        "models": "cli.models.models:models",
    },
    "Operate": {
        "chat": "cli.asking.chat:chat",
        "status": "cli.watching.status:status",
        "top": "cli.watching.top:top",
        "restart": "cli.operating.restart:restart",
        "usage": "cli.operating.usage:usage",
        "audit": "cli.operating.audit:audit",
        "verify-isolation": "cli.isolation.verify_isolation:verify_isolation",
        "tenants": TENANTS,
        "groups": GROUPS,
        "prefixes": PREFIXES,
        "adapters": ADAPTERS,
        "receipts": RECEIPTS,
        "cache": CACHE,
        "engines": ENGINES,
        "cluster": CLUSTER,
    },
    "Measure": {
        "bench": "cli.load.bench:bench",
        "simulate": "cli.simulation.simulate:simulate",
        "plan": "cli.plan.plan:plan",
        "lint": "cli.lint.lint:lint",
        "version": "cli.main:version",
    },
}


def summary_of(command: str) -> str:
    """Return the first paragraph of a command's docstring."""
    module, _, function = command.partition(":")
    spec = find_spec(module)
    assert spec is not None, f"there is no {module}"
    source = spec.loader.get_source(module)  # type: ignore[union-attr]  # of every file
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return (ast.get_docstring(node) or "").partition("\n\n")[0].replace("\n", " ")
    raise LookupError(command)
