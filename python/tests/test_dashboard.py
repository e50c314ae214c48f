# SPDX-License-Identifier: Apache-2.0
"""tensorlease.dashboard: what its page is told, who may ask, and what a browser makes of it."""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.parse

import numpy as np
import pytest
from conftest import daemon_at, eventually
from limits import limit
from test_notebook import pixels_of

import tensorlease
from tensorlease import dashboard

EVIL = "<script>alert('x')</script>"


@pytest.fixture(autouse=True)
def nothing_left(client):
    yield
    client.delete(prefix="", everything=True, missing_ok=True)
    eventually(lambda: len(client.clients()) == 1)


class Connection(http.client.HTTPConnection):
    """To the program that serves the page, on a port or at a path."""

    def __init__(self, url):
        self.path = url.removeprefix("unix:") if url.startswith("unix:") else None
        parts = urllib.parse.urlsplit(url)
        super().__init__("localhost" if self.path else parts.hostname, None if self.path else parts.port, timeout=limit(60))

    def connect(self):
        if not self.path:
            return super().connect()
        self.sock = socket.socket(socket.AF_UNIX)
        return self.sock.connect(self.path)


class Page(subprocess.Popen):
    """The program. ask() gets what it serves."""

    def ask(self, what="", method="GET", **query):
        base = "/" if self.url.startswith("unix:") else urllib.parse.urlsplit(self.url).path
        with contextlib.closing(Connection(self.url)) as connection:
            connection.request(method, f"{base}{what}" + (f"?{urllib.parse.urlencode(query)}" if query else ""))
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()

    def look(self, **query):
        status, headers, text = self.ask("state", **query)
        assert status == 200 and headers["Content-Type"] == "application/json; charset=utf-8", text
        return json.loads(text)

    def row(self, name):
        return next((row for row in self.look()["names"] if row["name"] == name), None)

    def tensor(self, name, status=200):
        found, _, text = self.ask("tensor", name=name)
        assert found == status, text
        return text


def command(*arguments):
    return [sys.executable, "-m", "tensorlease.dashboard", *arguments]


@contextlib.contextmanager
def serving(*arguments, end=signal.SIGTERM):
    with Page(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as page:
        try:
            page.url = page.stdout.readline().strip()
            assert page.url, page.stderr.read()
            yield page
            page.send_signal(end)
            said, warned = page.communicate(timeout=limit(60))
            assert (page.returncode, said, warned) == (0, "", "")
        finally:
            page.kill()


def test_one_page_that_asks_nobody_else(client):
    with serving() as page:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[0-9a-f]{32}/", page.url)
        status, headers, text = page.ask()
        assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
        assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}, "the name of a format"
        assert "src=" not in text and re.findall(r'href="([^"]*)', text) == ["data:,"]
        policy = headers["Content-Security-Policy"]
        nonce = re.search(r'<script nonce="([0-9a-f]{32})">', text)[1]
        assert "default-src 'none'" in policy and f"script-src 'nonce-{nonce}'" in policy and "NONCE" not in text
        assert headers["Referrer-Policy"] == "no-referrer" and headers["Cache-Control"] == "no-store"


def test_names_with_their_rates_and_readers(client, observer):
    with serving() as page:
        for number in range(5):
            client.put("rates/a", np.full(100, number, "int16"))
        assert page.row("rates/a")["rate"] == 0, "nothing is known of what was before"
        first = client.stat("rates/a")

        def later():
            client.put("rates/a", np.zeros(100, "int16"))
            return (row := page.row("rates/a"))["rate"] > 0 and row

        row = None
        while not row:
            row = later()
        last = client.stat("rates/a")
        seconds = (last.committed_ns - first.committed_ns) / 1e9
        assert row["rate"] == pytest.approx((last.version - first.version) / seconds, rel=0.01)
        assert row["bytes_rate"] == pytest.approx(200 * row["rate"])
        assert (row["type"], row["shape"], row["bytes"], row["version"]) == ("int16", "(100,)", 200, last.version)
        assert row["publisher"] == f"{last.publisher.label}, pid {os.getpid()}" and row["readers"] == 0
        with observer.get("rates/a"), observer.get("rates/a"), tensorlease.connect() as third, third.get("rates/a"):
            eventually(lambda: page.row("rates/a")["readers"] == 2)
        eventually(lambda: page.row("rates/a")["readers"] == 0)


