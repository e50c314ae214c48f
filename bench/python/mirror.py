#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures tensorlease-mirror between hosts that are network namespaces of this machine, each row next to its floor.

    commit to remote get  From the commit on one host until a get that sleeps on the other one has the tensor. Memory is
        warm on both ends: the tensor is published again and again. The floor is as many bytes from shared memory into
        shared memory by one TCP connection, which is there already: a message by NATS tells the other end, which asks
        with a byte, and gets all by one send() and recv(). With TLS the floor is that of OpenSSL, by Python's ssl
        module; both ends have certificates.
    processor time        Of both daemons, both mirrors and the NATS server, or of both ends of the floor, per GiB.
    4 KiB                 A put until a get on the other host has it. The floor is a request with as many bytes by NATS,
        which a client on the other host answers.
    fan-out               64 MiB by links of 400 Mbit/s, until the last importer has them; and the bytes that leave the
        interface of the origin. The floor is one importer.

Numbers are the median and the 99th percentile. Floor and mirror take turns; "ratio" is the median of the ratios of all
turns. It needs root, or user namespaces that a user may make; without both it ends with status 77. Without --quick it
has six copies of 1 GiB in memory. The exit status is 1 if a row has no number.
"""

import argparse
import ctypes
import mmap
import multiprocessing
import os
import re
import shutil
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy
import tensorlease
from report import print_head

NOT_RUN = 77
LAB = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
LAB += ["--map-root-user"] if os.geteuid() else []
NEW_MOUNTS, NEW_IPC, NEW_NET = 0x20000, 0x8000000, 0x40000000  # of unshare(2)
NATS_PORT, LINK = 4222, "400mbit"
PATIENCE = 60  # seconds
ASLEEP_S = 0.005  # after which what waits sleeps
WARM = 3  # turns that are not counted
SMALL, MIB, GIB = 4 << 10, 1 << 20, 1 << 30


def address(n):
    return f"10.0.0.{n + 1}"


def sh(command):
    done = subprocess.run(command.split(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise OSError(f"{command}: {done.stdout.strip()}")


def limit(link, rate):
    sh(f"tc qdisc add dev {link} root tbf rate {rate} burst 256kb latency 50ms")


def until(make, error):
    """Make something that cannot be made at once."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return make()
        except error:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


def cpu_of(pids):
    """Return the processor time of all threads of programs, in ns."""
    threads = [thread for pid in pids for thread in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(thread.read_text().split()[0]) for thread in threads)


# ---- The floor -------------------------------------------------------------------------------------------------------


class Nats:
    """As much of a client as the floor needs."""

    def __init__(self, subject, tls=None):
        self.socket = until(lambda: socket.create_connection((address(0), NATS_PORT), PATIENCE), ConnectionError)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.recv(65536)  # what it says first
        if tls:
            self.socket = tls.wrap_socket(self.socket)
        self.lines = self.socket.makefile("rb")
        self.socket.sendall(b'CONNECT {"verbose":false}\r\nSUB %s 1\r\nPING\r\n' % subject)
        while self.lines.readline() != b"PONG\r\n":
            pass

    def publish(self, subject, data, reply=b""):
        self.socket.sendall(b"PUB %s %s %d\r\n%s\r\n" % (subject, reply, len(data), data))

    def next(self):
        """Return to which subject the next message wants an answer."""
        while not (text := self.lines.readline()).startswith(b"MSG"):
            if not text:
                raise ConnectionError("the NATS server is gone")
            if text == b"PING\r\n":
                self.socket.sendall(b"PONG\r\n")
        *_, reply, size = text.split()
        self.lines.read(int(size) + 2)
        return reply


def context(purpose, tls, name):
    """Return an SSL context with the certificate of a host, which wants one of the other end; None without TLS."""
    if not tls:
        return None
    made = ssl.SSLContext(purpose)
    made.load_verify_locations(f"{tls}/ca.pem")
    made.load_cert_chain(f"{tls}/{name}.pem", f"{tls}/{name}.key")
    made.check_hostname, made.verify_mode = False, ssl.CERT_REQUIRED
    return made


