"""`Plane`, embedded: what a program gets, whatever happens to it or to others."""

import os
import signal
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from tests.client.places import (
    ALICE,
    BOB,
    CAROL,
    NOTHING,
    PATIENCE_S,
    plane_in,
    python,
    settings_in,
    until,
    what_is_left,
)

from leaseplane import (
    Deadlock,
    InvalidRequest,
    LeaseHeld,
    LeaseLost,
    NotHeld,
    Plane,
    StaleLease,
    verify_receipt,
)
from leaseplane.clock import ManualClock, SystemClock
from leaseplane.limits import INSTANCE_CHARS_MAX
from leaseplane.receipts.keyring import Keyring
from leaseplane.store.folder import DataFolder

DB = "lock:db"


def test_a_lease_is_held_in_its_block_and_let_go_of_after_it(tmp_path: Path) -> None:
    with plane_in(tmp_path) as plane:
        with plane.lease(DB, note="moving the table") as lease:
            lease.ensure_held()
            with pytest.raises(LeaseHeld) as refused:
                plane.ask(DB)
            assert (refused.value.holder, refused.value.instance) == (ALICE, lease.instance)
            plane.withdraw(DB)
        assert not lease.is_held
        assert what_is_left(plane, DB) == NOTHING
        assert plane.trust().score == 51


def test_a_refusal_carries_the_holder_the_back_off_and_a_receipt_that_says_it_is_self_issued(
    tmp_path: Path,
) -> None:
    with plane_in(tmp_path) as holder, plane_in(tmp_path, BOB) as other, holder.lease(DB, note="moving"):
        with pytest.raises(LeaseHeld) as raised:
            other.acquire(DB, timeout=0)
        refused = raised.value
        assert (refused.holder, refused.note, refused.position) == (ALICE, "moving", 1)
        assert refused.retry_after_ms > 0 and refused.held_since and refused.expires_at
        jwks = Keyring.open(
            DataFolder(tmp_path).keys, now_s=0, random_bytes=os.urandom, issuer=None
        ).published.jwks()
        verdict = verify_receipt(refused.receipt, jwks, now_s=int(time.time()), body=refused.raw)
        assert verdict.valid, verdict
        assert verdict.self_issued and "self-issued" in verdict.sentence.lower()


@pytest.mark.parametrize("timeout_s", [0, 0.05])
def test_giving_up_leaves_no_wait_behind(tmp_path: Path, timeout_s: float) -> None:
    with plane_in(tmp_path) as holder, plane_in(tmp_path, BOB) as other, holder.lease(DB):
        with pytest.raises(LeaseHeld):
            other.acquire(DB, timeout=timeout_s)
        assert other.waiting().waiting == []


def test_a_wait_that_would_never_end_is_a_deadlock(tmp_path: Path) -> None:
    with plane_in(tmp_path) as alice, plane_in(tmp_path, BOB) as bob, bob.lease("lock:y"):
        waits = threading.Thread(target=lambda: bob.acquire("lock:x").release())
        with alice.lease("lock:x"):
            waits.start()
            until(lambda: alice.waiting("lock:x").waiting, "bob waits for x")
            with pytest.raises(Deadlock) as raised:
                alice.acquire("lock:y")
        assert (raised.value.holder, raised.value.waiting_on) == (BOB, "lock:x")
        assert len(raised.value.cycle) == 2
        waits.join(PATIENCE_S)
        assert not waits.is_alive()


def test_two_parts_of_one_program_exclude_each_other_and_are_one_node_of_the_wait_graph(
    tmp_path: Path,
) -> None:
    with plane_in(tmp_path) as plane, plane.lease("lock:x") as x, plane.lease("lock:y") as y:
        assert x.instance != y.instance
        assert {each.instance.partition(".")[0] for each in (x, y)} == {plane.instance}
        with pytest.raises(LeaseHeld):
            plane.acquire("lock:x", timeout=0)


