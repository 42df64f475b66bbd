"""`leaseplane serve`: the server. It owns its data folder, reclaims, and only then listens."""

import argparse
import errno
import gc
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from leaseplane import __version__
from leaseplane.model import AuthorityUnavailable
from leaseplane.settings import SETTINGS, Settings
from leaseplane.store.folder import DataFolder, FolderRefused, ServerOwner, ServerOwnership
from leaseplane.surfaces.cli.parser import Commands, add_command, add_data, add_json, setting
from leaseplane.surfaces.cli.terminal import DONE, CommandRefused, Terminal, wrong_usage

if TYPE_CHECKING:
    from leaseplane.engine import Authority
    from leaseplane.identity.registry import LocalKey, Registry

_LOOPBACK: Final = ("localhost", "::1")
_GC_THRESHOLDS: Final = (20_000, 20, 50)


def add_to(commands: Commands) -> None:
    """Declare the command."""
    serve = add_command(
        commands,
        "serve",
        "Run the server of a data folder.",
        "On the first start it makes its keys and a workspace `local`, with an API key for the commands of "
        "this machine in DIR/api-key. It prints its URL when it listens, and ends in an orderly way when it "
        "is asked to by SIGTERM or Ctrl-C: parked requests are answered and keep their place.",
        run=_serve,
    )
    default = {row.field: row.default for row in SETTINGS}
    serve.add_argument(
        "--host",
        metavar="ADDRESS",
        type=setting("host"),
        help=f"the address to listen on (default: LEASEPLANE_HOST, or {default['host']})",
    )
    serve.add_argument(
        "--port",
        metavar="PORT",
        type=setting("port"),
        help=f"the port to listen on; 0 takes a free one (default: LEASEPLANE_PORT, or {default['port']})",
    )
    add_data(serve)
    serve.add_argument(
        "--store",
        metavar="URL",
        type=_store,
        default="sqlite",
        help="where leases are kept: `sqlite`, in the data folder (default, and all there is for now; etcd "
        "comes later)",
    )
    serve.add_argument(
        "--allow-host",
        metavar="NAME",
        dest="allow_hosts",
        action="extend",
        type=setting("allow_hosts"),
        help="a name under which the server may be asked, besides those of the loopback; may be repeated "
        "(default: LEASEPLANE_ALLOW_HOSTS)",
    )
    serve.add_argument(
        "--allow-origin",
        metavar="ORIGIN",
        dest="allow_origins",
        action="extend",
        type=setting("allow_origins"),
        help="a web origin whose pages may ask the server, besides its own; may be repeated "
        "(default: LEASEPLANE_ALLOW_ORIGINS)",
    )
    serve.add_argument(
        "--log",
        metavar="LEVEL",
        type=setting("log"),
        help="log from this level on: debug, info, warning or error (default: LEASEPLANE_LOG, or info)",
    )
    add_json(serve)


def _store(url: str) -> str:
    if url != "sqlite":
        raise argparse.ArgumentTypeError(
            "must be sqlite: this version keeps leases in the data folder; etcd comes later"
        )
    return url


def _settings(args: argparse.Namespace, settings: Settings) -> Settings:
    given = {
        field: getattr(args, field)
        for field in ("host", "port", "data", "log")
        if getattr(args, field) is not None
    }
    for field in ("allow_hosts", "allow_origins"):
        if getattr(args, field) is not None:
            given[field] = tuple(getattr(args, field))
    return msgspec.structs.replace(settings, **given)


def _serve(args: argparse.Namespace, terminal: Terminal) -> int:
    # Only here: the server's own modules are most of what there is to import.
    from leaseplane.surfaces.cli.log import start_log

    settings = _settings(args, terminal.settings)
    start_log(terminal.stderr, settings.log)
    # Before a folder is made: one that cannot listen leaves none behind. Where there is a folder, whether
    # another server has that is the better answer. Nobody is answered before the plane is open.
    is_new = not DataFolder(settings.data).database.exists()
    sockets = _listen(settings) if is_new else []
    try:
        _serve_folder(args, terminal, settings, sockets)
    finally:
        for each in sockets:
            each.close()
    return DONE


def _serve_folder(
    args: argparse.Namespace, terminal: Terminal, settings: Settings, sockets: list[socket.socket]
) -> None:
    """Own the folder, reclaim, and answer on `sockets`; where there are none yet, on those put into it."""
    from contextlib import closing

    from leaseplane.engine import Authority

    folder = DataFolder.open(settings.data)
    owner = ServerOwner(os.getpid(), _url(settings.host, settings.port), terminal.clock.now().wall_ms)
    try:
        ownership = ServerOwnership.take(folder, owner)
    except FolderRefused as refused:
        # Nothing is wrong with the folder: another server has it.
        raise CommandRefused(str(refused)) from None
    try:
        with _opened_registry(folder) as registry:
            local_key = _local_key(registry, terminal)
            # Opening reclaims all that ran out while nobody was there; nobody can ask before that is done.
            with closing(Authority.open(settings, terminal.clock, governs=True)) as plane:
                if not sockets:
                    sockets += _listen(settings)
                port: int = sockets[0].getsockname()[1]
                settings = msgspec.structs.replace(settings, port=port)
                ownership.name(msgspec.structs.replace(owner, url=_url(settings.host, port)))
                _run(args, terminal, settings, plane, registry, local_key, sockets)
    finally:
        ownership.close()