class Floor:
    """One end: a connection to the other one, a buffer in shared memory, and NATS."""

    def __init__(self, name, tls):
        self.client = context(ssl.PROTOCOL_TLS_CLIENT, tls, name)
        self.server = context(ssl.PROTOCOL_TLS_SERVER, tls, name)
        self.nats = Nats(name.encode(), self.client)
        self.listener = socket.create_server((address(0), 0)) if name == "a" else None

    def port(self):
        return self.listener.getsockname()[1]

    def accept(self):
        self.connection, _ = self.listener.accept()
        if self.server:
            self.connection = self.server.wrap_socket(self.connection, server_side=True)

    def join(self, port):
        self.connection = socket.create_connection((address(0), port))
        if self.client:
            self.connection = self.client.wrap_socket(self.connection)

    def resize(self, size):
        with open("/dev/shm/floor", "wb+") as file:
            file.truncate(size)
            self.buffer = mmap.mmap(file.fileno(), size)
        self.fill(1)

    def fill(self, value):
        numpy.frombuffer(self.buffer, "uint8").fill(value)

    def send(self):
        """Return when it began, and the processor time of it."""
        begin, cpu = time.monotonic_ns(), time.thread_time_ns()
        self.nats.publish(b"b", b"go")
        self.connection.recv(1)
        self.connection.sendall(self.buffer)
        return begin, time.thread_time_ns() - cpu

    def receive(self):
        """Return when all were there, and the processor time of it."""
        cpu = time.thread_time_ns()
        to, at = memoryview(self.buffer), 0
        more = () if self.client else (socket.MSG_WAITALL,)
        self.nats.next()
        self.connection.sendall(b"x")
        while at < len(to):
            at += self.connection.recv_into(to[at:], len(to) - at, *more)
        return time.monotonic_ns(), time.thread_time_ns() - cpu

    def ask(self):
        begin = time.monotonic_ns()
        self.nats.publish(b"b", bytes(SMALL), b"a")
        self.nats.next()
        return time.monotonic_ns() - begin

    def answer(self):
        self.nats.publish(self.nats.next(), b"")


# ---- Hosts -----------------------------------------------------------------------------------------------------------


class Host:
    """A host's daemon, mirror and programs, in a process of its own."""

    def __init__(self, options, folder, number):
        self.options, self.folder, self.name = options, folder, "abcdefgh"[number]
        self.programs, self.seen = [], {}
        if ctypes.CDLL(None, use_errno=True).unshare(NEW_MOUNTS | NEW_IPC | NEW_NET):
            raise OSError(ctypes.get_errno(), "unshare")
        sh("mount -t tmpfs tmpfs /dev/shm")

    def up(self, ip):
        for command in (f"addr add {ip}/24 dev eth0", "link set eth0 up", "link set lo up"):
            sh(f"ip {command}")

    def limit(self, rate):
        limit("eth0", rate)

    def start(self, *command):
        with open(f"{self.folder}/{self.name}.log", "ab") as log:
            self.programs.append(subprocess.Popen(list(map(str, command)), stdout=log, stderr=log))

    def mirror(self, config):
        own = f"{self.folder}/{self.name}"
        Path(f"{own}.daemon.conf").write_text("[namespace mirror]\nmirror = yes\n")
        Path(f"{own}.conf").write_text(config + f"\n[mirror]\nhost = {self.name}\nsocket = {own}.socket\n")
        program = self.options.build / "bin"
        more = ["--config", f"{own}.daemon.conf", "--capacity", "8G", "--log-level", "warn"]
        self.start(program / "tensorleased", "--foreground", "--socket", f"{own}.socket", *more)
        self.client = until(lambda: self.connect(f"{own}.socket"), tensorlease.Error)
        self.start(program / "tensorlease-mirror", "--config", f"{own}.conf", "--log-level", "warn")

    def connect(self, path):
        return tensorlease.connect(path, namespace="" if self.name == "a" else "mirror", autostart=False)

    def fill(self, name, size, value):
        self.draft = self.client.create(name, size, "uint8", ring=False)
        self.draft.numpy().fill(value)

    def commit(self):
        begin = time.monotonic_ns()
        self.draft.commit()
        return begin

    def put(self, name):
        begin = time.monotonic_ns()
        self.client.put(name, numpy.zeros(SMALL, "uint8"))
        return begin

    def get(self, name):
        """Return when the next version was there, and its last byte."""
        with self.client.get(name, newer_than=self.seen.get(name, 0), timeout=PATIENCE) as tensor:
            now = time.monotonic_ns()
            self.seen[name] = tensor.version
            return now, int(tensor.numpy()[-1])

    def pids(self):
        return [program.pid for program in self.programs]

    def sent(self):
        return int(re.search(r"eth0:(.*)", Path("/proc/self/net/dev").read_text())[1].split()[8])

    def open_floor(self, tls):
        self.floor = Floor(self.name, tls)

    def on_floor(self, method, *arguments):
        return getattr(self.floor, method)(*arguments)


