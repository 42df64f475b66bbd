"""Requests and answers in the language of the scenarios, so that what a random history found can be read
(and pasted into a text).
"""

import json
from typing import Any

from tests.scenarios.agents import name
from tests.scenarios.player import outcome_of
from tests.scenarios.world import Answer, Op


def who_asks(body: dict[str, Any]) -> str:
    return name(body["actorDid"]) + (f"/{body['instance']}" if "instance" in body else "")


def place_of(body: dict[str, Any]) -> str:
    return f"{who_asks(body)} on {body['resource']}"


def sentence(op: Op, body: dict[str, Any], key: str | None) -> str:
    """A request in the language of the scenarios."""
    if op == "break":
        return f"operator breaks {body['resource']}, because {json.dumps(body['reason'])}"
    verb = {"lease": "acquires", "release": "releases", "withdraw": "withdraws from"}[op]
    text = f"{who_asks(body)} {verb} {body['resource']}"
    text += f", for {body['access']}" if "access" in body else ""
    text += f", waits up to {body['maxWaitMs']}ms" if "maxWaitMs" in body else ""
    text += f", lease #{body['leaseId']}" if "leaseId" in body else ""
    return text + (f", idempotency {key}" if key else "")


def brief(answer: Answer) -> str:
    word = outcome_of(answer)
    if word in ("granted", "renewed"):
        return f"{word}, access {answer.body['lease']['access']}"
    holder = f", holder {name(answer.body['holder'])}" if "holder" in answer.body else ""
    return word + holder + (f", waitingOn {answer.body['waitingOn']}" if word == "deadlock" else "")
