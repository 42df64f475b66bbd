"""A secret: a text that shows itself only where it is asked to."""

from typing import Any


class Secret:
    """A text that no log, traceback or representation shows; `reveal()` is for where it is used or shown
    once. It is neither pickled nor copied."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(…)"

    __str__ = __repr__

    def __format__(self, format_spec: str) -> str:
        return repr(self)

    def __eq__(self, other: object) -> bool:
        # Seldom compared, and this brings OpenSSL with it.
        import hmac

        return isinstance(other, Secret) and hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> "tuple[Any, ...]":
        raise TypeError("a secret is not to be copied to where others might read it")