def be_host(pipe, *arguments):
    try:
        host = Host(*arguments)
        pipe.send(None)
    except Exception as e:
        pipe.send(e)
        return
    try:
        while True:
            method, *rest = pipe.recv()
            try:
                pipe.send(getattr(host, method)(*rest))
            except Exception as e:  # the bench raises it
                pipe.send(RuntimeError(f"host {host.name}, {method}: {type(e).__name__}: {e}"))
    finally:  # SIGTERM
        for program in reversed(host.programs):
            program.terminate()
            program.wait()


class Remote:
    """A host, as the bench sees it. It is joined to the others by a switch."""

    def __init__(self, options, folder, number, rate=None):
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=be_host, args=(theirs, options, folder, number), daemon=True)
        self.process.start()
        self.result()
        self.link = f"v{number}"
        sh(f"ip link add {self.link} type veth peer name eth0 netns {self.process.pid}")
        sh(f"ip link set {self.link} master switch up")
        self.call("up", address(number))
        if rate:
            self.call("limit", rate)
            limit(self.link, rate)

    def begin(self, *call):
        self.pipe.send(call)

    def result(self):
        result = self.pipe.recv()
        if isinstance(result, Exception):
            raise result
        return result

    def call(self, *call):
        self.begin(*call)
        return self.result()

    def end(self):
        """End its programs and itself, and with its namespaces all that it had."""
        self.process.terminate()
        self.process.join(PATIENCE)
        self.process.kill()
        subprocess.run(["ip", "link", "delete", self.link], stderr=subprocess.DEVNULL)  # if it is there yet


def make_certificates(folder, hosts):
    """Make an authority in a folder, and a certificate for each host."""
    folder.mkdir()
    at, key = str(folder), "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    sh(f"openssl req -x509 {key} -keyout {at}/ca.key -out {at}/ca.pem -subj /CN=mirrors -days 2")
    for n, host in enumerate(hosts):
        (folder / "names").write_text(f"subjectAltName = IP:{address(n)}\n")
        sh(f"openssl req {key} -keyout {at}/{host}.key -out {at}/{host}.csr -subj /CN={host}")
        sh(f"openssl x509 -req -in {at}/{host}.csr -CA {at}/ca.pem -CAkey {at}/ca.key -CAcreateserial -days 2"
           f" -out {at}/{host}.pem -extfile {at}/names")  # fmt: skip
    return folder


# ---- Rows ------------------------------------------------------------------------------------------------------------


def line(what, unit, *cells):
    *numbers, target, met = cells
    return f"{what:<45} {unit:<5} " + " ".join(f"{n:>9}" for n in numbers) + f"  {target:<9} {met}"


