"""`leaseplane verify`: say in a sentence what a receipt proves, or which check it fails."""

import argparse
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

import msgspec

from leaseplane import limits
from leaseplane.model import AuthorityUnavailable
from leaseplane.store.folder import DataFolder, FolderRefused
from leaseplane.surfaces.cli.parser import Commands, add_command, add_data, data_folder
from leaseplane.surfaces.cli.terminal import DONE, REFUSED, UNREACHABLE, USAGE, CommandRefused, Terminal

if TYPE_CHECKING:
    # Only when it runs: all commands are declared at every start, and these are slow to import.
    from leaseplane.receipts.verify import Verdict

Keys = Callable[[], tuple[Mapping[str, object], bool]]
"""The key set of the plane that this command is configured for, and whether that one is embedded.
Raises AuthorityUnavailable or OSError where it cannot be reached."""


class _Unusable(Exception):
    """What was named on the command line cannot be used."""


def add_to(commands: Commands) -> None:
    """Declare the command."""
    verify = add_command(
        commands,
        "verify",
        "Say in a sentence what a receipt proves, or which check it fails.",
        "Without --jwks the keys are those of the server at LEASEPLANE_URL, or of the data folder. Keys are "
        "never fetched from where a receipt says.",
        run=_verify,
    )
    add_arguments(verify)
    add_data(verify)


def _verify(args: argparse.Namespace, terminal: Terminal) -> int:
    complaint = io.StringIO()
    status = run(
        args,
        stdin=terminal.stdin,
        stdout=terminal.stdout,
        stderr=complaint,
        now_s=terminal.clock.now().wall_ms // 1000,
        keys=lambda: _plane_keys(args, terminal),
    )
    if status in (USAGE, UNREACHABLE):
        # Told as every command's, in JSON too where that was asked for.
        raise CommandRefused(
            complaint.getvalue().removeprefix("leaseplane verify: "),
            status=status,
            code="invalid_request" if status == USAGE else "authority_unavailable",
        )
    return status


