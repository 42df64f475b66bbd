"""Every bound of the plane, its unit in its name, and the relations between them.

Nothing in the plane grows without one of these; a bound that a caller can meet is answered
with the code named beside it, never with a traceback.
"""

from typing import Final

# -- leases and time ---------------------------------------------------------------------------

LEASE_MS_STANDARD: Final = 30_000
LEASE_MS_MIN: Final = 1_000
LEASE_MS_MAX: Final = 3_600_000

ALARM_LATE_MS_MAX: Final = 250
"""How late after its end a lease may be reclaimed by the alarm; never early."""

ALARM_RECHECK_MS: Final = 200
"""The longest sleep of an alarm. Another process may have stored an earlier end meanwhile and be gone;
an end that was stored during the sleep is seen this late at most."""

ALARM_STAGGER_MS: Final = 4
ALARM_STAGGER_MS_MAX: Final = 100
"""How long after the one before it an embedded process comes for an alarm that all have; by then the first
has done what is due, and the others see that."""

EMBEDDED_RECHECK_MS: Final = 700
"""The longest sleep of the alarm of an embedded process. There may be many of them, so each looks less
often than a server. Whatever another process stored meanwhile ends a lease length later at the earliest;
what ends sooner (a poller's chance) is watched by who stored it, and handed on to the others as it leaves."""

PROCESS_RECHECK_MS: Final = 400
"""How often a server looks for processes that have died; an embedded process does whenever it looks."""

PROCESS_LOOK_SHARED_MS: Final = 200
"""For so long the look of one process at all the others does for the rest, too, while it lives."""

PROCESS_DEAD_MS_MAX: Final = 1_000
"""Within this time the parked requests of a dead process are withdrawn."""

# -- the queue ---------------------------------------------------------------------------------

ADMITTED_MAX: Final = 8
WAIT_MS_BASE: Final = 25
WAIT_MS_MAX: Final = 800
WAIT_DOUBLINGS_MAX: Final = 5
"""25 · 2^5 = 800: from here on the curve is flat, and no larger power is ever computed."""

POLLING_GRACE_MS: Final = 250
"""How long beyond the longest wait they were told polling waiters keep their chance."""

POSITION_EXACT_MAX: Final = 1_000
PARK_MS_MAX: Final = 300_000
PARKED_OVERDUE_MS: Final = 1_000
"""How long after its time a parked request without an answer is asked after: the authority answers
within ALARM_LATE_MS_MAX, so it has lost the request by then."""

# -- per workspace (too_many) ------------------------------------------------------------------

LEASES_PER_WORKSPACE_MAX: Final = 200_000
WAITS_PER_WORKSPACE_MAX: Final = 20_000
PARKED_PER_WORKSPACE_MAX: Final = 10_000
IDEMPOTENCY_PER_WORKSPACE_MAX: Final = 500_000
HOLDERS_PER_RESOURCE_MAX: Final = 1_000
PARKED_PER_PLACE_MAX: Final = 16
DEADLOCKS_LISTED_PER_WORKSPACE_MAX: Final = 1_000
"""Listing is information: beyond this the oldest pair is dropped from the list."""

# -- what callers send (invalid_request, body_too_large) ---------------------------------------

RESOURCE_BYTES_MAX: Final = 512
ACTOR_DID_BYTES_MAX: Final = 256
INSTANCE_CHARS_MAX: Final = 64
NOTE_CHARS_MAX: Final = 200
REASON_CHARS_MAX: Final = 200
LEASE_ID_CHARS_MAX: Final = 64
IDEMPOTENCY_KEY_CHARS_MAX: Final = 255
BODY_BYTES_MAX: Final = 64 * 1024
JSON_DEPTH_MAX: Final = 16
REQUEST_COMPLETE_MS_MAX: Final = 20_000
WORKSPACE_CHARS_MAX: Final = 63
AGENT_NAME_CHARS_MAX: Final = 64

# -- numbers that other software must be able to hold ------------------------------------------

WHOLE_NUMBER_MAX: Final = 2**53 - 1

FENCE_CLOCK_US_MAX: Final = 2**52
"""Up to here (the year 2112) the wall clock in microseconds is the floor of the fence."""

# -- trust, in half points so that every score is a whole number here --------------------------

