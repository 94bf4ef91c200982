"""The flags of `simulate`."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from cli.errors import BadSetting
from cli.load.requests.trace import TenantSizes
from cli.options.engine_options import ENGINE_DEFAULTS
from cli.options.flags import ConfigFlags, field, plain_field
from cli.options.options import Json
from cli.plan.machine import MachineModel
from cli.plan.options import CACHE, RATES, cache_field, machine_field
from gateway.routing.routers.by_name import RouterName
from prefix_cache.names import PolicyName

replica_field = partial(field, panel="Replicas")
drafts_field = partial(field, panel="Drafts")
output_field = partial(field, panel="Output")


@dataclass(frozen=True, slots=True)
class SimulatedModelFlags:
    """The flags for the model that gives the simulation its costs."""

    model: str | None = machine_field(
        None,
        "A model, as 'ratoon plan' takes it: its costs, and its recurrent states. "
        "[dim]\\[an 8B of Llama 3's shape][/dim]",
    )
    state_cache_ratio: float = cache_field(
        ENGINE_DEFAULTS.cache.state_cache_ratio,
        "Bytes of cached recurrent states per byte of KV.",
        min=0.0,
    )


@dataclass(frozen=True, slots=True)
class TierTokenFlags:
    """The flags for the tokens of each tier, and for the eviction policy."""

    device_tokens: int = cache_field(500_000, "Tokens in the device tier.", min=1)
    host_tokens: int = cache_field(0, "Tokens in the host tier; 0: none.", min=0)
    disk_tokens: int = cache_field(0, "Tokens in the disk tier; 0: none.", min=0)
    policy: PolicyName = cache_field(
        ENGINE_DEFAULTS.cache.cache_policy, "Blocks that are evicted first, as in 'ratoon serve'."
    )
    block_size: int = plain_field(
        512,
        "--block-size",
        help="Tokens that one id of the trace stands for.",
        rich_help_panel=CACHE,
        min=1,
    )


@dataclass(frozen=True, slots=True)
class TenancyFlags:
    """The flags for the requests' tenants, and for their shares of the cache."""

    tenants: int = cache_field(
        0,
        "Divide the trace's sessions (requests that begin alike) among this many tenants; 0: as "
        "the trace says.",
        min=0,
    )
    tenant_sizes: TenantSizes = cache_field(
        "equal", "How sessions are divided: equally, or by Zipf's law."
    )
    cache_sharing: Literal["partitioned", "pooled"] = cache_field(
        "pooled",
        "partitioned: tenants have equal parts of each tier, beside a working area as long "
        "as the longest prompt, as on a server. pooled: they share the room.",
    )


MachineFlags = Annotated[MachineModel, ConfigFlags(MachineModel(), RATES)]


@dataclass(frozen=True, slots=True)
class SimulatedReplicaFlags:
    """The flags for several engines, each with its own cache."""

    replicas: int = replica_field(1, "Engines; each has tiers of the sizes given.", min=1)
    router: RouterName = replica_field(
        "first-token",
        "Router to report in full. The other routers are replayed as well, and one cache as large "
        "as all caches.",
    )
    speed: float = replica_field(
        1.0, "Factor by which requests come faster than in the trace.", min=0.001
    )
    fetch_gb_s: float = replica_field(
        0.0,
        "GB/s between replicas, which fetch blocks if this is predicted to be faster than "
        "computing; 0: never.",
        min=0.0,
    )
    prefill_replicas: int = replica_field(
        0, "Replicas that compute prompts for the others; needs --fetch-gb-s.", min=0
    )
    gateways: int = replica_field(
        1,
        "Gateways in front of the replicas; each knows all caches, but only its own requests.",
        min=1,
    )
    target_itl_ms: float = replica_field(
        0.0, "Maximum milliseconds of a step with decodes; 0 means 60.", min=0.0
    )

    def check(self) -> None:
        """Raise BadSetting for flags that need several replicas, or that exclude each other."""
        if self.replicas == 1:
            for flag, value in (
                ("--prefill-replicas", self.prefill_replicas),
                ("--fetch-gb-s", self.fetch_gb_s),
                ("--gateways", self.gateways > 1),
            ):
                if value:
                    raise BadSetting(flag, "one replica has no other; see --replicas")
        if self.prefill_replicas and not self.fetch_gb_s:
            raise BadSetting("--prefill-replicas", "their blocks travel; see --fetch-gb-s")
        if self.prefill_replicas >= self.replicas:
            why = f"of {self.replicas} replicas at least one answers"
            raise BadSetting("--prefill-replicas", why)


@dataclass(frozen=True, slots=True)
class DraftFlags:
    """The flags for texts that are replayed through the drafters."""

    drafts: Path | None = drafts_field(
        None,
        "Replay these texts in place of a trace, and count the tokens that would be drafted and "
        "accepted.",
    )
    tokenizer: Path | None = drafts_field(
        None, "A tokenizer.json, or its directory. [dim]\\[the embedded model's][/dim]"
    )
    runs: int = drafts_field(
        1, "Number of replays of all texts, one after the other in one cache.", min=1
    )


@dataclass(frozen=True, slots=True)
class OutputFlags:
    """The flags for the output's form and place."""

    sizes: str = output_field(
        "",
        "Further total sizes, divided in the same proportions: 250k,1M,2M. [dim]\\[with a plot: "
        "a quarter, half, 1, 2 and 4 times the total][/dim]",
    )
    plot: Path | None = output_field(
        None, "Write an SVG of hit rate against size, beside LRU's; with replicas each router's."
    )
    json: Json = False
