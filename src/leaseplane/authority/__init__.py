"""The rules, each written once: who gets a resource, who waits, what ends a lease, what moves trust.

Everything here is pure: no clock, no randomness, no I/O. Time comes in as a `Moment`, rows come in
through `store.contract.Rows`, and what is decided goes out as `Changes`. Deciding the same asks
again on the same rows gives the same answers, which is what lets a store run a transaction twice.

Read `decide` for what is promised, and then, where it calls them, from the bottom up:

- `decide`    one command to its outcome; what is due happens first
- `room`      one resource: its leases and its queue, in memory
- `state`     the working set of one transaction after another, and what each changed
- `trust`     what the ends of leases do to an agent's standing
- `leases`    granting, renewing and the ways in which a lease ends
- `deadlock`  the wait-for graph
- `waiting`   places in the queue, what a refusal tells, hand-over to parked requests
"""
