"""The language is strict, and the player notices what is not as told."""

from contextlib import closing

import pytest
from tests.scenarios.agents import did
from tests.scenarios.language import NotUnderstoodError, duration, parse
from tests.scenarios.player import NotAsToldError, Player
from tests.scenarios.worlds import MODEL, WORLDS

FRAME = "scenario: a title\n  from contract 3\n"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("at 0  A takes lock:db  granted", "unknown command"),
        ("at 0  A acquires lock:db  given", "unknown expectation"),
        ("at 0  A acquires lock:db, quickly  granted", "unknown words"),
        ("at 0  A acquires lock:db, for read, for write  granted", "said twice"),
        ("at 0  A releases lock:db, for read  released", "makes no sense here"),
        ("at 0  A acquires lock:db", "what comes of it"),
        ("at 0  A acquires lock:db granted", "one word expected"),
        ("at soon  A acquires lock:db  granted", "is no time"),
        ("at 1.0005s  A acquires lock:db  granted", "whole number of milliseconds"),
        ("when 0  A acquires lock:db  granted", "a line begins with"),
        ("at 0  a acquires lock:db  granted", "is no agent"),
        ("at 0  A acquires lock:db  granted as one", "is no label"),
        ("at 0  A acquires lock:db  granted, position", "one word expected"),
        ("at 0  A acquires lock:db  held by", "unknown expectation"),
        ("at 0  B is granted  granted", "no third column"),
        ("at 0  the plane restarts  granted", "no third column"),
        ("at 0  the plane explodes", "unknown command"),
        ("at 0  A acquires lock:db, with love  granted", "is no credential"),
        ("by 3s  A acquires lock:db  granted", "`by` is for lines about parked requests"),
        ("at 0  the deadlocks  A wants B", "is no deadlock pair"),
    ],
)
def test_an_unknown_word_is_an_error_that_names_the_line(line: str, why: str) -> None:
    with pytest.raises(NotUnderstoodError, match=why) as caught:
        parse("x.txt", FRAME + f"  at 0  A acquires lock:ok  granted\n  {line}\n")
    assert "x.txt:4: " in str(caught.value)


def test_time_does_not_go_back() -> None:
    with pytest.raises(NotUnderstoodError, match=r"x\.txt:4: time does not go back"):
        parse("x.txt", FRAME + "  at 2s  A acquires lock:db  granted\n  at 1s  A acquires lock:db  renewed\n")


def test_a_scenario_says_where_it_comes_from() -> None:
    with pytest.raises(NotUnderstoodError, match="has a `from`"):
        parse("x.txt", "scenario: a title\n")


@pytest.mark.parametrize(
    ("text", "ms"),
    [("0", 0), ("250ms", 250), ("1s", 1_000), ("29.999s", 29_999), ("1m30s", 90_000), ("30s-1ms", 29_999)],
)
def test_durations(text: str, ms: int) -> None:
    assert duration(text) == ms


def test_a_crowd_is_as_many_lines() -> None:
    (scenario,) = parse("x.txt", FRAME + "  at 0  R1..R3 acquires lock:n*+1  held by R*-1\n")
    assert [step.text for step in scenario.steps] == [
        f"R{n} acquires lock:n{n + 1}  held by R{n - 1}" for n in (1, 2, 3)
    ]


def test_what_a_scenario_needs_is_known_before_it_is_played() -> None:
    (scenario,) = parse(
        "x.txt",
        FRAME
        + "  at 0  A/one acquires lock:db, waits up to 5s, idempotency k1  granted\n"
        + "  at 1s  the machine reboots\n",
    )
    assert scenario.needs == {"park", "idempotency", "instance", "reboot"}


def test_agents_are_the_same_in_every_run() -> None:
    assert did("A") == "did:key:z6MktWazQJJi5eR8EbPFr4Ywf2gg6FXetepbhtc5Vw1A1HyM"
    assert did("did:web:example.com:bob") == "did:web:example.com:bob"


@pytest.mark.parametrize(
    "line",
    [
        "at 1s  B acquires lock:db  granted",
        "at 1s  B acquires lock:db  held by C",
        "at 1s  B acquires lock:db  held by A, position 2",
        "at 1s  B acquires lock:db  held by A, waitMs 100",
        "at 1s  B acquires lock:db  held by A, admitted C",
        "at 1s  B acquires lock:db  held by A, expires in 30s",
        "at 1s  B acquires lock:db  held by A, retryAfterMs around 200",
        "at 1s  B acquires lock:db  deadlock",
        "at 1s  A acquires lock:db  granted",
        "at 1s  A acquires lock:db  renewed, fence larger than before",
        "at 1s  A acquires lock:db  renewed, waiting 1",
        "at 1s  A acquires lock:db  renewed, access read",
        "at 1s  A releases lock:db  released, trust 50",
        "at 1s  B acquires lock:db, waits up to 1s  held by A",
        "at 1s  A acquires lock:db, waits up to 1s  parked",
        "at 1s  the queue  B",
        "at 1s  the deadlocks  A wants lock:x held by B waiting on lock:y",
        "at 1s  trust of A  45",
        "at 1s  trust of A  50, released 1",
    ],
)
def test_the_player_notices_what_is_not_as_told(line: str) -> None:
    (scenario,) = parse("x.txt", FRAME + f"  at 0  A acquires lock:db  granted\n  {line}\n")
    with closing(WORLDS[MODEL]()) as world, pytest.raises(NotAsToldError, match=r"x\.txt:4: "):
        Player(world).play(scenario)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("at 2s  B is granted", "is not answered"),
        ("at 3s  B is answered lease_held", "answered 200"),
        ("at 4s  B is granted", "is answered too early"),
        ("at 4s  B still waits", "is answered"),
        ("at 4s  the queue  empty", "the text does not say so"),
    ],
)
def test_the_player_knows_when_a_parked_request_was_answered(line: str, why: str) -> None:
    text = FRAME + "  at 0  A acquires lock:db  granted\n  and  B acquires lock:db, waits up to 20s  parked\n"
    release = "  at 3s  A releases lock:db  released\n"
    lines = [f"  {line}\n", release] if line.startswith("at 2s") else [release, f"  {line}\n"]
    (scenario,) = parse("x.txt", text + "".join(lines))
    with closing(WORLDS[MODEL]()) as world, pytest.raises(NotAsToldError, match=why):
        Player(world).play(scenario)
