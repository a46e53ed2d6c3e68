"""What `quantscope serve` lets in: the page it served itself, and no request beyond this server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from textual_serve.server import Server

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_own(host: str, origin: str | None, address: str, port: int) -> bool:
    """Whether a request comes from the page of this server.

    A web page elsewhere can open a WebSocket to this machine, or point its own name at it; either
    would let it drive the app, which can write files.

    Args:
        host: the Host header.
        origin: the Origin header; None where the client sends none, as programs do.
        address: address that the server listens on.
        port: port that it listens on.
    """
    named = urlsplit(f"//{host}").hostname
    if address in LOOPBACK and named not in LOOPBACK:
        return False
    if origin is None:
        return True
    source = urlsplit(origin)
    if source.netloc == host:
        return True
    return address in LOOPBACK and source.hostname in LOOPBACK and (source.port or 80) == port


def page_policy(public_url: str) -> str:
    """Styles and fonts from here only: the page of the server library asks a font service."""
    return f"style-src 'self' 'unsafe-inline' {public_url}; font-src 'self' data: {public_url}"


class GuardedServer(Server):  # type: ignore[misc]
    """The server of the app, closed to pages of others."""

    async def _make_app(self) -> Any:
        """The web application with the guard before every route."""
        from aiohttp import web

        application = await super()._make_app()

        @web.middleware
        async def guard(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            origin = request.headers.get("Origin")
            if not is_own(request.headers.get("Host", ""), origin, self.host, self.port):
                raise web.HTTPForbidden(text="this page is not served to other sites\n")
            return await handler(request)

        async def add_policy(request: web.Request, response: web.StreamResponse) -> None:
            response.headers["Content-Security-Policy"] = page_policy(self.public_url)

        application.middlewares.append(guard)
        application.on_response_prepare.append(add_policy)
        return application