TRUST_START_HALVES: Final = 100
TRUST_MAX_HALVES: Final = 200
TRUST_RELEASE_HALVES: Final = 1
TRUST_EXPIRY_HALVES: Final = -10

# -- storage -----------------------------------------------------------------------------------

IDEMPOTENCY_KEPT_MS: Final = 600_000
IDEMPOTENCY_SWEPT_MAX: Final = 2 * 64
"""Records that are no longer kept and that one transaction removes: more than one can add."""

BATCH_ASKS_MAX: Final = 64
"""Asks decided in one transaction. More lengthen the first one's wait for no gain in throughput."""

SETTLE_RESOURCES_MAX: Final = 500
"""Resources whose due ends one transaction processes before others get their turn."""

BUSY_RETRY_MS: Final = 1.0
BUSY_GIVE_UP_MS: Final = 5_000
"""How long a process tries for a busy database before it says authority_unavailable."""

OUTBOX_EVENTS_MAX: Final = 1_000_000
OUTBOX_TRIM_EVENTS: Final = 1_000
ROOMS_CACHED_MAX: Final = 50_000

DATABASE_STATEMENTS_CACHED: Final = 512
DATABASE_CACHE_KIB: Final = 32 * 1024
WAL_CHECKPOINT_PAGES: Final = 12_000
"""48 MiB of WAL before a commit also copies it into the database, which costs that commit a sync."""

WAL_CHECKPOINT_PAGES_EMBEDDED: Final = 1_000
"""The same for a process without a server: its WAL stays short, and a commit that overwrites what has been
copied is synced faster than one that makes the file longer."""

WAL_KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
"""What a WAL that grew under a long read is cut back to."""

WAKES_DRAINED_MAX: Final = 1_000
SOCKET_PATH_BYTES_MAX: Final = 103
"""What fits into a socket's address everywhere; only needed where there is no /proc to go round it."""

# -- connections -------------------------------------------------------------------------------

CONNECTIONS_MAX: Final = 16_384
CONNECTIONS_SHED: Final = 256
"""When there is room for no more, so many of those that wait for nothing are closed, oldest first."""

FILES_KEPT_FREE: Final = 128
"""Open files that connections leave to the store, the ledger and the rest."""

KEEP_ALIVE_MS_MAX: Final = 75_000
CONNECTION_SWEEP_MS: Final = 500
HEAD_BYTES_MAX: Final = 64 * 1024
MESSAGE_BYTES_MAX: Final = 2 * 1024 * 1024
"""A request as it comes over the wire: its body in one-byte chunks takes six times its size."""

PIPELINED_MAX: Final = 16
REFUSED_BODY_DRAINED_BYTES_MAX: Final = 1024 * 1024
REFUSED_BODY_DRAINED_MS_MAX: Final = 1_000
PARKED_ANSWERED_MS_MAX: Final = 1_000
"""How long a stopping server waits for parked requests that the engine has let go of."""

STOP_MS_MAX: Final = 5_000
TROUBLE_TOLD_MS_MIN: Final = 1_000
TROUBLE_TOLD_AGAIN_MS: Final = 60_000
"""How often the log tells why the authority is unavailable, and how often the same reason again."""

# -- a command under `run` ----------------------------------------------------------------------

RUN_TERM_BEFORE_END_MS_MAX: Final = 5_000
RUN_TERM_BEFORE_END_PART: Final = 4
"""How long before its lease ends a command gets TERM: this, or for a short lease one such part of it."""

RUN_KILL_BEFORE_END_MS_MAX: Final = 1_000
RUN_KILL_BEFORE_END_PART: Final = 10
"""The same for KILL. What is left is for a machine that is slow to end a process."""

RUN_KILL_AFTER_TERM_MS: Final = 5_000
"""How long what a command leaves behind in its group has after TERM. The lease is renewed meanwhile."""

RUN_KILL_AFTER_LOSS_MS: Final = 1_000
"""How long a command has after TERM where the authority has said that its lease is another's now."""

RUN_KILL_AFTER_ORPHANED_MS: Final = 2_000
"""How long a command has after TERM where its wrapper was killed. Nothing renews the lease any more."""

RUN_LOOK_MS: Final = 500
"""The longest that a wrapper or its guard sleeps while the command's time runs: a sleep does not end by a
machine's suspend, and a lease does."""

