"""`ratoon serve`: gateway and engine together; `ratoon gateway`: the gateway alone.

A command composes the configs, creates missing files, and then execs another program: the
supervisor of gateway and engine (`supervise.py`), or the gateway alone. So the user's own process
supervisor exchanges signals and exit status with the gateway itself. Keys that the command has read
or made are not in the new program's memory.
"""

import os

import msgspec
from msgspec.structs import replace

from cli.echo import echo
from cli.models.machine import Machine, machine
from cli.models.model_check import check_defaults, checked_source
from cli.models.model_source import resolve
from cli.options.config_file import ConfigFile
from cli.options.engine_options import EngineFlags, ReplicaFlags
from cli.options.gateway_options import BoundsFlags, GatewayFlags, PriceFlags, StartFlags
from cli.options.options import ModelFlags, SocketFlags
from cli.serving.compose import admin_url, base_url, engine_config, gateway_config
from cli.serving.greeting import greeting, where_keys_are
from cli.serving.installation import SOCKET_NAME, check_port_free, first_start, runtime_directory
from cli.serving.link_key import key_of_found_engines, link_key_file
from cli.serving.replicas import child_names, environments, replica_configs, sockets, with_roles
from cli.supervision.address import ServerAddress, found_by_commands
from cli.supervision.child import python_command, python_environment
from cli.supervision.serving_state import GATEWAY, ChildName, ChildPatience, Policy
from cli.supervision.supervise import Supervised, become_supervisor
from engine.config import EngineConfig
from engine.link.address import is_tcp
from gateway.config import GatewayConfig

_STOP_MARGIN_S = 5.0


def serve(
    model: ModelFlags,
    start: StartFlags,
    gateway: GatewayFlags,
    engine: EngineFlags,
    replicas: ReplicaFlags,
    bounds: BoundsFlags,
    prices: PriceFlags,
    config_file: ConfigFile = None,
) -> None:
    """Serve a model: gateway and engine together.

    Starts both, and restarts either when it dies or hangs. Prints the URL and a first call once the
    model is loaded. The first start makes the data directory with an admin key and the keys of two
    demo tenants in keys.env. Ctrl-C or SIGTERM lets open streams finish first.

    Examples: the embedded demo model; your own on a GPU, for the whole network; on four GPUs:

        ratoon serve

        ratoon serve --model Qwen/Qwen3-8B --dtype bfloat16 --host 0.0.0.0

        ratoon serve --model Qwen/Qwen3-8B --dtype bfloat16 --replicas 4
    """
    del config_file  # the file's settings are already the flags' defaults
    source = checked_source(model.model, engine, of=machine().shared_by(replicas.replicas))
    if gateway.generation_config == "auto":
        check_defaults(source.directory)
    check_ports(gateway)
    address = replace(address_of(gateway), has_supervisor=True)
    with runtime_directory() as directory:
        socket, count = str(directory / SOCKET_NAME), replicas.replicas
        places = sockets(socket, count)
        config = gateway_config(source, model.data_dir, places, gateway, bounds, prices)
        if gateway.find_engines:
            config = replace(config, link_key_file=key_of_found_engines(None, model.data_dir))
        alone = engine_config(source, model.data_dir, socket, engine)
        lines = commands(alone, config, count, machine(), prefill=replicas.prefill_replicas)
        made = first_start(model.data_dir, start.admin_key, config, new_state=start.new_state)
        page = f"{address.admin_url}/admin/ui" if gateway.page else None
        become_supervisor(
            Supervised(
                commands=lines,
                readiness_url=readiness_url(gateway),
                policy=patience(gateway, engine),
                loading=f"loading {source.name}",
                greeting=greeting(
                    address.url, source.name, made.keys_file, page, created=made.created
                ),
                data_dir=str(model.data_dir),
                address=address,
                directory=str(directory),
            )
        )


