# SPDX-License-Identifier: Apache-2.0
"""python -m tensorlease.dashboard: a page that shows names with their rates and readers, memory, clients, and tensors.

It prints the page's URL, serves until Ctrl-C or SIGTERM, and only reads. It is a client as any other, so the page shows
what the user who started it may read, and a daemon does not notice more of it than of that user's other programs.
"""

import argparse
import contextlib
import hmac
import ipaddress
import json
import os
import re
import secrets
import signal
import socket
import socketserver
import sys
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from ._client import connect
from ._errors import Error, NotFoundError
from ._html import stream_html, tensor_html, title_html

__all__ = ["main"]

_ROWS = 200  # names that the page shows
_LOOK_S = 0.5  # who asks sooner gets what the last one got
_STALL_S = 30  # a browser that sends and reads nothing for so long is disconnected
_PAGE = Path(__file__).with_name("dashboard.html")
_PARTS = ("live", "rings", "streams", "warm", "kept")  # of the memory; the rest is "other"


class _Board:
    """What is there, and what was there at the look before, from which rates follow."""

    def __init__(self, client):
        self.client = client
        self._lock = threading.Lock()
        self._rows, self._taken, self._state = {}, 0.0, {}

    def look(self):
        """Return the rows of names by name, and the rest of what the page shows, without names."""
        with self._lock:
            now = time.monotonic()
            if not self._taken or now - self._taken >= _LOOK_S:
                status, infos, streams = self.client.status(), self.client.list(), self.client.streams()
                rows = {info.name: _tensor_row(info) for info in infos} | {s.name: _stream_row(s) for s in streams}
                for name, _ in {(reader.name, reader.client.id) for reader in self.client.readers()}:
                    if name in rows:
                        rows[name]["readers"] += 1
                for name, row in rows.items():
                    row["rate"] = _rate(row, self._rows.get(name), now - self._taken)
                    row["bytes_rate"] = 0 if row["stream"] else row["rate"] * row["bytes"]
                self._state = self._of_all(status, infos, streams, rows)
                self._rows, self._taken = rows, now
            return self._rows, self._state

    def _of_all(self, status, infos, streams, rows):
        memory = dict.fromkeys(_PARTS, 0)
        memory["live"] = sum(info.nbytes for info in infos if info.device == "cpu")
        memory["rings"] = sum((info.ring - 1) * info.nbytes for info in infos if info.ring)
        memory["streams"] = sum(stream.nbytes for stream in streams)
        memory["warm"], memory["kept"] = status.bytes_warm, status.bytes_kept
        memory["other"] = max(0, status.bytes_used - sum(memory.values()))
        return {
            "now": time.time(),  # the browser may have another clock
            "address": status.address,
            "namespace": self.client._place()[1],
            "started": status.started_ns / 1e9,
            "restarts": status.restarts,
            "capacity": status.capacity,
            "used": status.bytes_used,
            "memory": memory,
            "count": len(rows),
            "rate": sum(row["rate"] for row in rows.values()),
            "bytes_rate": sum(row["bytes_rate"] for row in rows.values()),
            "clients": [
                {
                    "id": c.id,
                    "label": c.label,
                    "pid": c.pid,
                    "uid": c.uid,
                    "since": c.since_ns / 1e9,
                    "held": c.tensors_held,
                    "bytes": c.bytes_held,
                }
                for c in self.client.clients()
            ],
        }


def _tensor_row(info):
    publisher = info.publisher
    return {
        "name": info.name,
        "stream": False,
        "type": info.dtype,
        "shape": str(info.shape),
        "device": "lost" if info.lost else info.device,
        "bytes": info.nbytes,
        "version": info.version,
        "committed": info.committed_ns / 1e9,
        "publisher": publisher and f"{publisher.label}, pid {publisher.pid}{', gone' if publisher.gone else ''}",
        "readers": 0,
    }


def _stream_row(stream):
    return {
        "name": stream.name,
        "stream": True,
        "type": stream.mode,
        "shape": f"{stream.length} of {stream.depth}",
        "device": "ended" if stream.ended else "stream",
        "bytes": stream.nbytes,
        "version": stream.next,
        "committed": stream.created_ns / 1e9,
        "publisher": f"{stream.producers} producers",
        "readers": stream.subscribers,
    }


def _rate(row, before, seconds):
    """Return publishes a second. A name of which nothing came keeps its rate until the next publish is late."""
    if before is None or row["version"] < before["version"]:
        return 0
    count, age = row["version"] - before["version"], time.time() - row["committed"]
    if count and not row["stream"] and row["committed"] > before["committed"]:
        return count / (row["committed"] - before["committed"])
    if count or row["stream"]:
        return count / seconds
    return 1 / age if before["rate"] * age > 2 else before["rate"]


_SORTS = {
    "rate": lambda row: -row["rate"],
    "bytes_rate": lambda row: -row["bytes_rate"],
    "bytes": lambda row: -row["bytes"],
    "age": lambda row: -row["committed"],
    "readers": lambda row: -row["readers"],
    "name": lambda row: 0,
}


def _state(board, query):
    """Return the JSON of what the page shows, by ?sort= and ?filter=."""
    sort, word = query.get("sort", "rate"), query.get("filter", "")
    if sort not in _SORTS:
        raise ValueError(f"sort must be one of {', '.join(_SORTS)}, not {sort!r}")
    rows, state = board.look()
    found = sorted((row for name, row in rows.items() if word in name), key=lambda row: (_SORTS[sort](row), row["name"]))
    return json.dumps({**state, "found": len(found), "names": found[:_ROWS]})


