# SPDX-License-Identifier: Apache-2.0
"""CUDA's driver by ctypes, for tests: GPU memory with __dlpack__, as other libraries have it, and simple kernels.

It works with the fake driver and with a real one. Use it in a process of its own: run() and Child.
"""

import ctypes as c
import gc
import mmap
import multiprocessing
import os
import platform
import sys
import tempfile
import traceback
from pathlib import Path

import dlpack_abi as abi
from limits import limit

CUDA = 2
LEGACY, PER_THREAD = 1, 2
DISABLE_TIMING, NON_BLOCKING = 2, 1

# ---- The fake machine: FAKECUDA_DIR/registry, as tests/fakecuda/registry.h lays it out ----

KINDS = "context allocation managed import event event_import stream reservation handle mapping".split()
KINDS += ["pool", "pool_allocation", "pool_import", "closing", "full"]
VIOLATIONS = ["freed_while_open", "event_destroyed_early", "bad_access", "late_call", "dead_event", "dead_stream"]
VIOLATIONS += ["orphaned"]
DEVICES = 8


_MUTEX_WORDS, _FUTEX = {"x86_64": (5, 202), "aarch64": (6, 98)}[platform.machine()]


class _Process(c.Structure):
    _fields_ = [
        ("pid", c.c_int),
        ("start", c.c_ulonglong),
        ("apart", c.c_bool),
        ("live", c.c_longlong * len(KINDS)),
        ("used", c.c_ulonglong * DEVICES),
        ("devices", c.c_uint),
    ]


class _Device(c.Structure):
    _fields_ = [("life", c.c_uint), ("has_memory", c.c_bool)]


class _Registry(c.Structure):
    _fields_ = [
        ("magic", c.c_uint32),
        ("held", c.c_uint32),
        ("lock", c.c_ulonglong * _MUTEX_WORDS),
        ("next_id", c.c_ulonglong),
        ("pid_namespace", c.c_ulonglong),
        ("violations", c.c_ulonglong * len(VIOLATIONS)),
        ("devices", _Device * DEVICES),
        ("processes", _Process * 128),
    ]


