"""The gateway's settings, which the command line composes and passes to the gateway process.

Secrets are not among the settings. The secrets are files in `data_dir`, or in `Shared.secrets_dir`.
"""

import os
import sys
from typing import Literal

import msgspec

from gateway.routing.names import RouterName
from gateway.tenant_limits import Prices

GenerationConfigSource = Literal["auto", "none"]


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The limits on requests, answers and memory that the gateway enforces."""

    max_body_bytes: int = 16 << 20
    max_tenant_body_bytes: int = 32 << 20
    max_all_body_bytes: int = 128 << 20
    body_wait_s: float = 10.0
    max_json_depth: int = 64
    max_messages: int = 4096
    max_choices: int = 16  # maximum number of choices of one prompt (field `n`)
    # maximum product of a completions request's number of prompts and its `n`
    max_prompts: int = 128
    # maximum number of inputs of one embeddings request, or of documents of one rerank request
    max_inputs: int = 2048
    max_logprobs: int = 20
    max_stops: int = 16
    max_stop_chars: int = 256
    max_logit_bias: int = 1024
    max_salt_chars: int = 1024
    max_streams_per_tenant: int = 1024
    max_head_bytes: int = 64 << 10
    # maximum seconds from a request's first byte to the end of its headers
    head_deadline_s: float = 10.0
    # maximum seconds from the end of a request's headers to the end of its body
    body_deadline_s: float = 60.0
    # Maximum number of connections to the tenants' port, in each worker; None: derived from
    # the limit of open files.
    max_connections: int | None = None
    # Maximum bytes of streams that clients have not read yet: of one stream, of a tenant's
    # streams, and of all streams in a worker. Beyond a limit the longest stream is cut off.
    max_unread_bytes: int = 8 << 20
    max_tenant_unread_bytes: int = 32 << 20
    max_all_unread_bytes: int = 128 << 20
    # Maximum bytes of unstreamed answers that are not sent yet: of one answer, of a tenant's
    # answers, and of all answers.
    max_answer_bytes: int = 64 << 20
    max_tenant_answer_bytes: int = 128 << 20
    max_all_answer_bytes: int = 256 << 20
    # seconds after which a client that reads less than 1 KiB a second is cut off
    stalled_write_s: float = 30.0
    keep_alive_s: float = 10.0
    default_max_tokens: int = 16384  # maximum tokens of an answer to a chat that sets no maximum
    # seconds for which a response is stored; 0: responses are not stored
    response_ttl_s: float = 86400.0
    max_response_bytes: int = 2 << 20
    max_tenant_response_bytes: int = 32 << 20
    max_all_response_bytes: int = 256 << 20
    # Maximum bytes of remembered generated turns, in each worker; 0: none are remembered.
    max_tenant_turn_bytes: int = 8 << 20
    max_all_turn_bytes: int = 64 << 20
    # Maximum bytes of remembered token ids. Text whose ids are remembered is not tokenised again.
    max_tenant_text_bytes: int = 8 << 20
    max_all_text_bytes: int = 64 << 20
    turn_life_s: float = 1800.0
    # Maximum bytes of remembered prompts. A later prompt that missed the cache can be compared
    # with them.
    max_tenant_seen_bytes: int = 8 << 20
    max_all_seen_bytes: int = 64 << 20
    seen_life_s: float = 1800.0
    allow_cache_load: bool = False


def cores() -> int:
    """Count the processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def default_workers(cores: int) -> int:
    """Choose how many gateway processes to run on a machine with `cores` cores.

    One worker streams 10,000 tokens a second and more. The engine and the kernel's network code
    need cores too.
    """
    return 1 if cores <= 4 else min(8, cores // 4)


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """The place where several gateways store the records and secrets that they share.

    If every path and URL is None there is one gateway, which has its state and secrets in
    `data_dir`.
    """

    redis_url: str | None = None  # None: SQLite in data_dir. Never contains a password
    redis_password_file: str | None = None
    # maximum seconds to wait for a small answer from Redis; larger answers may take longer
    redis_timeout_s: float = 0.05
    secrets_dir: str | None = None  # None: secrets are created in data_dir


class GatewayConfig(Shared, frozen=True, kw_only=True):
    """All settings of a gateway process."""

    model_dir: str
    model_name: str
    data_dir: str
    # Each engine's address: the path of a Unix socket, or tcp://host:port. Several engines are
    # replicas, named by their indices in this tuple.
    engines: tuple[str, ...]
    # whether engines registered in the state are used too, as long as they are registered
    find_engines: bool = False
    # path of the key file for links over TCP, the same file that the engines read
    link_key_file: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    # worker processes that share the port; None: `default_workers` chooses the number
    workers: int | None = None
    admin_host: str = "127.0.0.1"
    admin_port: int | None = None  # port of the admin routes; None: they are on `port`
    # seconds of silence after which an engine counts as hung; None: the default of its device
    engine_silence_s: float | None = None
    router: RouterName = "first-token"
    # whether all tenants share one namespace and count as one owner of blocks
    share_all: bool = False
    # the model's format of tool calls; None: recognised by the chat template
    tool_format: str | None = None
    chat_template: str | None = None  # path of a template used in place of the model's
    # variables of the chat template as JSON; a request's own variables override them
    default_chat_template_kwargs: str | None = None
    # auto: a request without sampling fields uses the model's generation_config.json
    generation_config: GenerationConfigSource = "auto"
    # whether the text of a special token in a prompt becomes this token
    parse_special: bool = False
    # partitioned: each tenant has its part of every tier; pooled: tenants evict each other's blocks
    cache_sharing: Literal["partitioned", "pooled"] = "partitioned"
    bounds: Bounds = Bounds()
    prices: Prices = Prices()
    gateways: int = 1  # number of gateways that share Redis, however many workers each has
    grace_s: float = 30.0
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    access_log: Literal["lines", "json", "off"] = "lines"
    vllm_metric_names: bool = False
    page: bool = True
    docs: bool = True
    # origins whose web pages may read answers, separated by commas; None: only pages of this server
    cors_origins: str | None = None
    otlp_endpoint: str | None = None  # URL of a collector for traces; None: no traces

    @property
    def has_replicas(self) -> bool:
        """True if there may be several engines."""
        return self.find_engines or len(self.engines) > 1
