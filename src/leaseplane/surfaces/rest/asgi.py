"""ASGI: the types of its parts, as far as this surface uses them."""

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
