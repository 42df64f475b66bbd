"""The language of the histories: strict, line by line, readable without Python.

A file holds scenarios; a scenario is a headline, where it comes from, and lines in order of time:

    scenario: a refusal names the holder
      from contract 1.3
      at 0    A acquires lock:db                       granted
      at 1s   B acquires lock:db, waits up to 5s       parked
      and     C acquires lock:db                       held by A, waitMs 100
      at 3s   A releases lock:db                       released
      and     B is granted, fence larger than before

Columns are divided by two or more spaces: when, what, and what comes of it. `and` means: at the same
moment. `by 3s` is for lines about parked requests and means: at 3s or earlier; with `at`, not a
millisecond earlier. See README.md beside this file for all words. An unknown word is an error that names
the line.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from tests.scenarios.agents import did
from tests.scenarios.world import Capability

from leaseplane.limits import PARK_MS_MAX


class NotUnderstoodError(Exception):
    """A line that is no sentence of the language."""

    def __init__(self, where: str, line: int, why: str) -> None:
        super().__init__(f"{where}:{line}: {why}")


@dataclass(frozen=True)
class Who:
    """An agent and its instance as named in the text: `A`, `A/p.1`."""

    agent: str
    instance: str = ""

    @property
    def did(self) -> str:
        return did(self.agent)

    def __str__(self) -> str:
        return f"{self.agent}/{self.instance}" if self.instance else self.agent


@dataclass(frozen=True)
class Subject:
    """Which parked request a line speaks of: a label, or the latest one of a place."""

    label: str | None = None
    who: Who | None = None
    resource: str | None = None

    def __str__(self) -> str:
        return self.label or f"{self.who}" + (f" on {self.resource}" if self.resource else "")


@dataclass(frozen=True)
class Send:
    """One request: `body` without resource and leaseId where `lease` is a label that stands for both."""

    op: str
    who: Who | None
    resource: str | None = None
    lease: str | None = None
    members: dict[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None
    key: str | None = None


@dataclass(frozen=True)
class Look:
    """`the queue`, `the deadlocks`, `trust of A`."""

    what: str
    resource: str | None = None
    who: Who | None = None


@dataclass(frozen=True)
class Happening:
    """Something that befalls the plane or parked requests, and is answered by nobody."""

    what: str
    ms: int = 0
    subjects: tuple[Subject, ...] = ()


@dataclass(frozen=True)
class Answered:
    """A line about a parked request: it is answered now, or still waits."""

    subject: Subject
    still_waits: bool = False


Command: TypeAlias = Send | Look | Happening | Answered


@dataclass(frozen=True)
class Clause:
    """One expectation: a word and its value."""

    word: str
    value: Any = None


@dataclass(frozen=True)
class Step:
    line: int
    text: str
    at_ms: int
    exact: bool
    command: Command
    clauses: tuple[Clause, ...]


@dataclass(frozen=True)
class Scenario:
    file: str
    line: int
    title: str
    source: str
    steps: tuple[Step, ...]
    needs: frozenset[Capability]


# -- words -----------------------------------------------------------------------------------------

_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s"]+')
_COLUMN: Final = re.compile(r"\s{2,}")
_LABEL: Final = re.compile(r"#[a-z0-9-]+")
_AGENT: Final = re.compile(r"[A-Z][A-Za-z]*[0-9]*|did:[a-z0-9]+:\S+?")
_CROWD: Final = re.compile(r"([A-Z][A-Za-z]*)([0-9]+)\.\.\1([0-9]+)(?=[\s/]|$)")
_EACH: Final = re.compile(r"()each ([0-9]+)\.\.([0-9]+): ")

OUTCOMES: Final = frozenset(
    {"granted", "renewed", "released", "withdrawn", "broken", "parked"}
    | {"lease_held", "deadlock", "stale_lease", "not_held", "not_holder"}
    | {"invalid_request", "actor_mismatch", "forbidden", "too_many"}
)


def duration(text: str) -> int:
    """`0`, `250ms`, `29.999s`, `1m30s`, `30s-1ms` in milliseconds; ValueError if it is none."""
    if text == "0":
        return 0
    total, rest = 0, text
    while rest:
        match = re.match(r"([+-]?)(\d+(?:\.\d+)?)(ms|s|m|h|d)", rest)
        if not match:
            raise ValueError(f"{text!r} is no time")
        ms = float(match[2]) * _UNITS[match[3]]
        if ms != int(ms):
            raise ValueError(f"{text!r} is no whole number of milliseconds")
        total += -int(ms) if match[1] == "-" else int(ms)
        rest = rest[match.end() :]
    return total


def parse_who(text: str) -> Who:
    match = re.fullmatch(rf"({_AGENT.pattern})(?:/(\S+))?", text)
    if not match:
        raise ValueError(f"{text!r} is no agent")
    return Who(match[1], match[2] or "")


def unquote(text: str) -> str:
    return str(json.loads(text)) if text.startswith('"') else text


def label(text: str) -> str:
    if not _LABEL.fullmatch(text):
        raise ValueError(f"{text!r} is no label; labels are #a, #1, #old")
    return text


def commas(text: str) -> list[list[str]]:
    """Split at commas outside quotes, and each part into words."""
    parts: list[str] = [""]
    for token in re.findall(r'"(?:[^"\\]|\\.)*"|,|[^",]+', text):
        if token == ",":
            parts.append("")
        else:
            parts[-1] += token
    words = [_TOKEN.findall(part) for part in parts]
    if not all(words):
        raise ValueError("nothing between two commas")
    return words


def one(words: list[str]) -> str:
    if len(words) != 1:
        raise ValueError(f"one word expected, not {' '.join(words)!r}")
    return words[0]


# -- what is asked ---------------------------------------------------------------------------------


def parse_json(text: str) -> Any:
    return json.loads(text)


_MODIFIERS: Final[dict[str, Callable[[list[str]], tuple[str, Any]]]] = {
    "for": lambda w: ("access", unquote(one(w))),
    "note": lambda w: ("note", unquote(one(w))),
    "ttlMs": lambda w: ("ttlMs", parse_json(one(w))),
    "because": lambda w: ("reason", unquote(one(w))),
    "lease": lambda w: ("lease", label(one(w))),
    "idempotency": lambda w: ("idempotency", one(w)),
    "member": lambda w: (w[0], parse_json(one(w[1:]))),
}
_TAKES: Final = {
    "lease": {"access", "note", "ttlMs", "lease", "idempotency", "member", "maxWaitMs"},
    "release": {"lease", "idempotency", "member"},
    "withdraw": {"member"},
    "break": {"reason", "lease"},
}
_VERBS: Final = {"acquires": "lease", "renews": "lease", "releases": "release", "breaks": "break"}


def parse_modifiers(op: str, parts: list[list[str]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for words in parts:
        if words[:3] == ["waits", "up", "to"]:
            member = "maxWaitMs"
            value: Any = duration(one(words[3:]))
        elif words[0] == "with":
            member, value = "key", parse_credential(words[1:])
        elif words[0] in _MODIFIERS:
            member, value = _MODIFIERS[words[0]](words[1:])
        else:
            raise ValueError(f"unknown words {' '.join(words)!r}")
        if member != "key" and words[0] != "member" and member not in _TAKES[op]:
            raise ValueError(f"{words[0]!r} makes no sense here")
        if member in found:
            raise ValueError(f"{words[0]!r} said twice")
        found[member] = value
    return found


def parse_credential(words: list[str]) -> str:
    text = " ".join(words)
    if text == "a second key":
        return "second"
    if text == "an operator key":
        return "operator"
    if match := re.fullmatch(r"(\S+)'s key", text):
        return f"bound:{parse_who(match[1]).did}"
    if match := re.fullmatch(r"a key of workspace ([a-z]+)", text):
        return f"workspace:{match[1]}"
    raise ValueError(f"{text!r} is no credential")


def parse_send(op: str, who: Who | None, head: list[str], parts: list[list[str]]) -> Send:
    found = parse_modifiers(op, parts)
    target = one(head)
    lease, resource = (target, None) if _LABEL.fullmatch(target) else (None, unquote(target))
    lease = found.pop("lease", lease)
    return Send(op, who, resource, lease, found, found.pop("idempotency", None), found.pop("key", None))


def parse_subject(words: list[str]) -> Subject:
    if len(words) == 1 and words[0].startswith("#"):
        return Subject(label=label(words[0]))
    if len(words) == 3 and words[1] == "on":
        return Subject(who=parse_who(words[0]), resource=unquote(words[2]))
    return Subject(who=parse_who(one(words)))


def parse_command(text: str) -> tuple[Command, tuple[Clause, ...] | None]:
    """One command; lines about parked requests bring their expectations in the same column."""
    parts = commas(text)
    head, rest = parts[0], parts[1:]
    if "is" in head and head[0] != "the":
        cut = head.index("is")
        words = head[cut + 1 :]
        words = words[1:] if words[:1] == ["answered"] else words
        return Answered(parse_subject(head[:cut])), parse_clauses([words, *rest])
    if head[-2:] == ["still", "waits"] and not rest:
        return Answered(parse_subject(head[:-2]), still_waits=True), ()
    if head[0] == "the" or head[:2] == ["trust", "of"]:
        return parse_the(head, rest), None
    for verb, what in (("die", "kill"), ("dies", "kill"), ("freezes", "freeze")):
        if head[-1] == verb and not rest:
            return Happening(what, subjects=tuple(parse_subjects(head[:-1]))), ()
    if head[1:3] == ["hangs", "up"] and not rest:
        return Happening("hang_up", subjects=(parse_subject([head[0], *head[3:]]),)), ()
    if head[:2] == ["operator", "breaks"]:
        return parse_send("break", None, head[2:], rest), None
    if head[1:3] == ["withdraws", "from"]:
        return parse_send("withdraw", parse_who(head[0]), head[3:], rest), None
    if len(head) > 1 and head[1] in _VERBS and head[1] != "breaks":
        return parse_send(_VERBS[head[1]], parse_who(head[0]), head[2:], rest), None
    raise ValueError(f"unknown command {text!r}")


def parse_subjects(words: list[str]) -> list[Subject]:
    subjects: list[list[str]] = [[]]
    for word in words:
        if word == "and":
            subjects.append([])
        else:
            subjects[-1].append(word)
    return [parse_subject(s) for s in subjects]


def parse_the(head: list[str], rest: list[list[str]]) -> Command:
    text = " ".join(head)
    if rest:
        raise ValueError("no comma expected here")
    if match := re.fullmatch(r'the queue(?: of ("[^"]*"|\S+))?(?: for (\S+))?', text):
        return Look("queue", match[1] and unquote(match[1]), parse_who(match[2]) if match[2] else None)
    if text == "the deadlocks":
        return Look("deadlocks")
    if match := re.fullmatch(r"trust of (\S+)", text):
        return Look("trust", who=parse_who(match[1]))
    if match := re.fullmatch(r"the wall clock steps (\S+)", text):
        return Happening("step_wall", duration(match[1]))
    if text == "the plane restarts":
        return Happening("restart")
    if match := re.fullmatch(r"the plane is down for (\S+)", text):
        return Happening("restart", duration(match[1]))
    if text == "the machine reboots":
        return Happening("reboot")
    raise ValueError(f"unknown command {text!r}")


# -- what comes of it ------------------------------------------------------------------------------


def names(words: list[str]) -> list[Who]:
    if not words:
        raise ValueError("no agent named")
    return [parse_who(word) for word in words]


def parse_then(words: list[str]) -> list[tuple[Who, str | None]]:
    """`B then C`, `B on lock:x then C on lock:y`."""
    rows: list[list[str]] = [[]]
    for word in words:
        if word == "then":
            rows.append([])
        else:
            rows[-1].append(word)
    subjects = [parse_subject(row) for row in rows]
    if any(s.who is None for s in subjects):
        raise ValueError("a queue holds agents, not labels")
    return [(s.who, s.resource) for s in subjects if s.who]


def parse_pairs(words: list[str]) -> list[tuple[Who, str, Who, str]]:
    """`A wants lock:y held by B waiting on lock:x`, several divided by `then`."""
    rows = re.split(r" then ", " ".join(words))
    found = []
    for row in rows:
        match = re.fullmatch(r"(\S+) wants (\S+) held by (\S+) waiting on (\S+)", row)
        if not match:
            raise ValueError(f"{row!r} is no deadlock pair")
        found.append((parse_who(match[1]), match[2], parse_who(match[3]), match[4]))
    return found


_CLAUSES: Final[dict[str, Callable[[list[str]], Any]]] = {
    "as": lambda w: label(one(w)),
    "holder": lambda w: parse_who(one(w)),
    "holders": names,
    "admitted": names,
    "cycle": names,
    "waitMs": lambda w: int(one(w)),
    "position": lambda w: int(one(w)),
    "retryAfterMs": lambda w: int(one(w[1:] if w[:1] == ["around"] else [])),
    "waitingOn": lambda w: unquote(one(w)),
    "access": lambda w: unquote(one(w)),
    "note": lambda w: unquote(one(w)),
    "field": lambda w: unquote(one(w)),
    "instance": lambda w: unquote(one(w)),
    "waiting": lambda w: int(one(w)),
    "trust": lambda w: float(one(w)),
    "released": lambda w: int(one(w)),
    "expired": lambda w: int(one(w)),
    "score": lambda w: float(one(w)),
}


def parse_clause(words: list[str]) -> list[Clause]:
    text = " ".join(words)
    if text in ("held by nobody", "same lease", "without note", "nothing withdrawn"):
        return [Clause(text)]
    if text == "fence larger than before":
        return [Clause("fence larger")]
    if words[0] == "fence" and len(words) == 2:
        return [Clause("fence", label(words[1]) if words[1].startswith("#") else int(words[1]))]
    if words[:2] == ["held", "by"] and len(words) == 3:
        return [Clause("lease_held"), Clause("holder", parse_who(words[2]))]
    if words[:2] == ["expires", "in"] and len(words) == 3:
        return [Clause("expires in", duration(words[2]))]
    if words[0] in OUTCOMES and (len(words) == 1 or words[1] == "as"):
        return [Clause(words[0]), *([Clause("as", label(one(words[2:])))] if len(words) > 1 else [])]
    if words[0] == "broken" and len(words) == 2:
        return [Clause("broken", int(words[1]))]
    if words[0] in _CLAUSES:
        return [Clause(words[0], _CLAUSES[words[0]](words[1:]))]
    raise ValueError(f"unknown expectation {text!r}")


def parse_clauses(parts: list[list[str]]) -> tuple[Clause, ...]:
    return tuple(clause for words in parts for clause in parse_clause(words))


def parse_look(look: Look, text: str) -> tuple[Clause, ...]:
    if look.what == "queue":
        words = text.split()
        return (Clause("queue", [] if words == ["empty"] else parse_then(words)),)
    if look.what == "deadlocks":
        return (Clause("deadlocks", [] if text == "none" else parse_pairs(text.split())),)
    parts = commas(text)
    return (Clause("score", float(one(parts[0]))), *parse_clauses(parts[1:]))


# -- lines -----------------------------------------------------------------------------------------


def crowd(columns: list[str]) -> list[list[str]]:
    """`R1..R40 acquires lock:n*` is forty lines, and so is `each 1..40: A acquires lock:n*`; `*`, `*+1`,
    `*-1` are the number and its neighbours.
    """
    match = _CROWD.match(columns[1]) or _EACH.match(columns[1])
    if not match:
        return [columns]
    lines = []
    for number in range(int(match[2]), int(match[3]) + 1):

        def put(star: re.Match[str], number: int = number) -> str:
            return str(number + int(star[1] or 0))

        first = f"{match[1]}{number}" if match[1] else ""
        second = first + columns[1][match.end() :]
        lines.append([columns[0], *(re.sub(r"\*([+-]1)?", put, c) for c in [second, *columns[2:]])])
    return lines


def parse_step(line: int, columns: list[str], now_ms: int) -> Step:
    when, exact = columns[0].split(), True
    if when == ["and"]:
        at_ms = now_ms
    elif len(when) == 2 and when[0] in ("at", "by"):
        at_ms, exact = duration(when[1]), when[0] == "at"
    else:
        raise ValueError(f"a line begins with `at TIME`, `by TIME` or `and`, not {columns[0]!r}")
    if at_ms < now_ms:
        raise ValueError("time does not go back")
    command, clauses = parse_command(columns[1])
    if clauses is not None or isinstance(command, Happening):
        if len(columns) > 2:
            raise ValueError("this line has no third column")
        clauses = clauses or ()
    elif len(columns) != 3:
        raise ValueError("what comes of it? (a third column, two spaces apart)")
    elif isinstance(command, Look):
        clauses = parse_look(command, columns[2])
    else:
        clauses = parse_clauses(commas(columns[2]))
    if isinstance(command, Answered) and not command.still_waits and not clauses:
        raise ValueError("answered how?")
    if not exact and not isinstance(command, Answered):
        raise ValueError("`by` is for lines about parked requests")
    return Step(line, "  ".join(columns[1:]), at_ms, exact, command, clauses)


def parse(file: str, text: str) -> list[Scenario]:
    """All scenarios of one file; NotUnderstoodError with the line where one is wrong."""
    scenarios: list[Scenario] = []
    title, source, first, steps = "", "", 0, list[Step]()
    now_ms = 0

    def finish() -> None:
        if title:
            if not steps or not source:
                raise NotUnderstoodError(file, first, "a scenario has a `from` and at least one line")
            needs = frozenset(need for step in steps for need in needs_of(step))
            scenarios.append(Scenario(file, first, title, source, tuple(steps), needs))

    for number, raw in enumerate(text.splitlines(), 1):
        stripped = raw.strip()
        if not stripped or stripped.startswith("#"):
            continue
        if stripped.startswith("scenario: "):
            finish()
            title, source, first, steps, now_ms = stripped[10:], "", number, [], 0
            if title in [s.title for s in scenarios]:
                raise NotUnderstoodError(file, number, "two scenarios with one title")
        elif stripped.startswith("from ") and title and not source:
            source = stripped[5:]
        elif not title:
            raise NotUnderstoodError(file, number, "a file begins with `scenario: `")
        else:
            try:
                columns = [c.replace("\0", "  ") for c in _COLUMN.split(protect(stripped))]
                if columns[0] == "and" or len(columns) > 1:
                    for part in crowd(columns):
                        steps.append(parse_step(number, part, now_ms))
                        down = steps[-1].command
                        down_ms = down.ms if isinstance(down, Happening) and down.what == "restart" else 0
                        now_ms = steps[-1].at_ms + down_ms
                else:
                    raise ValueError("columns are divided by two or more spaces")
            except (ValueError, IndexError) as error:
                raise NotUnderstoodError(file, number, str(error) or "a word is missing") from error
    finish()
    return scenarios


def protect(text: str) -> str:
    """Two spaces within quotes divide nothing."""
    return re.sub(r'"(?:[^"\\]|\\.)*"', lambda m: m[0].replace("  ", "\0"), text)


def is_raw(name: str, value: Any) -> bool:
    """Whether a client that has a parameter for each member would not send this."""
    match name, value:
        case "note" | "reason" | "instance" | "leaseId", str():
            return False
        case "access", "read" | "write" | "delete":
            return False
        case "maxWaitMs", int() if not isinstance(value, bool):
            return not 0 <= value <= PARK_MS_MAX
        case _:
            return True


def needs_of(step: Step) -> list[Capability]:
    command, needs = step.command, list[Capability]()
    if isinstance(command, Send):
        needs += ["park"] if command.members.get("maxWaitMs") else []
        needs += ["idempotency"] if command.idempotency_key else []
        needs += ["keys"] if command.key else []
        needs += ["break"] if command.op == "break" else []
        needs += ["instance"] if command.who and command.who.instance else []
        needs += ["lease_id"] if command.op == "release" and command.lease else []
        needs += ["raw"] if any(is_raw(*member) for member in command.members.items()) else []
    if isinstance(command, Happening):
        whole: dict[str, Capability] = {
            "kill": "kill_parker",
            "freeze": "freeze",
            "hang_up": "hang_up",
            "step_wall": "step_wall",
            "restart": "restart",
            "reboot": "reboot",
        }
        needs.append(whole[command.what])
    return needs


def load(folder: Path) -> list[Scenario]:
    """All scenarios of a folder's texts, in order of file names."""
    return [s for path in sorted(folder.glob("*.txt")) for s in parse(path.name, path.read_text("utf-8"))]
