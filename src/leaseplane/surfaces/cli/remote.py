"""A plane that is asked over HTTP."""

import http.client
import json
import socket
import ssl
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from leaseplane.limits import ANSWER_BYTES_MAX
from leaseplane.model import AuthorityUnavailable, OutcomeUnknown
from leaseplane.secret import Secret

TIMEOUT_S: Final = 15.0
"""Longer than a server keeps trying for a busy database."""


class Remote:
    """The server at `url`, asked with `api_key`, or with none where None.

    Nothing is followed or repeated: what a redirect or a second try would mean is the caller's to say.
    """

    def __init__(self, url: str, api_key: Secret | None, *, timeout_s: float = TIMEOUT_S) -> None:
        self._url = url
        self._api_key = api_key
        self._timeout_s = timeout_s

    def ask(self, method: str, path: str, members: Mapping[str, object] | None = None) -> tuple[int, bytes]:
        """Send one request, with `members` as its JSON body, and answer the status and the body.

        The body is one JSON object, whatever the status. Raises `AuthorityUnavailable` where the server
        was not reached or is no plane, `OutcomeUnknown` where the request was sent and no answer came.
        """
        parts = urlsplit(self._url)
        assert parts.hostname is not None, "settings let only whole URLs through"
        connection_type = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        connection = connection_type(parts.hostname, parts.port, timeout=self._timeout_s)
        headers = {"Accept": "application/json"}
        body = None
        if members is not None:
            body = json.dumps(members).encode()
            headers["Content-Type"] = "application/json"
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key.reveal()}"
        try:
            try:
                connection.connect()
            except OSError as error:
                raise AuthorityUnavailable(
                    f"the server at {self._url} cannot be reached: {_told(error)}; see that it runs, and "
                    "that LEASEPLANE_URL names it"
                ) from None
            try:
                connection.request(method, parts.path + path, body, headers)
                response = connection.getresponse()
                answer = response.read(ANSWER_BYTES_MAX + 1)
                if response.length:
                    # Read with a bound, http.client does not say that a body was cut short.
                    raise http.client.IncompleteRead(answer, response.length)
            except (OSError, http.client.HTTPException) as error:
                raise OutcomeUnknown(
                    f"the server at {self._url} did not answer: {_told(error)}; what was asked for may or "
                    "may not be done"
                ) from None
        finally:
            connection.close()
        try:
            is_object = isinstance(json.loads(answer), dict)
        except ValueError:
            is_object = False
        if not is_object:
            raise AuthorityUnavailable(
                f"what answers at {self._url} is not a plane (status {response.status}); see LEASEPLANE_URL"
            )
        return response.status, answer


def _told(error: Exception) -> str:
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted ({error.verify_message})"
        case TimeoutError():
            return "it took too long"
        case socket.gaierror():
            return "its name is not known"
        case OSError() if error.strerror:
            return error.strerror[0].lower() + error.strerror[1:]
        case _:
            return type(error).__name__
