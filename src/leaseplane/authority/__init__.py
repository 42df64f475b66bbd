"""The rules, each written once: who gets a resource, who waits, what ends a lease, what moves trust.

Everything here is pure: no clock, no randomness, no I/O. Time comes in as a `Moment`, rows come in
through `store.contract.Rows`, and what is decided goes out as `Changes`. Deciding the same asks
again on the same rows gives the same answers, which is what lets a store run a transaction twice.

Read in this order:

- `room`      one resource: its leases and its queue, in memory
- `state`     the working set of one transaction, and what it changed
- `deadlock`  the wait-for graph
- `waiting`   places in the queue, what a refusal tells, hand-over to parked requests
- `leases`    granting, renewing and the four ways in which a lease ends
- `decide`    one command to its outcome; what is due happens first
"""
