"""Every setting of the processes has one flag and one variable, and every flag has an effect."""

import inspect
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest

from cli.load.options import ArrivalFlags, LoadFlags, SloFlags
from cli.options.engine_options import (
    ALONE_FLAGS,
    ENGINE_FLAGS,
    EngineFlags,
    LoneEngineFlags,
    ReplicaFlags,
)
from cli.options.flags import flattened
from cli.options.gateway_options import (
    BOUNDS_FLAGS,
    GATEWAY_FLAGS,
    BoundsFlags,
    GatewayFlags,
    PriceFlags,
    StartFlags,
)
from cli.options.options import AdminFlags, ModelFlags, SocketFlags, TargetFlags
from engine.config import EngineConfig
from gateway.config import Bounds, GatewayConfig
from gateway.tenant_limits import Prices

GROUPS = [
    ModelFlags,
    SocketFlags,
    EngineFlags,
    LoneEngineFlags,
    ReplicaFlags,
    GatewayFlags,
    BoundsFlags,
    PriceFlags,
    StartFlags,
    AdminFlags,
    TargetFlags,
    LoadFlags,
    ArrivalFlags,
    SloFlags,
]


def parameters(group: Any) -> list[inspect.Parameter]:
    """Return the parameters that a group of flags declares to typer."""

    def command(group: Any) -> None: ...

    command.__annotations__ = {"group": group}
    return list(inspect.signature(flattened(command)).parameters.values())


def options(group: Any) -> dict[str, Any]:
    return {one.name: get_args(one.annotation)[1] for one in parameters(group)}


def variables(option: Any) -> list[str]:
    """Return an option's environment variables, in order of precedence."""
    return [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())


def settings(config: type[msgspec.Struct]) -> Iterator[msgspec.structs.FieldInfo]:
    """Return the fields of a config and of its parts."""
    for one in msgspec.structs.fields(config):
        if isinstance(one.type, type) and issubclass(one.type, msgspec.Struct):
            yield from settings(one.type)
        else:
            yield one


@pytest.mark.parametrize(
    ("flags", "config", "given_otherwise"),
    [
        (
            ENGINE_FLAGS,
            EngineConfig,
            {
                *("model_dir", "socket", "link_key_file", "exchange"),
                *("grace_s", "host_memory_bytes", "role"),
            },
        ),
        (
            ALONE_FLAGS,
            EngineConfig,
            {"model_dir", "socket", "link_key_file", "host_memory_bytes"},
        ),
        (
            GATEWAY_FLAGS,
            GatewayConfig,
            {
                *("model_dir", "model_name", "data_dir", "engines", "link_key_file"),
                *("bounds", "prices"),
            },
        ),
        (BOUNDS_FLAGS, Bounds, set()),
    ],
)
def test_every_setting_has_a_flag(
    flags: dict[str, Any], config: type[msgspec.Struct], given_otherwise: set[str]
) -> None:
    own = settings(config) if config is EngineConfig else msgspec.structs.fields(config)
    assert set(flags) | given_otherwise == {one.name for one in own}


@pytest.mark.parametrize(
    ("group", "config", "prefix"),
    [
        (LoneEngineFlags, EngineConfig, ""),
        (GatewayFlags, GatewayConfig, ""),
        (BoundsFlags, Bounds, ""),
        (PriceFlags, Prices, "price_"),
    ],
)
def test_defaults_are_the_configs_own(
    group: Any, config: type[msgspec.Struct], prefix: str
) -> None:
    defaults = {prefix + field.name: field.default for field in settings(config)}
    given = {one.name: one.default for one in parameters(group)}
    assert given.items() <= defaults.items()
    assert len(given) >= 3, "the control: there are some"


@pytest.mark.parametrize("group", GROUPS)
def test_flag_and_variable_follow_from_the_field(group: Any) -> None:
    for name, option in options(group).items():
        dashed = "--" + name.replace("_", "-")
        # Within Annotated, typer keeps the first declaration as the "default".
        declared = option.default.split("/")[0]  # the first part of "--flag/--no-flag"
        assert (declared, *option.param_decls) == (dashed,)
        if name != "json":
            assert variables(option)[0] == "RATOON_" + name.upper()
            assert option.help or option.hidden


def test_the_promised_variables_are_there() -> None:
    found = {
        variable
        for group in GROUPS
        for option in options(group).values()
        for variable in variables(option)
    }
    promised = (
        "HOST PORT MODEL DATA_DIR ADMIN_PORT CACHE_TOKENS DTYPE DEVICE LOAD_FORMAT MAX_MODEL_LEN "
        "MAX_BATCH_TOKENS MAX_RUNNING MAX_WAITING BLOCK_SIZE WORKERS URL ADMIN_KEY SOCKET "
        "OTLP_ENDPOINT"
    )
    assert {f"RATOON_{name}" for name in promised.split()} <= found
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in found, "its standard name"


def test_a_name_means_the_same_in_every_group() -> None:
    """Give a name the same meaning in every group of flags.

    Clients read the variables that also tell the server where to listen.
    """
    for name in ("host", "port", "admin_host", "admin_port"):
        assert options(AdminFlags)[name].envvar == options(GatewayFlags)[name].envvar


def test_a_flag_that_says_what_0_means_takes_it() -> None:
    every = {name: one for group in GROUPS for name, one in options(group).items()}
    of_zero = {name: one for name, one in every.items() if " 0: " in f" {one.help}"}
    assert {"max_tenant_turn_bytes", "disk_cache_gib"} <= set(of_zero)
    assert [name for name, one in of_zero.items() if one.min is not None and one.min > 0] == []
