import re
from functools import partial
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from cli.errors import BadSetting
from cli.models.model_source import ModelSource
from cli.options.engine_options import ENGINE_DEFAULTS, ENGINE_FLAGS
from cli.options.gateway_options import GATEWAY_DEFAULTS, GATEWAY_FLAGS, PriceFlags
from cli.serving.compose import (
    MAX_SOCKET_BYTES,
    admin_url,
    base_url,
    check_role,
    checked_socket,
    engine_config,
    gateway_config,
)
from engine.config import EngineConfig, part_with
from gateway.config import Bounds, GatewayConfig
from gateway.tenant_limits import Prices

SOURCE = ModelSource(Path("/models/tiny"), "tiny")
SOCKET = "/run/ratoon/engine.sock"
DATA_DIR = Path("/var/lib/ratoon")
engine_flags = ENGINE_DEFAULTS.changed
gateway_flags = partial(replace, GATEWAY_DEFAULTS)


def setting(config: EngineConfig, name: str) -> object:
    return getattr(part_with(config, name), name)


def test_untouched_flags_give_the_default_engine() -> None:
    assert engine_config(SOURCE, DATA_DIR, SOCKET, engine_flags()) == EngineConfig.of(
        model_dir="/models/tiny",
        socket="/run/ratoon/engine.sock",
        disk_cache_dir="/var/lib/ratoon/blocks",
    )


def test_untouched_flags_give_the_default_gateway() -> None:
    composed = gateway_config(SOURCE, DATA_DIR, [SOCKET], gateway_flags(), Bounds(), PriceFlags())
    assert composed == GatewayConfig(
        model_dir="/models/tiny",
        model_name="tiny",
        data_dir="/var/lib/ratoon",
        engines=("/run/ratoon/engine.sock",),
    )


def test_every_engine_flag_arrives() -> None:
    flags = engine_flags(
        device="cpu",
        dtype="float32",
        load_format="dummy",
        block_size=8,
        cache_tokens=4096,
        host_cache_gib=1.5,
        host_cache_tokens=64,
        disk_cache_dir="/var/cache/blocks",
        disk_cache_gib=3.0,
        disk_encryption=True,
        cache_policy="value",
        quantization="fp8",
        kv_dtype="fp8",
        spill_grace_s=1.0,
        memory_fraction=0.5,
        max_model_len=2048,
        max_batch_tokens=256,
        max_running=3,
        max_waiting=5,
        single_flight_deadline_s=1.5,
        overlap_scheduling=False,
        drafts="off",
        graph_tokens=7,
        least_shared_tokens=9,
        windows="whole",
        state_cache_ratio=0.5,
        target_itl_ms=33.0,
        num_threads=2,
        tensor_parallel=2,
        peer_memory=False,
        pipeline_parallel=3,
        cpu_offload_gb=1.5,
        adapters_dir="/adapters",
        adapter_slots=3,
        adapter_rank=64,
        adapter_experts=True,
        adapter_host_gib=2.5,
        sentinel_share=0.25,
    )
    composed = engine_config(SOURCE, DATA_DIR, SOCKET, flags)
    for name in ENGINE_FLAGS:
        given, default = setting(flags, name), setting(engine_flags(), name)
        assert setting(composed, name) == given
        assert given != default, f"{name} is not tried"


def test_blocks_lie_in_the_data_directory_by_default() -> None:
    own = engine_config(SOURCE, DATA_DIR, SOCKET, engine_flags())
    assert own.cache.disk_cache_dir == "/var/lib/ratoon/blocks"
    named = engine_flags(disk_cache_dir="/fast/blocks")
    assert engine_config(SOURCE, DATA_DIR, SOCKET, named).cache.disk_cache_dir == "/fast/blocks"


def test_an_engine_of_prompts_needs_a_place_where_others_fetch() -> None:
    prefill = engine_flags(role="prefill", exchange="/x.sock")
    for good in (engine_flags(role="decode"), prefill):
        check_role(good)
    with pytest.raises(BadSetting, match="--role: prefill needs --exchange"):
        check_role(engine_flags(role="prefill"))


