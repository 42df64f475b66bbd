"""The client: requests that a program makes one after the other, through our channel and through httpx."""

import json
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx

from bench.asks import RENEWED, agents
from bench.load import Void
from bench.plan import Plan
from bench.servers import plane
from bench.table import Row, compared, void
from leaseplane.client.channel import Request
from leaseplane.client.remote import RemoteChannel
from leaseplane.clock import SystemClock
from leaseplane.operations import LEASE

SECTION = "one program over one connection, against httpx"
RATIO_LEAST = 1.0
TIMEOUT_MS = 10_000


class _ApiKey:
    def __init__(self, api_key: str) -> None:
        self._api_key = api_key

    def headers(self, method: str, url: str, body: bytes, *, now_s: int) -> list[tuple[str, str]]:
        return [("Authorization", f"Bearer {self._api_key}")]


def rows(plan: Plan, folder: Path) -> list[Row]:
    """Renewals of one lease, one at a time, each client in turn at the same server."""
    what = "renewals, one at a time"
    members: dict[str, object] = {"resource": "lock:bench/client", "actorDid": agents(1)[0]}
    with plane(folder, LEASE_MS="3600000") as server:
        url = f"http://127.0.0.1:{server.port}"
        body = json.dumps(members).encode()
        request = Request(LEASE, members)
        headers = {"Authorization": f"Bearer {server.api_key}", "Content-Type": "application/json"}
        with (
            closing(RemoteChannel(url, _ApiKey(server.api_key), clock=SystemClock())) as channel,
            httpx.Client(base_url=url, headers=headers, trust_env=False) as client,
        ):

            def ask_channel() -> tuple[int, bytes]:
                answer = channel.send(request, timeout_ms=TIMEOUT_MS).result()
                return answer.status, answer.body

            def ask_httpx() -> tuple[int, bytes]:
                response = client.post(LEASE.path, content=body)
                return response.status_code, response.content

            # The first is a grant, and finds everything cold.
            for ask in (ask_channel, ask_httpx):
                ask()
            try:
                return [_in_turn(plan, what, ask_channel, ask_httpx)]
            except Void as reason:
                return [void(SECTION, what, reason)]


def _in_turn(
    plan: Plan, what: str, ours: Callable[[], tuple[int, bytes]], peer: Callable[[], tuple[int, bytes]]
) -> Row:
    at_ours: list[float] = []
    at_peer: list[float] = []
    last = _per_s(plan, peer)
    for _ in range(plan.rounds):
        at_ours.append(_per_s(plan, ours))
        then = _per_s(plan, peer)
        at_peer.append((last + then) / 2)
        last = then
    return compared(SECTION, what, "/s", at_ours, at_peer, at_least=RATIO_LEAST)


def _per_s(plan: Plan, ask: Callable[[], tuple[int, bytes]]) -> float:
    number = plan.slice // 2
    began = time.perf_counter()
    for _ in range(number):
        status, body = ask()
        if status != RENEWED.status or RENEWED.holds not in body or RENEWED.holds_too not in body:
            raise Void(f"{status} {body[:200]!r}")
    return number / (time.perf_counter() - began)