class Row:
    """Pairs of a floor and ours; the ratio is the median of the pairs' ratios."""

    def __init__(self, what, unit, bar=None):
        self.what, self.unit, self.bar = what, unit, bar
        self.floor, self.ours = [], []

    def add(self, floor, ours):
        self.floor.append(floor)
        self.ours.append(ours)

    def cells(self, samples):
        p99 = sorted(samples)[int(0.99 * (len(samples) - 1) + 0.5)] if len(samples) >= 10 else None
        return ["" if v is None else f"{v:.{1 if v >= 100 else 2}f}" for v in (statistics.median(samples), p99)]

    def show(self):
        ratio = statistics.median(o / f for f, o in zip(self.floor, self.ours))
        cells = [*self.cells(self.floor), *self.cells(self.ours)]
        bar, met = ("-", "") if not self.bar else (f"{self.bar} x", "yes" if ratio < self.bar + 0.005 else "NO")
        print(line(self.what, self.unit, *cells, f"{ratio:.2f} x", bar, met), flush=True)


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder, self.hosts, self.failed = options, folder, [], False
        self.sizes = [(64 * MIB, 10)] if options.quick else [(64 * MIB, 30), (GIB, 10)]  # with the rounds

    def part(self, title, method, *arguments):
        """Measure in hosts of its own."""
        if self.options.only and not self.options.only.search(title):
            return
        folder = self.folder / title
        folder.mkdir()
        try:
            method(folder, *arguments)
        except Exception as e:
            self.failed = True
            print(f"{title}: no number: {e}", flush=True)
            for log in sorted(folder.glob("*.log")):
                print(f"  {log.name}: " + "\n    ".join(log.read_text(errors="replace").splitlines()[-5:]))
        for host in reversed(self.hosts):
            host.end()
        self.hosts = []

    def make(self, folder, count, rate=None, nats=""):
        for number in range(count):
            self.hosts.append(Remote(self.options, folder, number, rate))
        (folder / "nats.conf").write_text(f"{nats}\n")
        at = ["--addr", address(0), "--port", NATS_PORT, "--config", folder / "nats.conf"]
        self.hosts[0].call("start", self.options.nats, *at)
        return self.hosts

    def pair(self, folder, tls):
        """Time tensors, and the floor, between two hosts."""
        security, nats = "tls = no", ""
        if tls:
            tls = make_certificates(folder / "tls", "ab")
            security = f"ca = {tls}/ca.pem\ncertificate = {tls}/HOST.pem\nkey = {tls}/HOST.key"
            nats = f'cert_file: "{tls}/a.pem", key_file: "{tls}/a.key", ca_file: "{tls}/ca.pem", verify: true'
            nats = f"tls {{ {nats} }}"
        a, b = self.make(folder, 2, nats=nats)
        head = f"[mirror]\nnats = nats://{address(0)}:{NATS_PORT}\n{security}\n"
        a.call("mirror", f"{head}listen = {address(0)}:7070\n[export all]\nprefix = x/\n".replace("HOST", "a"))
        b.call("mirror", f"{head}[import all]\nnamespace = mirror\n".replace("HOST", "b"))
        for host in (a, b):
            host.call("open_floor", tls)
        port = a.call("on_floor", "port")
        a.begin("on_floor", "accept")
        b.call("on_floor", "join", port)
        a.result()
        for size, rounds in self.sizes:
            self.large(size, rounds, "TLS" if tls else "plain", 1.2 if tls else 1.25)
        if not tls:
            self.small()

    def turn(self, call, waits):
        """Have hosts wait for something, and another one do it. Return what they say."""
        for host, *wait in waits:
            host.begin(*wait)
        time.sleep(ASLEEP_S)
        return call[0].call(*call[1:]), [host.result() for host, *_ in waits]

    def large(self, size, rounds, how, bar):
        a, b = self.hosts
        name, text = f"x/{size}", f"{size // MIB} MiB, {how}"
        times, cpus = Row(f"{text}: commit to remote get", "ms", bar), Row(f"{text}: processor time", "s/GiB", 1.3)
        programs = [pid for host in self.hosts for pid in host.call("pids")]
        for host in self.hosts:
            host.call("on_floor", "resize", size)
        for n in range(WARM + rounds):
            a.call("on_floor", "fill", n)
            (begin, sent), [(end, received)] = self.turn((a, "on_floor", "send"), [(b, "on_floor", "receive")])
            a.call("fill", name, size, n)
            before = cpu_of(programs)
            ours_begin, [(ours_end, last)] = self.turn((a, "commit"), [(b, "get", name)])
            assert last == n, "wrong bytes"
            used = cpu_of(programs) - before
            if n >= WARM:
                times.add((end - begin) / 1e6, (ours_end - ours_begin) / 1e6)
                cpus.add((sent + received) / 1e9 * GIB / size, used / 1e9 * GIB / size)
        times.show()
        cpus.show()

    def small(self):
        a, b = self.hosts
        row = Row("4 KiB: put to remote get", "us", 3)
        for n in range(WARM + (100 if self.options.quick else 500)):
            floor, _ = self.turn((a, "on_floor", "ask"), [(b, "on_floor", "answer")])
            begin, [(end, _)] = self.turn((a, "put", "x/small"), [(b, "get", "x/small")])
            if n >= WARM:
                row.add(floor / 1e3, (end - begin) / 1e3)
        row.show()

    def fan(self, folder):
        """Time a chain, and a tree in which each host has two children, next to a single importer."""
        rules = {"one": (1, 1), "chain": (1, 3), "tree": (2, 6)}  # children of each host, and importers
        size = 64 * MIB
        head = f"[mirror]\nnats = nats://{address(0)}:{NATS_PORT}\ntls = no\nlisten = {{}}:7070\n"
        exports = [f"[export {name}]\nprefix = {name}/\nfanout = {fanout}\n" for name, (fanout, _) in rules.items()]
        of_origin = head.format(address(0)) + "".join(exports)
        (folder / "check.conf").write_text(f"{of_origin}[mirror]\nhost = a\n")
        check = [self.options.build / "bin" / "tensorlease-mirror", "--check", "--config", folder / "check.conf"]
        if subprocess.run(check, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
            print("fan-out: this tensorlease-mirror has no option fanout")
            return
        a, *others = self.make(folder, 7, rate=LINK)
        a.call("mirror", of_origin)
        for n, host in enumerate(others):
            imports = [f"[import {name}]\nprefix = {name}/\n" for name, (_, count) in rules.items() if n < count]
            host.call("mirror", head.format(address(n + 1)) + "".join(imports))
        shapes = {"chain": "chain of 3", "tree": "tree of 2 and 4"}
        times = {name: Row(f"64 MiB, {text}: commit to last get", "ms") for name, text in shapes.items()}
        sent = {name: Row(f"64 MiB, {text}: sent by the origin", "MiB") for name, text in shapes.items()}
        for n in range(1 + (2 if self.options.quick else 5)):
            found = {}
            for name, (_, count) in rules.items():
                before = a.call("sent")
                a.call("fill", f"{name}/x", size, n)
                waits = [(host, "get", f"{name}/{name}/x") for host in others[:count]]
                begin, got = self.turn((a, "commit"), waits)
                assert {last for _, last in got} == {n}, "wrong bytes"
                found[name] = (max(end for end, _ in got) - begin) / 1e6, (a.call("sent") - before) / MIB
            for name in shapes if n else ():
                times[name].add(found["one"][0], found[name][0])
                sent[name].add(found["one"][1], found[name][1])
        for name in shapes:
            times[name].show()
            sent[name].show()


def run(options):
    for number in (signal.SIGINT, signal.SIGTERM):  # in the hosts, too, which are forked from here
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    folder = Path(tempfile.mkdtemp(prefix="tlb-", dir="/tmp"))  # short, since sockets' paths are limited
    bench = Bench(options, folder)
    sh("ip link add switch type bridge")
    sh("ip link set switch up")
    print_head(options.quick, [f"a load of {os.getloadavg()[0]:.1f}"])
    print(line("what", "unit", "floor", "p99", "ours", "p99", "ratio", "target", "met"), flush=True)
    try:
        bench.part("plain", bench.pair, False)
        bench.part("tls", bench.pair, True)
        bench.part("fan", bench.fan)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if bench.failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True, help="folder that has bin/tensorlease-mirror")
    parser.add_argument("--nats", default="nats-server", help="the NATS server")
    parser.add_argument("--quick", action="store_true", help="64 MiB only, and fewer samples")
    parser.add_argument("--only", type=re.compile, metavar="REGEX", help="only these of the parts plain, tls and fan")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.build = options.build.absolute()
    if options.inside:
        return run(options)
    tried = subprocess.run([*LAB, "true"], stderr=subprocess.PIPE, text=True)
    if tried.returncode:
        print(f"NOT RUN: bench-mirror needs namespaces, as root has them: {tried.stderr.strip()}")
        return NOT_RUN
    os.execvp(LAB[0], [*LAB, sys.executable, *sys.argv, "--inside"])


if __name__ == "__main__":
    sys.exit(main())
