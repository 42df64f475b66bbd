"""Parked requests: how soon one is served after a release, and what it costs while it waits."""

import json
import select
import socket
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

from bench.asks import GRANTED, RELEASED, acquire, agents, names, release
from bench.load import ANSWER_S_MAX, RECEIVE_BYTES, Expected, Void, get, is_whole
from bench.plan import Plan
from bench.servers import Server, plane
from bench.table import Row, bounded, of_a_hundred, told, void
from leaseplane.operations import WAIT

SECTION = "a parked request"
SERVED_MS_MAX = 3.0
PARK_MS = 300_000

IDLE_CPU_MS_PER_S_MAX = 10.0
"""What all parked requests together may cost beyond an idle server: one per cent of a core. It is
what the sweep over open connections takes, and about as fine as this can be told on a busy machine."""


def rows(plan: Plan, folder: Path) -> list[Row]:
    """How soon a parked request is served, and what a thousand of them cost."""
    with plane(folder, LEASE_MS="3600000") as server:
        try:
            return [*_hand_overs(plan, server), *_idle(plan, server)]
        except Void as reason:
            return [void(SECTION, "served after a release", reason)]


# -- how soon ----------------------------------------------------------------------------------


def _hand_overs(plan: Plan, server: Server) -> list[Row]:
    """One holder, one parked request, nobody else: release, and see when the parked one is answered.

    Time begins just before the release is sent. It ends when the parked request's answer has arrived,
    which takes two commits: that of the release and hand-over, and the mark that the answer is leaving.
    """
    key = server.api_key
    holder, waiter = agents(2)
    from_sending: list[float] = []
    from_answer: list[float] = []
    with _open(server) as holding, _open(server) as waiting:
        for resource in names("hand-over", plan.hand_overs):
            _ask(holding, acquire(resource, holder, key), GRANTED)
            waiting.sendall(acquire(resource, waiter, key, max_wait_ms=PARK_MS))
            _wait_until_parked(holding, resource, key)
            sent = time.perf_counter()
            holding.sendall(release(resource, holder, key))
            released, granted = _both(holding, waiting)
            from_sending.append(1_000 * (granted - sent))
            from_answer.append(1_000 * (granted - released))
            _ask(waiting, release(resource, waiter, key), RELEASED)
    return [
        bounded(
            SECTION,
            "served after the release was sent, median",
            "ms",
            statistics.median(from_sending),
            SERVED_MS_MAX,
        ),
        told(SECTION, "the same, 99 of 100", "ms", of_a_hundred(from_sending, 99)),
        told(
            SECTION,
            "served after the release was answered, median",
            "ms",
            statistics.median(from_answer),
        ),
        told(SECTION, "the same, 99 of 100", "ms", of_a_hundred(from_answer, 99)),
    ]


def _wait_until_parked(connection: socket.socket, resource: str, key: str) -> None:
    request = get(f"{WAIT.path}?resource={resource}", key)
    while b'"parked":true' not in _ask(connection, request, Expected(200, b'"waiting"')):
        time.sleep(0.001)


def _both(holding: socket.socket, waiting: socket.socket) -> tuple[float, float]:
    """When the release was answered, and when the parked request was."""
    arrived: dict[int, float] = {}
    expected = {holding.fileno(): RELEASED, waiting.fileno(): GRANTED}
    poller = select.poll()
    for connection in (holding, waiting):
        poller.register(connection, select.POLLIN)
    while len(arrived) < 2:
        events = poller.poll(1_000 * ANSWER_S_MAX)
        now = time.perf_counter()
        if not events:
            raise Void("a parked request was not answered after the release")
        for fd, _ in events:
            arrived[fd] = now
            _check(_received(holding if fd == holding.fileno() else waiting), expected[fd])
    return arrived[holding.fileno()], arrived[waiting.fileno()]


# -- at what cost ------------------------------------------------------------------------------


def _idle(plan: Plan, server: Server) -> list[Row]:
    """CPU time of the server with so many requests parked, and with none; nobody asks meanwhile."""
    key = server.api_key
    actors = agents(plan.parked + 1)
    _ask_once(server, acquire("lock:bench/idle", actors[-1], key), GRANTED)
    alone_ms = _cpu_ms_per_s(server, plan.idle_seconds)
    with ExitStack() as opened:
        for actor in actors[: plan.parked]:
            connection = opened.enter_context(_open(server))
            connection.sendall(acquire("lock:bench/idle", actor, key, max_wait_ms=PARK_MS))
        give_up_at = time.monotonic() + ANSWER_S_MAX
        while server.metrics()["leaseplane_parked_now"] < plan.parked:
            if time.monotonic() > give_up_at:
                raise Void("not all requests were parked")
            time.sleep(0.05)
        time.sleep(0.5)
        parked_ms = _cpu_ms_per_s(server, plan.idle_seconds)
    return [
        bounded(
            SECTION,
            f"CPU that {plan.parked:,} of them take, beyond an idle server",
            "ms/s",
            max(0.0, parked_ms - alone_ms),
            IDLE_CPU_MS_PER_S_MAX,
        ),
        told(SECTION, "CPU that an idle server takes", "ms/s", alone_ms),
    ]


def _cpu_ms_per_s(server: Server, seconds: int) -> float:
    """The median of so many seconds: one in which others thrash the caches tells nothing."""
    each_ms = []
    for _ in range(seconds):
        cpu_s, began = server.cpu_s(), time.monotonic()
        time.sleep(1)
        each_ms.append(1_000 * (server.cpu_s() - cpu_s) / (time.monotonic() - began))
    return statistics.median(each_ms)


# -- one request at a time ---------------------------------------------------------------------


def _open(server: Server) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), ANSWER_S_MAX)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _ask_once(server: Server, request: bytes, expected: Expected) -> None:
    with _open(server) as connection:
        _ask(connection, request, expected)


def _ask(connection: socket.socket, request: bytes, expected: Expected) -> bytes:
    connection.sendall(request)
    return _check(_received(connection), expected)


def _received(connection: socket.socket) -> bytes:
    answer = b""
    while not is_whole(answer):
        more = connection.recv(RECEIVE_BYTES)
        if not more:
            raise Void("a server closed its connection")
        answer += more
    return answer


def _check(answer: bytes, expected: Expected) -> bytes:
    if not expected.fits(answer):
        raise Void(f"not {expected}: {json.dumps(answer.decode('utf-8', 'replace'))}")
    return answer
