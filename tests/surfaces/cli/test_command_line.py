"""The command line as a whole: help, what a start costs, exit statuses, and the reference page."""

import argparse
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.surfaces.cli.processes import Said, environment

from leaseplane import __version__
from leaseplane.surfaces.cli.commands import build_parser
from leaseplane.surfaces.cli.parser import Parser
from leaseplane.surfaces.cli.reference import render_reference

Command = Callable[..., Said]

ROOT = Path(__file__).resolve().parents[3]
ADA = "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"
NOT_FOR_AN_ASK = (
    "asyncio",
    "base64",
    "bz2",
    "starlette",
    "rich",
    "uvicorn",
    "concurrent.futures",
    "ctypes",
    "cryptography.hazmat.primitives.asymmetric.ec",
    "cryptography.hazmat.primitives.serialization",
    "hashlib",
    "hmac",
    "http.client",
    "httptools",
    "json",
    "leaseplane.client.keeper",
    "leaseplane.client.remote",
    "leaseplane.identity.registry",
    "leaseplane.receipts.verify",
    "leaseplane.surfaces.cli.table",
    "logging",
    "rfc8785",
    "shutil",
    "ssl",
    "subprocess",
    "tempfile",
    "unicodedata",
)
HEAVY = (
    "uvicorn",
    "uvloop",
    "starlette",
    "rich",
    "prometheus_client",
    "cryptography",
    "asyncio",
    "http.client",
)


def parsers(parser: Parser) -> Iterator[Parser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from parsers(command)


EVERY = list(parsers(build_parser()))


@pytest.mark.parametrize("parser", EVERY, ids=lambda parser: parser.prog)
def test_every_command_explains_itself(in_process: Command, parser: Parser) -> None:
    said = in_process(*parser.prog.split()[1:], "--help")
    assert said.status == 0
    assert said.stdout.startswith(f"usage: {parser.prog} ")
    assert parser.description is not None
    assert parser.description.split("\n")[0].split()[0] in said.stdout
    for action in parser._actions:
        assert action.help or isinstance(action, argparse._SubParsersAction), action
    assert max(map(len, said.stdout.splitlines())) < 80


def test_the_version(in_process: Command) -> None:
    assert in_process("--version").stdout == f"leaseplane {__version__}\n"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "the following arguments are required: COMMAND; see leaseplane --help"),
        (["key"], "the following arguments are required: COMMAND; see leaseplane key --help"),
        (["serv"], "invalid choice: 'serv' (choose from"),
        (["key", "creat"], "see leaseplane key --help"),
        (["demo", "--story", "5"], "invalid choice: 5"),
    ],
)
def test_what_it_does_not_know(in_process: Command, words: list[str], complaint: str) -> None:
    said = in_process(*words)
    assert said.status == 2
    assert complaint in said.complaint


def test_a_setting_that_cannot_be(in_process: Command) -> None:
    said = in_process("key", "list", "--json", LEASEPLANE_URL="plane.example", LEASEPLANE_API_KEY="lpk_x")
    assert said.status == 2
    assert "LEASEPLANE_URL='plane.example': must be a URL like" in said.complaint
    assert said.json["error"] == "invalid_request"
    secret = in_process("key", "list", LEASEPLANE_API_KEY="lpk x")
    assert secret.status == 2
    assert "LEASEPLANE_API_KEY: must be visible ASCII" in secret.complaint
    assert "lpk x" not in secret.stderr


def test_a_start_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; from leaseplane.surfaces.cli.program import main; main(['--version']); "
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(tmp_path), check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_an_ask_imports_what_it_needs_and_nothing_else(tmp_path: Path) -> None:
    """What a command takes to start is imports, and one line at the top of a module brings them all back."""
    code = (
        "import sys; from leaseplane.surfaces.cli.program import main; "
        "assert main(['acquire', 'lock:x', '--quiet']) == 0; "
        f"print([name for name in {NOT_FOR_AN_ASK!r} if name in sys.modules])"
    )
    settings = environment(tmp_path) | {"LEASEPLANE_DATA": str(tmp_path / "data")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=settings, check=True
    )
    # The first ask makes the plane's keys, the second one reads them.
    again = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=settings, check=True
    )
    assert again.stdout.splitlines()[-1] == "[]", done.stdout


