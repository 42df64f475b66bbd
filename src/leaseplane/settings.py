"""The settings: one row each, read from the environment here and nowhere else.

`python -m leaseplane.settings` prints the table for the docs (`docs/settings.md`).
"""

import os
import pwd
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from leaseplane.limits import (
    AGENT_NAME_CHARS_MAX,
    INSTANCE_CHARS_MAX,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    LEASE_MS_STANDARD,
    WHOLE_NUMBER_MAX,
)
from leaseplane.resources import SHARED_READ_STANDARD, NameRefused, check_agent_name
from leaseplane.secret import Secret
from leaseplane.store.folder import default_folder

_LOG_LEVELS: Final = ("debug", "info", "warning", "error")
_HOLD_MS_MAX_MAX: Final = 365 * 24 * 3_600_000


class SettingRefused(Exception):
    """A setting has a value that it cannot have. The message names the variable and what would do."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the environment says, checked. One field for each row of `SETTINGS`."""

    data: Path
    url: str | None
    api_key: Secret | None
    agent: str
    instance: str | None
    held: tuple[str, ...]
    held_leases: tuple[tuple[int, str], ...]
    lease_ms: int | None
    """None: what the data folder was made with, or `LEASE_MS_STANDARD` for a new one."""
    shared_read: tuple[str, ...] | None
    """None: what the data folder has, or `SHARED_READ_STANDARD` for a new one."""
    hold_ms_max: int | None
    """0: no cap; None: what the data folder has, or no cap for a new one."""
    allow_hosts: tuple[str, ...]
    allow_origins: tuple[str, ...]
    host: str
    port: int
    log: str
    public_url: str | None


class Setting(msgspec.Struct, frozen=True):
    """One row: the field, the variable, what it holds and within which bounds, its default, its meaning."""

    field: str
    variable: str
    kind: str
    bounds: str
    default: str | None
    """As it would be written in the environment; None: nothing."""
    sentence: str
    read: Callable[[str], Any]
    """From a text that is not empty to the field's value; ValueError with the rule that it breaks."""
    default_told: str | None = None
    """How the docs tell the default, where it is not a text that could be set."""


# -- how texts are read ------------------------------------------------------------------------


