"""The wait-for graph: who cannot go on before whom, and whether a wait would close a cycle.

A node is an agent's instance up to its first dot. An edge goes from a waiter to every holder that
it collides with, and from a reader behind a waiting writer to those that the writer waits for.
Nothing that is over is an edge: no ended lease, no dead wait, no wait that a grant elsewhere has
already refused. The search is breadth first and visits each node once, so it ends on every graph
and finds the shortest cycle, which is the easiest one to read.
"""

from collections import deque

import msgspec

from leaseplane.model import Access, CycleEdge, Deadlock, Holder, Lease, Node, Wait

from .room import Room, deadline_boot_ms
from .state import State


class _Step(msgspec.Struct, frozen=True):
    """The search came to `lease`'s holder, because whoever it came from waits for that lease."""

    lease: Lease
    came_from: "_Step | None"


def blocking_leases(room: Room, holder: Holder, access: Access, place: Wait | None) -> list[Lease]:
    """The leases that keep this access from being granted, from this place in the queue (None: its end).

    The one that began first comes first. A reader blocks on every holder that a writer ahead of it
    waits for, not only on its own: any of them may be the one that waits for the reader.
    """
    blocking = room.leases_colliding(holder, access)
    if access != "read" or blocking or not room.leases:
        return blocking
    found: dict[Holder, Lease] = {}
    for writer in room.writers_ahead(place, 2):
        # Two writers are enough: all but its own lease block a writer, so two leave none out.
        if writer.waiter != holder:
            for lease in room.leases_colliding(writer.waiter, writer.access):
                if lease.holder != holder:
                    found[lease.holder] = lease
    return [lease for lease in room.leases.values() if lease.holder in found]


def find_cycle(state: State, room: Room, asker: Holder, blocking: list[Lease]) -> Deadlock | None:
    """The refusal, if `asker` waiting for `blocking` in this room would close a cycle through it."""
    found = _path(state, room.workspace, asker.node, blocking)
    if found is None:
        return None
    steps: list[_Step] = []
    step: _Step | None = found
    while step is not None:
        steps.append(step)
        step = step.came_from
    steps.reverse()
    edges = []
    waits_for = asker
    for step in steps:
        edges.append(CycleEdge(waits_for.actor, step.lease.resource, step.lease.holder.actor))
        waits_for = step.lease.holder
    first = steps[0].lease
    return Deadlock(
        resource=room.resource,
        holder=first.holder,
        waiting_on=steps[1].lease.resource,
        cycle=tuple(edges),
    )


def wait_closed_by(state: State, room: Room, granted: Lease) -> tuple[Wait, Deadlock] | None:
    """The first wait in this room that, with `granted` held, is on a cycle through its holder.

    A grant stands; of the waits on the cycle only the one for what was granted ends. The caller
    ends it and asks again, since an ended wait may have broken other cycles.
    """
    if not room.waits:
        # The everyday grant: nobody waits here, so there is no wait that could be on a cycle.
        return None
    reachable = _reachable(state, room.workspace, granted.holder.node)
    if not reachable:
        return None
    for wait in room.in_order():
        if wait.edge and wait.waiter.node in reachable and not _is_dead(state, wait):
            through = [
                lease
                for lease in blocking_leases(room, wait.waiter, wait.access, wait)
                if lease.holder.node == granted.holder.node
            ]
            deadlock = find_cycle(state, room, wait.waiter, through)
            if deadlock is not None:
                return wait, deadlock
    return None


def _path(state: State, workspace: str, target: Node, blocking: list[Lease]) -> _Step | None:
    """The last step of a shortest path from `blocking`'s holders back to `target`."""
    seen: set[Node] = set()
    queue: deque[_Step] = deque()
    for lease in blocking:
        node = lease.holder.node
        if node != target and node not in seen and lease.ends_boot_ms > state.now.boot_ms:
            seen.add(node)
            queue.append(_Step(lease, None))
    while queue:
        step = queue.popleft()
        for lease in _waited_for(state, workspace, step.lease.holder.node):
            node = lease.holder.node
            if node == target:
                return _Step(lease, step)
            if node not in seen:
                seen.add(node)
                queue.append(_Step(lease, step))
    return None


def _reachable(state: State, workspace: str, start: Node) -> set[Node]:
    """The nodes that `start` waits for, directly or through others."""
    seen: set[Node] = set()
    queue: deque[Node] = deque([start])
    while queue:
        for lease in _waited_for(state, workspace, queue.popleft()):
            node = lease.holder.node
            if node not in seen:
                seen.add(node)
                queue.append(node)
    return seen


def _waited_for(state: State, workspace: str, node: Node) -> list[Lease]:
    """The live leases of others that the live waits of this node wait for."""
    waited_for = []
    for room, wait in state.waits_of(workspace, node):
        if wait.edge and not _is_dead(state, wait):
            for lease in blocking_leases(room, wait.waiter, wait.access, wait):
                if lease.holder.node != node and lease.ends_boot_ms > state.now.boot_ms:
                    waited_for.append(lease)
    return waited_for


def _is_dead(state: State, wait: Wait) -> bool:
    return not wait.parked and deadline_boot_ms(wait, state.terms.lease_ms) <= state.now.boot_ms
