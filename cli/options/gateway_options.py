"""The gateway's flags, with the flags of its bounds and prices."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from cli.options.flags import ConfigFlags, field, flag
from gateway.config import Bounds, GatewayConfig
from gateway.tenant_limits import MAX_PRICE, Prices
from gateway.turn_formats.choose import tool_format_names

PRICES = Prices()
GATEWAY_DEFAULTS = GatewayConfig(model_dir="", model_name="", data_dir="", engines=())

gateway_flag = partial(flag, panel="Gateway")
gateway_field = partial(field, panel="Gateway")
bound_flag = partial(flag, panel="Bounds on one request or tenant")
# makes the flag of a bound; a request that exceeds the bound gets 400, 413, 429, 431 or 503
bound = partial(bound_flag, min=1)
# makes the flag of a bound on remembered turns, token ids or prompts; 0: none are remembered
memory = partial(bound_flag, min=0)
price = partial(field, panel="Prices, for budgets", min=0.0, max=MAX_PRICE)

GATEWAY_FLAGS = {
    "host": gateway_flag("Address to listen on; 0.0.0.0 for all."),
    "port": gateway_flag("Port to listen on.", min=1, max=65535),
    "admin_host": gateway_flag("Address of --admin-port."),
    "admin_port": gateway_flag(
        "A separate port for /admin, /healthz, /readyz and /metrics. Default: --port.",
        min=1,
        max=65535,
    ),
    "workers": gateway_flag(
        "Gateway processes that share the port. Default: 1 on up to 4 cores, then a "
        "quarter of the cores, at most 8.",
        min=1,
        max=64,
    ),
    "engine_silence_s": gateway_flag(
        "Seconds of silence, more than any step takes, after which an engine counts as hung. "
        "Default: 10 on cuda, 120 on cpu.",
        min=1.0,
    ),
    "find_engines": gateway_flag(
        "Also use the engines that are registered in the state ('ratoon engines')."
    ),
    "router": gateway_flag(
        "How an engine is chosen for a request; first-token: the one with the soonest predicted "
        "first token."
    ),
    "gateways": gateway_flag(
        "Number of gateways that share --redis-url; while Redis is down, each grants its share of "
        "each limit.",
        min=1,
        max=1024,
    ),
    "share_all": gateway_flag("No isolation: all tenants share one cache."),
    "tool_format": gateway_flag(
        f"Format in which the model writes tool calls: {', '.join(tool_format_names())}. "
        "[dim]\\[default: by its chat template][/dim]",
        show_default=False,
    ),
    "chat_template": gateway_flag(
        "Jinja chat template in place of all of the model's own templates. "
        "[dim]\\[default: the model's][/dim]",
        show_default=False,
    ),
    "default_chat_template_kwargs": gateway_flag(
        "Variables of the chat template that requests do not set, as JSON: "
        """'{"preserve_thinking": true}'. [dim]\\[default: none][/dim]""",
        show_default=False,
    ),
    "generation_config": gateway_flag(
        "auto: temperature, top_p, top_k, min_p, repetition_penalty and length that requests "
        "leave out are as in generation_config.json. none: as in the dialect."
    ),
    "parse_special": gateway_flag(
        "Read special tokens in prompts of /v1/completions, /tokenize and published texts, "
        "for clients that apply the template themselves. In messages they are always text."
    ),
    "cache_sharing": gateway_flag(
        "partitioned: each tenant has its part of every tier, so its hits reveal nothing about "
        "others. pooled: tenants that trust each other share the room: more hits, but evictions "
        "reveal what others ask."
    ),
    "redis_url": gateway_flag(
        "Redis for the state of several gateways, such as redis://redis:6379/0. "
        "[dim]\\[default: SQLite in --data-dir][/dim]",
        show_default=False,
    ),
    "redis_password_file": gateway_flag(
        "File with the password of --redis-url.", show_default=False
    ),
    "redis_timeout_s": gateway_flag(
        "Maximum seconds to wait for Redis; large answers get more time.",
        min=0.001,
        max=10.0,
    ),
    "secrets_dir": gateway_flag(
        "Directory with ratoon_server_secret, ratoon_pepper and ratoon_admin_key, the same "
        "for all gateways. [dim]\\[default: made in --data-dir][/dim]",
        show_default=False,
    ),
    "grace_s": gateway_flag("Seconds that open streams may run on after SIGTERM.", min=0.0),
    "log_level": gateway_flag("How much is logged."),
    "access_log": gateway_flag(
        "A line for each request on standard output, with ids, counts and times, never a "
        "prompt or key."
    ),
    "vllm_metric_names": gateway_flag(
        "Also give /metrics those metrics that vLLM has, under vLLM's names."
    ),
    "page": gateway_flag("Serve the operator's page, /admin/ui, and the tenants', /usage."),
    "docs": gateway_flag("Serve /docs, the API in a browser."),
    "cors_origins": gateway_flag(
        "Origins whose pages may read answers (CORS), with commas; *: all. [dim]\\[default: "
        "none][/dim]",
        show_default=False,
    ),
    "otlp_endpoint": gateway_flag(
        "URL of an OpenTelemetry collector (OTLP over HTTP). Default: no traces.",
        also="OTEL_EXPORTER_OTLP_ENDPOINT",
    ),
}
BOUNDS_FLAGS = {
    "max_body_bytes": bound("Maximum bytes of a request's body."),
    "max_tenant_body_bytes": bound(
        "Maximum bytes of bodies that a tenant's requests hold at once, in each worker."
    ),
    "max_all_body_bytes": bound(
        "Maximum bytes of bodies that all requests hold at once, in each worker."
    ),
    "body_wait_s": bound(
        "Maximum seconds that a body waits for memory within these bounds; then 429 or 503."
    ),
    "max_json_depth": bound("Maximum levels of nested JSON."),
    "max_messages": bound("Maximum messages of a chat."),
    "max_choices": bound("Maximum choices of one prompt (n)."),
    "max_prompts": bound("Maximum prompts times n of one completions request."),
    "max_inputs": bound("Maximum inputs of one embeddings request, and documents to rerank."),
    "max_logprobs": bound("Maximum alternatives for each token."),
    "max_stops": bound("Maximum stop strings."),
    "max_stop_chars": bound("Maximum characters of a stop string."),
    "max_logit_bias": bound("Maximum entries of logit_bias."),
    "max_tenant_turn_bytes": memory(
        "Maximum bytes of a tenant's remembered turns, in each worker: later prompts repeat "
        "their tokens. 0: none."
    ),
    "max_all_turn_bytes": memory(
        "Maximum bytes of all tenants' remembered turns, in each worker. 0: none."
    ),
    "max_tenant_text_bytes": memory(
        "Maximum bytes of a tenant's remembered token ids, in each worker: only the "
        "new part of a prompt is tokenised. 0: none."
    ),
    "max_all_text_bytes": memory(
        "Maximum bytes of all tenants' remembered token ids, in each worker. 0: none."
    ),
    "turn_life_s": memory(
        "Seconds for which turns and token ids are remembered after their last use. 0: never."
    ),
    "max_tenant_seen_bytes": memory(
        "Maximum bytes of a tenant's prompts remembered, in each worker, to explain why later "
        "prompts missed. 0: none."
    ),
    "max_all_seen_bytes": memory(
        "Maximum bytes of all tenants' remembered prompts, in each worker. 0: none."
    ),
    "seen_life_s": memory("Seconds for which a prompt is remembered. 0: never."),
    "allow_cache_load": bound_flag(
        "Let tenants set `cache.load` to auto, always or never, as the operator may."
    ),
    "max_salt_chars": bound("Maximum characters of cache_salt."),
    "max_streams_per_tenant": bound("Maximum choices of a tenant in flight, in each worker."),
    "max_connections": bound(
        "Maximum connections at once, in each worker. Default: as many as the limit of open files "
        "allows."
    ),
    "max_head_bytes": bound("Maximum bytes of the request line and headers."),
    "head_deadline_s": bound("Maximum seconds from a request's first byte to its last header."),
    "body_deadline_s": bound(
        "Maximum seconds from a request's last header to the end of its body."
    ),
    "default_max_tokens": bound("max_tokens of a chat that sets none."),
    "response_ttl_s": bound_flag(
        "Seconds for which answers of /v1/responses are stored, to be continued; 0: never.", min=0.0
    ),
    "max_response_bytes": bound("Maximum bytes of a stored response; a larger one is not stored."),
    "max_tenant_response_bytes": bound(
        "Maximum bytes of a tenant's stored responses; beyond this the oldest are deleted."
    ),
    "max_all_response_bytes": bound(
        "Maximum bytes of all stored responses; beyond this the oldest of the tenant with most "
        "bytes are deleted."
    ),
    "max_unread_bytes": bound(
        "Maximum bytes of a stream that wait for a slow reader, in each worker; beyond this the "
        "stream is cut off."
    ),
    "max_tenant_unread_bytes": bound(
        "Maximum unread bytes of a tenant's streams; beyond this the longest stream is cut off."
    ),
    "max_all_unread_bytes": bound(
        "Maximum unread bytes of all streams; beyond this the longest stream of the tenant with "
        "most unread bytes is cut off."
    ),
    "max_answer_bytes": bound(
        "Maximum bytes of an answer that is not streamed, in each worker; beyond this the "
        "request ends with an error."
    ),
    "max_tenant_answer_bytes": bound(
        "Maximum bytes of a tenant's answers in memory; beyond this the longest ends with an error."
    ),
    "max_all_answer_bytes": bound(
        "Maximum bytes of all answers in memory; beyond this the longest answer of the tenant with "
        "most bytes ends with an error."
    ),
    "stalled_write_s": bound(
        "Seconds after which a client that has read less than a KiB a second is cut off, while "
        "bytes wait for it."
    ),
    "keep_alive_s": bound(
        "Seconds between a stream's pings before its first token, if the dialect has pings."
    ),
}
GatewayFlags = Annotated[GatewayConfig, ConfigFlags(GATEWAY_DEFAULTS, GATEWAY_FLAGS)]
BoundsFlags = Annotated[Bounds, ConfigFlags(Bounds(), BOUNDS_FLAGS)]


@dataclass(frozen=True, slots=True)
class PriceFlags:
    """The price flags, in budget units per million tokens (see `Prices`)."""

    price_computed: float = price(
        PRICES.computed, "Units for a million prompt tokens that were computed."
    )
    price_cached: float = price(
        PRICES.cached, "Units for a million prompt tokens from the cache; at most --price-computed."
    )
    price_generated: float = price(PRICES.generated, "Units for a million generated tokens.")


@dataclass(frozen=True, slots=True)
class StartFlags:
    """The flags for the admin key, and for a start with existing state."""

    admin_key: str | None = gateway_field(
        None,
        "The admin key; written to keys.env. [dim]\\[default: the one in DATA_DIR/keys.env][/dim]",
        show_default=False,
    )
    new_state: bool = gateway_field(
        False,
        "Start once although the state is missing, damaged or a different one: with the state "
        "found, or an empty one. Nothing is deleted.",
    )