def test_a_reader_who_has_seen_enough(tmp_path: Path) -> None:
    command("workspace", "create", "w", home=tmp_path)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "leaseplane", "workspace", "list", "--data", str(tmp_path / "data")],
        stdout=writer,
        stderr=subprocess.PIPE,
        env=environment(tmp_path),
    )
    os.close(writer)
    assert done.stderr == b""
    assert done.returncode == 141


def test_tables_have_colours_and_lines_on_a_terminal_only(tmp_path: Path) -> None:
    command("workspace", "create", "w", home=tmp_path)
    plain = command("workspace", "list", home=tmp_path)
    assert "\x1b" not in plain
    assert plain.splitlines()[0].split() == ["workspace", "created"]
    on_terminal = on_a_terminal(tmp_path, TERM="xterm-256color")
    assert "\x1b[1m" in on_terminal
    assert "─" in on_terminal
    assert "\x1b[3" not in on_a_terminal(tmp_path, TERM="xterm-256color", NO_COLOR="1")


@pytest.mark.parametrize("actor", ["did:example:alice", ADA])
def test_at_80_columns_nothing_is_broken_over_two_lines(tmp_path: Path, actor: str) -> None:
    command("workspace", "create", "research", home=tmp_path)
    label = "the laptop on which alice works [1]"
    create = ("key", "create", "--workspace", "research", "--label", label)
    key = json.loads(command(*create, "--actor", actor, "--json", home=tmp_path))
    command("key", "revoke", key["keyId"], home=tmp_path)
    said = on_a_terminal(tmp_path, "key", "list", TERM="dumb", COLUMNS="80")
    lines = [line.rstrip() for line in said.splitlines()]
    assert max(map(len, lines)) <= 80
    for whole in (key["keyId"], "research", actor, f"revoked {key['createdAt'][:10]}"):
        assert sum(whole in line for line in lines) == 1, said
    # Where the ids leave no room for a table, each key has a few lines of its own, and nothing is cut.
    assert (label in said) is (actor == ADA)


def command(*words: str, home: Path, **settings: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "leaseplane", *words, "--data", str(home / "data")],
        capture_output=True,
        encoding="utf-8",
        env=environment(home, **settings),
        check=True,
    )
    return done.stdout


def on_a_terminal(home: Path, *words: str, **settings: str) -> str:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "leaseplane", *(words or ("workspace", "list")), "--data", str(home / "data")],
        stdout=theirs,
        env=environment(home, **{"LANG": "C.UTF-8", "PYTHONUTF8": "1", "COLUMNS": "100", **settings}),
    )
    os.close(theirs)
    said = b""
    try:
        while more := os.read(ours, 4096):
            said += more
    except OSError:
        pass  # This is how Linux says that the other end is closed.
    finally:
        os.close(ours)
    assert process.wait() == 0
    return said.decode()


def test_the_reference_page_is_the_parsers() -> None:
    assert (ROOT / "docs" / "cli.md").read_text() == render_reference(), (
        "make it anew: python -m leaseplane.surfaces.cli.reference > docs/cli.md"
    )


def test_the_reference_page_names_every_option() -> None:
    page = render_reference()
    for parser in EVERY:
        for action in parser._actions:
            for option in action.option_strings:
                assert option in ("-h", "--help", "--version") or f"`{option}" in page


def test_a_terminal_that_cannot_show_a_character(tmp_path: Path) -> None:
    command("workspace", "create", "w", home=tmp_path)
    command("key", "create", "--workspace", "w", "--any-actor", "--label", "naïve", home=tmp_path)
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    assert "na\\xefve" in command("key", "list", home=tmp_path, **ascii_only)
    as_json = command("key", "list", "--json", home=tmp_path, **ascii_only)
    assert json.loads(as_json)["keys"][0]["label"] == "naïve"
    assert '"naïve"' in command("key", "list", "--json", home=tmp_path, PYTHONIOENCODING="utf-8")


def test_json_is_on_one_line_of_utf_8(in_process: Command, tmp_path: Path) -> None:
    said = in_process("workspace", "create", "w", "--json", "--data", str(tmp_path / "dätä"))
    assert said.status == 0
    assert json.loads(said.stdout)["workspace"]["name"] == "w"