def test_the_first_in_line_is_handed_the_lease_across_processes(tmp_path: Path) -> None:
    with plane_in(tmp_path) as plane:
        lease = plane.acquire(DB)
        other = python(
            "from leaseplane import Plane\n"
            f"with Plane(agent={BOB!r}).lease({DB!r}) as lease: print(lease.fence)",
            folder=tmp_path,
        )
        until(lambda: plane.waiting(DB).waiting, "the other process waits")
        lease.release()
        out, _ = other.communicate(timeout=PATIENCE_S)
        assert int(out) > lease.fence
        assert other.returncode == 0


def test_the_lease_of_a_killed_process_runs_out_and_goes_to_the_first_in_line(tmp_path: Path) -> None:
    code = f"""
from leaseplane import Plane
lease = Plane(agent={BOB!r}).acquire({DB!r})
print(lease.fence, flush=True)
input()
"""
    with plane_in(tmp_path, lease_ms=1_000) as plane:
        holder = python(code, folder=tmp_path)
        assert holder.stdout is not None
        holder.stdout.readline()
        holder.kill()
        holder.communicate()
        with plane.lease(DB, timeout=PATIENCE_S):
            assert plane.trust(BOB).expired == 1


def test_the_holder_is_killed_while_three_processes_are_parked(tmp_path: Path) -> None:
    code = f"""
import sys
from leaseplane import Plane
with Plane(agent="did:example:" + sys.stdin.readline().strip()) as plane:
    lease = plane.acquire({DB!r})
    print(lease.fence, flush=True)
    sys.stdin.readline()
    lease.release()
"""
    with plane_in(tmp_path, lease_ms=1_000) as looking:
        names = ["holder", "first", "second", "third"]
        processes = []
        for place, name in enumerate(names):
            process = python(code, folder=tmp_path)
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(f"{name}\n")
            process.stdin.flush()
            if place == 0:
                fences = [int(process.stdout.readline())]
            else:
                until(lambda place=place: len(looking.waiting(DB).waiting) == place, f"{name} waits")
            processes.append(process)
        order = [wait["actorDid"] for wait in looking.waiting(DB).waiting]
        assert order == [f"did:example:{name}" for name in names[1:]]
        processes[0].kill()
        for process in processes[1:]:
            assert process.stdin is not None and process.stdout is not None
            # Each has it in its turn, and only when the one before has let go.
            fences.append(int(process.stdout.readline()))
            process.communicate("\n", timeout=PATIENCE_S)
            assert process.returncode == 0
        processes[0].communicate()
        assert fences == sorted(set(fences))
        assert looking.trust("did:example:holder").expired == 1


def test_a_lease_is_renewed_in_the_background_while_the_program_computes(tmp_path: Path) -> None:
    with plane_in(tmp_path, lease_ms=1_000) as plane:
        renewed = threading.Event()
        with plane.lease(DB) as lease:
            granted_until_ms = lease.ends_boot_ms
            lease.watch(lambda told: renewed.set() if told.ends_boot_ms > granted_until_ms + 1_000 else None)
            ends = time.monotonic() + PATIENCE_S
            while not renewed.is_set() and time.monotonic() < ends:
                sum(range(10_000))
            lease.ensure_held()
        assert (plane.trust().released, plane.trust().expired) == (1, 0)


def test_loss_is_known_by_local_time_without_an_answer_from_anyone(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000, 1_790_000_000_000)
    plane = plane_in(tmp_path, clock=clock)
    lease = plane.acquire(DB)
    clock.advance(29_999)
    lease.ensure_held()
    clock.advance(1)
    assert not lease.is_held
    with pytest.raises(LeaseLost, match="lock:db"):
        lease.ensure_held()
    assert lease.release() is None
    plane.close()


def test_a_lease_that_the_operator_ends_is_told_as_lost_and_the_block_says_so(tmp_path: Path) -> None:
    with plane_in(tmp_path, lease_ms=1_000) as plane, plane_in(tmp_path, BOB) as operator:
        with pytest.raises(LeaseLost), plane.lease(DB) as lease:
            told = threading.Event()
            lease.watch(lambda lost: told.set() if lost.is_lost else None)
            operator.break_off(DB, "stuck")
            assert lease.wait_lost(PATIENCE_S) and told.wait(PATIENCE_S)
            operator.ask(DB)
        # It was not taken again, nor let go of, under the old handle.
        assert operator.release(DB).status == 200