def test_an_exchange_is_a_path_or_has_the_key_of_the_link() -> None:
    over_tcp, beside = "tcp://0.0.0.0:7302", engine_flags(exchange="x.sock")
    assert engine_config(SOURCE, DATA_DIR, SOCKET, engine_flags()).process.exchange is None
    assert engine_config(SOURCE, DATA_DIR, SOCKET, beside).process.exchange == str(
        Path("x.sock").absolute()
    )
    flags = engine_flags(exchange=over_tcp)
    assert engine_config(SOURCE, DATA_DIR, "tcp://0.0.0.0:7300", flags).process.exchange == over_tcp
    with pytest.raises(BadSetting, match="--exchange: over TCP it has the key of --socket"):
        engine_config(SOURCE, DATA_DIR, SOCKET, flags)
    with pytest.raises(BadSetting, match="--exchange: 'tcp://gpu1' is not tcp://HOST:PORT"):
        engine_config(SOURCE, DATA_DIR, SOCKET, engine_flags(exchange="tcp://gpu1"))
    with pytest.raises(BadSetting, match="--exchange: '' is no path of a socket"):
        engine_config(SOURCE, DATA_DIR, SOCKET, engine_flags(exchange=""))


@pytest.mark.parametrize(
    ("exchange", "says"),
    [
        ("tcp://h:65535", "'tcp://h:65535': the port is at most 65534"),
        ("tcp://h:65534", ""),
        ("tcp://h:7302", ""),
        ("tcp://other:7300", ""),
        ("tcp://h:7301", "tcp://h:7301: port 7301 is one of --socket, which has 7300 and 7301"),
        ("tcp://0.0.0.0:7300", "tcp://0.0.0.0:7300: port 7300 is one of --socket"),
        (f"/{'x' * 90}", ""),
        (f"/{'x' * 99}", f"/{'x' * 99} is too long"),
    ],
)
def test_an_exchange_has_a_place_of_its_own(exchange: str, says: str) -> None:
    """Refuse an exchange without an address of its own: the engine could not listen, and its error
    would name no flag.
    """
    flags = engine_flags(exchange=exchange)
    if not says:
        assert engine_config(SOURCE, DATA_DIR, "tcp://h:7300", flags).process.exchange == exchange
        return
    with pytest.raises(BadSetting, match=f"^--exchange: {re.escape(says)}"):
        engine_config(SOURCE, DATA_DIR, "tcp://h:7300", flags)


def test_an_engine_of_several_ranks_has_no_exchange() -> None:
    beside = engine_flags(exchange="/x.sock")
    assert engine_config(SOURCE, DATA_DIR, SOCKET, beside).process.exchange == "/x.sock", (
        "the control"
    )
    for ranks in ({"tensor_parallel": 2}, {"pipeline_parallel": 2}):
        with pytest.raises(BadSetting, match=r"--exchange: engines of several ranks .* send no"):
            engine_config(SOURCE, DATA_DIR, SOCKET, beside.changed(**ranks))


def test_an_engine_alone_may_have_a_grace_of_its_own() -> None:
    assert (
        engine_config(SOURCE, DATA_DIR, SOCKET, engine_flags(grace_s=60.0)).process.grace_s == 60.0
    )