class FakeMachine:
    """Fake GPUs for one test. Only the process that made them uses this; its children use the GPUs."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="tl-fakecuda-", dir="/dev/shm")
        self.path = Path(self.folder.name)

    def _map(self):
        with open(self.path / "registry", "r+b") as file:
            return _Registry.from_buffer(mmap.mmap(file.fileno(), 0))

    def live(self, *kinds):
        """Returns how many of these objects living processes have."""
        registry = self._map()
        alive = [p for p in registry.processes if p.pid and os.path.exists(f"/proc/{p.pid}")]
        return sum(p.live[KINDS.index(kind)] for p in alive for kind in kinds)

    def violations(self, *kinds):
        registry = self._map()
        return sum(registry.violations[VIOLATIONS.index(kind)] for kind in kinds)

    def hold(self, pid):
        """Stops the GPU work of that process until hold(0)."""
        registry = self._map()
        registry.held = pid
        word = c.byref(registry, _Registry.held.offset)
        c.CDLL(None).syscall(_FUTEX, word, 1, 2**31 - 1, None, None, 0)  # FUTEX_WAKE

    def close(self):
        """Returns, as a text, which rules the processes of the test broke and what they left, or None."""
        kill_all()
        try:
            if (self.path / "registry").exists():
                broken = [kind for kind in VIOLATIONS if kind != "orphaned" and self.violations(kind)]
                left = [kind for kind in KINDS if self.live(kind)]
                return " ".join(broken + left) or None
        finally:
            self.folder.cleanup()


class Child:
    """Runs function(link, *arguments) in a process of its own; link is a Connection to this one."""

    started = []

    def __init__(self, function, *arguments):
        context = multiprocessing.get_context("spawn")
        self.link, theirs = context.Pipe()
        self.process = context.Process(target=_run, args=(theirs, function, arguments), daemon=True)
        self.process.start()
        Child.started.append(self)
        theirs.close()
        self.pid = self.process.pid

    def hear(self, seconds=limit(90)):  # longer than eventually() in the child
        assert self.link.poll(seconds), "the child said nothing in time"
        try:
            heard = self.link.recv()
        except EOFError:
            self.process.join(limit(60))
            raise AssertionError(f"the child ended with {self.process.exitcode}") from None
        if isinstance(heard, BaseException):
            raise heard
        return heard

    def tell(self, what=None):
        self.link.send(what)

    def end(self):
        """Waits for its end, which must be without an error, and returns its result."""
        self.tell()
        result = self.hear()
        self.process.join(limit(60))
        assert self.process.exitcode == 0
        self.link.close()
        return result

    def kill(self):
        self.process.kill()
        self.process.join(limit(60))
        self.link.close()


def kill_all():
    """Ends them after a test that failed."""
    while Child.started:
        child = Child.started.pop()
        if child.process.is_alive():
            child.kill()


def run(function, *arguments):
    """Runs function(*arguments) in a process of its own and returns the result."""
    child = Child(_without_link, function, *arguments)
    try:
        return child.end()
    finally:
        if child.process.is_alive():
            child.kill()


def _without_link(_, function, *arguments):
    return function(*arguments)


def _run(link, function, arguments):
    try:
        result = function(link, *arguments)
        gc.collect()
        link.send(result)
    except BaseException as error:  # noqa: BLE001
        traceback.print_exc()
        link.send(AssertionError(f"in the child: {type(error).__name__}: {error}"))
        sys.exit(1)


# ---- The driver ----


class CudaError(Exception):
    pass


class Driver:
    """A device. Makes its primary context current on this thread, also before each use: others may exist."""

    def __init__(self, device=0):
        self.library = c.CDLL("libcuda.so.1")
        self.device = device
        self.context, handle = c.c_void_p(), c.c_int()
        self.call("cuInit", c.c_uint(0))
        self.call("cuDeviceGet", c.byref(handle), c.c_int(device))
        self.call("cuDevicePrimaryCtxRetain", c.byref(self.context), handle)
        self.call("cuCtxSetCurrent", self.context)

    def call(self, name, *arguments):
        error = getattr(self.library, name)(*arguments)
        if error:
            raise CudaError(f"{name}: {error}")

    def use(self, name, *arguments):
        self.call("cuCtxSetCurrent", self.context)
        self.call(name, *arguments)

    def alloc(self, size):
        pointer = c.c_uint64()
        self.use("cuMemAlloc_v2", c.byref(pointer), c.c_size_t(size))
        return pointer.value

    def free(self, pointer):
        self.use("cuMemFree_v2", c.c_uint64(pointer))

    def stream(self):
        handle = c.c_void_p()
        self.use("cuStreamCreate", c.byref(handle), c.c_uint(NON_BLOCKING))
        return handle.value

    def synchronize(self, stream):
        self.use("cuStreamSynchronize", c.c_void_p(stream))

    def fill(self, pointer, byte, size, stream):
        self.use("cuMemsetD8Async", c.c_uint64(pointer), c.c_ubyte(byte), c.c_size_t(size), c.c_void_p(stream))

    def read(self, pointer, size, stream):
        """Returns what a kernel on that stream would see."""
        to = c.create_string_buffer(size)
        self.use("cuMemcpyDtoHAsync_v2", to, c.c_uint64(pointer), c.c_size_t(size), c.c_void_p(stream))
        self.synchronize(stream)
        return to.raw

    def wait(self, stream, other):
        """Makes stream wait for what is queued on the other one."""
        event = c.c_void_p()
        self.use("cuEventCreate", c.byref(event), c.c_uint(DISABLE_TIMING))
        self.use("cuEventRecord", event, c.c_void_p(other))
        self.use("cuStreamWaitEvent", c.c_void_p(stream), event, c.c_uint(0))
        self.use("cuEventDestroy_v2", event)


class Array(abi.Producer):
    """Bytes on a GPU, written on a stream of their own, as by a library that has a current stream.

    `deleted` counts how often its DLPack tensor was given back, and `streams` lists the streams it was asked for.
    """

    def __init__(self, driver, shape, *, dtype=(1, 8, 1), offset=0, space=None, legacy=False, memory=None, type=CUDA):
        self.driver = driver
        self.nbytes = dtype[1] // 8
        for n in shape:
            self.nbytes *= n
        self.memory = driver.alloc(space or self.nbytes + offset) if memory is None else memory
        self.address = self.memory + offset
        self.work = driver.stream()
        self.streams = []
        super().__init__(shape=shape, dtype=dtype, device=(type, driver.device), data=self.address, legacy=legacy)

    def fill(self, byte):
        self.driver.fill(self.address, byte, self.nbytes, self.work)
        return self

    def read(self):
        return self.driver.read(self.address, self.nbytes, self.work)

    def __dlpack__(self, *, stream=None, **more):
        self.streams.append(stream)
        if stream != -1:
            self.driver.wait(stream or LEGACY, self.work)
        if self.legacy and more:
            raise TypeError("an old producer")
        return super().__dlpack__() if self.legacy else super().__dlpack__(**more)


class Interface:
    """The same bytes with only __cuda_array_interface__, as Numba's arrays have it."""

    def __init__(self, array, typestr="|u1", strides=None, **more):
        self.array = array
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": tuple(array.shape[: array.managed.tensor.ndim]),
            "typestr": typestr,
            "data": (array.address, False),
            "strides": strides,
            **more,
        }


class Taken:
    """The array that a library makes from an object with __dlpack__. It gives the memory back at its end."""

    def __init__(self, driver, array, stream=None, **asked):
        self.driver = driver
        self.stream = driver.stream() if stream is None else stream
        self.capsule = array.__dlpack__(stream=self.stream, **(asked or {"max_version": (1, 0)}))
        self.managed = abi.consume(self.capsule)
        tensor = self.managed.tensor
        self.device = (tensor.device_type, tensor.device_id)
        self.address = (tensor.data or 0) + tensor.byte_offset
        self.shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
        self.nbytes = tensor.dtype.bits // 8
        for n in self.shape:
            self.nbytes *= n

    def read(self):
        return self.driver.read(self.address, self.nbytes, self.stream)

    def peek(self):
        """Returns the bytes as they are now, on a stream that waits for nothing."""
        return self.driver.read(self.address, self.nbytes, self.driver.stream())

    def fill(self, byte):
        self.driver.fill(self.address, byte, self.nbytes, self.stream)
        return self

    def give_back(self):
        if self.managed is not None:
            self.managed.deleter(c.byref(self.managed))
            self.managed = None

    def __del__(self):
        if getattr(self, "managed", None) is not None:
            self.give_back()
