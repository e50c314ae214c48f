# SPDX-License-Identifier: Apache-2.0
"""What the benches of gpu.py share: a GPU by way of ctypes, and what PyTorch and CuPy have of it.

It builds on cuda_driver.py of python/tests, which works with a real driver and with the fake one.
"""

import ctypes as c
import os
import socket
import sys
import time
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "python" / "tests"))

import dlpack_abi as abi  # noqa: E402
from cuda_driver import CUDA, Child, Driver  # noqa: E402

import tensorlease  # noqa: E402

INTERPROCESS, DISABLE_TIMING, LAZY_PEER_ACCESS = 4, 2, 1
PINNED, POSIX_FD, ON_DEVICE, READ_WRITE = 1, 1, 1, 3
PART = 2 << 20  # what a GPU maps at once
TAIL = 8  # bytes that a consumer reads, the last of a tensor
TORCH_DEVICE = os.environ.get("TL_BENCH_TORCH_DEVICE", "cuda")  # cpu: tries PyTorch's rows where there is no GPU


class Handle(c.Structure):
    """A handle of CUDA's legacy IPC, which is passed by value."""

    _fields_ = [("bytes", c.c_ubyte * 64)]


class _Properties(c.Structure):
    _fields_ = [
        ("type", c.c_int),
        ("handle_types", c.c_int),
        ("location_type", c.c_int),
        ("location", c.c_int),
        ("windows", c.c_void_p),
        ("flags", c.c_ubyte * 8),
    ]


class _Access(c.Structure):
    _fields_ = [("location_type", c.c_int), ("location", c.c_int), ("flags", c.c_int)]


class Gpu(Driver):
    """The first GPU, and a stream of this process on it."""

    def __init__(self):
        super().__init__(0)
        self.work = self.stream()
        self._copied = getattr(self.library, "fakecuda_copied", None)
        if self._copied:
            self._copied.restype = c.c_ulonglong

    def used_bytes(self):
        """Return how much of the GPU's memory is in use, by all processes."""
        free, total = c.c_size_t(), c.c_size_t()
        self.use("cuMemGetInfo_v2", c.byref(free), c.byref(total))
        return total.value - free.value

    def free_bytes(self):
        free, total = c.c_size_t(), c.c_size_t()
        self.use("cuMemGetInfo_v2", c.byref(free), c.byref(total))
        return free.value

    def copied_bytes(self):
        """Return what this process has copied into memory of GPUs. Only the fake driver can tell: None."""
        return self._copied() if self._copied else None

    def fill_and_wait(self, address, byte, size):
        self.fill(address, byte, size, self.work)
        self.synchronize(self.work)

    def tail(self, address, size):
        return self.read(address + size - TAIL, TAIL, self.work)

    def copy(self, to, source, size, stream=None):
        arguments = c.c_uint64(to), c.c_uint64(source), c.c_size_t(size), c.c_void_p(stream or self.work)
        self.use("cuMemcpyDtoDAsync_v2", *arguments)

    # ---- Events ----

    def event(self, flags=DISABLE_TIMING):
        event = c.c_void_p()
        self.use("cuEventCreate", c.byref(event), c.c_uint(flags))
        return event

    def record(self, event, stream=None):
        self.use("cuEventRecord", event, c.c_void_p(stream or self.work))

    def after(self, event):
        """Let this process's stream go on after the event."""
        self.use("cuStreamWaitEvent", c.c_void_p(self.work), event, c.c_uint(0))

    def event_handle(self, event):
        handle = Handle()
        self.use("cuIpcGetEventHandle", c.byref(handle), event)
        return bytes(handle)

    def open_event(self, data):
        event = c.c_void_p()
        self.use("cuIpcOpenEventHandle", c.byref(event), Handle.from_buffer_copy(data))
        return event

    # ---- Legacy handles ----

    def memory_handle(self, address):
        handle = Handle()
        self.use("cuIpcGetMemHandle", c.byref(handle), c.c_uint64(address))
        return bytes(handle)

    def open_memory(self, data):
        address = c.c_uint64()
        handle = Handle.from_buffer_copy(data)
        self.use("cuIpcOpenMemHandle_v2", c.byref(address), handle, c.c_uint(LAZY_PEER_ACCESS))
        return address.value

    def close_memory(self, address):
        self.use("cuIpcCloseMemHandle", c.c_uint64(address))

    # ---- Virtual memory ----

    def create(self, size):
        """Make memory that a descriptor can share, and return its handle. The size is a multiple of PART."""
        properties = _Properties(PINNED, POSIX_FD, ON_DEVICE, self.device)
        handle = c.c_uint64()
        self.use("cuMemCreate", c.byref(handle), c.c_size_t(size), c.byref(properties), c.c_uint64(0))
        return handle

    def map(self, handle, size):
        address, access = c.c_uint64(), _Access(ON_DEVICE, self.device, READ_WRITE)
        nothing = c.c_uint64(0)
        self.use("cuMemAddressReserve", c.byref(address), c.c_size_t(size), c.c_size_t(0), nothing, nothing)
        self.use("cuMemMap", address, c.c_size_t(size), c.c_size_t(0), handle, nothing)
        self.use("cuMemSetAccess", address, c.c_size_t(size), c.byref(access), c.c_size_t(1))
        return address.value

    def unmap(self, address, size):
        self.use("cuMemUnmap", c.c_uint64(address), c.c_size_t(size))
        self.use("cuMemAddressFree", c.c_uint64(address), c.c_size_t(size))

    def release(self, handle):
        self.use("cuMemRelease", handle)

    def export(self, handle):
        fd = c.c_int(-1)
        self.use("cuMemExportToShareableHandle", c.byref(fd), handle, c.c_int(POSIX_FD), c.c_uint64(0))
        return fd.value

    def take(self, fd, size):
        """Map what a descriptor shares, and close the descriptor."""
        handle = c.c_uint64()
        self.use("cuMemImportFromShareableHandle", c.byref(handle), c.c_void_p(fd), c.c_int(POSIX_FD))
        os.close(fd)
        address = self.map(handle, size)
        self.release(handle)  # the mapping keeps the memory
        return address


