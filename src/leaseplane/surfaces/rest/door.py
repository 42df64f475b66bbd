"""The door: which Host, and which Origin, a request may come under.

A web page may send requests to a plane on its visitor's machine, either openly, and then its browser
says so in `Origin`, or by having its own name point to that machine (DNS rebinding), and then `Host`
holds that name. Both are checked on every route, before anything else is looked at.
"""

import re
from collections.abc import Iterable
from typing import Final

from leaseplane.answers import Rendered, refuse

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")

_AUTHORITY: Final = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_ORIGIN: Final = re.compile(rb"https?://(.+)")
_REMEMBERED_MAX: Final = 1_024


class Door:
    """Lets in what names this server: the loopback names, and the names that the operator allowed.

    A name without a port stands for every port of that name; an IPv6 address is written in brackets.
    `allowed_origins` are further origins (`https://app.example`) whose pages may call this server, and
    read its answers. Raises `ValueError` for an allowed name that could never be in a Host header.
    """

    __slots__ = ("_allowed", "_origins", "_remembered")

    def __init__(self, allowed_hosts: Iterable[str] = (), allowed_origins: Iterable[str] = ()) -> None:
        allowed = set(LOOPBACK_NAMES)
        for name in allowed_hosts:
            if not name.isascii() or _AUTHORITY.fullmatch(name.encode()) is None:
                raise ValueError(f"{name!r} is no host name: give a name or an address, without http://")
            allowed.add(name.lower())
        self._allowed = frozenset(allowed)
        self._origins = frozenset(origin.lower().encode() for origin in allowed_origins)
        # Headers as they came, and only those let in: the everyday request costs one look-up.
        self._remembered: set[bytes] = set()

    def refusal(self, host: bytes | None, origin: bytes | None) -> Rendered | None:
        """None where the request may come in, or the answer that it gets instead."""
        if host is None:
            return refuse("invalid_request", "Send a Host header.", field="Host")
        if not self._names_us(host):
            return refuse(
                "forbidden",
                "This plane is not served under the name in your Host header. Use a name that it is served "
                "under, or have its operator add yours with --allow-host.",
            )
        if origin is not None and not self.is_allowed_origin(origin):
            stripped = _ORIGIN.fullmatch(origin)
            if stripped is None or not self._names_us(stripped[1]):
                return refuse(
                    "forbidden",
                    "Pages of this Origin may not call this plane. Its operator can allow a name with "
                    "--allow-host, or a foreign origin with --allow-origin.",
                )
        return None

    def is_allowed_origin(self, origin: bytes) -> bool:
        """Whether this is one of the foreign origins that the operator allowed."""
        return bool(self._origins) and origin.lower() in self._origins

    def _names_us(self, authority: bytes) -> bool:
        if authority in self._remembered:
            return True
        parts = _AUTHORITY.fullmatch(authority)
        if parts is None:
            return False
        if parts[1].lower().decode() not in self._allowed and authority.lower().decode() not in self._allowed:
            return False
        if len(self._remembered) < _REMEMBERED_MAX:
            self._remembered.add(authority)
        return True
