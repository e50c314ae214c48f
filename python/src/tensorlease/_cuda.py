# SPDX-License-Identifier: Apache-2.0
"""GPUs: devices and streams as Python code names them, and __cuda_array_interface__."""

import ctypes
import operator
import re
from typing import NamedTuple

from . import _core
from ._arrays import address_in, read_description

_DEVICES_MAX = 2**31
_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}  # DLPack's codes that NumPy has a letter for


class CudaDevice(NamedTuple):
    """A GPU of this process."""

    number: int  # as CUDA counts them in this process
    name: str
    uuid: str  # as nvidia-smi prints it, "MIG-..." for an instance of MIG; the same in all processes
    total_bytes: int
    compute_capability: tuple
    driver_version: int  # of the CUDA that the driver implements: 12040 is 12.4
    vmm: bool  # create(device=) can work
    legacy_ipc: bool  # memory of cudaMalloc() can be shared
    memory_pools: bool  # memory of pools can be shared, if they were made for it
    integrated: bool  # shares the memory of the CPU, as on Tegra


class DeviceUsage(NamedTuple):
    """A daemon's usage of a GPU, as it counts it. Sizes are in bytes; None means no limit."""

    uuid: str  # begins with "GPU-" also for an instance of MIG
    bytes_used: int  # by published allocations and draft buffers
    capacity: int
    user_capacity: int  # for each user
    segments: int


def cuda_devices():
    """Return the CudaDevices of this process, by number.

    Loads and initialises CUDA. NoDeviceError: CUDA cannot be used here; the text says what is missing.
    """
    return [CudaDevice._make(t) for t in _core.cuda_devices()]


_allocated: set[int] = set()  # addresses of what cuda_alloc() made and cuda_free() did not get yet


def cuda_alloc(nbytes, device=0):
    """Allocate memory on a GPU for the allocators of other libraries, and return its address.

    publish() shares arrays in it in place, and once the GPU has written them they outlive this process. The daemon
    does not count it before something in it is published. For CuPy this is
    ``cupy.cuda.PythonFunctionAllocator(cuda_alloc, cuda_free)``, for PyTorch tensorlease.torch.allocator().
    nbytes: is rounded up to what the GPU maps at once, usually 2 MiB. So let a pool divide it.
    device: a GPU, as for create(). Other GPUs cannot use the address.
    MemoryError: the GPU is full. NoDeviceError: there is no such GPU. UnsupportedError: its driver has no virtual
    memory. ValueError: nbytes is less than 1, or device is not a GPU.
    """
    number = parse_device(device)
    if number is None:
        raise ValueError(f"device must be a GPU, not {device!r}")
    nbytes = operator.index(nbytes)
    if nbytes < 1:
        raise ValueError(f"nbytes must be at least 1, not {nbytes}")
    return _core.cuda_alloc(nbytes, number, _allocated)


def cuda_free(address, device=None, stream=None):
    """Give back memory of cuda_alloc(). It goes when what was queued on the stream before has ended.

    No array in it may be published any more: their memory must have been given back.
    address: what cuda_alloc() returned. device: is not used; CuPy gives it.
    stream: the last that uses the memory, as for publish(); -1: no work is left. None: the legacy default stream, which
        waits for all that are not made to be non-blocking.
    ValueError: cuda_alloc() did not return that address, or it was given back already.
    """
    _core.cuda_free(operator.index(address), _allocated, stream)


def parse_device(device):
    """Return the number of a GPU, or None for the CPU.

    device is None, 'cpu', 'cuda' (which is 'cuda:0'), 'cuda:1', a number, a DLPack pair (2, 1), a torch.device, or a
    CuPy device.
    """
    if device is None:
        return None
    if isinstance(device, tuple) and len(device) == 2:
        kind, number = (operator.index(n) for n in device)
        if kind == 1:
            return None
        if kind == 2 and 0 <= number < _DEVICES_MAX:
            return number
    elif hasattr(device, "__index__"):
        number = operator.index(device)
        if 0 <= number < _DEVICES_MAX:
            return number
    elif type(getattr(device, "id", None)) is int and not isinstance(device, str):
        return device.id
    else:
        found = re.fullmatch(r"(cpu)(?::0)?|cuda(?::([0-9]{1,9}))?", str(device))
        if found:
            return None if found[1] else int(found[2] or 0)
    raise ValueError(f"device must be 'cpu', 'cuda:0', a number or the like, not {device!r}")


def device_pair(device):
    """Return DLPack's type and number of a device, for parse_target() of _core."""
    number = parse_device(device)
    return (1, 0) if number is None else (2, number)


def stream_number(stream):
    """Return the number, as DLPack numbers streams, of a stream object of another library."""
    if hasattr(stream, "__cuda_stream__"):
        handle = stream.__cuda_stream__()[1]
    else:
        for attribute in ("cuda_stream", "ptr", "handle"):  # PyTorch's, CuPy's, Numba's
            handle = getattr(stream, attribute, None)
            if handle is not None:
                break
        else:
            raise TypeError(f"stream must be an int as DLPack numbers streams, or a stream object, not {stream!r}")
    handle = operator.index(getattr(handle, "value", handle) or 0)
    return handle or 1  # CUDA's own 0 is the legacy default stream


def device_of_pointer(address):
    """Return the number of the GPU on which the address lies."""
    ordinal = ctypes.c_int(-1)
    try:
        error = ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute(
            ctypes.byref(ordinal), _ORDINAL, ctypes.c_uint64(address)
        )
    except (OSError, AttributeError) as problem:
        raise BufferError(f"__cuda_array_interface__: CUDA cannot be asked for the device: {problem}") from None
    if error or ordinal.value < 0:
        raise BufferError(f"__cuda_array_interface__: {address:#x} is not on a GPU (CUDA error {error})")
    return ordinal.value


def read_interface(array):
    """Return (address, (code, bits, flags), shape, strides in elements, owner, device, stream) of __cuda_array_interface__.

    BufferError: DLPack cannot describe it.
    """
    interface = array.__cuda_array_interface__
    dtype, shape, steps = read_description(array, interface, "__cuda_array_interface__")
    address = address_in(interface, "__cuda_array_interface__")
    empty = not address or 0 in shape
    return (
        0 if empty else address,
        dtype,
        shape,
        steps,
        array,
        0 if empty else device_of_pointer(address),
        interface.get("stream"),
    )


def _in_c_order(array):
    step = array.itemsize
    for size, stride in zip(reversed(array.shape), reversed(array.strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def interface_of(array, stream, read_only):
    """Return the __cuda_array_interface__, version 3, of a Tensor or Draft on a GPU."""
    code, bits, lanes = array._dtype_tuple
    letter = _KINDS.get(code)
    if letter is None or lanes != 1 or bits % 8:
        raise AttributeError(f"__cuda_array_interface__ has no type {array._dtype_word}; use DLPack")
    return {
        "version": 3,
        "shape": array.shape,
        "typestr": f"{'|' if bits == 8 else '<'}{letter}{bits // 8}",
        "data": (array._address or 0, read_only),
        "strides": None if _in_c_order(array) else array.strides,
        "stream": stream,
    }
