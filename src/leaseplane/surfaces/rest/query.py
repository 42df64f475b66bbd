"""The query of a request's target, read strictly.

Read as forms write it (WHATWG URL, 5.1): pairs between `&`, percent-encoded UTF-8, `+` for a space.
A parameter that appears twice is refused, as a member of a body would be, since intermediaries
disagree about which of the two counts.
"""

import re
from typing import Final
from urllib.parse import unquote_to_bytes

from leaseplane.operations import RequestRefused

_BAD_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_TOLD_CHARS_MAX: Final = 64


def read_query(query: bytes) -> dict[str, object]:
    """The parameters of a query; raises `RequestRefused` for one that can be read in two ways."""
    parameters: dict[str, object] = {}
    if not query:
        return parameters
    if _BAD_ESCAPE.search(query) is not None:
        raise RequestRefused("The query holds a % that starts no percent-encoding: write it as %25.")
    for pair in query.split(b"&"):
        if not pair:
            continue
        name_bytes, _, value_bytes = pair.replace(b"+", b" ").partition(b"=")
        try:
            name = unquote_to_bytes(name_bytes).decode()
            value = unquote_to_bytes(value_bytes).decode()
        except UnicodeDecodeError:
            raise RequestRefused("The query is not UTF-8 once its percent-encoding is undone.") from None
        if name in parameters:
            raise RequestRefused(
                f"The parameter {name[:_TOLD_CHARS_MAX]} appears twice.", name[:_TOLD_CHARS_MAX]
            )
        parameters[name] = value
    return parameters
