# SPDX-License-Identifier: Apache-2.0
"""Memory of GPUs for the allocators of other libraries."""

import ctypes
import os
import signal

import gpu_help
import pytest
from conftest import eventually
from cuda_driver import Array, Child, Driver, Taken, run
from gpu_help import N, connect

import tensorlease

daemon, gpus = gpu_help.daemon, gpu_help.gpus


def publish_and_end(byte):
    client, driver = connect(), Driver(1)
    array = Array(driver, (N,), offset=N, memory=tensorlease.cuda_alloc(2 * N, "cuda:1")).fill(byte)
    published = client.publish("t", array, sealed=True)
    assert not published.copied
    return client.stat("t").device


def see(byte, device):
    client = connect()
    tensor = client.get("t")
    assert not tensor.copied
    assert Taken(Driver(device), tensor).read() == bytes([byte]) * N
    client.delete("t")


def test_what_lies_in_it_outlives_its_process(daemon, gpus):
    assert run(publish_and_end, 7) == "cuda:1"
    run(see, 7, 1)


class Pool:
    """What CuPy's PythonFunctionAllocator does with the two functions."""

    def __init__(self, malloc, free):
        self.malloc, self.free = malloc, free

    def cycle(self, client, driver, byte):
        address = self.malloc(N, 0)
        array = Array(driver, (N,), memory=address).fill(byte)
        client.publish("t", array)
        assert Taken(driver, client.get("t")).read() == bytes([byte]) * N
        client.delete("t")
        eventually(lambda: array.deleted)
        self.free(address, 0)


def allocate_again_and_again():
    client, driver = connect(), Driver()
    pool = Pool(tensorlease.cuda_alloc, tensorlease.cuda_free)
    for byte in range(20):
        pool.cycle(client, driver, byte)


def test_it_is_used_as_cupy_uses_it(daemon, gpus, monkeypatch):
    monkeypatch.setenv("FAKECUDA_MEMORY", str(16 << 20))
    run(allocate_again_and_again)


def ask_for_what_cannot_be():
    Driver()
    for wrong in (0, -1):
        with pytest.raises(ValueError, match=f"nbytes must be at least 1, not {wrong}"):
            tensorlease.cuda_alloc(wrong)
    with pytest.raises(ValueError, match="must be a GPU"):
        tensorlease.cuda_alloc(1, "cpu")
    with pytest.raises(tensorlease.NoDeviceError, match="no GPU 2"):
        tensorlease.cuda_alloc(1, 2)
    with pytest.raises(MemoryError, match="allocating 33554432 bytes on GPU 0"):
        tensorlease.cuda_alloc(32 << 20)
    with pytest.raises(ValueError, match="4096 is not the address"):
        tensorlease.cuda_free(4096)
    address = tensorlease.cuda_alloc(1)
    with pytest.raises(ValueError, match="stream"):
        tensorlease.cuda_free(address, stream=0)
    tensorlease.cuda_free(address, stream=1)
    tensorlease.cuda_free(tensorlease.cuda_alloc(1), stream=-1)
    with pytest.raises(ValueError, match="is not the address"):
        tensorlease.cuda_free(address)


def test_what_cannot_be_is_refused(daemon, gpus, monkeypatch):
    monkeypatch.setenv("FAKECUDA_MEMORY", str(16 << 20))
    run(ask_for_what_cannot_be)


def allocate_and_be_interrupted(link):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        tensorlease.cuda_alloc(N)
    link.send(len(tensorlease._cuda._allocated))
    link.recv()


def test_an_interrupted_allocation_leaves_nothing(daemon, gpus, monkeypatch):
    monkeypatch.setenv("FAKECUDA_FAIL", "cuMemCreate:1:-1")  # which stops the process in that call
    child = Child(allocate_and_be_interrupted)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    os.kill(child.pid, signal.SIGINT)
    os.kill(child.pid, signal.SIGCONT)
    assert child.hear() == 0
    eventually(lambda: gpus.live("reservation", "handle", "mapping") == 0)
    child.end()


def allocate_as_torch_does(link):
    """PyTorch itself cannot use the fake driver, so this calls the two functions that it is given, as it would."""
    import torch

    import tensorlease.torch

    given = []
    torch._C._cuda_customAllocator = lambda *functions: given.append(functions) or "an allocator"
    assert tensorlease.torch.allocator() == "an allocator"
    assert tensorlease.torch.allocator() == "an allocator"
    ((alloc, free),) = given
    alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(alloc)
    free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(free)
    client, driver = connect(), Driver()
    stream = driver.stream()
    assert alloc(1 << 40, 0, stream) is None
    address = alloc(N, 0, stream)
    array = Array(driver, (N,), memory=address).fill(9)
    client.publish("t", array)
    link.send("published")
    link.recv()
    eventually(lambda: array.deleted)
    free(address, N, 0, stream)


def test_it_is_used_as_torch_uses_it(daemon, gpus):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    child = Child(allocate_as_torch_does)
    assert child.hear() == "published"
    run(see, 9, 0)
    child.tell()
    child.end()