def test_every_gateway_flag_and_bound_arrives() -> None:
    flags = gateway_flags(
        host="0.0.0.0",
        port=9000,
        admin_host="10.0.0.1",
        admin_port=9001,
        workers=3,
        engine_silence_s=4.0,
        gateways=2,
        find_engines=True,
        router="session",
        share_all=True,
        tool_format="hermes",
        chat_template="/etc/ratoon/chat_template.jinja",
        default_chat_template_kwargs='{"preserve_thinking": true}',
        generation_config="none",
        parse_special=True,
        cache_sharing="pooled",
        redis_url="redis://redis:6379/0",
        redis_password_file="/run/secrets/redis",
        redis_timeout_s=0.5,
        secrets_dir="/run/secrets",
        grace_s=3.0,
        log_level="debug",
        access_log="json",
        page=False,
        docs=False,
        vllm_metric_names=True,
        cors_origins="https://app.example",
        otlp_endpoint="http://collector:4318",
    )
    bounds = Bounds(max_choices=2, stalled_write_s=1.0)
    composed = gateway_config(SOURCE, DATA_DIR, [SOCKET], flags, bounds, PriceFlags())
    for name in GATEWAY_FLAGS:
        assert getattr(composed, name) == getattr(flags, name)
        assert getattr(composed, name) != getattr(gateway_flags(), name), f"{name} is not tried"
    assert composed.bounds == Bounds(max_choices=2, stalled_write_s=1.0)


def test_every_price_arrives() -> None:
    prices = PriceFlags(price_computed=3.0, price_cached=0.5, price_generated=15.0)
    composed = gateway_config(SOURCE, DATA_DIR, [SOCKET], gateway_flags(), Bounds(), prices)
    assert composed.prices == Prices(computed=3.0, cached=0.5, generated=15.0)


def test_a_cached_token_costs_no_more_than_a_computed_one() -> None:
    dear = PriceFlags(price_computed=1.0, price_cached=1.5)
    with pytest.raises(BadSetting, match=r"--price-cached: 1.5 is more than --price-computed"):
        gateway_config(SOURCE, DATA_DIR, [SOCKET], gateway_flags(), Bounds(), dear)
    same = PriceFlags(price_computed=1.0, price_cached=1.0)
    assert gateway_config(
        SOURCE, DATA_DIR, [SOCKET], gateway_flags(), Bounds(), same
    ).prices == Prices(computed=1.0, cached=1.0)


def test_configs_survive_the_command_line() -> None:
    composed = gateway_config(
        SOURCE, DATA_DIR, [SOCKET], gateway_flags(port=81), Bounds(), PriceFlags()
    )
    encoded = msgspec.json.encode(composed)
    assert msgspec.json.decode(encoded, type=GatewayConfig) == composed


def test_relative_places_become_absolute() -> None:
    composed = gateway_config(
        SOURCE, Path(".ratoon"), ["e.sock"], gateway_flags(), Bounds(), PriceFlags()
    )
    assert composed.data_dir == str(Path.cwd() / ".ratoon")
    assert composed.engines == (str(Path.cwd() / "e.sock"),)


@pytest.mark.parametrize(("cache_tokens", "fine"), [(16, True), (17, True), (15, False)])
def test_the_cache_holds_a_block_at_least(cache_tokens: int, fine: bool) -> None:
    flags = engine_flags(cache_tokens=cache_tokens)
    if fine:
        assert engine_config(SOURCE, DATA_DIR, SOCKET, flags).cache.cache_tokens == cache_tokens
    else:
        with pytest.raises(BadSetting, match=r"--cache-tokens: 15 is less than one block of 16"):
            engine_config(SOURCE, DATA_DIR, SOCKET, flags)


def test_the_admin_port_is_another_port() -> None:
    with pytest.raises(BadSetting, match="--admin-port: 8000 is also --port"):
        gateway_config(
            SOURCE, DATA_DIR, [SOCKET], gateway_flags(admin_port=8000), Bounds(), PriceFlags()
        )
    composed = gateway_config(
        SOURCE, DATA_DIR, [SOCKET], gateway_flags(admin_port=8001), Bounds(), PriceFlags()
    )
    assert composed.admin_port == 8001


