# SPDX-License-Identifier: Apache-2.0
"""tensorlease-mirror: what it says of itself, and a second one that waits for its end."""

import http.client
import json
import os
import re
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import eventually
from cuda_driver import Array, Child, Driver
from gpu_help import gpus  # noqa: F401 (a fixture)
from limits import limit
from mirrors import EXPORT, IMPORT, MIRROR, PIECE, SKIPS, Program, came, imported, met, numbers, pair
from mirrors import hosts, linked, nats  # noqa: F401 (fixtures)

import tensorlease

pytestmark = SKIPS
CLI = Path(MIRROR).parent / "tensorlease"


def ask(host, *arguments, status=0):
    command = [MIRROR, "--config", host.config, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit(60))
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout


def status(host):
    return json.loads(ask(host, "status", "--json"))


def rule(host, kind="imports"):
    (one,) = status(host)[kind]
    return one


def origin(host):
    (one,) = rule(host)["hosts"]
    return one


def control(host):
    return host.folder / "mirror.sock"


def runs(host):
    """Whether its mirror answers."""
    try:
        return http_get(control(host), "/status")[0] == 200
    except OSError:
        return False


class Local(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=limit(60))
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


def http_get(where, path, headers=None):
    connection = http.client.HTTPConnection(*where, timeout=limit(60)) if isinstance(where, tuple) else Local(where)
    try:
        connection.request("GET", path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def metrics(text):
    """Returns the samples of a text, which must be OpenMetrics, by name and labels."""
    lines = text.splitlines()
    assert lines.pop() == "# EOF"
    kinds, samples, current = {}, {}, None
    for line in lines:
        if line.startswith("# TYPE "):
            _, _, current, kind = line.split(" ")
            assert current not in kinds, "a family begins twice"
            kinds[current] = kind
        elif line.startswith("# HELP "):
            assert line.split(" ")[2] == current and line.endswith(".")
        else:
            name, labels, value = re.fullmatch(r'(\w+)(?:\{((?:\w+="[^"]*",?)*)\})? ([0-9.]+)', line).groups()
            suffix = {"counter": "_total", "info": "_info", "gauge": ""}[kinds[current]]
            assert name == current + suffix, "a sample is of another family"
            key = name.removeprefix("tensorlease_mirror_"), *sorted(re.findall(r'(\w+)="([^"]*)"', labels or ""))
            assert key not in samples, "a sample is there twice"
            samples[key] = float(value)
    return samples


def test_what_is_told_of_names(hosts):
    a, b, here, there = pair(hosts)
    here.put("small", np.array([1]))
    here.put("large", numbers(PIECE + 8))
    eventually(lambda: came(there, "small", 1, 1) and came(there, "large", 1, 0))
    size = 8 + PIECE + 8
    eventually(lambda: rule(a, "exports")["sent_bytes"] >= PIECE + 8)
    told = rule(a, "exports")
    (importer,) = told["importers"]
    assert (importer["host"], told["names"], told["bytes"]) == ("b", 2, size)
    # the small one came with an announcement, or after a comparison
    assert importer["sent_bytes"] == told["sent_bytes"] and told["sent_bytes"] in (PIECE + 8, size)
    assert importer["asked_seconds_ago"] < limit(60) and not told["set"] and told["moment"] is None
    assert told["daemon"] and told["held"] <= 2 and told["names_on_gpus"] == 0
    eventually(lambda: not origin(b)["transfers"])
    told = origin(b)
    assert (told["host"], told["up"], told["names"], told["received_bytes"]) == ("a", True, 2, size)
    assert (told["waiting"], told["lag_seconds"], told["lag_versions"]) == (0, 0, 0)
    assert not any(told["failures"].values()) and told["heard_seconds_ago"] < limit(60)
    eventually(lambda: origin(b)["comparisons"] >= 1)
    assert abs(status(b)["started"] - time.time()) < limit(60)
    assert "export all: 2 names of 2.0 MiB" in ask(a, "status")
    assert "import all: 1 of 1 host up, 2 names, received 2.0 MiB" in ask(b, "status")
    assert "host b: NATS is connected, 0 reconnects" in ask(b, "status")
    assert re.search("^b gets export all: asked .* sent 2.0 MiB$", ask(a, "peers"), re.M)
    assert re.search("^a has all: up, heard .* 2 names, received 2.0 MiB$", ask(b, "peers"), re.M)
    here.delete("large")
    eventually(lambda: origin(b)["names"] == 1 and rule(a, "exports")["names"] == 1)


def test_metrics(hosts):
    a = hosts("a", "metrics = 127.0.0.1:0\n" + EXPORT).start()
    b = hosts("b", IMPORT).start()
    here, there = a.connect(), b.connect("mirror")
    here.put("name", np.arange(5))
    eventually(lambda: came(there, "name", 1, 0))
    code, text = http_get(control(a), "/metrics")
    assert code == 200
    told = metrics(text)
    assert told["nats_up",] == 1 and told["nats_reconnects_total",] == 0
    assert told["export_names", ("export", "all")] == 1
    assert told["refused_total", ("reason", "path")] == 0
    told = metrics(http_get(control(b), "/metrics")[1])
    labels = ("host", "a"), ("import", "all")
    assert told["host_up", *labels] == 1 and told["host_names", *labels] == 1
    assert told["received_bytes_total", *labels] == 40
    assert told["failures_total", *labels, ("reason", "space")] == 0
    # by TCP there is nothing else
    eventually(lambda: "serving metrics" in a.mirror.said())
    where = "127.0.0.1", int(re.search("address=127.0.0.1 port=([0-9]+)", a.mirror.said())[1])
    assert metrics(http_get(where, "/metrics")[1]).keys() == metrics(text).keys()
    assert http_get(where, "/status")[0] == 404 and http_get(where, "/tree?name=name")[0] == 404
    assert http_get(where, "/metrics", {"Host": "example.org"})[0] == 403
    # what others ask of the plane of bytes
    url = re.search("http://([0-9.]+):([0-9]+)", a.url())
    assert http_get((url[1], int(url[2])), "/nothing", {"X-Host": "b"})[0] == 404
    eventually(lambda: status(a)["refused"]["path"] == 1)


def test_names_that_wait(linked):
    a = linked("a", EXPORT)
    here = a.connect()
    (b,), (there,) = imported(linked, "b")
    met(here, [there])
    a.link.rate = PIECE
    began = time.time()
    here.put("large", numbers(4 * PIECE))
    eventually(lambda: origin(b)["lag_seconds"] > 1)
    later = time.time()
    for _ in range(3):
        here.put("large", numbers(4 * PIECE))
    eventually(lambda: origin(b)["lag_versions"] == 4)
    told = origin(b)
    assert told["latest"] == "large" and told["transfers"] == 1
    assert 1 < told["lag_seconds"] <= time.time() - began
    assert "1 waiting for up to" in ask(b, "status") and "1 waiting (up to 4 versions, " in ask(b, "peers")
    eventually(lambda: rule(a, "exports")["held"])
    assert rule(a, "exports")["held_bytes"] % (4 * PIECE) == 0
    # the first is finished, and then the newest one waits, which is younger
    eventually(lambda: came(there, "large", 1, 0))
    eventually(lambda: 0 < origin(b)["lag_versions"] <= 3)
    assert 0 < origin(b)["lag_seconds"] <= time.time() - later
    a.link.rate = None
    eventually(lambda: came(there, "large", 4, 0))
    eventually(lambda: not origin(b)["waiting"])
    assert origin(b)["lag_seconds"] == 0


def test_what_fails(hosts):
    a = hosts("a", EXPORT).start()
    b = hosts("b", IMPORT, capacity="1M").start()
    here, there = a.connect(), b.connect("mirror")
    here.put("large", np.zeros(2 << 20, "uint8"))
    eventually(lambda: origin_or_none(b) and origin(b)["failures"]["space"])
    here.delete("large")
    here.put("a", np.array([1]))
    eventually(lambda: came(there, "a", 1, 1))
    c = hosts("c", EXPORT).start()
    c.connect().put("a", np.array([2]))
    eventually(lambda: any(o["host"] == "c" and o["failures"]["conflict"] for o in rule(b)["hosts"]))
    # who stays away
    c.mirror.kill()
    eventually(lambda: any(o["host"] == "c" and not o["up"] for o in rule(b)["hosts"]))
    assert re.search("^c has all: gone, .* conflict [0-9]+", ask(b, "peers"), re.M)
    assert "1 of 2 hosts up" in ask(b, "status")


def test_bytes_that_do_not_come(linked):
    a = linked("a", EXPORT)
    here = a.connect()
    (b,), (there,) = imported(linked, "b")
    met(here, [there])
    a.link.damages = True
    here.put("large", numbers(PIECE))
    eventually(lambda: origin(b)["failures"]["damaged"])
    a.link.damages = False
    eventually(lambda: came(there, "large", 1, 0))
    a.link.cut()
    here.put("large", numbers(PIECE) + 1)
    eventually(lambda: origin(b)["lag_seconds"] > 8)  # it is tried for 10 s
    assert not origin(b)["failures"]["unreachable"]
    eventually(lambda: origin(b)["failures"]["unreachable"])
    told = metrics(http_get(control(b), "/metrics")[1])
    assert told["failures_total", ("host", "a"), ("import", "all"), ("reason", "unreachable")] == 1
    assert told["waiting_names", ("host", "a"), ("import", "all")] == 1
    a.link.mend()
    eventually(lambda: came(there, "large", 2, 1))
    eventually(lambda: origin(b)["waiting"] == 0)


def origin_or_none(host):
    return runs(host) and rule(host)["hosts"]


def test_nats_that_goes_and_comes(hosts, nats):
    a = hosts("a", EXPORT).start()
    eventually(lambda: runs(a) and status(a)["nats"]["up"])
    nats.kill()
    eventually(lambda: not status(a)["nats"]["up"])
    assert "NATS is away" in ask(a, "status")
    nats.start()
    eventually(lambda: status(a)["nats"] == {"up": True, "reconnects": 1})


def test_nats_that_hangs(hosts, nats):
    a, b, here, there = pair(hosts)
    here.put("name", np.array([1]))
    eventually(lambda: came(there, "name", 1, 1))
    nats.program.send_signal(signal.SIGSTOP)
    try:
        eventually(lambda: not status(b)["nats"]["up"])
        hung = time.monotonic()
        eventually(lambda: time.monotonic() - hung > 7)  # so long a host may be silent
    finally:
        nats.program.send_signal(signal.SIGCONT)
    eventually(lambda: status(b)["nats"]["up"])
    here.put("name", np.array([2]))
    eventually(lambda: came(there, "name", 2, 2))
    assert "a host is gone" not in b.mirror.said(), "a host was silent because of the server"


def wakes(pid):
    """How often threads of a process have waited so far."""
    counts = [re.search(r"^voluntary_ctxt_switches:\s+(\d+)", path.read_text(), re.M)[1] for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return sum(map(int, counts))


def test_an_idle_mirror_sleeps(hosts):
    a = hosts("a", "[export one]\nnamespace = default\n[import two]\nnamespace = mirror\n").start()
    eventually(lambda: runs(a) and status(a)["nats"]["up"])
    seconds, began, before = 6, time.monotonic(), wakes(a.mirror.pid)
    time.sleep(seconds)  # it is measured
    rate = (wakes(a.mirror.pid) - before) / (time.monotonic() - began)
    assert rate <= 4, f"it wakes {rate:.1f} times a second"


def tree(host, name):
    found = json.loads(ask(host, "tree", name, "--json"))["trees"]
    return found[0] if found else {"version": "0", "hosts": []}


def test_the_tree_of_a_version(linked):
    a = linked("a", "[export all]\nfanout = 1\n")
    here = a.connect()
    importers, others = imported(linked, "bc")
    met(here, others)
    assert "no host has asked" in ask(a, "tree", "hello")
    here.put("a name/large", numbers(6 * PIECE))
    for there in others:
        eventually(lambda there=there: came(there, "a name/large", 1, 0))
    told = tree(a, "a name/large")
    assert (told["export"], told["version"], told["bytes"]) == ("all", "1", 6 * PIECE)
    first, second = told["hosts"]
    assert (first["parent"], first["depth"], first["lost"]) == ("", 1, False)
    assert (second["parent"], second["depth"], second["lost"]) == (first["host"], 2, False)
    assert {first["host"], second["host"]} == {"b", "c"}
    assert f"    {second['host']} has it from {first['host']}\n" in ask(a, "tree", "a name/large")
    relay = next(host for host in importers if host.name == first["host"])
    eventually(lambda: rule(relay)["sent_bytes"] == 6 * PIECE)
    assert [one["host"] for one in rule(relay)["importers"]] == [second["host"]]


def test_a_host_that_relays_is_lost(linked):
    a = linked("a", "[export all]\nfanout = 1\n")
    here = a.connect()
    importers, others = imported(linked, "bc")
    met(here, others)
    for host in importers:
        host.link.rate = 2 * PIECE
    here.put("large", numbers(6 * PIECE))
    eventually(lambda: len(tree(a, "large")["hosts"]) == 2)
    first = tree(a, "large")["hosts"][0]["host"]
    (relay, _), (last, there) = sorted(zip(importers, others, strict=True), key=lambda pair: pair[0].name != first)
    eventually(lambda: relay.link.total() > PIECE)
    assert origin(last)["parents_lost"] == 0
    relay.mirror.kill()
    eventually(lambda: came(there, "large", 1, 0))
    assert origin(last)["parents_lost"] > 0 and "parents lost" in ask(last, "peers")
    assert {h["host"]: h["lost"] for h in tree(a, "large")["hosts"]} == {relay.name: True, last.name: False}
    assert f"{relay.name} has it from here, and was lost" in ask(a, "tree", "large")


def test_a_set(linked):
    a = linked("a", "[export all]\nset = yes\n")
    here = a.connect()
    (b,), (there,) = imported(linked, "b")
    began = time.time()
    here.put_many({"x": np.zeros(PIECE, "uint8"), "y": np.array([1])})
    eventually(lambda: came(there, "y", 1, 1))
    told = rule(a, "exports")
    assert told["set"] and told["names"] == 2 and told["held"] >= 1 and told["held_bytes"] >= PIECE + 8
    assert began - 1 < told["moment"] < time.time() + 1
    eventually(lambda: origin(b)["moment"] == told["moment"] and not origin(b)["transfers"])
    assert origin(b)["names"] == 2 and origin(b)["waiting"] == 0 and origin(b)["received_bytes"] == PIECE + 8
    assert tree(a, "y")["set"] and tree(a, "y")["hosts"][0]["host"] == "b"
    here.put("y", np.array([2]))  # comes with the announcement
    eventually(lambda: came(there, "y", 2, 2))
    eventually(lambda: origin(b)["received_bytes"] == PIECE + 16)
    a.link.rate = PIECE
    here.put("x", np.ones(2 * PIECE, "uint8"))
    eventually(lambda: origin(b)["waiting"] == 1 and origin(b)["lag_seconds"] > 0 and origin(b)["transfers"] == 1)
    eventually(lambda: came(there, "x", 2, 1))
    eventually(lambda: origin(b)["waiting"] == 0 and origin(b)["moment"] == rule(a, "exports")["moment"])


def of_streams(host):
    """What is told of streams, by the host which has them or by one to which they come."""
    return rule(host, "exports")["streams"] if status(host)["exports"] else origin(host)["streams"]


def subscribe(stream, there):
    eventually(lambda: there.streams())
    subscription = there.stream("s", existing=True).subscribe()
    eventually(lambda: stream.info().subscribers == 1)
    return subscription


def test_streams(hosts):
    a, b = hosts("a", EXPORT + "streams = yes\n").start(), hosts("b", IMPORT).start()
    stream = a.connect().stream("s", "broadcast", depth=4)
    subscription = subscribe(stream, b.connect("mirror"))

    def take(count):
        for _ in range(count):
            subscription.get(timeout=limit(60)).release()

    for _ in range(3):
        stream.put(np.arange(10))
    take(3)
    sent = {"count": 1, "subscribers": 1, "items": 3, "bytes": 240, "held": 0, "skipped": 0}
    eventually(lambda: of_streams(a) == sent)
    assert of_streams(b) == {"count": 1, "ended": 0, "items": 3, "bytes": 240, "waiting": 0}
    assert "streams of export all: 1 with 1 subscriber, gave 3 items of 240 bytes\n" in ask(a, "status")
    assert "streams of import all: 1, received 3 items of 240 bytes\n" in ask(b, "status")
    for _ in range(20):  # of which there is room for 4
        stream.put(np.arange(10), timeout=limit(60))
    eventually(lambda: of_streams(a)["held"] == 16 and of_streams(b)["waiting"])
    assert of_streams(b)["items"] == 7
    assert ", holds 16\n" in ask(a, "status") and re.search("7 items of .*, [0-9]+ waiting$", ask(b, "status"), re.M)
    take(20)
    stream.end()
    eventually(lambda: of_streams(b)["ended"] == 1)
    eventually(lambda: of_streams(a) == {**sent, "items": 23, "bytes": 1840})
    assert ", 1 ended\n" in ask(b, "status")
    told = metrics(http_get(control(a), "/metrics")[1])
    assert told["sent_items_total", ("export", "all")] == 23 and told["held_items", ("export", "all")] == 0
    told = metrics(http_get(control(b), "/metrics")[1])
    labels = ("host", "a"), ("import", "all")
    assert told["received_items_total", *labels] == 23 and told["ended_streams", *labels] == 1


def test_items_that_a_lossy_host_misses(hosts):
    a, b = hosts("a", EXPORT + "streams = yes\n").start(), hosts("b", IMPORT + "streams = lossy\n").start()
    stream = a.connect().stream("s", "broadcast", depth=4)
    subscription = subscribe(stream, b.connect("mirror"))
    for _ in range(100):
        stream.put(np.arange(10), timeout=limit(60))

    def skipped():
        subscription.get(timeout=limit(60)).release()
        return of_streams(a)["skipped"]

    eventually(skipped)
    assert re.search(", [0-9]+ skipped$", ask(a, "status"), re.M)


def test_requests(hosts):
    a, b = hosts("a", EXPORT).start(), hosts("b", IMPORT + "requests = want/\n").start()
    a.connect().put("x", np.array([1]))
    there, asks = b.connect("mirror"), b.connect()
    eventually(lambda: origin_or_none(b))
    assert rule(b)["requests"] == {"names": 0, "here": 0}
    asks.put("want/x", np.zeros(0))
    asks.put("want/y", np.zeros(0))
    eventually(lambda: came(there, "x", 1, 1))
    eventually(lambda: rule(b)["requests"] == {"names": 2, "here": 1})
    assert "requests of import all: 2 names, 1 here\n" in ask(b, "status")
    told = metrics(http_get(control(b), "/metrics")[1])
    assert told["requested_names", ("import", "all")] == 2 and told["requested_names_here", ("import", "all")] == 1
    assert "streams" not in rule(a, "exports") and "requests" not in rule(a, "exports")


def publish_on_gpu(link, address):
    with tensorlease.connect(address) as client:
        driver = Driver()
        array = Array(driver, (64,)).fill(1)
        link.send(client.publish("gpu", array))
        link.recv()
        client.delete("gpu")
        eventually(lambda: array.deleted)
        driver.free(array.memory)


def test_names_on_gpus_are_counted(gpus, hosts):
    a = hosts("a", EXPORT).start()
    here = a.connect()
    here.put("cpu", np.array([1]))
    producer = Child(publish_on_gpu, a.socket)
    assert producer.hear().version == 1
    eventually(lambda: runs(a) and rule(a, "exports")["names_on_gpus"] == 1)
    assert rule(a, "exports")["names"] == 1
    assert "1 on GPUs left out" in ask(a, "status")
    producer.end()




def test_a_second_one_waits(linked):
    a = linked("a", EXPORT)
    here = a.connect()
    (b,), (there,) = imported(linked, "b")
    met(here, [there])
    here.put("large", numbers(4 * PIECE))
    eventually(lambda: came(there, "large", 1, 0))
    second = Program(b.folder / "second.log", [MIRROR, "--config", b.config, "--log-level", "debug"])
    try:
        eventually(lambda: "another mirror runs" in second.said())
        here.put("more", np.array([1]))
        eventually(lambda: came(there, "more", 1, 1))
        assert "importing" not in second.said()
        first, started = b.mirror, status(b)["started"]
        sent = a.link.total()
        first.kill()
        first.wait()
        eventually(lambda: "takes over" in second.said() and runs(b) and origin_or_none(b))
        assert status(b)["started"] > started
        eventually(lambda: origin(b)["comparisons"] and origin(b)["names"] == 3)
        here.put("more", np.array([2]))
        eventually(lambda: came(there, "more", 2, 2))
        assert came(there, "large", 1, 0)
        assert a.link.total() - sent < PIECE, "what was here was sent again"
        assert "did not come" not in second.said()
    finally:
        second.end()
    assert not control(b).exists()


def test_one_that_waits_can_be_ended(hosts):
    a = hosts("a", EXPORT).start()
    eventually(lambda: runs(a))
    second = Program(a.folder / "second.log", [MIRROR, "--config", a.config])
    eventually(lambda: "another mirror runs" in second.said())
    second.end()
    assert runs(a), "its end took the socket away"


def test_daemons_with_sockets_in_one_directory(hosts):
    a = hosts("a", EXPORT)
    for name in ("one", "other"):
        a.config.write_text(re.sub("socket = .*", f"socket = {a.folder}/{name}", a.config.read_text()))
        assert f"no mirror answers at {a.folder}/{name}.mirror: " in ask(a, "status", status=1)
    a.config.write_text(re.sub("socket = .*", f"socket = tensorlease://lab{a.folder}/socket", a.config.read_text()))
    assert f"no mirror answers at {control(a)}: " in ask(a, "status", status=1)


def test_the_control_socket(hosts, tmp_path):
    other = tmp_path / "control"
    a = hosts("a", f"control = {other}\n" + EXPORT)
    assert f"no mirror answers at {other}: " in ask(a, "status", status=1)
    other.write_text("no socket")
    a.start()
    assert a.mirror.wait(limit(60)) == 1 and "there can be no control socket" in a.mirror.said()
    assert other.read_text() == "no socket"
    other.unlink()
    a.mirror = None
    a.start()
    eventually(lambda: other.exists())
    assert stat.S_IMODE(other.stat().st_mode) == 0o600
    eventually(lambda: "host a" in ask(a, "status"))
    assert http_get(other, "/nothing")[0] == 404
    assert not control(a).exists()


def test_commands(hosts):
    a = hosts("a", EXPORT)
    assert ask(a, "check") == "" and ask(a, "--check") == ""
    for wrong in (["nothing"], ["tree"], ["status", "more"], ["tree", "a", "b"]):
        assert "usage:" in ask(a, *wrong, status=2)
    a.start()
    eventually(lambda: runs(a))
    environment = {**os.environ, "PATH": f"{CLI.parent}:{os.environ['PATH']}"}
    command = [CLI, "mirror", "--config", a.config, "status", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=limit(60))
    assert json.loads(done.stdout)["host"] == "a"
    environment["PATH"] = "/nowhere"
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=limit(60))
    assert done.returncode == 1 and "tensorlease-mirror is not in $PATH" in done.stderr
    for line in ("metrics = 0.0.0.0:9000", "metrics = 127.0.0.1", "metrics = 127.0.0.1:70000"):
        a.config.write_text(f"[mirror]\n{line}\n")
        assert "metrics must be" in ask(a, "check", status=1)


def test_two_hosts_of_one_name(hosts, nats):
    """The importer takes one of them for it, and tells of the other one, also when both come anew to NATS."""
    a, b = hosts("a", EXPORT).start(), hosts("b", IMPORT).start()
    c = hosts("c", f"{EXPORT}[mirror]\nhost = a\n")
    here, other, there = a.connect(), c.connect(), b.connect("mirror")
    here.put_many({"same": np.array([1]), "of-a": np.array([1])})
    eventually(lambda: came(there, "same", 1, 1))
    other.put_many({"same": np.array([2]), "of-c": np.array([2])})
    c.start()
    eventually(lambda: origin(b)["failures"]["conflict"] > 0 and "of-c" in there.keys())
    assert "two hosts have one name" in b.mirror.said()
    for n in range(3, 20):
        here.put("same", np.array([1]))
        other.put("same", np.array([n]))
        eventually(lambda n=n: there.get("same").numpy()[0] == n)
        if n % 8 == 0:
            nats.kill()
            assert nats.start()
            eventually(lambda: all(status(host)["nats"]["up"] for host in (a, b, c)))
    refused = origin(b)["failures"]["conflict"]
    eventually(lambda: origin(b)["failures"]["conflict"] > refused)
    assert there.get("same").numpy()[0] == 19
    c.mirror.end()
    here.put("same", np.array([20]))
    eventually(lambda: there.get("same").numpy()[0] == 20)


def test_the_next_host_of_a_name_may_have_older_versions(hosts):
    """A host that another one replaces, with fewer versions, which are also older."""
    c = hosts("c", f"{EXPORT}[mirror]\nhost = a\n")
    other = c.connect()
    other.put("same", np.array([1]))
    a, b = hosts("a", EXPORT).start(), hosts("b", IMPORT).start()
    here, there = a.connect(), b.connect("mirror")
    for n in range(2, 9):
        here.put("same", np.array([n]))
    eventually(lambda: came(there, "same", 7, 8))
    a.mirror.end()
    c.start()
    eventually(lambda: there.get("same").numpy()[0] == 1)


@pytest.mark.parametrize("which", ["a", "b"])
def test_a_mirror_that_is_kicked_ends(hosts, which):
    """Its service starts it anew."""
    a, b, here, there = pair(hosts)
    met(here, [there])
    host = {"a": a, "b": b}[which]
    admin = {"a": here, "b": there}[which]
    for one in admin.clients():
        if one.pid == host.mirror.pid:
            admin.kick(one.id)
    here.put("next", numbers(PIECE))
    assert host.mirror.wait(limit(60)) == 1
    assert "tensorlease kick" in host.mirror.said()
    host.start()
    eventually(lambda: came(there, "next", 1, 0))


def test_files_that_cannot_be_read_are_named(tmp_path):
    config = "[mirror]\nhost = a\nnats = nats://127.0.0.1:4222\nca = {0}/ca\ncertificate = {0}/no\nkey = {0}/key\n"
    (tmp_path / "ca").write_text("")
    (tmp_path / "wrong.conf").write_text(config.format(tmp_path) + "[import x]\nfrom = b\n")
    done = subprocess.run([MIRROR, "--config", tmp_path / "wrong.conf", "check"], capture_output=True, text=True, timeout=limit(60))
    assert done.returncode == 1 and f"path={tmp_path}/no" in done.stderr and "No such file" in done.stderr, done.stderr


@pytest.mark.parametrize(
    "arguments, text",
    [(["stat"], "no command 'stat'"), (["tree"], "tree needs a NAME"), (["status", "x"], "status does not take 'x'")],
)
def test_usage(arguments, text):
    done = subprocess.run([MIRROR, *arguments], capture_output=True, text=True, timeout=limit(60))
    assert done.returncode == 2 and text in done.stderr


def test_what_may_not_be_published_is_not_fetched_again_and_again(hosts):
    a, b = hosts("a", EXPORT).start(), hosts("b", IMPORT, mirrored="no").start()
    here = a.connect()
    here.put("large", numbers(8 * PIECE))
    eventually(lambda: status(b)["imports"][0]["hosts"] and origin(b)["failures"]["other"] > 0)
    came_before = origin(b)["received_bytes"]
    for _ in range(30):
        here.put("large", numbers(8 * PIECE))
        for _ in range(3):  # so long would one take to come
            came_then = origin(b)["received_bytes"]
    assert came_then - came_before <= 10 * 8 * PIECE
    assert "mirror = yes" in b.mirror.said()
    assert "mirror = yes" in origin(b)["failure"] and "mirror = yes" in ask(b, "peers")