def _run(
    args: argparse.Namespace,
    terminal: Terminal,
    settings: Settings,
    plane: "Authority",
    registry: "Registry",
    local_key: "LocalKey",
    sockets: list[socket.socket],
) -> None:
    """Answer requests until the process is asked to end."""
    import asyncio

    import uvloop

    from leaseplane.identity.access import Gate
    from leaseplane.limits import CONNECTIONS_MAX
    from leaseplane.serving import Engine
    from leaseplane.surfaces.rest.connections import ConnectionBounds
    from leaseplane.surfaces.rest.door import Door
    from leaseplane.surfaces.rest.openapi import openapi_document
    from leaseplane.surfaces.rest.server import RestServer, connections_within, raise_open_files
    from leaseplane.surfaces.rest.surface import RestSurface

    log = logging.getLogger("leaseplane.serve")
    url = _url(settings.host, settings.port)
    connections = connections_within(raise_open_files())
    if connections < CONNECTIONS_MAX:
        log.warning(
            "the limit of open files leaves room for %d connections; raise it (ulimit -n)", connections
        )

    def jwks() -> Mapping[str, object]:
        plane.keyring.refresh()
        return plane.keyring.published.jwks()

    def did_document(host: str) -> Mapping[str, object]:
        plane.keyring.refresh()
        return plane.keyring.published.did_document(host)

    def tell() -> None:
        log.info(
            "started: process %d, data folder %s, leases of %d ms",
            os.getpid(),
            plane.folder.path,
            plane.state.terms.lease_ms,
        )
        _warn_of_exposure(settings, log)
        if args.json:
            told = {"ok": True, "url": url, "data": str(plane.folder.path), "apiKeyFile": str(local_key.path)}
            terminal.say_json(told)
            return
        terminal.say(f"leaseplane listens on {url}")
        if local_key.path.exists():
            made = "made just now, " if local_key.made else ""
            terminal.say(
                f"the API key of this machine's commands is kept in {local_key.path} ({made}workspace local)"
            )

    async def serve() -> None:
        engine = Engine(plane)
        surface = RestSurface(
            engine=engine,
            gate=Gate(registry),
            clock=plane.clock,
            door=Door(settings.allow_hosts, settings.allow_origins),
            jwks=jwks,
            did_document=did_document,
            openapi=msgspec.json.encode(openapi_document(__version__)),
            scheme="https" if (settings.public_url or url).startswith("https:") else "http",
        )
        await engine.start()
        await RestServer(surface, ConnectionBounds(connections=connections), tell).serve(sockets)

    # What was imported stays, so it is never looked at again; and a collection of everything takes tens
    # of milliseconds where tens of thousands of resources are in memory, during which nobody is answered.
    # Little here is garbage in cycles, so looking thirty times more seldom leaves a few megabytes.
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())
    log.info("stopped")


def _warn_of_exposure(settings: Settings, log: logging.Logger) -> None:
    if settings.host in _LOOPBACK or settings.host.startswith("127."):
        return
    log.warning(
        "%s can be reached from other machines, and API keys are sent as they are: put a proxy that ends TLS "
        "in front, or listen on 127.0.0.1",
        settings.host,
    )
    if not settings.allow_hosts:
        log.warning(
            "only requests to localhost are let in: name what others call this server by with --allow-host"
        )


def _listen(settings: Settings) -> list[socket.socket]:
    from leaseplane.surfaces.rest.server import listen_on

    at = f"{settings.host} port {settings.port}"
    try:
        return listen_on(settings.host, settings.port)
    except socket.gaierror:
        raise wrong_usage(
            f"there is no address {settings.host!r} on this machine; use --host 127.0.0.1"
        ) from None
    except OSError as error:
        reason = {
            errno.EADDRINUSE: "something listens there already; stop it, or take another with --port "
            "(--port 0 takes a free one)",
            errno.EACCES: "this user may not; take a port from 1024 on with --port",
            errno.EADDRNOTAVAIL: "this machine has no such address; use --host 127.0.0.1",
        }.get(error.errno or 0, str(error.strerror))
        raise CommandRefused(f"cannot listen on {at}: {reason}") from None


@contextmanager
def _opened_registry(folder: DataFolder) -> "Iterator[Registry]":
    from leaseplane.identity.registry import open_registry

    registry = open_registry(folder, os.urandom)
    try:
        yield registry
    finally:
        registry.close()


def _local_key(registry: "Registry", terminal: Terminal) -> "LocalKey":
    try:
        return registry.ensure_local(terminal.clock.now().wall_ms)
    except OSError as error:
        raise AuthorityUnavailable(
            f"the API key for this machine's commands cannot be kept: {error.strerror}; mend that, and start "
            "again"
        ) from error


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
