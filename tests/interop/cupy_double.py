# SPDX-License-Identifier: Apache-2.0
"""Stands in for CuPy where there is no GPU. It asks a producer what cupy.from_dlpack() of CuPy 14 asks, in that order
and with those arguments, takes what CuPy takes, and gives it back when CuPy does. It touches no byte of the tensor, so
any address will do.

Device.current is the GPU on which the calls are made and Device.stream its stream, for producers with a driver of their
own.
"""

import ctypes
import functools

import dlpack_abi as abi

CPU, CUDA, MANAGED = 1, 2, 13
IMPLEMENTED = (1, 0)

KINDS = {
    0: {8: "int8", 16: "int16", 32: "int32", 64: "int64"},
    1: {8: "uint8", 16: "uint16", 32: "uint32", 64: "uint64"},
    2: {16: "float16", 32: "float32", 64: "float64"},
    5: {64: "complex64", 128: "complex128"},
    6: {8: "bool"},
}
BFLOAT = 4


class Device:
    current = 0
    stream = 1  # the legacy default stream, since CuPy never passes 0


def from_dlpack(array, *, device=None, copy=None, ml_dtypes=False):
    if not hasattr(array, "__dlpack_device__"):
        return Array(array, ml_dtypes)
    kind, number = array.__dlpack_device__()
    if device is not None:
        raise NotImplementedError("CuPy takes no device=")
    if kind == CPU:
        raise TypeError("CuPy takes no arrays of the CPU")
    if kind not in (CUDA, MANAGED):
        raise TypeError(f"CuPy takes no arrays of device type {kind}")
    return Array(_ask(array, number, copy), ml_dtypes)


def _ask(array, number, copy):
    before, Device.current = Device.current, number
    try:
        try:
            return array.__dlpack__(stream=Device.stream, max_version=IMPLEMENTED, copy=copy)
        except TypeError:
            if copy is not None:
                raise
            return array.__dlpack__(stream=Device.stream)
    finally:
        Device.current = before


class Array:
    """Stands for a cupy.ndarray. It gives the memory back when it goes, or when it cannot take it after all."""

    def __init__(self, capsule, ml_dtypes):
        self.managed = self._consume(capsule)
        if isinstance(self.managed, abi.Versioned) and self.managed.major > IMPLEMENTED[0]:
            raise BufferError("too new a version of DLPack")
        tensor = self.managed.tensor
        if tensor.device_type not in (CUDA, MANAGED):
            raise RuntimeError(f"not a GPU's memory: device type {tensor.device_type}")
        self.device = (tensor.device_type, tensor.device_id)
        self.dtype = self._dtype(tensor.dtype, ml_dtypes)
        self.address = (tensor.data or 0) + tensor.byte_offset  # ndim is the struct's
        self.shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
        self.strides = None
        if tensor.strides:
            self.strides = tuple(tensor.strides[i] * (tensor.dtype.bits // 8) for i in range(tensor.ndim))

    @staticmethod
    def _consume(capsule):
        for name in ("dltensor", "dltensor_versioned"):
            valid = abi.api.PyCapsule_IsValid
            valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
            if valid(capsule, name.encode()):
                return abi.consume(capsule)
        raise ValueError(f"not a DLPack capsule, or a used one: {capsule!r}")

    @staticmethod
    def _dtype(dtype, ml_dtypes):
        if dtype.lanes != 1:
            raise ValueError(f"{dtype.lanes} lanes")
        if dtype.code == BFLOAT and ml_dtypes:
            return "bfloat16"
        if dtype.code == BFLOAT:
            raise NotImplementedError("bfloat16 without ml_dtypes")
        try:
            return KINDS[dtype.code][dtype.bits]
        except KeyError:
            raise TypeError(f"element type {dtype.code} of {dtype.bits} bits") from None

    def __del__(self):  # on whatever thread
        managed = getattr(self, "managed", None)
        if managed is not None and managed.deleter:
            managed.deleter(ctypes.byref(managed))


class Viewed:
    """The result of cupy.asarray() for a __cuda_array_interface__. CuPy waits for its stream on the host."""

    def __init__(self, array, synchronize):
        description = array.__cuda_array_interface__
        if description.get("mask") is not None:
            raise ValueError("CuPy takes no masked arrays")
        if description["version"] >= 3 and description.get("stream") is not None:
            synchronize(description["stream"])
        self.owner = array
        self.shape, self.typestr = description["shape"], description["typestr"]
        self.address = description["data"][0]  # the flag beside it is not looked at
        self.strides = description.get("strides")


with_ml_dtypes = functools.partial(from_dlpack, ml_dtypes=True)