@pytest.mark.parametrize("letter", ["x", "é"])
def test_a_socket_path_is_bounded_in_bytes(letter: str) -> None:
    room = MAX_SOCKET_BYTES - 1 - len("/")
    fits = "/" + letter * (room // len(letter.encode()))
    assert checked_socket(fits) == fits
    with pytest.raises(BadSetting, match="--socket"):
        checked_socket(f"{fits}{letter}")


def test_an_address_over_tcp_is_taken_as_it_is() -> None:
    assert checked_socket("tcp://gpu1.example:7300") == "tcp://gpu1.example:7300"
    with pytest.raises(BadSetting, match="--socket: 'tcp://gpu1' is not tcp://HOST:PORT"):
        checked_socket("tcp://gpu1")


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
        ("gpu7.example", "http://gpu7.example:80"),
    ],
)
def test_a_url_reaches_what_listens(host: str, url: str) -> None:
    assert base_url(host, 80) == url


def test_admin_routes_have_their_own_port_or_none() -> None:
    assert admin_url("10.0.0.1", 80, "127.0.0.1", None) == "http://10.0.0.1:80"
    assert admin_url("10.0.0.1", 80, "127.0.0.1", 81) == "http://127.0.0.1:81"


@pytest.mark.parametrize(
    "url", ["collector:4318", "ftp://collector", "http://", "http://[", "http://me:key@collector"]
)
def test_a_bad_collector_url_is_refused(url: str) -> None:
    flags = gateway_flags(otlp_endpoint=url)
    with pytest.raises(BadSetting, match="--otlp-endpoint"):
        gateway_config(SOURCE, DATA_DIR, [SOCKET], flags, Bounds(), PriceFlags())


def test_a_collectors_url_arrives() -> None:
    flags = gateway_flags(otlp_endpoint="https://collector:4318/v1/traces")
    composed = gateway_config(SOURCE, DATA_DIR, [SOCKET], flags, Bounds(), PriceFlags())
    assert composed.otlp_endpoint == "https://collector:4318/v1/traces"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (gateway_flags(redis_url="redis://:hush@redis:6379"), "--redis-url"),
        (gateway_flags(redis_url="redis://redis?password=hush"), "--redis-url"),
        (gateway_flags(redis_url="redis:6379"), "--redis-url"),
        (gateway_flags(redis_url="http://redis:6379"), "--redis-url"),
        (gateway_flags(redis_url="redis://redis:port"), "--redis-url"),
        (gateway_flags(redis_password_file="/run/secrets/redis"), "--redis-password-file"),
    ],
)
def test_a_redis_url_is_one_and_holds_no_password(flags: GatewayConfig, named: str) -> None:
    with pytest.raises(BadSetting) as refusal:
        gateway_config(SOURCE, DATA_DIR, [SOCKET], flags, Bounds(), PriceFlags())
    assert named in str(refusal.value)
    assert "hush" not in str(refusal.value)


def test_a_format_of_calls_is_one_that_there_is() -> None:
    def composed(name: str) -> GatewayConfig:
        flags = gateway_flags(tool_format=name)
        return gateway_config(SOURCE, DATA_DIR, [SOCKET], flags, Bounds(), PriceFlags())

    with pytest.raises(BadSetting, match=r"^--tool-format: 'Hermes' is none of hermes, "):
        composed("Hermes")
    assert composed("hermes").tool_format == "hermes"


@pytest.mark.parametrize("given", ["{", "[]", '{"a": {}}', "null"])
def test_variables_of_the_template_are_an_object(given: str) -> None:
    flags = gateway_flags(default_chat_template_kwargs=given)
    with pytest.raises(BadSetting, match=r"^--default-chat-template-kwargs: "):
        gateway_config(SOURCE, DATA_DIR, [SOCKET], flags, Bounds(), PriceFlags())


def test_redis_urls_that_serve() -> None:
    for url in ("redis://redis:6379/0", "rediss://user@redis", "unix:///run/redis.sock?db=1"):
        flags = gateway_flags(redis_url=url)
        composed = gateway_config(SOURCE, DATA_DIR, [SOCKET], flags, Bounds(), PriceFlags())
        assert composed.redis_url == url