def _plane_keys(args: argparse.Namespace, terminal: Terminal) -> tuple[Mapping[str, object], bool]:
    if terminal.settings.url is not None and args.data is None:
        from leaseplane.client.remote import RemoteChannel
        from leaseplane.receipts.canonical import NotStrictJson, read_strict

        channel = RemoteChannel(terminal.settings.url, None, clock=terminal.clock)
        answer = channel.fetch("/.well-known/jwks.json", timeout_ms=limits.ANSWER_LATE_MS_MAX).result()
        try:
            jwks = read_strict(answer.body)
        except NotStrictJson:
            jwks = None
        if answer.status != 200 or not isinstance(jwks, dict):
            raise AuthorityUnavailable(
                f"{terminal.settings.url} does not publish its keys (status {answer.status})"
            )
        return jwks, False
    from leaseplane.receipts.keyring import KeyringDamaged, read_published

    folder = data_folder(args, terminal)
    try:
        # Who works on the folder could sign with its key as well: embedded, so self-issued.
        return read_published(DataFolder(folder).keys).jwks(), True
    except FileNotFoundError:
        raise AuthorityUnavailable(
            f"there is no plane in {folder}, and LEASEPLANE_URL names no server"
        ) from None
    except KeyringDamaged as damaged:
        raise FolderRefused(str(damaged)) from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `leaseplane verify`, whose values `run` takes."""
    parser.add_argument(
        "file", metavar="FILE", help="a receipt, or a whole response body that holds one; - for stdin"
    )
    parser.add_argument(
        "--jwks", metavar="FILE", help="the plane's key set; with it nothing else is asked (offline)"
    )
    parser.add_argument("--body", metavar="FILE", help="the response body that the receipt came with")
    parser.add_argument(
        "--request", metavar="FILE", help="the request body as sent, or the arguments of the tool call"
    )
    parser.add_argument("--json", action="store_true", help="answer as one JSON object")


def run(
    args: argparse.Namespace,
    *,
    stdin: BinaryIO,
    stdout: TextIO,
    stderr: TextIO,
    now_s: int,
    keys: Keys,
) -> int:
    """Verify what `args` names and say so on `stdout`; answer the exit status.

    0: valid. 1: invalid, with the reason. 2: a file cannot be read, or is no key set. 3: `keys` could
    not reach the plane; it is asked only without `--jwks`. Never raises for what a file holds.
    """
    try:
        named = [args.file, args.jwks, args.body, args.request]
        if named.count("-") > 1:
            raise _Unusable("only one of the files can be stdin")
        receipt = _without_line_end(_read(args.file, stdin))
        body = None if args.body is None else _read(args.body, stdin)
        request_body = None if args.request is None else _read(args.request, stdin)
        jwks, self_issued = (None, False) if args.jwks is None else (_key_set(args.jwks, stdin), False)
    except _Unusable as unusable:
        stderr.write(f"leaseplane verify: {unusable}\n")
        return USAGE
    if jwks is None:
        try:
            jwks, self_issued = keys()
        except (AuthorityUnavailable, OSError) as unreachable:
            stderr.write(
                f"leaseplane verify: the plane's keys cannot be reached: {unreachable}. "
                "With --jwks FILE none need be.\n"
            )
            return UNREACHABLE
    from leaseplane.receipts.verify import verify_receipt

    verdict = verify_receipt(
        receipt, jwks, now_s=now_s, body=body, request_body=request_body, self_issued=self_issued
    )
    said = _as_json(verdict) if args.json else verdict.sentence
    # A terminal that cannot show a name gets it spelled out, and not a traceback.
    encoding = stdout.encoding or "utf-8"
    stdout.write(said.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    return DONE if verdict.valid else REFUSED


def _read(name: str, stdin: BinaryIO) -> bytes:
    # One byte more than a verifier looks at, so that what is too long is refused and not cut.
    bytes_max = limits.ANSWER_BYTES_MAX + 1
    try:
        if name == "-":
            return stdin.read(bytes_max)
        with Path(name).open("rb") as file:
            return file.read(bytes_max)
    except (OSError, ValueError) as refused:
        reason = refused.strerror if isinstance(refused, OSError) and refused.strerror else str(refused)
        raise _Unusable(f"cannot read {name}: {reason}") from None


def _without_line_end(text: bytes) -> bytes:
    # One line end belongs to the text file, not to the receipt. Any other one is the receipt's.
    return text.removesuffix(b"\n").removesuffix(b"\r") if text.endswith(b"\n") else text


def _key_set(name: str, stdin: BinaryIO) -> Mapping[str, object]:
    from leaseplane.receipts.canonical import NotStrictJson, read_strict
    from leaseplane.receipts.verify import key_set_fault

    try:
        jwks = read_strict(_read(name, stdin))
    except NotStrictJson as refused:
        raise _Unusable(f"{name} is not a key set: {refused}") from None
    if (fault := key_set_fault(jwks)) is not None:
        raise _Unusable(f"{name} is not a key set: {fault}")
    assert isinstance(jwks, dict)
    return jwks


def _as_json(verdict: "Verdict") -> str:
    from leaseplane.receipts.profile import VERSION

    said: dict[str, object] = {"ok": verdict.valid}
    if not verdict.valid:
        # Where every other error has it.
        said["error"] = verdict.code
    said |= {"code": verdict.code, "message": verdict.sentence}
    if verdict.payload is not None:
        said |= {
            "auth": verdict.auth,
            "selfIssued": verdict.self_issued,
            "answerChecked": verdict.answer_checked,
            "requestChecked": verdict.request_checked,
            "payload": {
                "v": VERSION,
                "iss": verdict.payload.iss,
                **msgspec.to_builtins(verdict.payload.statement),
            },
        }
    return json.dumps(said)
