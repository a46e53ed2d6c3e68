"""`serve`: the page of this server is let in, a page of another site is not."""

from __future__ import annotations

import pytest

pytest.importorskip("textual_serve", reason="the extra `serve` is not installed")
test_utils = pytest.importorskip("aiohttp.test_utils", reason="the extra `serve` is not installed")

from quantscope.cli.serve_guard import GuardedServer, is_own  # noqa: E402


@pytest.mark.parametrize(
    ("host", "origin", "own"),
    [
        ("127.0.0.1:8000", None, True),
        ("localhost:8000", None, True),
        ("[::1]:8000", None, True),
        ("127.0.0.1:8000", "http://127.0.0.1:8000", True),
        ("127.0.0.1:8000", "http://localhost:8000", True),
        ("127.0.0.1:8000", "http://localhost:9000", False),
        ("127.0.0.1:8000", "https://elsewhere.example", False),
        ("127.0.0.1:8000", "null", False),
        ("elsewhere.example:8000", None, False),
        ("elsewhere.example:8000", "http://elsewhere.example:8000", False),
        ("", None, False),
    ],
)
def test_only_the_own_page_reaches_a_loopback_server(
    host: str, origin: str | None, own: bool
) -> None:
    assert is_own(host, origin, "127.0.0.1", 8000) is own


def test_a_server_for_others_takes_any_name_but_no_foreign_page() -> None:
    assert is_own("machine.example:8000", None, "0.0.0.0", 8000)
    assert is_own("machine.example:8000", "http://machine.example:8000", "0.0.0.0", 8000)
    assert not is_own("machine.example:8000", "http://elsewhere.example", "0.0.0.0", 8000)


async def test_the_page_asks_no_other_host_and_a_foreign_socket_is_refused() -> None:
    server = GuardedServer("true", host="127.0.0.1", port=8000)
    application = await server._make_app()
    application.on_startup.clear()
    application.on_shutdown.clear()
    async with test_utils.TestClient(test_utils.TestServer(application)) as client:
        page = await client.get("/", headers={"Host": "127.0.0.1:8000"})
        assert page.status == 200
        policy = page.headers["Content-Security-Policy"]
        assert "style-src 'self' 'unsafe-inline' http://127.0.0.1:8000;" in policy
        assert "font-src" in policy
        for headers in (
            {"Host": "elsewhere.example"},
            {"Host": "127.0.0.1:8000", "Origin": "https://elsewhere.example"},
        ):
            for route in ("/", "/ws"):
                answer = await client.get(route, headers=headers)
                assert answer.status == 403, (route, headers)