def gateway(
    model: ModelFlags,
    socket: SocketFlags,
    start: StartFlags,
    gateway: GatewayFlags,
    bounds: BoundsFlags,
    prices: PriceFlags,
    config_file: ConfigFile = None,
) -> None:
    """Run the gateway alone: HTTP, keys, tenants, prompts. Needs no torch.

    For your own process supervisor, or to keep the gateway up while the engine is replaced. It
    waits for an engine at --socket, and answers 503 until there is one. For several engines,
    --socket lists their sockets, separated by commas. With --find-engines the gateway also finds
    registered engines.

    Examples: for one engine; for two; for engines that come and go:

        ratoon gateway --model ~/models/qwen3-8b --socket /run/ratoon/engine.sock

        ratoon gateway --model ~/models/qwen3-8b --socket /run/ratoon/a.sock,/run/ratoon/b.sock

        ratoon gateway --model ~/models/qwen3-8b --find-engines --redis-url redis://redis:6379/0
    """
    del config_file  # the file's settings are already the flags' defaults
    source = resolve(model.model, "dummy")  # downloads all files of a hub model except the weights
    finds_all = gateway.find_engines and socket.socket is None
    places = [] if finds_all else meeting_place(model, socket).split(",")
    if gateway.find_engines:
        key_file: str | None = key_of_found_engines(socket.link_key_file, model.data_dir)
    else:
        over_tcp = next(filter(is_tcp, places), places[0])
        key_file = link_key_file(over_tcp, socket.link_key_file, model.data_dir, make=False)
    config = replace(
        gateway_config(source, model.data_dir, places, gateway, bounds, prices),
        link_key_file=key_file,
    )
    made = first_start(model.data_dir, start.admin_key, config, new_state=start.new_state)
    if made.created:
        echo(where_keys_are(made.keys_file, created=True), err=True)
    with found_by_commands(model.data_dir, address_of(gateway)):
        become("gateway", config)


def commands(
    engine: EngineConfig, gateway: GatewayConfig, count: int, of: Machine, *, prefill: int = 0
) -> dict[ChildName, list[str]]:
    """Compose the command lines of the gateway and of `count` engines.

    The first `prefill` engines compute prompts for the other engines. `engine` is the config of a
    single engine, whose resources the engines divide. Configs contain no secrets, as other users
    can see command lines. Raises BadSetting if the machine has too few GPUs.
    """
    configs = with_roles(replica_configs(engine, count, of), prefill)
    variables = environments(engine, count, of.gpus)
    lines = {GATEWAY: python_command("gateway", msgspec.json.encode(gateway).decode())}
    for name, config, given in zip(child_names(count), configs, variables, strict=True):
        line = python_command("engine", msgspec.json.encode(config).decode())
        within = ["env", *(f"{key}={value}" for key, value in given.items())] if given else []
        lines[name] = [*within, *line]
    return lines


def check_ports(gateway: GatewayFlags) -> None:
    """Raise BadSetting for a port in use.

    Otherwise the supervisor would mistake another server's /readyz for this server's.
    """
    check_port_free("--port", "--host", gateway.host, gateway.port)
    if gateway.admin_port is not None:
        check_port_free("--admin-port", "--admin-host", gateway.admin_host, gateway.admin_port)


def address_of(gateway: GatewayFlags) -> ServerAddress:
    """Return the URLs at which clients reach the server of this process."""
    url = base_url(gateway.host, gateway.port)
    admin = admin_url(gateway.host, gateway.port, gateway.admin_host, gateway.admin_port)
    return ServerAddress(url=url, admin_url=admin, pid=os.getpid())


def readiness_url(gateway: GatewayFlags) -> str:
    """Return the URL of the gateway's readiness, which includes the engines' readiness."""
    admin_port = gateway.admin_port
    return admin_url(gateway.host, gateway.port, gateway.admin_host, admin_port) + "/readyz"


def patience(gateway: GatewayFlags, engine: EngineFlags) -> Policy:
    """Compose the supervisor's policy. A child's time to stop is its grace period plus a margin."""
    default = Policy()
    engine_s = engine.process.grace_s + engine.cache.spill_grace_s
    return Policy(
        gateway=ChildPatience(gateway.grace_s + _STOP_MARGIN_S, default.gateway.silent_s),
        engine=ChildPatience(engine_s + _STOP_MARGIN_S, default.engine.silent_s),
    )


def meeting_place(model: ModelFlags, socket: SocketFlags) -> str:
    """Return the --socket address, or the socket in the data directory."""
    return socket.socket or str(model.data_dir.absolute() / SOCKET_NAME)


def become(module: str, config: msgspec.Struct) -> None:
    """Replace this process by `python -m module CONFIG`. Never returns."""
    command = python_command(module, msgspec.json.encode(config).decode())
    os.execve(command[0], command, python_environment())