def _tensor(board, query):
    """Return HTML about the tensor or the stream ?name=. It is held for that moment only."""
    client, name = board.client, query.get("name", "")
    rows, _ = board.look()
    if rows.get(name, {}).get("stream"):
        return stream_html(f"{name}, a stream", client, name)
    if not client.stat(name).device.startswith("cpu"):  # nothing is mapped or copied from a GPU
        parts = [title_html(f"{name}: what is on a GPU is not shown")]
    else:
        with client.get(name) as tensor:
            parts = [tensor_html(tensor)]
    readers = client.readers(name)
    return "".join([*parts, title_html("Readers"), readers._repr_html_()])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _STALL_S
    server_version, sys_version = "tensorlease", ""

    def do_GET(self):
        try:
            self._send(*self._answer())
        except NotFoundError as error:
            self._send("text/plain", error.strerror, 404)
        except ValueError as error:
            self._send("text/plain", str(error), 400)
        except Error as error:  # such as that the daemon is gone
            self._send("text/plain", error.strerror, 503)

    do_HEAD = do_GET

    def _answer(self):
        url, token = urllib.parse.urlsplit(self.path), self.server.token
        given, _, what = url.path.removeprefix("/").rpartition("/")
        if not hmac.compare_digest(given.encode("utf-8", "replace"), token.encode()):
            return "text/plain", "the page is at the URL that python -m tensorlease.dashboard has printed", 404
        query = dict(urllib.parse.parse_qsl(url.query))
        if what == "":
            return "text/html", self.server.page, 200
        if what == "state":
            return "application/json", _state(self.server.board, query), 200
        if what == "tensor":
            return "text/html", _tensor(self.server.board, query), 200
        return "text/plain", f"nothing is at {url.path}", 404

    def _send(self, kind, text, status=200):
        data = text.encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Security-Policy", self.server.policy)
        self.send_header("Referrer-Policy", "no-referrer")  # the URL is the secret
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_):
        pass


class _Server(socketserver.ThreadingTCPServer):
    """Serves the page at an address of _address(). On a port the path has a secret, since all users reach ports."""

    daemon_threads = True
    request_queue_size = 64
    allow_reuse_address = True

    def __init__(self, address, board):
        self.board, self._bound = board, False
        self.address_family, where = address
        self.path = where if self.address_family == socket.AF_UNIX else None
        self.token = "" if self.path else secrets.token_hex(16)
        nonce = secrets.token_hex(16)
        self.page = _PAGE.read_text(encoding="utf-8").replace("NONCE", nonce)
        self.policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; img-src data:; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        try:
            super().__init__(where, _Handler)
        except OSError as error:
            raise OSError(error.errno, f"{self.path or self.server_address}: {error.strerror}") from None

    def server_bind(self):
        if not self.path:
            return super().server_bind()
        _remove_stale(self.path)
        before = os.umask(0o177)
        try:
            super().server_bind()
        finally:
            os.umask(before)
        self._bound = True

    def server_close(self):
        super().server_close()
        if self._bound:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], OSError):  # it is not that a browser has gone
            super().handle_error(request, client_address)

    @property
    def url(self):
        if self.path:
            return f"unix:{self.path}"
        host, port = self.server_address[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/{self.token}/"


def _remove_stale(path):
    """Remove a socket at which nobody listens any more."""
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(FileNotFoundError):
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            if Path(path).is_socket():
                os.unlink(path)


def _address(text):
    """Return the family and the address of unix:/PATH, or of a port on a loopback address."""
    if text.startswith("unix:/"):
        return socket.AF_UNIX, text.removeprefix("unix:")
    found = re.fullmatch(r"(?:\[([0-9a-f:]+)\]|([0-9.]+)):([0-9]{1,5})", text)
    with contextlib.suppress(ValueError):
        host = ipaddress.ip_address(found[1] or found[2]) if found else None
        if host and host.is_loopback and int(found[3]) < 2**16:
            return (socket.AF_INET6 if host.version == 6 else socket.AF_INET), (str(host), int(found[3]))
    raise argparse.ArgumentTypeError(
        f"{text!r} is not 127.0.0.1:PORT, [::1]:PORT or unix:/PATH. From another machine: ssh -L PORT:127.0.0.1:PORT HOST"
    )


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m tensorlease.dashboard",
        description="Serves a page about names, rates, readers, memory and tensors, and prints its URL.",
        epilog="Whoever has the URL sees what you may read. It is valid until this program ends.",
    )
    parser.add_argument(
        "--http",
        type=_address,
        default="127.0.0.1:0",
        metavar="ADDRESS",
        help="127.0.0.1:PORT, [::1]:PORT (0: any free port, the default), or unix:/PATH, which only you can open",
    )
    parser.add_argument("--address", help="of the daemon; default: as tensorlease.connect()")
    parser.add_argument("--namespace", help="of the names; default: as tensorlease.connect()")
    return parser


def main(arguments=None):
    """Serve the page until SIGINT or SIGTERM. Return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        with connect(options.address, namespace=options.namespace) as client:
            with _Server(options.http, _Board(client)) as server:
                signal.signal(signal.SIGTERM, signal.default_int_handler)
                with contextlib.suppress(KeyboardInterrupt):
                    print(server.url, flush=True)
                    server.serve_forever()
    except OSError as error:
        print(f"tensorlease.dashboard: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
