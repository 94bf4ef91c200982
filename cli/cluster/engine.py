"""`ratoon engine`: runs a single engine, which gateways may find."""

import typer

from cli.errors import BadSetting
from cli.models.machine import machine
from cli.models.model_check import checked_source
from cli.options.config_file import ConfigFile
from cli.options.engine_options import LoneEngineFlags, RegisterFlags
from cli.options.options import ModelFlags, SocketFlags
from cli.serving.compose import check_role, engine_config
from cli.serving.link_key import link_key_file
from cli.serving.serve import become, meeting_place


def engine(
    model: ModelFlags,
    socket: SocketFlags,
    engine: LoneEngineFlags,
    registered: RegisterFlags,
    config_file: ConfigFile = None,
) -> None:
    """Run the engine alone: it owns the accelerator and the cache.

    For your own process supervisor. The engine serves the gateways that connect to --socket, and
    has no HTTP interface. With --register, gateways find the engine until it is asked to end.

    Examples: for a gateway on this machine; for gateways on others:

        ratoon engine --model ~/models/qwen3-8b --socket /run/ratoon/engine.sock

        ratoon engine --model ~/models/qwen3-8b --socket tcp://10.0.0.7:7300 --register --redis-url redis://redis:6379/0
    """
    del config_file  # the file's settings are already the flags' defaults
    source = checked_source(model.model, engine, of=machine())
    place = meeting_place(model, socket)
    config = engine_config(source, model.data_dir, place, engine)
    key_file = link_key_file(place, socket.link_key_file, model.data_dir, make=True)
    config = config.changed(link_key_file=key_file)
    check_role(config)
    if not registered.register:
        if registered.advertise is not None:
            raise BadSetting("--advertise", "is for an engine that is registered: --register")
        become("engine", config)
    from cli.cluster.lone_host import host_engine

    raise typer.Exit(host_engine(config, model.data_dir, registered))
