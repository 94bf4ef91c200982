"""The gateway's settings, which the command line composes and passes to the gateway process.

Secrets are not among them: they are files in `data_dir`, or where `Shared` says.
"""

from __future__ import annotations

import os
import sys
from typing import Literal

import msgspec

from gateway.routing.names import RouterName
from gateway.tenant_limits import Prices

GenerationConfigSource = Literal["auto", "none"]


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds that are checked before any work is done for a request."""

    max_body_bytes: int = 16 << 20
    max_tenant_body_bytes: int = 32 << 20  # of all bodies that a tenant's requests hold at once
    max_all_body_bytes: int = 128 << 20  # of all tenants' together; both in each worker
    body_wait_s: float = 10.0  # for room in these
    max_json_depth: int = 64
    max_messages: int = 4096
    max_choices: int = 16  # of one prompt: n
    max_prompts: int = 128  # of one completions request, times n
    max_logprobs: int = 20
    max_stops: int = 16
    max_stop_chars: int = 256
    max_logit_bias: int = 1024
    max_salt_chars: int = 1024
    max_streams_per_tenant: int = 1024  # in each worker
    max_head_bytes: int = 64 << 10  # request line and headers
    head_deadline_s: float = 10.0  # from the first byte of a request to the end of its headers
    body_deadline_s: float = 60.0  # from there to the end of its body
    # On the tenants' port, in each worker; None: as many as the limit of open files has room for
    max_connections: int | None = None
    # Of streams that are generated faster than their clients read: of one, of all of a tenant's, of
    # all tenants'; in each worker. Beyond these the longest is cut off.
    max_unread_bytes: int = 8 << 20
    max_tenant_unread_bytes: int = 32 << 20
    max_all_unread_bytes: int = 128 << 20
    # Of answers that are not streamed, until they are sent; likewise.
    max_answer_bytes: int = 64 << 20
    max_tenant_answer_bytes: int = 128 << 20
    max_all_answer_bytes: int = 256 << 20
    stalled_write_s: float = 30.0  # a client that hardly reads for so long is cut off
    keep_alive_s: float = 10.0  # of silence before the first token, for dialects that have pings
    default_max_tokens: int = 16384  # of a chat that sets none; less if the context is shorter
    response_ttl_s: float = 86400.0  # how long a response is stored; 0: none is
    max_response_bytes: int = 2 << 20
    max_tenant_response_bytes: int = 32 << 20  # of all stored responses of a tenant
    max_all_response_bytes: int = 256 << 20  # of all tenants'
    # Generated turns that are remembered, in each worker; 0: none
    max_tenant_turn_bytes: int = 8 << 20
    max_all_turn_bytes: int = 64 << 20
    # Token ids of pieces of prompts, so that only what is new is tokenised; as above
    max_tenant_text_bytes: int = 8 << 20
    max_all_text_bytes: int = 64 << 20
    turn_life_s: float = 1800.0  # after a turn was generated, or a turn or a piece used last
    # Prompts that are remembered, so that a tenant can ask why the next one missed; as above
    max_tenant_seen_bytes: int = 8 << 20
    max_all_seen_bytes: int = 64 << 20
    seen_life_s: float = 1800.0  # after a prompt was computed
    allow_cache_load: bool = False  # whether tenants may set `cache.load`, as the operator may


def cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def default_workers(cores: int) -> int:
    """Choose the number of gateway processes for a machine with `cores` cores.

    One worker streams 10,000 tokens a second and more; the engine and the kernel's network code
    need cores too.
    """
    return 1 if cores <= 4 else min(8, cores // 4)


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """The place of several gateways' common state and secrets.

    With every path and URL None there is one gateway, which keeps both in its `data_dir`.
    """

    redis_url: str | None = None  # None: SQLite in data_dir. Never with a password in it
    redis_password_file: str | None = None
    redis_timeout_s: float = 0.05  # the longest wait for one answer; large ones have longer
    secrets_dir: str | None = None  # None: secrets made in data_dir


class GatewayConfig(Shared, frozen=True, kw_only=True):
    """All settings of a gateway process."""

    model_dir: str
    model_name: str
    data_dir: str
    # Of each engine the path of a Unix socket, or tcp://host:port; several are replicas, which are
    # named by their places here.
    engines: tuple[str, ...]
    find_engines: bool = False  # and those that are registered in the state, as they come and go
    link_key_file: str | None = None  # of engines over TCP; the same file as the engines have
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int | None = None  # processes that share the port; None: by `default_workers`
    admin_host: str = "127.0.0.1"
    admin_port: int | None = None  # None: the admin routes are on `port`
    engine_silence_s: float | None = None  # after which it counts as hung; None: by its device
    router: RouterName = "first-token"  # which of several engines a request is sent to
    share_all: bool = False  # one owner: all tenants share one namespace
    tool_format: str | None = None  # how the model writes calls of tools; None: by its template
    chat_template: str | None = None  # path of one that is used in place of the model's
    default_chat_template_kwargs: str | None = None  # JSON of what a request's own come before
    # auto: a request that does not say is sampled as the model's generation_config.json has it
    generation_config: GenerationConfigSource = "auto"
    parse_special: bool = False  # whether special tokens in the text of a prompt are these tokens
    # partitioned: each tenant has a part of every tier; pooled: one's new blocks evict another's
    cache_sharing: Literal["partitioned", "pooled"] = "partitioned"
    bounds: Bounds = Bounds()
    prices: Prices = Prices()  # for budgets
    gateways: int = 1  # whatever their workers, that share Redis
    grace_s: float = 30.0  # how long streams may run on after SIGTERM
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    access_log: Literal["lines", "json", "off"] = "lines"
    vllm_metric_names: bool = False  # /metrics shows what vLLM has as well under its names, too
    page: bool = True  # whether /admin/ui and /usage are served
    docs: bool = True  # whether /docs is served
    cors_origins: str | None = None  # with commas; None: no page of another origin reads answers
    otlp_endpoint: str | None = None  # URL of a collector for traces; None: nothing is traced

    @property
    def has_replicas(self) -> bool:
        """True if there may be more engines than one."""
        return self.find_engines or len(self.engines) > 1
