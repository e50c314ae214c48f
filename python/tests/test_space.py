# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and close() also end waits that the library cannot end early: for space, and spinning."""

import os
import tempfile
import threading
import time

import numpy as np
import pytest

import tensorlease
from conftest import HEED_SIGINT, close_during, daemon_at, eventually, is_interrupted, once_asleep, run_python
from limits import limit

MIB = 1 << 20
CALLS = [
    "client.create('space/b', (3, 1 << 20), 'u1', timeout={})",
    "client.put('space/b', bytes(3 << 20), timeout={})",
    "client.publish('space/b', bytes(3 << 20), timeout={})",
    "client.put_many({{'space/b': bytes(3 << 20)}}, timeout={})",
    "client.load('space/b', {!r}, timeout={})",
]


@pytest.fixture(scope="module")
def daemon():
    with tempfile.TemporaryDirectory(prefix="tl-py-") as folder, daemon_at(f"{folder}/socket", "4M"):
        np.save(f"{folder}/large.npy", np.zeros(3 * MIB, "u1"))
        yield f"{folder}/socket"


@pytest.fixture
def full(observer):
    draft = observer.create("space/a", 2 * MIB, "u1")
    yield draft
    draft.abort()


def written(call, daemon, timeout):
    file = os.path.join(os.path.dirname(daemon), "large.npy")
    return call.format(*([file] if "load" in call else []), timeout)


@pytest.mark.parametrize("call", CALLS)
def test_control_c_ends_a_wait_for_space(full, daemon, call):
    assert is_interrupted(written(call, daemon, "float('inf')"))


@pytest.mark.parametrize("call", CALLS)
def test_close_ends_a_wait_for_space(full, daemon, client, call):
    names = {"client": client}
    said = close_during(client, lambda: eval(written(call, daemon, limit(60)), names))
    assert said == ["the client was closed during a wait for space"]


@pytest.mark.parametrize("call", CALLS)
def test_space_that_comes_ends_the_wait(full, daemon, client, call):
    thread = once_asleep(full.abort)
    made = eval(written(call, daemon, limit(60)), {"client": client})
    thread.join()
    if isinstance(made, tensorlease.Draft):
        made.commit()
    assert client.get("space/b").nbytes == 3 * MIB
    client.delete("space/b")


def test_close_ends_a_wait_for_space_for_the_copy_of_a_draft(tmp_path):
    address = str(tmp_path / "socket")
    with daemon_at(address, "4M") as first, tensorlease.connect(address, autostart=False) as client:
        draft = client.create("space/b", 3 * MIB, "u1")
        first.kill()
        first.wait()
        with daemon_at(address, "4M"), tensorlease.connect(address, autostart=False) as other:
            full = other.create("space/a", 2 * MIB, "u1")
            assert client.list() == []  # it is connected again
            said = close_during(client, lambda: client.publish("space/b", draft, timeout=limit(60)))
            full.abort()
    assert said == ["the client was closed during a wait for space"]


def test_a_wait_for_space_lasts_as_long_as_it_was_told(full, client):
    began = time.monotonic()
    with pytest.raises(tensorlease.NoSpaceError, match="3145728"):
        client.create("space/b", 3 * MIB, "u1", timeout=0.5)
    assert time.monotonic() - began >= 0.5


def test_what_never_fits_is_not_waited_for(client):
    began = time.monotonic()
    with pytest.raises(tensorlease.NoSpaceError, match="never fit"):
        client.create("space/b", 1 << 40, "u1", timeout=limit(60))
    assert time.monotonic() - began < limit(30)


def processor_ticks(tid):
    with open(f"/proc/self/task/{tid}/stat") as stat:
        return int(stat.read().rpartition(") ")[2].split()[11])


def once_spinning(call):
    """Makes a call on a thread when the thread that started it has been busy for a while."""
    me = threading.get_native_id()
    before = processor_ticks(me)

    def work():
        eventually(lambda: processor_ticks(me) > before + 5)
        call()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_control_c_ends_a_spin(daemon, address):
    code = f"""{HEED_SIGINT}
import os, sys, time, tensorlease
sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_space import once_spinning
client = tensorlease.connect(autostart=False)
began = time.monotonic()
try:
    thread = once_spinning(lambda: os.kill(os.getpid(), signal.SIGINT))
    client.get("space/none", timeout={limit(50)}, spin={limit(50)})
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - began < {limit(30)})
"""
    assert run_python(code, timeout=limit(120)).stdout == "interrupted True\n"


def test_close_ends_a_spin(client):
    began = time.monotonic()
    thread = once_spinning(client.close)
    with pytest.raises(ValueError, match="closed during a get"):
        client.get("space/none", timeout=limit(50), spin=limit(50))
    thread.join()
    assert time.monotonic() - began < limit(30)


def test_a_spin_is_part_of_the_timeout(client):
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"within 0\.2 s"):
        client.get("space/none", timeout=0.2, spin=limit(50))
    assert time.monotonic() - began < limit(30)
    thread = once_spinning(lambda: client.put("space/soon", b"1"))
    assert client.get("space/soon", timeout=limit(60), spin=limit(60)).version == 1
    thread.join()
