"""Answers: every outcome on the wire, in canonical form, the same each time, and telling what to do."""

import json
import re
from typing import Any

import msgspec
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from leaseplane.answers import BODY_OF, CODE_OF, render, score_of, time_text
from leaseplane.bodies import STATUS_OF
from leaseplane.model import (
    CycleEdge,
    Deadlock,
    Granted,
    Held,
    Holder,
    LeaseView,
    NotHolder,
    Outcome,
    Stampede,
    Trust,
    TrustShown,
)
from leaseplane.surfaces.rest.samples import ADA, BOB, OUTCOMES

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
HOLDERS = st.builds(Holder, st.sampled_from([ADA, BOB]), ANY_TEXT)
WALL_MS = st.integers(0, 4_102_444_800_000)
LEASES = st.builds(
    LeaseView,
    lease_id=ANY_TEXT,
    resource=ANY_TEXT,
    holder=HOLDERS,
    granted_wall_ms=WALL_MS,
    expires_wall_ms=WALL_MS,
    ttl_ms=st.integers(1_000, 3_600_000),
    fence=st.integers(1, 2**53 - 1),
    access=st.sampled_from(["read", "write", "delete"]),
    note=st.none() | ANY_TEXT,
)
SOME_OUTCOMES = st.one_of(
    st.builds(Granted, LEASES, st.booleans(), st.integers(0, 20_000)),
    st.builds(
        Held,
        resource=ANY_TEXT,
        holder=st.none() | HOLDERS,
        note=st.none() | ANY_TEXT,
        expires_wall_ms=st.none() | WALL_MS,
        held_since_wall_ms=st.none() | WALL_MS,
        holders=st.lists(HOLDERS, max_size=3).map(tuple),
        stampede=st.builds(Stampede, st.lists(st.just(BOB), max_size=8).map(tuple), st.integers(50, 800)),
        position=st.integers(1, 20_000),
        retry_after_ms=st.integers(1, 1_000),
    ),
    st.builds(
        Deadlock,
        resource=ANY_TEXT,
        holder=HOLDERS,
        waiting_on=ANY_TEXT,
        cycle=st.lists(st.builds(CycleEdge, ANY_TEXT, ANY_TEXT, ANY_TEXT), max_size=12).map(tuple),
    ),
    st.builds(NotHolder, ANY_TEXT, HOLDERS),
    st.builds(TrustShown, st.just(ADA), st.builds(Trust, st.integers(0, 200))),
    st.sampled_from(list(OUTCOMES.values())),
)


def body_of(outcome: Outcome) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(render(outcome).body_without_receipt)
    return body


@given(SOME_OUTCOMES)
def test_a_body_is_canonical_as_it_stands_and_the_same_each_time(outcome: Outcome) -> None:
    rendered = render(outcome)
    assert rendered.body_without_receipt == rfc8785.dumps(json.loads(rendered.body_without_receipt))
    assert render(outcome) == rendered


@given(SOME_OUTCOMES)
def test_a_body_says_what_it_is(outcome: Outcome) -> None:
    rendered = render(outcome)
    body = json.loads(rendered.body_without_receipt)
    code = CODE_OF[type(outcome)]
    assert body["ok"] is (code is None)
    assert body.get("error") == code
    assert rendered.status == (200 if code is None else STATUS_OF[code])
    assert ("message" in body) is (code is not None)
    assert None not in body.values(), "what is not there is absent, not null"
    assert msgspec.convert(body, BODY_OF[type(outcome)]) is not None


def test_there_is_a_sample_of_every_outcome() -> None:
    assert OUTCOMES.keys() == BODY_OF.keys()


@pytest.mark.parametrize(
    ("wall_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1, "1970-01-01T00:00:00.001Z"),
        (1_767_225_599_999, "2025-12-31T23:59:59.999Z"),
        (951_782_400_000, "2000-02-29T00:00:00.000Z"),
        (32_503_680_000_050, "3000-01-01T00:00:00.050Z"),
    ],
)
def test_times_are_rfc_3339_with_milliseconds(wall_ms: int, text: str) -> None:
    assert time_text(wall_ms) == text


def test_scores_are_whole_where_they_are_whole() -> None:
    assert [repr(score_of(halves)) for halves in (0, 1, 90, 101, 200)] == ["0", "0.5", "45", "50.5", "100"]


def test_a_new_lease_has_exactly_the_contracts_members() -> None:
    lease = msgspec.structs.replace(OUTCOMES[Granted].lease, note=None)  # type: ignore[union-attr]
    assert body_of(Granted(lease)) == {
        "ok": True,
        "lease": {
            "leaseId": lease.lease_id,
            "resource": "lock:deploy/production",
            "holder": ADA,
            "grantedAt": "2026-01-01T00:00:00.000Z",
            "expiresAt": "2026-01-01T00:00:30.000Z",
            "ttlMs": 30_000,
            "fence": 1_767_225_600_000,
            "renewed": False,
            "access": "write",
        },
    }
    renewed = body_of(Granted(lease, renewed=True, waiting=3))
    assert (renewed["renewed"], renewed["waiting"], renewed["lease"]["renewed"]) == (True, 3, True)


def held(**changes: Any) -> dict[str, Any]:
    return body_of(msgspec.structs.replace(OUTCOMES[Held], **changes))


def test_a_refusal_names_every_holder_where_there_are_several() -> None:
    assert "holders" not in held()
    several = held(holders=(Holder(ADA, "a"), Holder(BOB), Holder(ADA, "b")))
    assert several["holders"] == [ADA, BOB, ADA]
    assert "and 2 more" in several["message"]


def test_a_refusal_where_nobody_holds_names_no_holder() -> None:
    body = held(holder=None, note=None, expires_wall_ms=None, held_since_wall_ms=None, holders=())
    assert not {"holder", "expiresAt", "instance", "note"} & body.keys()
    assert body["message"].startswith("Nobody holds lock:deploy/production")


def test_a_refusal_says_what_to_do() -> None:
    message = held(position=3, retry_after_ms=180)["message"]
    assert re.search(r"You are 3rd in line\. Ask again in 180 ms, or send maxWaitMs", message)
    for position, told in ((1, "1st"), (2, "2nd"), (4, "4th"), (11, "11th"), (12, "12th"), (13, "13th"),
                           (21, "21st"), (102, "102nd"), (111, "111th"), (1_003, "1003rd")):  # fmt: skip
        assert f"You are {told} in line" in held(position=position)["message"]


@pytest.mark.parametrize(("retry_after_ms", "seconds"), [(1, 1), (999, 1), (1_000, 1), (1_001, 2)])
def test_retry_after_is_never_too_early(retry_after_ms: int, seconds: int) -> None:
    refusal = msgspec.structs.replace(OUTCOMES[Held], retry_after_ms=retry_after_ms)
    assert render(refusal).retry_after_s == seconds


def test_a_deadlock_says_what_each_could_do() -> None:
    body = body_of(OUTCOMES[Deadlock])
    assert f"{ADA} releases lock:deploy/production" in body["message"]
    assert f"{BOB} releases lock:db/schema" in body["message"]
    ring = tuple(CycleEdge(f"did:x:{n}", f"lock:{n}", f"did:x:{n + 1}") for n in range(40))
    long = body_of(msgspec.structs.replace(OUTCOMES[Deadlock], cycle=ring))
    assert len(long["cycle"]) == 40 and "32 more" in long["message"]