RUN_STILL_RETRY_MS: Final = 2
"""How soon a process that Ctrl-Z has reached in a transaction looks whether it can be stopped."""

RUN_SWEEP_LOOK_MS_MAX: Final = 100
"""How often a guard looks whether a group that has been ended is gone."""

# -- identity and receipts ---------------------------------------------------------------------

API_KEYS_PER_WORKSPACE_MAX: Final = 10_000
REVOKED_WITHIN_MS: Final = 1_000
SIGNED_REQUEST_AGE_S_MAX: Final = 60
NONCE_CHARS_MAX: Final = 128
SIGNATURE_FIELDS_BYTES_MAX: Final = 4_096
SECRET_FILE_BYTES_MAX: Final = 4_096
"""An agent's key pair, or an API key, in a file of its own."""

NONCE_KEPT_MS: Final = 180_000
"""Boot-clock time for which a signed request's nonce is remembered. A request may be dated ahead by
the age it may have, so it is stale after twice that; the rest is for a wall clock that is being set.
How many there can be is bounded by this and by the sync that each costs; only admitted agents spend any."""

NONCES_FORGOTTEN_AT_ONCE_MAX: Final = 8
REGISTRY_BUSY_GIVE_UP_MS: Final = 250
CREDENTIAL_CACHED_MS_MAX: Final = 500
CREDENTIALS_CACHED_MAX: Final = 10_000
BEARER_CHARS_MAX: Final = 256
KEY_LABEL_CHARS_MAX: Final = 100
AGENTS_PER_WORKSPACE_MAX: Final = 100_000
WORKSPACES_MAX: Final = 10_000
DIDS_CACHED_MAX: Final = 16_384
"""Accepted DIDs that a process remembers, at most 256 bytes each."""