def test_what_the_block_raises_is_raised_though_the_lease_is_lost(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000, 1_790_000_000_000)
    with plane_in(tmp_path, clock=clock) as plane, pytest.raises(ZeroDivisionError), plane.lease(DB):
        clock.advance(40_000)
        raise ZeroDivisionError


def test_a_process_that_was_stopped_for_longer_than_its_lease_knows_before_it_acts(tmp_path: Path) -> None:
    code = f"""
from leaseplane import Plane, LeaseLost
lease = Plane(agent={BOB!r}).acquire({DB!r})
print("held", flush=True)
input()
try:
    lease.ensure_held()
except LeaseLost:
    print("lost")
"""
    with plane_in(tmp_path, lease_ms=1_000) as plane:
        other = python(code, folder=tmp_path)
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline() == "held\n"
        os.kill(other.pid, signal.SIGSTOP)
        # Written before it goes on: it looks at its lease the moment that it can.
        other.stdin.write("\n")
        other.stdin.flush()
        with plane.lease(DB, timeout=PATIENCE_S):
            os.kill(other.pid, signal.SIGCONT)
            out, _ = other.communicate(timeout=PATIENCE_S)
            assert out == "lost\n"


def test_a_forked_child_neither_holds_nor_lets_go_of_what_its_parent_holds(tmp_path: Path) -> None:
    with plane_in(tmp_path) as plane, plane.lease(DB) as lease:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                ours = plane.instance
                assert not lease.is_held and lease.release() is None
                lease.__exit__(None, None, None)
                with pytest.raises(LeaseHeld) as refused:
                    plane.acquire(DB, timeout=0)
                assert refused.value.instance == f"{ours}.1"
                with plane.lease("lock:child") as own:
                    assert own.instance.partition(".")[0] == plane.instance != ours
                plane.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        lease.ensure_held()
        assert plane.ask(DB, lease_id=lease.lease_id).renewed
        assert plane.waiting(DB).waiting == []


