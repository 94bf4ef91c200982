"""Every setting of the processes has one flag and one variable, and no flag is without effect."""

import dataclasses
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from cli.bounds_options import BoundsFlags
from cli.client_options import AdminFlags, LoadFlags, TargetFlags
from cli.engine_options import EngineFlags, EngineGraceFlags
from cli.gateway_options import AdminKeyFlags, GatewayFlags
from cli.options import ModelFlags, SocketFlags
from cli.price_options import PriceFlags
from engine.config import EngineConfig
from gateway.config import Bounds, GatewayConfig
from gateway.limits.prices import Prices

GROUPS = [
    ModelFlags,
    SocketFlags,
    EngineFlags,
    EngineGraceFlags,
    GatewayFlags,
    BoundsFlags,
    PriceFlags,
    AdminKeyFlags,
    AdminFlags,
    TargetFlags,
    LoadFlags,
]


def field_names(group: type[Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(group)}


def options(group: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(group, include_extras=True)
    return {name: get_args(hint)[1] for name, hint in hints.items()}


def variables(option: Any) -> list[str]:
    """The environment variables of an option, the one that wins first."""
    return [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())


@pytest.mark.parametrize(
    ("flags", "config", "given_otherwise"),
    [
        (EngineFlags, EngineConfig, {"model_dir", "socket", "grace_s"}),
        (
            GatewayFlags,
            GatewayConfig,
            {"model_dir", "model_name", "data_dir", "engine_socket", "bounds", "prices"},
        ),
        (BoundsFlags, Bounds, set()),
    ],
)
def test_every_setting_has_a_flag(
    flags: type[Any], config: type[msgspec.Struct], given_otherwise: set[str]
) -> None:
    assert field_names(flags) | given_otherwise == set(config.__struct_fields__)


@pytest.mark.parametrize(
    ("flags", "config"),
    [
        (EngineFlags, EngineConfig),
        (EngineGraceFlags, EngineConfig),
        (GatewayFlags, GatewayConfig),
        (BoundsFlags, Bounds),
    ],
)
def test_defaults_are_the_configs_own(flags: type[Any], config: type[msgspec.Struct]) -> None:
    defaults = {field.name: field.default for field in msgspec.structs.fields(config)}
    for field in dataclasses.fields(flags):
        assert field.default == defaults[field.name], field.name


def test_every_price_has_a_flag_with_its_default() -> None:
    flags = {field.name: field.default for field in dataclasses.fields(PriceFlags)}
    prices = msgspec.structs.asdict(Prices())
    assert flags == {f"price_{name}": default for name, default in prices.items()}


@pytest.mark.parametrize("group", GROUPS)
def test_flag_and_variable_follow_from_the_field(group: type[Any]) -> None:
    for name, option in options(group).items():
        dashed = "--" + name.replace("_", "-")
        # Within Annotated, typer keeps the first declaration as the "default".
        assert (option.default, *option.param_decls) == (dashed,)
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
    """Clients read the variables by which the server was told where to listen."""
    for name in ("host", "port", "admin_host", "admin_port"):
        assert options(AdminFlags)[name].envvar == options(GatewayFlags)[name].envvar
