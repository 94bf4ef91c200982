"""Which commands there are, in which order and under which panel of the help.

Imports none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """One command: where its function is, and the first paragraph of what this says of itself.

    The summary is here a second time, so that commands can be listed without importing them.
    """

    function: str  # module:function
    summary: str


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """Commands that begin with the same word."""

    help_text: str
    commands: Commands


Commands = Mapping[str, Command | CommandGroup]

KEYS = CommandGroup(
    "A tenant's keys. An issued key is shown once.",
    {
        "create": Command(
            "cli.operating.tenant_keys:create",
            "Issue a key. It is shown only once; the server stores a digest.",
        ),
        "list": Command(
            "cli.operating.tenant_keys:list_all",
            "List a tenant's keys by their ids; the keys themselves are not stored.",
        ),
        "rotate": Command(
            "cli.operating.tenant_keys:rotate",
            "Replace a key by a new one, which is shown only once.",
        ),
        "revoke": Command(
            "cli.operating.tenant_keys:revoke",
            "Make a key invalid now.",
        ),
    },
)
TENANTS = CommandGroup(
    "Tenants of a running server, their keys, limits and cache quotas.",
    {
        "create": Command(
            "cli.operating.tenants:create",
            "Add a tenant.",
        ),
        "list": Command(
            "cli.operating.tenants:list_all",
            "List the tenants, with their groups, limits and shares of the cache.",
        ),
        "show": Command(
            "cli.operating.tenant_view:show",
            "Show a tenant: its limits, quota, keys, cache, and its usage of the last 31 days.",
        ),
        "limits": Command(
            "cli.operating.tenant_limits:limits",
            "Show or change what a tenant may use; 0 removes a limit.",
        ),
        "quota": Command(
            "cli.operating.tenant_limits:quota",
            "Show or change a tenant's share of the cache.",
        ),
        "usage-tiers": Command(
            "cli.operating.tenants:usage_tiers",
            "Choose whether a tenant's usage says from which tiers its cached tokens came.",
        ),
        "canonical-prompts": Command(
            "cli.operating.tenants:canonical_prompts",
            "Choose whether what varies without meaning is taken out of a tenant's prompts.",
        ),
        "disable": Command(
            "cli.operating.tenants:disable",
            "Refuse a tenant's requests (403) until it is enabled again; its cache is dropped.",
        ),
        "enable": Command(
            "cli.operating.tenants:enable",
            "Let a disabled tenant's keys work again.",
        ),
        "delete": Command(
            "cli.operating.tenants:delete",
            "Remove a tenant and all of its keys, for good.",
        ),
        "keys": KEYS,
    },
)
GROUPS = CommandGroup(
    "Groups of tenants that trust each other and share the cache.",
    {
        "create": Command(
            "cli.operating.groups:create",
            "Add a group; 'ratoon groups join' puts tenants into it.",
        ),
        "list": Command(
            "cli.operating.groups:list_all",
            "List the groups and their members.",
        ),
        "join": Command(
            "cli.operating.groups:join",
            "Put a tenant into a group; it leaves its former group.",
        ),
        "leave": Command(
            "cli.operating.groups:leave",
            "Take a tenant out of its group.",
        ),
        "delete": Command(
            "cli.operating.groups:delete",
            "Remove a group without members.",
        ),
    },
)
PREFIXES = CommandGroup(
    "Published prefixes: prompts that many tenants begin with.",
    {
        "create": Command(
            "cli.operating.prefixes:create",
            "Publish a prefix: a file with a system message, with messages in JSON, or with "
            "a text.",
        ),
        "list": Command(
            "cli.operating.prefixes:list_all",
            "List what is published.",
        ),
        "show": Command(
            "cli.operating.prefixes:show",
            "Show one prefix, what was published, and, if it cannot be used, the reason.",
        ),
        "delete": Command(
            "cli.operating.prefixes:delete",
            "Withdraw a prefix: from now on each tenant computes it for itself.",
        ),
    },
)
ENGINES = CommandGroup(
    "Engines on other machines, as gateways with --find-engines find them.",
    {
        "list": Command(
            "cli.operating.engines:list_all",
            "List the engines that are registered, and how the gateway sees each.",
        ),
        "add": Command(
            "cli.operating.engines:add",
            "Add an engine that does not register itself.",
        ),
        "remove": Command(
            "cli.operating.engines:remove",
            "Remove an engine: gateways send it nothing new; what it has begun goes on.",
        ),
    },
)
CLUSTER = CommandGroup(
    "Engines on several machines, placed by Ray.",
    {
        "up": Command(
            "cli.cluster.cluster:up",
            "Run engines on the machines of a Ray cluster, and say what becomes of them.",
        ),
        "status": Command(
            "cli.cluster.cluster:status",
            "Show where each engine of a cluster runs, and how it is doing.",
        ),
        "down": Command(
            "cli.cluster.cluster:down",
            "End all engines of a cluster: each leaves the gateways and finishes what it has "
            "begun.",
        ),
    },
)
CACHE = CommandGroup(
    "The prefix cache of a running server.",
    {
        "stats": Command(
            "cli.operating.cache:stats",
            "Show what the cache holds, and its hit rates.",
        ),
        "evictions": Command(
            "cli.operating.cache:evictions",
            "List the last evictions between tenants: whose blocks were evicted, for whom, "
            "and why.",
        ),
        "tree": Command(
            "cli.operating.cache_tree:tree",
            "Show the cache's tree: namespaces, and below each the prefixes that lie in it.",
        ),
        "probe": Command(
            "cli.asking.cached:probe",
            "Show how much of a request's prompt is in the cache; nothing is computed.",
        ),
        "warm": Command(
            "cli.asking.cached:warm",
            "Compute a request's prompt into the cache, without an answer.",
        ),
        "flush": Command(
            "cli.operating.cache:flush",
            "Drop cached prefixes, and compiled grammars, of one tenant or of all.",
        ),
    },
)
# By the panel of the help in which they are listed.
COMMANDS: Mapping[str, Commands] = {
    "Serve": {
        "serve": Command(
            "cli.serving.serve:serve",
            "Serve a model: gateway and engine together.",
        ),
        "gateway": Command(
            "cli.serving.serve:gateway",
            "Run the gateway alone: HTTP, keys, tenants, prompts. Needs no torch.",
        ),
        "engine": Command(
            "cli.serving.serve:engine",
            "Run the engine alone: it owns the accelerator and the cache.",
        ),
        "models": Command(
            "cli.serving.models:models",
            "List the models that are served, or say whether one is.",
        ),
    },
    "Operate": {
        "chat": Command(
            "cli.asking.chat:chat",
            "Talk to the model; after each turn it says what came from the cache, and how fast.",
        ),
        "status": Command(
            "cli.watching.status:status",
            "Show whether the server, its engine and each tier of the cache work.",
        ),
        "top": Command(
            "cli.watching.top:top",
            "Watch hit rates by tier, tokens a second, the queue, and each tenant, until Ctrl-C.",
        ),
        "restart": Command(
            "cli.operating.restart:restart",
            "Restart the engines of the server that runs in DATA_DIR, one after the other.",
        ),
        "usage": Command(
            "cli.operating.usage:usage",
            "Show what tenants used, by key and day (UTC), and in all; by default of the "
            "last 31 days.",
        ),
        "audit": Command(
            "cli.operating.audit:audit",
            "Show what was changed over the admin routes, newest first.",
        ),
        "verify-isolation": Command(
            "cli.isolation.verify_isolation:verify_isolation",
            "Test a running server: can a tenant learn anything about another tenant's prompts?",
        ),
        "tenants": TENANTS,
        "groups": GROUPS,
        "prefixes": PREFIXES,
        "cache": CACHE,
        "engines": ENGINES,
        "cluster": CLUSTER,
    },
    "Measure": {
        "bench": Command(
            "cli.load.bench:bench",
            "Load a running server; report times, tokens/s, goodput and the run's cache hit rate.",
        ),
        "simulate": Command(
            "cli.simulation.simulate:simulate",
            "Replay a request trace through the cache's own code; report hit rates and "
            "estimated TTFT.",
        ),
        "plan": Command(
            "cli.plan.plan:plan",
            "Show what a model costs, what fits each tier, and when loading beats computing.",
        ),
        "lint": Command(
            "cli.lint.lint:lint",
            "Find what will keep a request from the cache, before it is sent.",
        ),
        "version": Command(
            "cli.main:version",
            "Print the version.",
        ),
    },
}