def test_the_memory_and_the_clients(client):
    with serving() as page:
        client.put("memory/plain", np.zeros(1 << 20, "uint8"), ring=None)
        stream = client.stream("memory/stream", mode="queue", depth=4)
        stream.put(np.zeros(1 << 18, "uint8"))
        eventually(lambda: len(page.look()["names"]) == 2)
        state, status = page.look(), client.status()
        assert state["memory"]["live"] == 1 << 20 and state["memory"]["streams"] == client.streams()[0].nbytes
        assert sum(state["memory"].values()) == state["used"] == status.bytes_used
        assert (state["capacity"], state["address"], state["namespace"]) == (status.capacity, status.address, "")
        assert {c["pid"] for c in state["clients"]} == {os.getpid(), page.pid}
        row = page.row("memory/stream")
        assert (row["stream"], row["type"], row["shape"], row["version"]) == (True, "queue", "1 of 4", client.streams()[0].next)
        text = page.tensor("memory/stream")
        assert "queue" in text and "producer" in text
        client.delete("memory/stream")


def test_the_first_names_by_what_is_asked(client):
    client.put_many({f"many/{n:03}": np.zeros(n + 1, "uint8") for n in range(300)})
    with serving() as page:
        by_size = page.look(sort="bytes")
        assert (by_size["count"], by_size["found"], len(by_size["names"])) == (300, 300, 200)
        assert [row["bytes"] for row in by_size["names"]] == list(range(300, 100, -1))
        by_name = page.look(sort="name", filter="many/29")
        assert [row["name"] for row in by_name["names"]] == [f"many/29{n}" for n in range(10)] and by_name["found"] == 10
        for sort in ("rate", "bytes_rate", "age", "readers"):
            assert len(page.look(sort=sort)["names"]) == 200
        status, _, text = page.ask("state", sort="colour")
        assert status == 400 and text == "sort must be one of rate, bytes_rate, bytes, age, readers, name, not 'colour'"


def test_a_picture_and_a_histogram(client, observer):
    picture = np.arange(20 * 30 * 3).reshape(20, 30, 3).astype("uint8")
    client.put("look/picture", picture)
    client.put(f"look/{EVIL}", np.linspace(0, 1, 100), metadata=EVIL)
    with serving() as page, observer.get("look/picture"):
        assert (pixels_of(page.tensor("look/picture")) == picture).all()
        text = page.tensor(f"look/{EVIL}")
        assert "<svg" in text and "min 0, mean 0.5, max 1<" in text and "<script" not in text
        assert f"pid {os.getpid()}" in page.tensor("look/picture"), "who reads it"
        assert page.tensor("look/none", 404) == f"no tensor is called 'look/none' at {client.status().address}"
        client.put("look/picture", picture)
        eventually(lambda: client.status().retired == 1)  # that of the observer: the page holds nothing


def test_only_who_has_the_url(client):
    client.put("secret/name", np.zeros(1))
    with serving() as page:
        parts = urllib.parse.urlsplit(page.url)
        for path in ("/", "/state", "//state", "/" + "0" * 32 + "/state", parts.path[:-2] + "/state", "/%00/state", "/%E4/"):
            with contextlib.closing(Connection(page.url)) as connection:
                connection.request("GET", path)
                answer = connection.getresponse()
                text = answer.read().decode()
                assert answer.status == 404 and "secret" not in text and parts.path.strip("/") not in text
        assert page.ask("etc/passwd")[0] == page.ask("other")[0] == 404
        assert page.ask("state", "HEAD")[0] == 200 and page.ask("state", "HEAD")[2] == ""
        assert page.ask("state", "POST")[0] == page.ask("state", "DELETE")[0] == 501, "it only reads"


def test_connections_that_stall_block_nobody(client):
    with serving() as page:
        parts = urllib.parse.urlsplit(page.url)
        with contextlib.ExitStack() as stack:
            for number in range(100):
                stalled = stack.enter_context(socket.create_connection((parts.hostname, parts.port), limit(60)))
                stalled.sendall((b"", b"GET /", f"GET {parts.path} HTTP/1.1\r\n\r\n".encode())[number % 3])
            assert page.look()["count"] == 0
            with pytest.raises(subprocess.TimeoutExpired):
                page.wait(0.01)


def test_it_goes_on_with_the_next_daemon(client, tmp_path):
    address = f"{tmp_path}/socket"
    with daemon_at(address) as process:
        with serving("--address", address) as page:
            with tensorlease.connect(address) as other:
                other.put("kept", np.zeros(3))
                assert page.row("kept")
            process.kill()
            process.wait()
            eventually(lambda: page.ask("state")[0] == 503)
            assert address in page.ask("state")[2]
            with daemon_at(address):
                eventually(lambda: page.ask("state")[0] == 200)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_socket_is_for_its_user(client, tmp_path, end):
    path = f"{tmp_path}/page"
    client.put("a", np.zeros(3))
    if end == signal.SIGKILL:  # the next one finds its socket
        with Page(command("--http", f"unix:{path}"), stdout=subprocess.PIPE, text=True) as page:
            assert page.stdout.readline() == f"unix:{path}\n"
            page.kill()
        assert os.path.exists(path)
        end = signal.SIGTERM
    with serving("--http", f"unix:{path}", end=end) as page:
        assert page.url == f"unix:{path}" and stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert page.row("a") and page.ask()[0] == 200
        refused(1, "Address already in use", "--http", f"unix:{path}")
        assert page.row("a")
    assert not os.path.exists(path)


