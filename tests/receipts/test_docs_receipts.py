"""docs/receipts.md is true: its Python runs, and its tables are those of the code."""

import io
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
from tests.receipts.make_vectors import GOOD_BY_NAME
from tests.receipts.test_cli_verify import leaseplane_verify
from tests.receipts.vector_parts import NOW_S, SETS

from leaseplane import limits
from leaseplane.receipts import profile, verify

PAGE = (Path(__file__).parents[2] / "docs" / "receipts.md").read_text()
GRANT = GOOD_BY_NAME["coordination.lease granted"]
ANSWER = GOOD_BY_NAME["coordination.lease granted, as a whole response body"]["receipt"].encode()


def table(name: str) -> list[list[str]]:
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", PAGE, re.DOTALL)
    assert found, name
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()]
    return rows[2:]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_python_runs() -> None:
    assert len(blocks("python")) == 2
    printed = io.StringIO()
    for block in blocks("python"):
        given: dict[str, Any] = {"answer": ANSWER, "jwks": SETS["plane"], "now_s": NOW_S}
        with redirect_stdout(printed):
            exec(compile(block, "docs/receipts.md", "exec"), given)
    assert printed.getvalue().startswith("Valid: ")
    assert printed.getvalue().endswith("lock:deploy/production api-key-bound\n")


def test_the_commands_run(tmp_path: Path, monkeypatch: Any) -> None:
    import json

    monkeypatch.chdir(tmp_path)
    Path("answer.json").write_bytes(ANSWER)
    Path("receipt.txt").write_text(GRANT["receipt"] + "\n")
    Path("request.json").write_text(GRANT["requestBody"])
    Path("jwks.json").write_text(json.dumps(SETS["plane"]))
    (block,) = blocks("sh")
    for line in block.splitlines():
        program, command, *arguments = shlex.split(line, comments=True)
        assert (program, command) == ("leaseplane", "verify")
        said = leaseplane_verify(*arguments, keys=lambda: (SETS["plane"], False))
        assert said.status == 0, said


def test_the_statements() -> None:
    expected = []
    for (op, outcome), statement in profile.STATEMENTS.items():
        hints = get_type_hints(statement)
        required = {field.name for field in msgspec.structs.fields(statement) if field.required}
        (status,) = get_args(get_type_hints(hints["answer"])["status"])
        codes = ", ".join(f"`{code}`" for code in get_args(hints["code"])) if "code" in hints else "no"
        named = "yes" if {"actor_did", "resource"} <= required else "where the request named one"
        lease = "yes" if "lease" in required else "no"
        expected.append([f"`{op}`", f"`{outcome}`", str(status), codes, lease, named])
    assert table("statements") == expected


def test_the_auths_say_what_a_verdict_says() -> None:
    assert [row[0].strip("`") for row in table("auths")] == list(profile.AUTHS)
    for auth, sentence in table("auths"):
        assert verify.HOW_THE_ACTOR_WAS_KNOWN[auth.strip("`")] == f"The actor {sentence}."  # type: ignore[index]


def test_the_codes() -> None:
    assert ["valid", *(row[0].strip("`") for row in table("codes"))] == list(verify.CODES)


def test_the_bounds() -> None:
    for bound in (
        f"at most {limits.RECEIPT_BYTES_MAX:,} bytes",
        f"at most {limits.RECEIPT_ISSUER_CHARS_MAX} ASCII",
        f"1 to {limits.JTI_CHARS_MAX} of `A-Z",
        f"`leaseId` (1 to {limits.LEASE_ID_CHARS_MAX} of",
        f"at most {limits.WORKSPACE_CHARS_MAX * 4} bytes",
        f"at most {limits.ACTOR_DID_BYTES_MAX} bytes",
        f"at most {limits.RESOURCE_BYTES_MAX} bytes",
        f"at most {limits.RECEIPT_PATH_CHARS_MAX} characters",
        f"over {limits.ANSWER_BYTES_MAX // 2**20} MiB",
        f"more than {limits.RECEIPT_AHEAD_S_MAX} s ahead",
        f"at most {limits.SIGNING_KEY_NOTICED_S_MAX} seconds",
        f"`v` | `{profile.VERSION}`",
        f"`alg` | `{profile.ALGORITHM}`",
        f"`typ` | `{profile.RECEIPT_TYPE}`",
    ):
        assert bound in PAGE, bound
