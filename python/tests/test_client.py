# SPDX-License-Identifier: Apache-2.0
"""Connecting, getting, putting, listing, and the errors of all of these."""

import array
import asyncio
import builtins
import gc
import importlib.machinery
import inspect
import math
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from importlib.metadata import version
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
from conftest import (
    PACKAGE,
    close_during,
    daemon_at,
    eventually,
    gives_the_gil_up,
    in_child,
    is_interrupted,
    once_asleep,
    run_python,
)
from limits import limit

import tensorlease


def test_a_value_comes_back_as_it_was(client):
    frame = np.arange(24, dtype="float32").reshape(2, 3, 4)
    assert client.put("client/value", frame) == 1
    tensor = client.get("client/value")
    assert (tensor.name, tensor.version, tensor.shape, tensor.device) == ("client/value", 1, (2, 3, 4), "cpu")
    assert tensor.dtype == "float32" and tensor.nbytes == 96 and tensor.strides == (48, 16, 4)
    assert (tensor.ndim, tensor.size, tensor.itemsize, tensor.metadata, tensor.uid) == (3, 24, 4, b"", os.getuid())
    assert abs(tensor.committed_ns - time.time_ns()) < 60e9
    assert (tensor.numpy() == frame).all()


def test_versions_count_and_survive_a_delete(client):
    assert [client.put("client/count", b"x") for _ in range(3)] == [1, 2, 3]
    client.delete("client/count")
    assert "client/count" not in client
    assert client.put("client/count", b"x") == 4


def test_metadata_goes_with_the_tensor(client):
    client.put("client/meta", b"x", metadata=b"\0frame 7")
    assert client.get("client/meta").metadata == b"\0frame 7"
    assert client.stat("client/meta").metadata == b"\0frame 7"
    client.put("client/meta", b"x", metadata=bytes(1024))
    assert client.get("client/meta").metadata == bytes(1024)
    for call in (
        lambda: client.put("client/meta", b"x", metadata=bytes(1025)),
        lambda: client.publish("client/meta", b"x", metadata=bytes(1025)),
        lambda: client.create("client/meta", 1, "int8", metadata=bytes(1025)),
        lambda: client.create("client/meta", 1, "int8").commit(metadata=bytes(1025)),
    ):
        with pytest.raises(tensorlease.InvalidError, match=r"\] metadata: 1025 bytes; the limit is 1024$"):
            call()
    with pytest.raises(TypeError, match="metadata"):
        client.put("client/meta", b"x", metadata=7)


def test_no_such_name_is_a_file_not_found_error(client):
    for call in (client.get, client.stat, client.delete):
        with pytest.raises(FileNotFoundError, match="client/none") as caught:
            call("client/none")
        assert isinstance(caught.value, tensorlease.NotFoundError) and caught.value.errno == 2


def test_a_wait_in_vain_is_a_timeout_error(client):
    start = time.monotonic()
    with pytest.raises(builtins.TimeoutError, match="client/none.*0.05 s"):
        client.get("client/none", timeout=0.05)
    assert time.monotonic() - start > 0.04
    client.put("client/old", b"x")
    with pytest.raises(tensorlease.TimeoutError, match="above 1"):
        client.get("client/old", newer_than=1, timeout=0.01)
    with pytest.raises(BlockingIOError, match="above 1"):
        client.get("client/old", newer_than=1)
    assert client.get("client/old", newer_than=0, timeout=math.inf).version == 1


@pytest.mark.parametrize("name", ["", "/", "a//b", "../x", "a/.", "a\0b", "x" * 256, "a\nb"])
def test_what_is_no_name_is_a_value_error(client, name):
    with pytest.raises(ValueError):
        client.put(name, b"x")
    with pytest.raises(ValueError):
        client.get(name)
    assert name not in client


def test_names_may_be_any_unicode(client):
    client.put("café/☕", b"x")
    assert client.get("café/☕").name == "café/☕"
    with pytest.raises(TypeError):
        client.get(b"bytes")
    with pytest.raises(UnicodeEncodeError):
        client.get("\ud800")