def refused(status, text, *arguments):
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=limit(60))
    assert done.returncode == status and text in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_what_cannot_be_served_is_said(client, tmp_path):
    for bad in ("0.0.0.0:80", "192.168.1.1:80", "[::]:80", "localhost:80", "127.0.0.1", "127.0.0.1:65536", "unix:page", ""):
        refused(2, f"{bad!r} is not 127.0.0.1:PORT, [::1]:PORT or unix:/PATH", "--http", bad)
    refused(1, "/no/such/folder/page: No such file or directory", "--http", "unix:/no/such/folder/page")
    refused(1, "nobody", "--address", f"{tmp_path}/nobody")
    (tmp_path / "file").write_text("kept")
    refused(1, f"{tmp_path}/file", "--http", f"unix:{tmp_path}/file")
    assert (tmp_path / "file").read_text() == "kept"
    with serving() as page:
        refused(1, "in use", "--http", f"127.0.0.1:{urllib.parse.urlsplit(page.url).port}")


def test_rates_of_names_that_become_slow():
    now = time.time()
    before = {"version": 5, "stream": False, "committed": now - 3, "rate": 2.0}
    row = {**before}
    assert dashboard._rate(row, None, 1) == 0
    assert dashboard._rate(row, before, 1) == pytest.approx(1 / 3, rel=0.01), "late by more than twice its time"
    assert dashboard._rate({**row, "committed": now - 0.6}, before, 1) == 2.0
    assert dashboard._rate({**row, "version": 11, "committed": now}, before, 9) == pytest.approx(2.0)
    assert dashboard._rate({**row, "version": 1}, before, 1) == 0, "another tensor has the name"


# ---- a browser ----


def browser():
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if not found and os.environ.get("TL_TEST_BROWSER"):
        raise AssertionError("TL_TEST_BROWSER is set, but there is no chromium")
    return found


@pytest.mark.skipif(not browser(), reason="there is no chromium (`tools/deps browser` installs it)")
def test_a_browser_shows_it(client, observer, tmp_path):
    y, x = np.mgrid[0:240, 0:320]
    client.put("cam/front", np.stack([x % 256, y, (x - y) // 2 % 256], -1).astype("uint8"))
    client.put(f"weights/{EVIL}", np.random.default_rng(1).normal(size=(256, 256)).astype("float32"))
    stream = client.stream("rollouts", mode="broadcast", depth=8, keep=4)
    stream.put(np.zeros(1000))

    def dom(page, name, *more):
        done = subprocess.run(
            [browser(), "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile", *more]
            + ["--virtual-time-budget=4000", "--enable-logging=stderr", f"{page.url}#{urllib.parse.quote(name)}"],
            capture_output=True,
            text=True,
            timeout=limit(300),
            env={**os.environ, "HOME": str(tmp_path)},
        )
        assert done.returncode == 0, done.stderr
        # what the page writes to the console: refused by the policy, or an error of the script
        assert not re.findall(r"CONSOLE.*", done.stderr)
        return done.stdout

    with serving() as page, observer.get("cam/front"):
        text = dom(page, "cam/front", "--dump-dom")
        assert (pixels_of(text)[:, :, 0] == x[::2, ::2] % 256).all()
        rows = re.search(r'<tbody id="names">(.*?)</tbody>', text, re.S)[1]
        assert rows.count("<tr") == 3 and "&lt;script&gt;" in rows and "<script" not in rows
        assert re.search(r'<tr class="name chosen"><td>cam/front</td>', rows)
        assert text.count("<polygon") == 6, "the memory, by its parts"
        clients = re.search(r'<tbody id="clients">(.*?)</tbody>', text, re.S)[1]
        assert "tensorlease.dashboard" in clients and str(os.getpid()) in clients
        assert re.search(r'<div id="error"></div>', text)
        text = dom(page, f"weights/{EVIL}", "--dump-dom")
        assert "<rect" in text and "of 65,536 elements" in text
        assert "0 of 8" in dom(page, "rollouts", "--dump-dom")
        dom(page, "cam/front", f"--screenshot={tmp_path}/page.png", "--window-size=1200,900", "--hide-scrollbars")
        assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    client.delete("rollouts")