def test_forks_while_threads_ask_leave_parent_and_children_whole(tmp_path: Path) -> None:
    with plane_in(tmp_path) as plane:
        stopped = threading.Event()
        faults: list[BaseException] = []

        def ask_on(resource: str) -> None:
            try:
                while not stopped.is_set():
                    with plane.lease(resource, timeout=PATIENCE_S):
                        pass
            except BaseException as fault:
                faults.append(fault)

        threads = [threading.Thread(target=ask_on, args=(f"lock:{n % 2}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for n in range(10):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    with plane.lease(f"lock:{n % 2}", timeout=PATIENCE_S):
                        status = 0
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        stopped.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert faults == []


def test_threads_share_a_plane_and_never_a_lease(tmp_path: Path) -> None:
    with plane_in(tmp_path) as plane:
        inside, most, fences = 0, 0, []

        def work() -> None:
            nonlocal inside, most
            for _ in range(5):
                with plane.lease(DB, timeout=PATIENCE_S) as lease:
                    inside += 1
                    most = max(most, inside)
                    fences.append(lease.fence)
                    inside -= 1

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert most == 1
        assert fences == sorted(set(fences)) and len(fences) == 40


def test_ctrl_c_while_waiting_leaves_neither_a_lease_nor_a_wait(tmp_path: Path) -> None:
    with plane_in(tmp_path) as holder, plane_in(tmp_path, BOB) as other:
        lease = holder.acquire(DB)

        def interrupt() -> None:
            until(lambda: holder.waiting(DB).waiting, "it waits")
            os.kill(os.getpid(), signal.SIGINT)

        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            other.acquire(DB)
        interrupting.join()
        assert holder.waiting().waiting == []
        lease.release()
        assert what_is_left(holder, DB) == NOTHING


def test_what_is_told_while_waiting_may_raise_and_leaves_nothing_either(tmp_path: Path) -> None:
    def told(held: LeaseHeld) -> None:
        raise ValueError(held.holder)

    with plane_in(tmp_path) as holder, plane_in(tmp_path, BOB) as other, holder.lease(DB):
        with pytest.raises(ValueError, match=ALICE):
            other.acquire(DB, on_wait=told)
        assert holder.waiting().waiting == []


def test_closing_lets_go_of_what_is_held_and_gives_up_what_is_parked(tmp_path: Path) -> None:
    with plane_in(tmp_path, CAROL) as looking:
        plane = plane_in(tmp_path)
        plane.acquire("lock:x")
        held = looking.acquire(DB)
        raised: list[BaseException] = []

        def wait() -> None:
            try:
                plane.acquire(DB)
            except BaseException as error:
                raised.append(error)

        waits = threading.Thread(target=wait)
        waits.start()
        until(lambda: looking.waiting(DB).waiting, "it waits")
        plane.close()
        waits.join(PATIENCE_S)
        assert len(raised) == 1
        assert looking.waiting().waiting == []
        held.release()
        assert looking.acquire("lock:x", timeout=0).release() is not None


def test_what_the_run_around_this_process_holds_is_not_asked_for_again(tmp_path: Path) -> None:
    with plane_in(tmp_path) as outer:
        held = outer.acquire(DB)
        environment = {
            "LEASEPLANE_INSTANCE": held.instance,
            "LEASEPLANE_HELD": DB,
            "LEASEPLANE_HELD_LEASES": f"{held.fence} {held.lease_id}",
        }
        with plane_in(tmp_path, **environment) as inner:
            with inner.lease(DB) as lease:
                assert (lease.fence, lease.lease_id, lease.receipt) == (held.fence, held.lease_id, None)
                lease.ensure_held()
            held.ensure_held()
            assert outer.ask(DB, lease_id=held.lease_id).renewed
            with inner.lease("lock:other") as other:
                assert other.instance.startswith(f"{held.instance}.")


def test_an_instance_keeps_its_node_however_deep_it_is_nested(tmp_path: Path) -> None:
    longest = "n" * INSTANCE_CHARS_MAX
    with plane_in(tmp_path, LEASEPLANE_INSTANCE="root." + "x" * 50) as deep, deep.lease(DB) as lease:
        assert lease.instance.startswith("root.") and len(lease.instance) <= INSTANCE_CHARS_MAX
    with plane_in(tmp_path, LEASEPLANE_INSTANCE=longest) as plane, pytest.raises(InvalidRequest):
        plane.acquire(DB)


def test_single_requests_are_the_contracts(tmp_path: Path) -> None:
    with plane_in(tmp_path) as plane:
        granted = plane.ask(DB, instance="ci", note="4.2")
        assert plane.ask(DB, lease_id=granted.lease_id).renewed
        with pytest.raises(StaleLease):
            plane.ask(DB, lease_id="lease-0")
        with pytest.raises(InvalidRequest) as refused:
            plane.ask("file:./src/app.py")
        assert refused.value.field == "resource" and "file:src/app.py" in str(refused.value)
        assert plane.release(DB, instance="ci").trust == 50.5
        with pytest.raises(NotHeld):
            plane.release(DB, instance="ci")


def test_a_plane_that_is_closed_says_so(tmp_path: Path) -> None:
    plane = plane_in(tmp_path)
    plane.close()
    plane.close()
    with pytest.raises(RuntimeError, match="closed"):
        plane.acquire(DB)


def test_a_folder_of_another_lease_length_is_refused(tmp_path: Path) -> None:
    from leaseplane import FolderRefused

    plane_in(tmp_path, lease_ms=1_000).close()
    with pytest.raises(FolderRefused, match="1000"):
        plane_in(tmp_path, lease_ms=2_000)
    with closing(Plane(settings=settings_in(tmp_path), agent=ALICE, clock=SystemClock())) as plane:
        assert plane.acquire(DB).grant.ttl_ms == 1_000  # type: ignore[union-attr]