@pytest.mark.parametrize(
    "arguments",
    [
        {"mode": "w"},
        {"mode": 7},
        {"timeout": -1},
        {"timeout": math.nan},
        {"spin": -1},
        {"newer_than": -1},
        {"newer_than": 1 << 64},
    ],
)
def test_wrong_arguments_of_get_are_value_errors(client, arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(ValueError, match=f"^{name} must be .* not {value}$|^{name} must be .* not '{value}'$"):
        client.get("client/none", **arguments)


@pytest.mark.parametrize("arguments", [{"newer": 1}, {"timeout": "1"}, {"spin": "1"}, {"newer_than": 1.5}])
def test_arguments_of_a_wrong_kind_are_type_errors(client, arguments):
    with pytest.raises(TypeError, match=next(iter(arguments))):
        client.get("client/none", **arguments)
    for wrong in ((), ("a", "b"), (7,)):
        with pytest.raises(TypeError):
            client.get(*wrong)
    with pytest.raises(TypeError, match="twice"):
        client.get("a", name="a")


def test_newer_than_takes_any_integer(client):
    client.put("client/integer", b"x")
    assert client.get("client/integer", newer_than=np.uint8(0)).version == 1
    with pytest.raises(tensorlease.NotNewerError):
        client.get("client/integer", newer_than=np.int64(1))


def test_a_waiting_get_sees_the_commit(client):
    thread = once_asleep(lambda: client.put("client/later", np.ones(3)))
    assert client.get("client/later", timeout=limit(60)).numpy().sum() == 3
    thread.join()
    thread = once_asleep(lambda: client.put("client/later", np.zeros(3)))
    assert client.get("client/later", newer_than=1, timeout=limit(60), spin=0.01).version == 2
    thread.join()


def test_a_waiting_get_leaves_the_gil_to_others(client):
    for asked in ({}, {"spin": 0.1}):

        def wait(asked=asked):
            with pytest.raises(TimeoutError):
                client.get("client/none", timeout=0.1, **asked)

        assert gives_the_gil_up(wait)


def test_a_large_put_leaves_the_gil_to_others(client):
    payload = np.ones(1 << 27, "uint8")
    assert gives_the_gil_up(lambda: client.put("client/large", payload, timeout=limit(60)))
    client.delete("client/large")


def test_a_signal_ends_a_waiting_get(address):
    assert is_interrupted(f"client.get('client/none', timeout={limit(50)})")


def test_a_signal_handler_that_returns_does_not_end_the_wait(client, observer):
    seen = []

    def interrupt():
        os.kill(os.getpid(), signal.SIGUSR1)
        eventually(lambda: seen)
        observer.put("client/after", b"x")

    old = signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    try:
        thread = once_asleep(interrupt)
        assert client.get("client/after", timeout=limit(60)).version == 1
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert seen == [1]


def test_close_wakes_who_waits(address):
    client = tensorlease.connect()
    said = close_during(client, lambda: client.get("client/none", timeout=limit(60)))
    assert said == ["the client was closed during a get"]
    client.close()
    assert client.closed and "closed" in repr(client)
    for call in (client.status, client.list, lambda: client.put("a", b""), lambda: client.get("a")):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_tensors_outlive_their_client(address):
    with tensorlease.connect() as client:
        client.put("client/outlives", np.arange(1000))
        tensor = client.get("client/outlives")
        draft = client.create("client/draft", 3, "int8")
    assert tensor.numpy()[999] == 999 and tensor.name == "client/outlives"
    with pytest.raises(ValueError, match="closed"):
        draft.commit()
    draft.abort()
    tensor.release()


def test_list_stat_and_contains(client):
    client.put("list/a", np.zeros((2, 3), "int16"))
    client.put("list/b", array.array("d", [1.0]))
    assert [(i.name, i.shape, i.dtype, i.nbytes) for i in client.list("list/")] == [
        ("list/a", (2, 3), "int16", 12),
        ("list/b", (1,), "float64", 8),
    ]
    assert client.stat("list/b") == client.list("list")[1]
    assert client.list("list/b") == []
    assert "list/a" in client and "list" not in client
    assert len(client.list()) >= 2 and client.list("no/such") == []


def test_status_clients_and_holdings(client):
    client.put("held/a", np.zeros(5))
    tensor = client.get("held/a")
    status = client.status()
    assert status.clients >= 1 and status.tensors >= 1 and status.daemon_pid > 0
    (mine,) = [c for c in client.clients() if c.pid == os.getpid()]
    held = [h for h in client.holdings(mine.id) if h.name == "held/a"]
    assert [(h.version, h.nbytes, h.leases, h.retired) for h in held] == [(1, 40, 1, False)]
    assert mine.leases == 1 and mine.bytes_held == 40 and repr(client).endswith(f"{status.address}>")
    client.delete("held/a")
    assert [h.retired for h in client.holdings(mine.id) if h.name == "held/a"] == [True]
    tensor.release()
    assert not client.holdings(mine.id)


def test_who_publishes_and_who_reads(address):
    camera = tensorlease.connect(address, label="camera.py")
    reader = tensorlease.connect(address, label="detector.py")
    try:
        camera.put("seen/a", np.zeros(5), ring=None)
        info = reader.stat("seen/a")
        who = info.publisher
        assert (who.label, who.pid, who.uid, who.gone) == ("camera.py", os.getpid(), os.geteuid(), False)
        assert reader.list("seen/")[0].publisher == who
        (row,) = [c for c in reader.clients() if c.label == "camera.py"]
        assert (row.id, row.since_ns) == (who.id, who.since_ns) and abs(time.time_ns() - who.since_ns) < 600e9
        assert reader.readers("seen/a") == []
        tensor = reader.get("seen/a")
        (held,) = camera.readers("seen/a")
        assert (held.name, held.client.label, held.leases) == ("seen/a", "detector.py", 1)
        assert held in camera.readers() and isinstance(held, tensorlease.Reader)
        tensor.release()
        camera.close()
        eventually(lambda: reader.stat("seen/a").publisher.gone)
        gone = reader.stat("seen/a").publisher
        assert gone == who._replace(gone=True) and isinstance(gone, tensorlease.Identity)
        assert pickle.loads(pickle.dumps(gone)) == gone
        with pytest.raises(ValueError):
            reader.readers("seen//a")
        with pytest.raises(TypeError):
            reader.readers(5)
    finally:
        reader.close()
        camera.close()


def test_what_does_not_fit_is_said(client):
    with pytest.raises(tensorlease.NoSpaceError) as caught:
        client.create("client/huge", (1 << 40,), "uint8")
    assert isinstance(caught.value, OSError) and caught.value.errno == 28
    with pytest.raises(ValueError, match=r"shape: \(\d+, \d+\) of 8 bits each is more than"):
        client.create("client/huge", (1 << 62, 1 << 62), "uint8")


def test_nobody_listens(tmp_path):
    with pytest.raises(ConnectionRefusedError, match="no daemon") as caught:
        tensorlease.connect(tmp_path / "none", autostart=False)
    assert isinstance(caught.value, tensorlease.NoDaemonError)
    with pytest.raises(ValueError):
        tensorlease.connect("x" * 200, autostart=False)
    with pytest.raises(TypeError):
        tensorlease.connect(7)


def test_a_daemon_is_started_and_ends_by_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORLEASE_SOCKET", str(tmp_path / "socket"))
    for missing in (lambda: tensorlease.connect(), lambda: tensorlease.connect(tmp_path / "socket")):
        with pytest.raises(tensorlease.NoDaemonError):
            missing()  # where an address is given, no daemon is started unasked
    assert not os.listdir(tmp_path)
    with tensorlease.connect(autostart=True) as client:
        assert client.put("auto", b"x") == 1
        pid = client.status().daemon_pid
        assert os.readlink(f"/proc/{pid}/exe") == str(PACKAGE / "bin" / "tensorleased")
        with tensorlease.connect(str(tmp_path / "socket"), autostart=False) as other:
            assert other.get("auto").size == 1
    os.kill(pid, signal.SIGTERM)
    eventually(lambda: not os.path.exists(f"/proc/{pid}/fd/0"))


@pytest.mark.skipif(
    os.path.exists("/run/tensorlease/socket"), reason="this machine has a daemon at the address that comes before"
)
@pytest.mark.parametrize("empty", [False, True])
def test_without_an_address_a_daemon_is_started(tmp_path, monkeypatch, empty):
    monkeypatch.delenv("TENSORLEASE_SOCKET", raising=False)
    if empty:
        monkeypatch.setenv("TENSORLEASE_SOCKET", "")
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(tensorlease.NoDaemonError):
        tensorlease.connect(autostart=False)
    with tensorlease.connect() as client:
        pid = client.status().daemon_pid
        assert client.status().address == str(tmp_path / "tensorlease" / "socket")
        other = pickle.loads(pickle.dumps(client))
        assert other.status().daemon_pid == pid
        other.close()
    os.kill(pid, signal.SIGTERM)
    eventually(lambda: not os.path.exists(f"/proc/{pid}/fd/0"))


def test_after_a_restart_calls_connect_again(tmp_path):
    address = str(tmp_path / "socket")
    with daemon_at(address) as first, tensorlease.connect(address, autostart=False) as client:
        client.put("a", np.arange(5000))
        tensor = client.get("a")
        first.kill()
        first.wait()
        assert (tensor.numpy() == np.arange(5000)).all()
        with pytest.raises(ConnectionError):
            client.delete("a")
        over = threading.Event()

        def start():
            with daemon_at(address):
                client.put("after", b"x")
                over.wait()

        thread = once_asleep(start)
        try:
            assert client.get("after", timeout=limit(60)).size == 1  # waits over the restart
            tensor.release()
            client.close()
        finally:
            over.set()
            thread.join()


def test_a_client_can_be_pickled_as_another_connection(client):
    copy = pickle.loads(pickle.dumps(client))
    try:
        client.put("client/pickled", b"12")
        assert copy.get("client/pickled").nbytes == 2 and copy is not client
    finally:
        copy.close()
    with pytest.raises(TypeError, match="client.ref"):
        pickle.dumps(client.get("client/pickled"))


def test_many_threads_share_a_client(client):
    client.put("client/shared", np.arange(100))
    failures = []

    def work(n):
        try:
            for i in range(300):
                with client.get("client/shared") as tensor:
                    assert tensor.numpy()[7] == 7
                client.put(f"client/shared/{n}", np.full(10, i))
                assert client.get(f"client/shared/{n}", mode="c").numpy()[0] == i
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_put_without_waiting_is_seen(client):
    assert client.put("client/async", b"x", wait=False) is None
    assert client.get("client/async", timeout=limit(30)).version == 1


def test_public_things_say_what_they_do():
    assert tensorlease.__version__ == version("tensorlease")
    for name in tensorlease.__all__:
        assert getattr(tensorlease, name).__doc__, name
    for thing in (tensorlease.Client, tensorlease.Tensor, tensorlease.Draft):
        for name, member in inspect.getmembers(thing):
            if not name.startswith("_"):
                assert member.__doc__, f"{thing.__name__}.{name}"
    assert str(inspect.signature(tensorlease.connect)).startswith("(address=None, *, namespace=None, autostart=None")


def test_a_subclass_with_arguments_of_its_own(address):
    class Mine(tensorlease.Client):
        def __init__(self, number, *, where):
            super().__init__(where, autostart=False)
            self.number = number

    mine = Mine(7, where=address)
    assert mine.number == 7 and mine.status().address == address
    again = pickle.loads(pickle.dumps(tensorlease.Client(address)))
    assert type(again) is tensorlease.Client and again.status().address == address
    with pytest.raises(ValueError, match="already"):
        mine.__init__(7, where=address)
    mine.close()
    with pytest.raises(ValueError, match="was closed"):
        tensorlease.Client.__init__(mine, address)
    with pytest.raises(ValueError, match="closed"):
        mine.status()

    class Forgets(tensorlease.Client):
        def __init__(self):
            self.number = 7

    for client in (Forgets(), tensorlease.Client.__new__(tensorlease.Client)):
        with pytest.raises(ValueError, match=r"never connected.* must call super\(\)"):
            client.status()
        client.close()


def test_a_client_and_its_draft_are_collected(address, observer):
    client = tensorlease.connect(autostart=False)
    client.draft = client.create("client/cycle", 3, "int8")
    gone = weakref.ref(client)
    before = observer.status().drafts
    del client
    gc.collect()
    assert gone() is None
    eventually(lambda: observer.status().drafts == before - 1)


def test_too_many_clients_have_an_error_of_their_own(tmp_path):
    address = str(tmp_path / "socket")
    with daemon_at(address, more=("--max-clients", "2")):
        first = tensorlease.connect(address, autostart=False)
        eventually(lambda: len(first.clients()) == 1)
        with tensorlease.connect(address, autostart=False), pytest.raises(tensorlease.TooManyClientsError):
            tensorlease.connect(address, autostart=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_too_many_connections_of_a_user_are_the_same_error():
    with tempfile.TemporaryDirectory(prefix="tl-users-") as folder:
        os.chmod(folder, 0o755)
        address, config = f"{folder}/socket", Path(folder, "config")
        config.write_text("[user *]\nconnections = 1\n")

        def connect_twice():
            os.setuid(4321)
            with tensorlease.connect(address, autostart=False, timeout=limit(60)):
                with pytest.raises(tensorlease.TooManyClientsError, match="connections"):
                    tensorlease.connect(address, autostart=False, timeout=limit(60))

        with daemon_at(address, more=("--config", config)):
            in_child(connect_twice)


def test_other_libraries_tell_which_class_a_tensor_is(client):
    client.put("client/class", b"x")
    assert type(client.get("client/class")).__name__ == "tensorlease.Tensor"


# ---- As a mapping ----


def test_get_with_a_default(client):
    assert client.get("client/none", default=None) is None and client.get("client/none", default=5, timeout=0.01) == 5
    client.put("client/some", np.arange(3))
    assert client.get("client/some", default=None).version == 1
    assert client.get("client/some", newer_than=1, default="old") == "old"
    for wrong in ({"name": "a\0b"}, {"name": 5}, {"name": "x", "mode": "w"}):
        with pytest.raises((TypeError, ValueError)):
            client.get(**wrong, default=None)


def test_names_as_keys(client):
    client["client/key/a"] = np.arange(3)
    client["client/key/b"] = np.ones(2)
    assert client["client/key/a"].tolist() == [0, 1, 2]
    assert client.keys("client/key/") == ["client/key/a", "client/key/b"]
    assert set(client.keys("client/key/")) <= set(client)
    del client["client/key/a"]
    with pytest.raises(KeyError):
        client["client/key/a"]
    with pytest.raises(tensorlease.NotFoundError):
        del client["client/key/a"]
    client.delete("client/key/a", missing_ok=True)
    for call in (client.keys, client.get_many, lambda prefix: client.watch(prefix=prefix)):
        with pytest.raises(tensorlease.InvalidError, match="no name can be below '/client"):
            call("/client")
    with pytest.raises(tensorlease.NotFoundError):
        client.delete("client/key/a")
    assert bool(client)


def test_a_version_is_deleted_and_no_later_one(client):
    client.put("client/versions", b"1")
    client.put("client/versions", b"2")
    with pytest.raises(tensorlease.NotFoundError, match="means another version than 1"):
        client.delete("client/versions", version=1)
    client.delete("client/versions", version=1, missing_ok=True)
    assert "client/versions" in client
    client.delete("client/versions", version=np.int64(2))
    with pytest.raises(tensorlease.NotFoundError, match="no tensor"):
        client.delete("client/versions", version=2)
    for version, error in ((0, ValueError), (-1, ValueError), (1 << 64, ValueError), ("1", TypeError)):
        with pytest.raises(error):
            client.delete("client/versions", version=version)


def test_a_tensor_is_renamed(client):
    client.put("client/old", np.arange(3), metadata=b"m", ttl=1000, evictable=True)
    client.put("client/new", b"replaced")
    held = client.get("client/old")
    assert client.rename("client/old", "client/new") == 2
    assert "client/old" not in client and client.get("client/new")._address == held._address
    info = client.stat("client/new")
    assert (info.metadata, info.evictable, info.owner_bound) == (b"m", True, False) and 0 < info.ttl <= 1000
    assert client.rename("client/new", "client/new") == 2 and client.get("client/new").tolist() == [0, 1, 2]
    for name, new_name, error in (
        ("client/none", "client/x", tensorlease.NotFoundError),
        ("client/none", "client/none", tensorlease.NotFoundError),
        ("client/new", "a//b", ValueError),
        ("client/new", 3, TypeError),
    ):
        with pytest.raises(error):
            client.rename(name, new_name)
    assert "client/new" in client


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_a_tensor_of_another_user_is_not_renamed(tmp_path):
    code = """
import os, tensorlease
os.setuid(4321)
client = tensorlease.connect()
client.get("theirs")
try: client.rename("theirs", "mine")
except tensorlease.PermissionDeniedError as error: print(error.strerror)
"""
    with tempfile.TemporaryDirectory(prefix="tl-py-") as folder, daemon_at(f"{folder}/socket"):
        os.chmod(folder, 0o755)
        with tensorlease.connect(f"{folder}/socket") as client:
            client.put("theirs", np.arange(3))
            said = run_python(code, TENSORLEASE_SOCKET=f"{folder}/socket", TENSORLEASE_TRUST_UID="0")
            assert said.stdout == "'theirs' belongs to user 0, not to user 4321\n"
            assert client.keys() == ["theirs"]


# While a tensor is renamed, its name becomes free, and another user takes it.
OVERTAKEN = """
import os, tensorlease
def become(uid):
    os.seteuid(0)
    os.seteuid(uid)
class Overtaken(tensorlease.Client):
    def _publish(self, name, *more, **options):
        published = super()._publish(name, *more, **options)
        if name == "new":
            self.delete("old")
            become(4321)
            tensorlease.connect().put("old", b"theirs")
            become(4322)
        return published
become(4322)
client = Overtaken()
client.put("old", b"mine")
print(client.rename("old", "new"), bytes(client.get("new")), bytes(client.get("old")))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two other users")
def test_another_user_may_take_the_name_while_it_is_renamed():
    with tempfile.TemporaryDirectory(prefix="tl-py-") as folder, daemon_at(f"{folder}/socket"):
        os.chmod(folder, 0o755)
        said = run_python(OVERTAKEN, TENSORLEASE_SOCKET=f"{folder}/socket", TENSORLEASE_TRUST_UID="0")
        assert said.stdout == "1 b'mine' b'theirs'\n"


def test_a_name_that_another_user_took_and_left_while_it_was_renamed_is_gone(address):
    class Renaming(tensorlease.Client):
        def delete(self, name, **options):
            super().delete(name, **options)
            raise tensorlease.PermissionDeniedError(13, "it was another user's")

    with Renaming(address) as client:
        client.put("client/taken", b"x")
        assert client.rename("client/taken", "client/given") == client.stat("client/given").version
    with tensorlease.connect(address) as client:
        client.delete("client/given")


def test_a_name_that_is_published_while_it_is_renamed_stays(client):
    """Each value is found under one of the names, whenever somebody looks."""
    over = threading.Event()

    def publish():
        for n in range(300):
            client.put("client/from", np.array([n]))
        over.set()

    client.put("client/from", np.array([-1]))
    thread = threading.Thread(target=publish)
    thread.start()
    seen = -1
    while not over.is_set():
        if client.get("client/from", default=None) is not None:
            client.rename("client/from", "client/to")
            now = client.get("client/to").item()
            assert now >= seen
            seen = now
    thread.join()
    assert max(t.item() for t in client.get_many("client/").values() if t.name in ("client/from", "client/to")) == 299


def test_watching_a_name(client):
    client.put("client/watch", np.full(3, 0))
    seen = []
    for tensor in client.watch("client/watch", timeout=limit(60)):
        seen.append((tensor.version, int(tensor[0])))
        if len(seen) == 3:
            break
        for n in range(2):
            client.put("client/watch", np.full(3, 10 * len(seen) + n))
    assert seen == [(1, 0), (3, 11), (5, 21)]
    with pytest.raises(tensorlease.TimeoutError):
        next(client.watch("client/watch", newer_than=5, timeout=0.01))


def test_watching_in_asyncio(client):
    async def main():
        seen = []
        async for tensor in client.watch("client/awatch", timeout=limit(60)):
            seen.append(tensor.version)
            if len(seen) == 3:
                return seen
            asyncio.get_running_loop().call_later(0.01, client.put, "client/awatch", b"x")

    client.put("client/awatch", b"x")
    assert asyncio.run(main()) == [1, 2, 3]


def test_a_ref_is_got_elsewhere(client):
    client.put("client/ref", np.arange(5))
    tensor = client.get("client/ref")
    ref = pickle.loads(pickle.dumps(client.ref(tensor)))
    assert (ref.name, ref.version) == ("client/ref", 1)
    for got in (ref.get(), ref.get(client), ref.get(mode="c")):
        assert got.tolist() == [0, 1, 2, 3, 4]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(total, (ref,)) == 10
    client.put("client/ref", np.arange(6))
    assert ref.get().tolist() == [0, 1, 2, 3, 4]  # it is held still
    with pytest.raises(TypeError, match="ref"):
        pickle.dumps(tensor)
    del got
    tensor.release()
    eventually(lambda: client.status().retired == 0)
    with pytest.raises(tensorlease.NotFoundError, match="version 2 now"):
        ref.get()
    client.delete("client/ref")
    with pytest.raises(tensorlease.NotFoundError, match="received before"):
        ref.get()


def total(ref):
    return int(ref.get().numpy().sum())


def sum_and_pass(tensor, results, done):
    results.put((int(tensor.numpy().sum()), tensor.read_only, tensor))
    done.get()  # what was sent has been got


def where(array):
    """The sum of an array, and whether its memory is a tensor that this process maps."""
    base = array
    while getattr(base, "base", None) is not None:
        base = base.base
    return int(array.sum()), isinstance(base, memoryview) and isinstance(base.obj, tensorlease.Tensor)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_arrays_over_tensors_are_sent_by_choice(client, method):
    client.put("client/array", np.arange(1000, dtype="int32").reshape(10, 100))
    whole = client.get("client/array").numpy()
    written = client.get("client/array", mode="c").numpy()
    written[:] = 1
    views = [whole, whole[3:7, ::2], whole[::-1, 5], whole.T, whole[2, 3:4].reshape(())]
    copies = [written, whole.copy(), whole[:0], np.arange(5)]
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.map(where, views) == [(int(view.sum()), False) for view in views]
        client.pickle_tensors()
        try:
            assert pool.map(where, views) == [(int(view.sum()), True) for view in views]
            assert pool.map(where, copies) == [(int(copy.sum()), False) for copy in copies]
            client.put("client/array", np.zeros(4))
            assert pool.map(where, views) == [(int(view.sum()), True) for view in views]
        finally:
            tensorlease._sending.pickle_for(None)


def test_views_are_sent_as_views(client):
    values = np.arange(6, dtype="float32").reshape(2, 3)
    client.put("client/view", values)
    pytest.importorskip("ml_dtypes")
    with client.create("client/brain", 3, "bfloat16") as draft:
        draft.bytes()[:] = bytes(range(6))
    send = ForkingPickler.dumps
    client.pickle_tensors()
    try:
        view = client.get("client/view").view("uint8")
        again = pickle.loads(send(view))
        assert again.dtype == "uint8" and again.shape == view.shape and again.name == "client/view"
        assert again.numpy().tobytes() == values.tobytes()
        array = client.get("client/brain").view("uint8").numpy()[2:]
        assert where(pickle.loads(send(array))) == (2 + 3 + 4 + 5, True)
        array = client.get("client/brain").numpy()[1:]  # its type has no format in the buffer protocol
        again = pickle.loads(send(array))
        assert again.dtype == array.dtype and again.tobytes() == array.tobytes() and where(again)[1]
        with client.get("client/view") as tensor:
            array = tensor.numpy()  # holds the lease longer than the Tensor does
        assert (pickle.loads(send(array)) == values).all()
    finally:
        tensorlease._sending.pickle_for(None)


def test_tensors_of_another_daemon_are_not_sent_as_ours(client, tmp_path):
    with daemon_at(tmp_path / "socket"), tensorlease.connect(tmp_path / "socket", autostart=False) as other:
        client.put("client/two", np.arange(3))
        other.put("client/two", np.ones(3, "int64"))
        client.pickle_tensors()
        try:
            with pytest.raises(ValueError, match="of another daemon"):
                pickle.dumps(other.get("client/two"))
        finally:
            tensorlease._sending.pickle_for(None)
        with pytest.raises(tensorlease.InvalidError, match="another client's"):
            client.publish("client/three", other.create("client/three", (1,), "int8"))


def test_the_path_of_a_socket_may_have_any_bytes(tmp_path):
    address = os.fsdecode(os.fsencode(tmp_path) + b"/s\xff")
    with daemon_at(address), tensorlease.connect(address) as client:
        assert client.status().address == address and address in repr(client)
    with daemon_at(address), tensorlease.connect(os.fsencode(address)) as client:
        assert pickle.loads(pickle.dumps(client)).status().address == address


def test_a_create_that_close_overtakes_is_told_so(tmp_path):
    address = tmp_path / "socket"
    with daemon_at(address) as daemon:
        client = tensorlease.connect(address, timeout=limit(60))
        daemon.send_signal(signal.SIGSTOP)
        try:
            said = close_during(client, lambda: client.create("client/late", 5, "int8"), daemon.send_signal, signal.SIGCONT)
        finally:
            daemon.send_signal(signal.SIGCONT)
        assert said == ["the client was closed during a create"]
        with tensorlease.connect(address) as other:
            eventually(lambda: other.status().drafts == 0)


def test_clients_with_any_name_are_listed(client, address):
    tool = os.environ.get("TL_TEST_CLI")
    if not tool:
        pytest.skip("TL_TEST_CLI does not say where the command line tool is")
    with subprocess.Popen(["\u00e4" * 20, "watch"], executable=tool, stdout=subprocess.DEVNULL) as process:
        eventually(lambda: any(c.pid == process.pid and c.label.startswith("\u00e4\u00e4") for c in client.clients()))
        process.kill()


def label_of(client):
    (me,) = [one for one in client.clients() if one.pid == os.getpid() and one.id == max(c.id for c in client.clients())]
    return me.label


def test_a_client_has_a_label(address, monkeypatch):
    monkeypatch.delenv("TENSORLEASE_LABEL", raising=False)
    for argument, spec, label in [
        ("/home/me/camera.py", None, "camera.py"),
        ("/x/__main__.py", "tensorlease.camera.__main__", "tensorlease.camera"),
        ("\u00e4" * 20, None, "\u00e4" * 15),
        ("a\nb", None, "a?b"),
        ("-c", None, os.path.basename(sys.executable)),
    ]:
        monkeypatch.setattr(sys, "argv", [argument])
        monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec and importlib.machinery.ModuleSpec(spec, None))
        with tensorlease.connect(address) as client:
            found = label_of(client)
            assert found == label or (argument == "-c" and found.startswith("python"))
    with tensorlease.connect(address, label="front camera") as client:
        assert label_of(client) == "front camera"
        with pickle.loads(pickle.dumps(client)) as again:
            assert label_of(again) == "front camera"
    monkeypatch.setenv("TENSORLEASE_LABEL", "trainer 1")
    with tensorlease.connect(address) as client:
        assert label_of(client) == "trainer 1"
    monkeypatch.setenv("TENSORLEASE_LABEL", "x" * 32)
    with pytest.raises(tensorlease.InvalidError, match=r"TENSORLEASE_LABEL has 32 bytes, and 31 at most"):
        tensorlease.connect(address)
    with pytest.raises(tensorlease.InvalidError, match="label has 33 bytes, and 31 at most"):
        tensorlease.connect(address, label="y" * 33)
    with pytest.raises(tensorlease.InvalidError, match="control character"):
        tensorlease.connect(address, label="a\tb")
    with pytest.raises(TypeError):
        tensorlease.connect(address, label=7)


def double(tensor):
    return int(tensor.numpy().sum()) * 2


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_tensors_are_sent_by_choice(client, method):
    client.put("client/sent", np.arange(5))
    tensor = client.get("client/sent")
    client.pickle_tensors()
    try:
        context = multiprocessing.get_context(method)
        with context.Pool(1) as pool:
            assert pool.map(double, [tensor] * 4) == [20] * 4
        results, done = context.Queue(), context.Queue()
        process = context.Process(target=sum_and_pass, args=(client.get("client/sent", mode="c"), results, done))
        process.start()
        value, read_only, again = results.get(timeout=limit(60))
        assert value == 10 and not read_only and again.tolist() == [0, 1, 2, 3, 4]
        done.put(None)
        process.join()
        client.put("client/sent", np.arange(6))
        again = pickle.loads(pickle.dumps(tensor))
        assert (again.tolist(), again.version) == ([0, 1, 2, 3, 4], tensor.version)
    finally:
        tensorlease._sending.pickle_for(None)
    with pytest.raises(TypeError, match="pickle_tensors"):
        pickle.dumps(tensor)


def test_a_client_without_a_daemon_can_be_shown(tmp_path):
    address = str(tmp_path / "socket")
    with daemon_at(address) as first, tensorlease.connect(address, autostart=False) as client:
        first.kill()
        first.wait()
        assert repr(client) == "<tensorlease.Client, DisconnectedError>"