RECEIPT_AHEAD_S_MAX: Final = 60
RECEIPT_BYTES_MAX: Final = 4 * 1024
RECEIPT_ISSUER_CHARS_MAX: Final = 256
RECEIPT_PATH_CHARS_MAX: Final = 128
JTI_CHARS_MAX: Final = 64
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""The longest response body that a verifier looks at; a full list of waits is the longest there is."""

SIGNING_KEY_NOTICED_S_MAX: Final = 5
"""How long after a rotation another process may still sign with the key it replaced."""

SIGNING_KEYS_MAX: Final = 10_000
"""Keys a plane ever has. All are published for ever, so a rotation beyond this is refused."""

# -- the client --------------------------------------------------------------------------------

PARK_SLICE_MS: Final = 10_000
"""How long one request of a client to a server is parked. It asks again then, keeping its place, so that
what is handed to it was asked for a short while ago, and most of the lease is left by its own count.
Embedded, it is parked for as long as there is: each time-out is a transaction, and an alarm in every process.
What it is handed late it renews first, which takes no network."""

PARK_SLICE_TOLD_MS: Final = 5_000
"""The same where someone wants to be told how the queue does."""

ANSWER_LATE_MS_MAX: Final = 15_000
"""How long after its time an answer may come; longer than a server keeps trying for a busy database."""

RETRY_MS_BASE: Final = 50
RETRY_MS_MAX: Final = 1_000
"""How long a client stands back after a failure: doubled each time, with jitter."""

UNREACHED_MS_MAX: Final = 2_000
"""How long a client tries an authority that never answered it."""

LOST_TOUCH_MS_MAX: Final = 60_000
"""How long it tries one that did: a plane that is being restarted is back by then."""

CLEAN_UP_MS_MAX: Final = 5_000
"""How long one that gives up or is cancelled tries to leave nothing behind, before the plane's own
time-outs have to do it."""

RENEW_PARTS: Final = 3
"""A lease is renewed when a third of its time is over, so that two more tries fit in."""

KEEPER_LOOK_MS: Final = 500
"""The longest sleep of a keeper: the clock that it sleeps by stands still while the machine is suspended."""

CONNECT_MS_MAX: Final = 5_000
CONNECTION_IDLE_MS_MAX: Final = 15_000
"""How long a client's thread and its connection are kept for the next request; longer than the time
between two renewals."""

assert LEASE_MS_MIN <= LEASE_MS_STANDARD <= LEASE_MS_MAX
assert ALARM_RECHECK_MS < ALARM_LATE_MS_MAX < LEASE_MS_MIN
assert ALARM_RECHECK_MS < PROCESS_RECHECK_MS < EMBEDDED_RECHECK_MS < PROCESS_DEAD_MS_MAX
assert EMBEDDED_RECHECK_MS + PROCESS_LOOK_SHARED_MS < PROCESS_DEAD_MS_MAX
assert EMBEDDED_RECHECK_MS + ALARM_LATE_MS_MAX < LEASE_MS_MIN
assert ALARM_STAGGER_MS < ALARM_STAGGER_MS_MAX < ALARM_LATE_MS_MAX // 2
assert ALARM_LATE_MS_MAX < PARKED_OVERDUE_MS
assert WAIT_MS_BASE * 2**WAIT_DOUBLINGS_MAX == WAIT_MS_MAX
assert WAIT_MS_MAX + POLLING_GRACE_MS < LEASE_MS_MIN + ALARM_LATE_MS_MAX
assert BUSY_RETRY_MS < BUSY_GIVE_UP_MS
assert BATCH_ASKS_MAX < IDEMPOTENCY_SWEPT_MAX
assert WAL_CHECKPOINT_PAGES_EMBEDDED < WAL_CHECKPOINT_PAGES
assert WAL_CHECKPOINT_PAGES * 4_096 <= WAL_KEPT_BYTES_MAX
assert ADMITTED_MAX <= POSITION_EXACT_MAX <= WAITS_PER_WORKSPACE_MAX
assert PARKED_PER_WORKSPACE_MAX <= WAITS_PER_WORKSPACE_MAX <= LEASES_PER_WORKSPACE_MAX
assert FENCE_CLOCK_US_MAX < WHOLE_NUMBER_MAX
assert 0 <= TRUST_START_HALVES <= TRUST_MAX_HALVES
assert SIGNED_REQUEST_AGE_S_MAX * 1_000 < IDEMPOTENCY_KEPT_MS
assert 2 * SIGNED_REQUEST_AGE_S_MAX * 1_000 < NONCE_KEPT_MS
assert CONNECTION_SWEEP_MS * 4 <= REQUEST_COMPLETE_MS_MAX < KEEP_ALIVE_MS_MAX
assert HEAD_BYTES_MAX + 6 * BODY_BYTES_MAX < REFUSED_BODY_DRAINED_BYTES_MAX < MESSAGE_BYTES_MAX
assert CONNECTIONS_SHED < CONNECTIONS_MAX
assert PARKED_ANSWERED_MS_MAX < STOP_MS_MAX
assert TROUBLE_TOLD_MS_MIN < TROUBLE_TOLD_AGAIN_MS
assert RUN_KILL_BEFORE_END_MS_MAX < RUN_TERM_BEFORE_END_MS_MAX < LEASE_MS_STANDARD
assert RUN_KILL_BEFORE_END_PART > RUN_TERM_BEFORE_END_PART > 1
assert RUN_KILL_AFTER_ORPHANED_MS < RUN_TERM_BEFORE_END_MS_MAX - RUN_KILL_BEFORE_END_MS_MAX
assert RUN_LOOK_MS <= RUN_KILL_BEFORE_END_MS_MAX // 2
assert RUN_SWEEP_LOOK_MS_MAX <= LEASE_MS_MIN // RUN_KILL_BEFORE_END_PART
assert NONCES_FORGOTTEN_AT_ONCE_MAX > 1
assert BUSY_RETRY_MS < REGISTRY_BUSY_GIVE_UP_MS <= BUSY_GIVE_UP_MS
assert CREDENTIAL_CACHED_MS_MAX + REGISTRY_BUSY_GIVE_UP_MS < REVOKED_WITHIN_MS
assert 2 * PARK_SLICE_MS < LEASE_MS_STANDARD and PARK_SLICE_TOLD_MS <= PARK_SLICE_MS <= PARK_MS_MAX
assert BUSY_GIVE_UP_MS < ANSWER_LATE_MS_MAX
assert RETRY_MS_BASE < RETRY_MS_MAX < UNREACHED_MS_MAX < CLEAN_UP_MS_MAX < LOST_TOUCH_MS_MAX
assert LEASE_MS_STANDARD < LOST_TOUCH_MS_MAX
assert LEASE_MS_STANDARD // RENEW_PARTS < CONNECTION_IDLE_MS_MAX < KEEP_ALIVE_MS_MAX
