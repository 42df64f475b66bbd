"""The load: so many connections, each with one request under way, from this process over plain sockets.

It is the same for every server that is measured. Requests are bytes made beforehand and answers are
looked at only as far as it takes to tell whether they are of the expected kind, so one request costs
this process a small part of what it costs any server; the share of its time that it was busy is
measured and shown all the same.
"""

import contextlib
import gc
import select
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Self

RECEIVE_BYTES = 256 * 1024
ANSWER_S_MAX = 30.0


class Void(Exception):
    """An answer was not of the expected kind, so what was measured means nothing."""


class Expected(NamedTuple):
    """What every answer of a round has to be: its status, and texts that its body holds."""

    status: int
    holds: bytes
    holds_too: bytes = b""

    def fits(self, answer: bytes) -> bool:
        """Whether this whole answer is of the kind."""
        status, holds, holds_too = self
        return answer.startswith(b"HTTP/1.1 %d " % status) and holds in answer and holds_too in answer


class Round(NamedTuple):
    """What one round came to."""

    requests: int
    wall_s: float
    busy_s: float
    """CPU time of this process: where it is close to `wall_s`, it was the load that was measured."""

    @property
    def per_s(self) -> float:
        return self.requests / self.wall_s


def post(path: str, body: bytes, api_key: str, headers: Mapping[str, str] = MappingProxyType({})) -> bytes:
    """One POST request as it goes over the wire."""
    head = [
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Authorization: Bearer {api_key}",
        *(f"{name}: {value}" for name, value in headers.items()),
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def get(target: str, api_key: str) -> bytes:
    """One GET request as it goes over the wire."""
    head = (f"GET {target} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {api_key}")
    return "\r\n".join(head).encode() + b"\r\n\r\n"


class Connections:
    """Open connections to one server on this machine; close them with `close`, or use as a context."""

    def __init__(self, port: int, number: int) -> None:
        self._port = port
        self._number = number
        self._open()

    def _open(self) -> None:
        self._sockets: list[socket.socket] = []
        self._epoll = select.epoll()
        for _ in range(self._number):
            each = socket.create_connection(("127.0.0.1", self._port), ANSWER_S_MAX)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            each.setblocking(False)
            self._sockets.append(each)
            self._epoll.register(each.fileno(), select.EPOLLIN)
        self._at_fd = {each.fileno(): at for at, each in enumerate(self._sockets)}

    def reopen(self) -> None:
        """Begin anew, after a round that was broken off."""
        self.close()
        self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._epoll.close()
        for each in self._sockets:
            each.close()

    def run(self, requests: Sequence[bytes], expected: Expected) -> Round:
        """Send all of these, each connection its next one as soon as its last is answered.

        Raises `Void` at the first answer that is not as expected, or when none comes for long.
        """
        sockets, at_fd, poll = self._sockets, self._at_fd, self._epoll.poll
        fits = expected.fits
        queue = iter(requests)
        unfinished: dict[int, bytes] = {}
        left = len(requests)
        with _undisturbed():
            busy_before_s, started_s = time.process_time(), time.perf_counter()
            for each, request in zip(sockets, queue, strict=False):
                each.send(request)
            while left:
                events = poll(ANSWER_S_MAX)
                if not events:
                    raise Void("a server does not answer")
                for fd, _ in events:
                    at = at_fd[fd]
                    answer = sockets[at].recv(RECEIVE_BYTES)
                    if not answer:
                        raise Void("a server closed its connection")
                    if at in unfinished:
                        answer = unfinished.pop(at) + answer
                    if not is_whole(answer):
                        unfinished[at] = answer
                        continue
                    if not fits(answer):
                        raise Void(f"not {expected}: {answer.decode('utf-8', 'replace')}")
                    left -= 1
                    following = next(queue, None)
                    if following is not None:
                        sockets[at].send(following)
            wall_s, busy_s = time.perf_counter() - started_s, time.process_time() - busy_before_s
        return Round(len(requests), wall_s, busy_s)


def is_whole(answer: bytes) -> bool:
    """Whether a response has come in full; all that are asked for here say how long they are."""
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        return False
    at = answer.find(b"content-length: ") + 16
    return len(answer) >= end + 4 + int(answer[at : answer.find(b"\r", at)])


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Without garbage collection, which would fall on one side of a comparison and not on the other."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
