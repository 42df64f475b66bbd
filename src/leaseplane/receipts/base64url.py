"""base64url without padding, in the one spelling that each byte string has (RFC 7515 section 2)."""

import binascii
import re

_ALPHABET_PLAIN = b"+/"
_ALPHABET_URL = b"-_"
_TO_URL = bytes.maketrans(_ALPHABET_PLAIN, _ALPHABET_URL)
_TO_PLAIN = bytes.maketrans(_ALPHABET_URL, _ALPHABET_PLAIN)
_SPELLED = re.compile(rb"[A-Za-z0-9_-]*\Z")


class NotBase64Url(ValueError):
    """The text is not base64url, or not the one spelling of its bytes."""


def encode(data: bytes) -> bytes:
    """The base64url spelling of `data`, as ASCII, without padding or line breaks."""
    return binascii.b2a_base64(data, newline=False).translate(_TO_URL).rstrip(b"=")


def decode(text: bytes) -> bytes:
    """The bytes that `text` spells; every other spelling of the same bytes is refused.

    Raises NotBase64Url for padding, line breaks, `+` and `/`, an impossible length, and for set
    bits in the unused part of the last character: a decoder that ignores them would let a receipt
    be changed without its signature noticing.
    """
    if not _SPELLED.match(text):
        raise NotBase64Url("it holds characters outside A-Z a-z 0-9 - _")
    if len(text) % 4 == 1:
        raise NotBase64Url("no bytes have a spelling of this length")
    data = binascii.a2b_base64(text.translate(_TO_PLAIN) + b"=" * (-len(text) % 4))
    if encode(data) != text:
        raise NotBase64Url("bits are set in the unused part of its last character")
    return data