def _whole_number(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        # int() would take 1_000, signs, spaces and other scripts' digits, too.
        if not re.fullmatch(r"[0-9]{1,16}", text) or not least <= int(text) <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return int(text)

    return read


def _hold_ms_max(text: str) -> int:
    number = _whole_number(0, _HOLD_MS_MAX_MAX)(text)
    if 0 < number < LEASE_MS_MIN:
        raise ValueError(f"must be 0 (no cap) or at least {LEASE_MS_MIN}")
    return number


def _matching(pattern: str, rule: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(rule)
        return text

    return read


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return text.lower()

    return read


def _list_of(read_one: Callable[[str], str]) -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        parts = [part.strip() for part in text.split(",")]
        # The order says nothing and twice says no more than once.
        return tuple(dict.fromkeys(read_one(part) for part in parts if part))

    return read


def _folder(text: str) -> Path:
    if "\0" in text:
        raise ValueError("must be the path of a folder")
    return Path(text)


def _url(text: str) -> str:
    rule = "must be a URL like https://plane.example:7411, without user, query and fragment"
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018 - raises for one that is none
    except ValueError:
        raise ValueError(rule) from None
    whole = parts.scheme in ("http", "https") and parts.hostname
    if not whole or "@" in parts.netloc or parts.query or parts.fragment or not re.fullmatch(r"[!-~]+", text):
        raise ValueError(rule)
    return text.rstrip("/")


def _origin(text: str) -> str:
    origin = _url(text)
    if urlsplit(origin).path:
        raise ValueError("must list origins like https://console.example, without a path")
    return origin.lower()


def _host_name(text: str) -> str:
    # As it stands in a Host header: a name or an address, IPv6 in brackets, with or without a port.
    if not re.fullmatch(r"([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?", text.lower()):
        raise ValueError("must list host names like plane.example or plane.example:8443")
    return text.lower()


def _agent(text: str) -> str:
    try:
        if ":" in text:
            # Only here: it brings the keys that a DID may hold, and mostly it is a name.
            from leaseplane.dids import check_actor

            check_actor(text, "agent")
        else:
            check_agent_name(text)
    except NameRefused as refused:
        raise ValueError(
            f"must be the name of one of this machine's agents, or a DID. {refused.message}"
        ) from None
    return text


def _held(text: str) -> tuple[str, ...]:
    return tuple(line for line in text.split("\n") if line)


def _held_leases(text: str) -> tuple[tuple[int, str], ...]:
    leases = []
    for line in _held(text):
        fence, _, lease_id = line.partition(" ")
        if not lease_id:
            raise ValueError("must be a fence and a leaseId a line, with a space between")
        leases.append((_whole_number(1, WHOLE_NUMBER_MAX)(fence), lease_id))
    return tuple(leases)


# -- the table ---------------------------------------------------------------------------------

SETTINGS: Final = (
    Setting(
        "data",
        "LEASEPLANE_DATA",
        "folder",
        "a path; `~` is the home folder",
        None,
        "The data folder, for the server and for embedded use.",
        _folder,
        "the platform's user data folder: `$XDG_DATA_HOME/leaseplane` or `~/.local/share/leaseplane`, "
        "on macOS `~/Library/Application Support/leaseplane`",
    ),
    Setting(
        "url",
        "LEASEPLANE_URL",
        "URL",
        "`http` or `https`, no user, query or fragment",
        None,
        "The server that commands and the SDK ask; without it they work embedded, on the data folder.",
        _url,
    ),
    Setting(
        "api_key",
        "LEASEPLANE_API_KEY",
        "secret",
        "visible ASCII, at most 512 characters",
        None,
        "The API key that commands and the SDK show to the server.",
        lambda text: Secret(
            _matching(r"[!-~]{1,512}", "must be visible ASCII characters, at most 512 of them")(text)
        ),
    ),
    Setting(
        "agent",
        "LEASEPLANE_AGENT",
        "name or DID",
        f"1 to {AGENT_NAME_CHARS_MAX} letters, digits, `.`, `_`, `-`, the first no sign; or a DID",
        "default",
        "Who is asking: one of this machine's agents (`leaseplane agent create` makes them; `default` is "
        "made when it is first needed), or a DID, of which no key is looked for.",
        _agent,
    ),
    Setting(
        "instance",
        "LEASEPLANE_INSTANCE",
        "text",
        f"1 to {INSTANCE_CHARS_MAX} characters, no control characters",
        None,
        "Which part of the agent is asking. `run` sets it for the command that it runs.",
        _matching(
            rf"[^\x00-\x1f\x7f-\x9f]{{1,{INSTANCE_CHARS_MAX}}}",
            f"must be 1 to {INSTANCE_CHARS_MAX} characters without control characters",
        ),
    ),
    Setting(
        "held",
        "LEASEPLANE_HELD",
        "list",
        "resources, one a line",
        "",
        "What is held already on this process's behalf, which it does not ask for again. `run` sets it for "
        "the command that it runs.",
        _held,
        "nothing",
    ),
    Setting(
        "held_leases",
        "LEASEPLANE_HELD_LEASES",
        "list",
        "a fence, a space and a leaseId a line",
        "",
        "The leases of the resources in `LEASEPLANE_HELD`, line by line. `run` sets it, too.",
        _held_leases,
        "nothing",
    ),
    Setting(
        "lease_ms",
        "LEASEPLANE_LEASE_MS",
        "whole number, ms",
        f"{LEASE_MS_MIN} to {LEASE_MS_MAX}",
        None,
        "How long a lease runs, fixed when the data folder is made; a folder made with another is refused.",
        _whole_number(LEASE_MS_MIN, LEASE_MS_MAX),
        f"what the data folder was made with; `{LEASE_MS_STANDARD}` for a new one",
    ),
    Setting(
        "shared_read",
        "LEASEPLANE_SHARED_READ",
        "list",
        "schemes, separated by commas; a comma alone is none",
        None,
        "The schemes whose resources several may read at once; every other one is exclusive. Kept in the "
        "data folder: set by its server, and the same for every process.",
        _list_of(_matching(r"[a-z][a-z0-9+.-]*", "must list schemes like file,doc, in lower case")),
        f"what the data folder has; `{','.join(SHARED_READ_STANDARD)}` for a new one",
    ),
    Setting(
        "hold_ms_max",
        "LEASEPLANE_HOLD_MS_MAX",
        "whole number, ms",
        f"0, or {LEASE_MS_MIN} to {_HOLD_MS_MAX_MAX}, and no less than a lease runs",
        None,
        "The operator's cap on the total time of one holding, renewals included; 0 is none. Kept in the "
        "data folder: set by its server, and the same for every process.",
        _hold_ms_max,
        "what the data folder has; `0` for a new one",
    ),
    Setting(
        "allow_hosts",
        "LEASEPLANE_ALLOW_HOSTS",
        "list",
        "host names, with or without a port, separated by commas",
        "",
        "Names under which the server may be asked, besides those of the loopback.",
        _list_of(_host_name),
        "nothing",
    ),
    Setting(
        "allow_origins",
        "LEASEPLANE_ALLOW_ORIGINS",
        "list",
        "origins, separated by commas",
        "",
        "Web origins from which the server may be asked, besides its own.",
        _list_of(_origin),
        "nothing",
    ),
    Setting(
        "host",
        "LEASEPLANE_HOST",
        "address",
        "a host name or an IP address",
        "127.0.0.1",
        "The address that the server listens on.",
        _matching(r"[A-Za-z0-9._:%-]{1,253}", "must be a host name or an IP address"),
    ),
    Setting(
        "port",
        "LEASEPLANE_PORT",
        "whole number",
        "0 to 65535",
        "7411",
        "The port that the server listens on; 0 takes any that is free.",
        _whole_number(0, 65_535),
    ),
    Setting(
        "log",
        "LEASEPLANE_LOG",
        "word",
        ", ".join(f"`{level}`" for level in _LOG_LEVELS),
        "info",
        "From which level on the server logs.",
        _one_of(_LOG_LEVELS),
    ),
    Setting(
        "public_url",
        "LEASEPLANE_PUBLIC_URL",
        "URL",
        "`http` or `https`, no user, query or fragment",
        None,
        "The URL by which others know the plane: the issuer of its receipts.",
        _url,
        "an id of the plane's own, `urn:leaseplane:…`, made with its keys",
    ),
)

assert [setting.field for setting in SETTINGS] == [field.name for field in msgspec.structs.fields(Settings)]


# -- reading and telling -----------------------------------------------------------------------


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Read all settings. A variable that is empty counts as not set.

    Raises `SettingRefused` for the first that cannot be; it never repeats a secret.
    """
    values: dict[str, Any] = {}
    for setting in SETTINGS:
        text = environ.get(setting.variable, "")
        if setting.field == "port" and text.startswith("tcp://"):
            # Kubernetes sets this in every pod beside a service named "leaseplane"; nobody meant it.
            text = ""
        if text.startswith("~/") and setting.field == "data":
            # No shell has seen what comes from a unit file or a container's environment.
            text = str(_home(environ) / text.removeprefix("~/"))
        if text:
            values[setting.field] = _read_one(setting, text)
        elif setting.field == "data":
            values["data"] = default_folder(
                platform=sys.platform, home=_home(environ), xdg_data_home=environ.get("XDG_DATA_HOME")
            )
        elif setting.default is None:
            values[setting.field] = None
        else:
            values[setting.field] = setting.read(setting.default)
    if len(values["held_leases"]) not in (0, len(values["held"])):
        raise SettingRefused("LEASEPLANE_HELD_LEASES has to have a line for each line of LEASEPLANE_HELD")
    settings = Settings(**values)
    if 0 < (settings.hold_ms_max or 0) < (settings.lease_ms or LEASE_MS_MIN):
        raise SettingRefused(
            f"LEASEPLANE_HOLD_MS_MAX={settings.hold_ms_max} is less than one lease runs "
            f"(LEASEPLANE_LEASE_MS={settings.lease_ms}); raise it, or set it to 0 for no cap"
        )
    return settings


def settings_of_environment() -> Settings:
    """`read_settings` of this process's environment."""
    return read_settings(os.environ)


def read_setting(field: str, text: str) -> object:
    """One setting as its variable would be read. Raises `SettingRefused`."""
    return _read_one(next(row for row in SETTINGS if row.field == field), text)


def _read_one(setting: Setting, text: str) -> object:
    try:
        return setting.read(text)
    except ValueError as error:
        # A URL that is refused for the user in it may hold that one's password.
        without_user = re.sub(r"//[^/]*@", "//…@", text)
        shown = "" if setting.kind == "secret" else f"={without_user[:200]!r}"
        # From None: the cause's traceback would show the reader's arguments.
        raise SettingRefused(f"{setting.variable}{shown}: {error}") from None


def _home(environ: Mapping[str, str]) -> Path:
    if home := environ.get("HOME"):
        return Path(home)
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        raise SettingRefused(
            "this user has no home folder; say with LEASEPLANE_DATA where the data folder is to be"
        ) from None


def render_settings() -> str:
    """The table as a page of the docs, in Markdown."""
    lines = [
        "# Settings",
        "",
        "Every setting is an environment variable. One that is empty counts as not set.",
        "This page is made from the table in `leaseplane/settings.py`.",
        "",
        "| variable | holds | default | what it is for |",
        "| --- | --- | --- | --- |",
    ]
    for setting in SETTINGS:
        default = setting.default_told or (f"`{setting.default}`" if setting.default else "nothing")
        holds = f"{setting.kind}: {setting.bounds}"
        lines.append(f"| `{setting.variable}` | {holds} | {default} | {setting.sentence} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render_settings())
