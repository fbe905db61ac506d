"""A web page on this machine that follows a record, for whoever has its address and nobody else.

The token stands in the page's address, and the page's script sends it along in a header. There is no cookie: cookies of 127.0.0.1 go to every
port of it, so also to what another user of the machine serves there. With the address, a reload works; the browser keeps it in
its history, where it is worth nothing once the server has ended.
"""

import ipaddress
import secrets
import socket
import socketserver
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from trimtab._messages import say
from trimtab.errors import UsageError
from trimtab.runner.following import Follower

LOOPBACK = ("127.0.0.1", "localhost", "::1")
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
NO_POLICY = "default-src 'none'"
"""Of what is no page: nothing in it may run or load."""

HTML, JSON, TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"


class Viewer(ThreadingHTTPServer):
    """Serves the page of one record, a thread for each connection, so that a slow reader holds up nobody.

    Args:
        record: The record.
        host: Address to listen at.
        port: Port, 0 for any that is free.

    Raises:
        RecordError: There is no record, or it is damaged.
        UsageError: It cannot listen there.
    """

    daemon_threads = True
    request_queue_size = (
        64  # of connections that wait to be taken; the five of the standard library make a sixth wait for seconds
    )

    def __init__(self, record: Path, host: str = "127.0.0.1", port: int = 0) -> None:
        self.follower = Follower(record)
        self.token = secrets.token_urlsafe(32)
        self.host = host.strip("[]")
        try:
            family, _, _, _, address = socket.getaddrinfo(self.host, port, type=socket.SOCK_STREAM)[0]
            self.address_family = family
            super().__init__((str(address[0]), int(address[1])), Answer)
        except (OSError, OverflowError, UnicodeError) as error:
            raise UsageError(
                say(
                    "cannot listen at port {port} of {host}: {error}; choose others with --host and --port",
                    port=port,
                    host=self.host,
                    error=getattr(error, "strerror", None) or error,
                )
            ) from error

    def server_bind(self) -> None:
        """Bind without asking the network for this machine's name, as the standard library does."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    @property
    def bound(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        """The address that it listens at."""
        return ipaddress.ip_address(str(self.server_address[0]).partition("%")[0])

    @property
    def url(self) -> str:
        """The page's address with its token, from this machine."""
        host = "127.0.0.1" if self.bound.is_unspecified else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}/?token={self.token}"

    def serves(self, host: str) -> bool:
        """Whether a Host header names this server: a page elsewhere whose name was made to point here does not (DNS rebinding).

        Args:
            host: The header.

        Returns:
            True for the loopback names and the address that was asked for, with this port.
        """
        try:
            parts = urlsplit(f"//{host}")
            name, port = parts.hostname or "", parts.port or 80
        except ValueError:
            return False
        if parts.netloc != host or "@" in host or port != self.server_port:
            return False
        if name in {*LOOPBACK, self.host.lower()}:
            return True
        if not self.bound.is_unspecified:
            return False
        if name == socket.gethostname().lower():
            return True
        with suppress(ValueError):  # nobody can make a bare address point elsewhere
            return bool(ipaddress.ip_address(name))
        return False

    def admits(self, token: str | None) -> bool:
        """Whether this is the token, compared in a time that tells nothing of it."""
        return token is not None and secrets.compare_digest(token.encode("utf-8", "replace"), self.token.encode())

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a connection that broke: its reader has gone."""
        import sys

        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class Answer(BaseHTTPRequestHandler):
    """Answers the requests of one connection: `/` is the page, `/state` is what has changed, and there is nothing else."""

    protocol_version = "HTTP/1.1"
    timeout = 10
    server: Viewer

    def do_GET(self) -> None:
        """Answer."""
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # a body is not read, and must not be taken for the next request
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not self.server.serves(hosts[0]):
            port = self.server.server_port
            self._refuse(
                say("This server is not called that: open it as 127.0.0.1:{port} or localhost:{port}.", port=port)
            )
            return
        parts = urlsplit(self.path)
        if not self.server.admits(self._token(parts.query)):
            self._refuse(say("The token is missing or wrong: open the whole address that `trimtab view` has printed."))
        elif parts.path == "/":
            self._send_page()
        elif parts.path == "/state":
            since = parse_qs(parts.query).get("since", [None])[0]
            news = self.server.follower.state(since)
            self._send(HTTPStatus.NO_CONTENT if news is None else HTTPStatus.OK, news or b"", JSON)
        else:
            self._send(HTTPStatus.NOT_FOUND, say("There is nothing here but the page itself.").encode(), TEXT)

    do_HEAD = do_GET  # noqa: N815

    def _not_allowed(self) -> None:
        self.close_connection = True
        self._send(HTTPStatus.METHOD_NOT_ALLOWED, b"", TEXT, {"Allow": "GET, HEAD"})

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _not_allowed  # noqa: N815

    def _token(self, query: str) -> str | None:
        """The token that came along: with the page's address, or in a header as its script sends it."""
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        if kind == "Bearer":
            return token
        tokens = parse_qs(query).get("token", [])
        return tokens[0] if len(tokens) == 1 else None

    def _send_page(self) -> None:
        page = self.server.follower.page()
        if page is None:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, self.server.follower.trouble.encode(), TEXT)
        else:
            self._send(HTTPStatus.OK, page[0], HTML, {"Content-Security-Policy": page[1]})

    def _refuse(self, why: str) -> None:
        self._send(HTTPStatus.FORBIDDEN, why.encode(), TEXT)

    def _send(self, status: HTTPStatus, body: bytes, kind: str, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Security-Policy": NO_POLICY, **HEADERS, **(more or {})}.items():
            self.send_header(name, value)
        if status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """What it is called, without the versions of anything."""
        return "trimtab"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of requests: their addresses hold the token."""