def send_descriptors(channel, fds):
    socket.send_fds(channel, [b"x"], fds)
    for fd in fds:
        os.close(fd)


def receive_descriptors(channel, count):
    data, fds, _, _ = socket.recv_fds(channel, 1, count)
    if not data or len(fds) != count:
        raise ConnectionError(f"{len(fds)} descriptors came instead of {count}")
    return fds


def round_up(size):
    return -(-size // PART) * PART


class Bytes(abi.Producer):
    """An array of bytes in memory of a GPU, with __dlpack__. Its user waits for what writes it."""

    def __init__(self, gpu, address, size):
        super().__init__(b"", shape=(size,), dtype=(1, 8, 1), device=(CUDA, gpu.device), data=address)
        self.address, self.nbytes = address, size

    def __dlpack__(self, **_):
        return super().__dlpack__()


class Got:
    """The device pointer of a Tensor, for work on the stream of this process. It holds the lease until drop()."""

    def __init__(self, gpu, tensor, stream=None):
        self.tensor = tensor
        self.capsule = tensor.__dlpack__(stream=stream or gpu.work, max_version=(1, 0))
        described = abi.versioned_of(self.capsule).tensor
        self.address = described.data + described.byte_offset

    def drop(self):
        self.capsule = None
        self.tensor.release()


def connect():
    return tensorlease.connect(autostart=False, timeout=60)


def why_no_torch():
    """Return why PyTorch cannot use the GPU, or None."""
    try:
        import torch
    except ImportError as error:
        return f"{error}"
    return None if TORCH_DEVICE == "cpu" or torch.cuda.is_available() else "PyTorch finds no GPU"


def why_no_cupy():
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
    except ImportError as error:
        return f"{error}"
    except Exception as error:  # noqa: BLE001 -- CuPy's own, which cannot be named without CuPy
        return f"CuPy cannot use the GPU: {error}"
    return None


def wait_until(condition, what, seconds=30):
    """Wait for what a thread of the library does soon."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} after {seconds} s")
        time.sleep(0.0002)


def hear_from(children, number=0):
    """Return what a child says. If it fails because another one has, the error is that one's."""
    try:
        return children[number].hear()
    except AssertionError:
        for other in children:
            if other is not children[number] and other.link.poll(1):
                other.hear()
        raise
