"""The peers: what the same server software does when there is nothing to decide, store or sign.

`starlette` is what anyone would write first: a route that answers the JSON that it was sent. `asgi`
is the floor: no framework, and the body goes back unread.
"""

import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

Message = MutableMapping[str, Any]


async def _echo_json(request: Request) -> JSONResponse:
    return JSONResponse(await request.json())


starlette = Starlette(routes=[Route("/{path:path}", _echo_json, methods=["POST"])])


async def asgi(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    body = b""
    while True:
        message = await receive()
        body += message["body"]
        if not message["more_body"]:
            break
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0), backlog=2_048)
    config = uvicorn.Config(
        starlette if sys.argv[1] == "starlette" else asgi,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        # Connections stay open while others are measured.
        timeout_keep_alive=600,
    )
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    uvicorn.Server(config).run([listening])


if __name__ == "__main__":
    main()
