"""Web frameworks that send the body of POST /step back, one process each.

python frameworks.py uvicorn|granian|aiohttp|fastapi|ray_serve PORT   # serves until it is killed
"""

from __future__ import annotations

import sys
from typing import Any


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    """The least that ASGI can do."""
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", str(len(body)).encode())],
        }
    )
    await send({"type": "http.response.body", "body": body})


def uvicorn(port: int) -> None:
    """Uvicorn's bare ASGI, with uvloop and httptools."""
    import uvicorn as module

    module.run(
        asgi, host="127.0.0.1", port=port, log_level="error", access_log=False, lifespan="off"
    )


def granian(port: int) -> None:
    """Granian's bare ASGI."""
    from granian import Granian

    Granian(
        "frameworks:asgi", address="127.0.0.1", port=port, interface="asginl", log_enabled=False
    ).serve()


def aiohttp(port: int) -> None:
    """aiohttp on uvloop."""
    import uvloop
    from aiohttp import web

    async def step(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/step", step)
    web.run_app(
        app, host="127.0.0.1", port=port, access_log=None, print=None, loop=uvloop.new_event_loop()
    )


def fastapi(port: int) -> None:
    """FastAPI on uvicorn."""
    import uvicorn as module
    from fastapi import FastAPI, Request, Response

    async def step(request: Request) -> Response:
        return Response(await request.body())

    step.__annotations__.update(request=Request)  # this file's annotations are strings
    app = FastAPI()
    app.post("/step", response_model=None)(step)
    module.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False)


def ray_serve(port: int) -> None:
    """Ray Serve, one replica."""
    from ray import serve
    from starlette.requests import Request
    from starlette.responses import Response

    @serve.deployment(max_ongoing_requests=1000)
    class Echo:
        async def __call__(self, request: Request) -> Response:
            return Response(await request.body())

    run_ray_serve(Echo.bind(), port)


def run_ray_serve(application: Any, port: int) -> None:
    """Serve at /step in a cluster of its own until SIGTERM; ends HAProxy too."""
    import signal
    import threading

    import ray
    from ray import serve

    ray.init(
        address="local",  # never a cluster that already runs here
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 << 20,
        _node_ip_address="127.0.0.1",
    )
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(application, route_prefix="/step")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        threading.Event().wait()
    finally:
        serve.shutdown()  # which also ends HAProxy
        ray.shutdown()


if __name__ == "__main__":
    {f.__name__: f for f in (uvicorn, granian, aiohttp, fastapi, ray_serve)}[sys.argv[1]](
        int(sys.argv[2])
    )
