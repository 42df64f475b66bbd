"""The load of the benchmark: it takes an answer for what it is, or says that the round is void."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from bench.load import Connections, Expected, Void, post

OK = Expected(200, b'"good"')
ASKED = post("/x", b"{}", "key")


def answer_of(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


@contextmanager
def a_server(answers: Callable[[int], list[bytes]]) -> Iterator[int]:
    """Answers the nth request of its one connection with these pieces; an empty one hangs up."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listening.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            number = 0
            while connection.recv(65_536):
                for piece in answers(number):
                    if not piece:
                        return
                    connection.sendall(piece)
                number += 1

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        thread.join()
        listening.close()


def test_answers_of_the_kind_are_counted_also_in_pieces() -> None:
    whole = answer_of(200, b'{"good": 1}')
    with (
        a_server(lambda number: [whole[: 5 + number], whole[5 + number :]]) as port,
        Connections(port, 1) as connections,
    ):
        done = connections.run([ASKED] * 20, OK)
    assert done.requests == 20
    assert done.per_s > 0


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([answer_of(409, b'{"good": 1}')], id="another status"),
        pytest.param([answer_of(200, b'{"bad": 1}')], id="another body"),
        pytest.param([b""], id="hangs up"),
        pytest.param([answer_of(200, b'{"good": 1}')[:-4], b""], id="hangs up within an answer"),
    ],
)
def test_one_answer_of_another_kind_makes_the_round_void(pieces: list[bytes]) -> None:
    good = [answer_of(200, b'{"good": 1}')]
    answers = [good, good, pieces, [b""]]
    with (
        a_server(lambda number: answers[number]) as port,
        Connections(port, 1) as connections,
        pytest.raises(Void),
    ):
        connections.run([ASKED] * 4, OK)
