# SPDX-License-Identifier: Apache-2.0
"""Fixtures of test_gpu_*.py: tensors on GPUs of the fake driver. Children use CUDA; the test itself never does."""

import ctypes
import gc
import os
from pathlib import Path

import dlpack_abi as abi
import pytest
from conftest import eventually, leases_of, run_daemon
from cuda_driver import LEGACY, Array, Child, Driver, FakeMachine, Taken
from limits import limit

import tensorlease

N = 3 << 20
FAKE = os.environ.get("TL_TEST_FAKECUDA_LIB", "")


@pytest.fixture
def daemon():
    """A daemon for each test, so that versions start from 1."""
    with run_daemon() as address:
        yield address


@pytest.fixture
def gpus(address, monkeypatch):
    """Two GPUs of this test's own. Nothing may be left on them, and no rule of CUDA may be broken."""
    if not os.path.exists(FAKE):
        pytest.skip("TL_TEST_FAKECUDA_LIB does not name the fake driver (`make test-python` does)")
    before = os.environ.get("LD_LIBRARY_PATH")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(Path(FAKE).parent) + (f":{before}" if before else ""))
    machine = FakeMachine()
    monkeypatch.setenv("FAKECUDA_DIR", str(machine.path))
    yield machine
    assert machine.close() is None


def connect():
    return tensorlease.connect(autostart=False)


# ---- Producers ----


def take_back(client, array):
    """Deletes "t", which is that array. Its memory is free once it was given back."""
    client.delete("t")
    eventually(lambda: array.deleted)
    array.driver.free(array.memory)


def publish_and_stay(link, byte, asked=None, how=None):
    client, driver = connect(), Driver()
    array = Array(driver, (N,), offset=1 << 20, **(how or {}))
    array.fill(byte)
    published = client.publish("t", array, **(asked or {}))
    link.send((published, array.streams))
    link.recv()
    assert array.deleted == 0
    take_back(client, array)
    assert array.deleted == 1


def fill_draft_and_stay(link, byte, device=0):
    client, driver = connect(), Driver(device)
    with client.create("t", (N,), "uint8", device=device) as draft:
        Taken(driver, draft, LEGACY).fill(byte)
    link.send(draft.version)
    link.recv()
    client.delete("t")


def publish_held(link):
    """Publishes "t", which becomes 4 when the GPU goes on that the test stops once it was told."""
    client, driver = connect(), Driver()
    array = Array(driver, (64,)).fill(3)
    driver.synchronize(array.work)
    link.send("written once")
    link.recv()
    array.fill(4)  # stands still
    link.send(client.publish("t", array))
    link.recv()
    take_back(client, array)


def start_and_hold(gpus, work):
    """Starts a child that does work. When it has told something, it goes on while its GPU stands still until hold(0)."""
    child = Child(work)
    child.hear()
    gpus.hold(child.pid)
    child.tell()
    return child


def start_held(gpus, work):
    """Does the same, and waits until the child tells more."""
    child = start_and_hold(gpus, work)
    child.hear()
    return child


# ---- Consumers ----


def take(byte, stream=None):
    client, driver = connect(), Driver()
    tensor = client.get("t", timeout=limit(10))
    assert (tensor.device, tensor.__dlpack_device__()) == ("cuda:0", (2, 0))
    assert (tensor.shape, tensor.dtype, tensor.nbytes, tensor.read_only) == ((N,), "uint8", N, True)
    assert tensor.lost is False
    taken = Taken(driver, tensor, stream)
    assert taken.managed.flags == abi.READ_ONLY
    assert (taken.device, taken.shape) == ((2, 0), (N,))
    assert taken.address == tensor._address
    assert taken.read() == bytes([byte]) * N
    del tensor, taken
    gc.collect()
    eventually(lambda: leases_of(client, os.getpid()) == 0)  # when its stream has done that work


def take_now(byte):
    """Reads without waiting for any stream."""
    client, driver = connect(), Driver()
    return Taken(driver, client.get("t"), -1).peek() == bytes([byte]) * N


def is_unfinished(client, name):
    """Whether a get waits for its producer's work."""
    try:
        client.get(name, timeout=0.02, stream=1).release()
    except tensorlease.TimeoutError as error:
        assert "has not finished it" in str(error)
        return True
    return False


def tell_what_is_seen(link):
    """Reports 64 bytes as they are, and whether a get waits; then what a get returns that waits long enough."""
    client, driver = connect(), Driver()
    unordered = Taken(driver, client.get("t", stream=-1), -1)
    unordered.stream = driver.stream()
    stale = unordered.read()
    link.send((stale, is_unfinished(client, "t")))
    link.send(Taken(driver, client.get("t", timeout=limit(60), stream=1)).read())
    link.recv()
