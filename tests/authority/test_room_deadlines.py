"""A room knows its earliest deadline, whatever its waits go through."""

from hypothesis import given
from hypothesis import strategies as st

from leaseplane.authority.room import Room, deadline_boot_ms
from leaseplane.model import Holder, Parked, Wait
from leaseplane.store.contract import StoredRoom

TERM_MS = 100


def a_wait(seq: int, asked_boot_ms: int, untils_boot_ms: list[int]) -> Wait:
    return Wait(
        workspace="w",
        resource="lock:r",
        waiter=Holder(f"did:web:a.example:{seq}"),
        access="write",
        asked_access="write",
        seq=seq,
        since_wall_ms=0,
        asked_wall_ms=0,
        asked_boot_ms=asked_boot_ms,
        chance_boot_ms=0,
        parked=tuple(Parked(f"p.{until}", "p", until, "jti") for until in untils_boot_ms),
    )


def a_room(*waits: Wait) -> Room:
    return Room("w", "lock:r", "exclusive", TERM_MS, StoredRoom((), waits))


def test_a_place_with_two_parked_requests_is_due_twice() -> None:
    room = a_room(a_wait(1, 0, [10, 20]))
    assert [(at, wait.seq) for at, wait in room.waits_due(10)] == [(10, 1)]
    room.put_wait(a_wait(1, 10, [20]))
    assert room.first_end_boot_ms() == 20
    assert [(at, wait.seq) for at, wait in room.waits_due(20)] == [(20, 1)]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("ask", "ask", "park", "end", "due", "first")),
        st.integers(1, 4),
        st.integers(0, 60),
    ),
    max_size=60,
)


@given(STEPS)
def test_no_deadline_is_forgotten_and_none_is_invented(steps: list[tuple[str, int, int]]) -> None:
    room = a_room()
    now_ms = 0
    for what, seq, by_ms in steps:
        waiter = Holder(f"did:web:a.example:{seq}")
        wait = room.waits.get(waiter)
        if what == "ask":
            room.put_wait(a_wait(seq, now_ms, [each.until_boot_ms for each in wait.parked] if wait else []))
        elif what == "park":
            kept = [each.until_boot_ms for each in wait.parked] if wait else []
            room.put_wait(a_wait(seq, now_ms, [*kept, now_ms + by_ms]))
        elif what == "end" and wait is not None:
            room.end_wait(wait)
        elif what == "due":
            now_ms += by_ms
            deadlines = {each.waiter: deadline_boot_ms(each, TERM_MS) for each in room.waits.values()}
            expected = {holder: at for holder, at in deadlines.items() if at <= now_ms}
            due = room.waits_due(now_ms)
            assert {wait.waiter: at for at, wait in due} == expected
            for _, wait in due:
                late = room.waits.get(wait.waiter)
                if late is None or deadline_boot_ms(late, TERM_MS) > now_ms:
                    # It is told once for each entry that was noted; by now it is dealt with.
                    continue
                left = [each.until_boot_ms for each in late.parked if each.until_boot_ms > now_ms]
                if late.parked:
                    # Some of its requests timed out; the place goes on, and has a later deadline.
                    room.put_wait(a_wait(late.seq, now_ms, left))
                else:
                    room.end_wait(late)
        assert room.first_end_boot_ms() == min(
            (deadline_boot_ms(each, TERM_MS) for each in room.waits.values()), default=None
        )
