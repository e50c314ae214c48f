# SPDX-License-Identifier: Apache-2.0
"""Reads objects with __array_interface__, an older protocol of NumPy's. PIL images have no other."""

import ctypes
import errno
import json
import operator
import sys
from collections.abc import Mapping

from ._dtypes import parse_dtype
from ._errors import InvalidError

PADDED = 4  # DLPack's IS_SUBBYTE_TYPE_PADDED
_LIMIT = 2**63
_WIDEST = {"f": ("float", 64), "c": ("complex", 128)}


def read_interface(array):
    """Return (address, (code, bits, flags), shape, strides in elements, owner) of an object with __array_interface__.

    BufferError: DLPack cannot describe it.
    """
    array = _with_steps(array)
    interface = array.__array_interface__
    dtype, shape, steps = read_description(array, interface, "__array_interface__")
    data = interface.get("data")
    if isinstance(data, bytes):
        offset = interface.get("offset", 0)  # of an address NumPy ignores it too
        address = _address_of_bytes(data, offset, shape, steps, _itemsize(dtype[1]))
        return address, dtype, shape, steps, (array, data)
    return address_in(interface, "__array_interface__"), dtype, shape, steps, array


NUMBERS = (bool, int, float, complex, list, tuple, range)


def read_values(value, convert):
    """Return the array that NumPy makes of a number, or of nested lists of numbers.

    TypeError: it is something else, or convert is False.
    """
    if not convert or not isinstance(value, NUMBERS):
        raise TypeError(_why_no_array(value))
    try:
        import numpy
    except ImportError:
        raise TypeError(f"{type(value).__name__!r} is not an array, and NumPy, which makes one of it, is missing") from None
    array = numpy.asarray(value)
    if array.dtype.kind not in "biufc":
        raise TypeError(
            f"{type(value).__name__!r} does not become an array of numbers of at most 64 bits: numpy.asarray() gives it "
            f"dtype {array.dtype}"
        )
    return array


def write_metadata(metadata):
    """Return the bytes of a str, as UTF-8, or of a dict, as JSON."""
    try:
        if isinstance(metadata, dict):
            metadata = json.dumps(metadata, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return str.encode(metadata)  # whatever a subclass makes of it
    except UnicodeEncodeError as error:
        raise InvalidError(errno.EINVAL, f"metadata is not text: {error}") from None
    except (RecursionError, TypeError, ValueError) as error:
        raise type(error)(f"metadata is a dict that JSON has no text for: {error}") from None


def _why_no_array(value):
    """Return why put() does not take an object that has none of the protocols of arrays, and what it takes instead."""
    kind = type(value)
    called = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    if value is None:
        return "None is not an array: has the function that makes it returned nothing?"
    if isinstance(value, str):
        return "a str is not an array: its encode() returns bytes, which are published as uint8"
    if isinstance(value, Mapping):
        return (
            f"{called!r} is not an array: put_many() publishes each of its arrays under a name of its own, the put() of a "
            "stream takes a dict of arrays without dicts in it, and that of a tensorlease.Queue takes any object"
        )
    for method in ("to_numpy", "numpy"):
        if callable(getattr(kind, method, None)):
            return f"{called!r} is not an array: give what its {method}() returns"
    if callable(getattr(kind, "state_dict", None)):
        return f"{called!r} is not an array: put_many() publishes the arrays of its state_dict()"
    return (
        f"{called!r} is not an array: it has neither __dlpack__ nor the buffer protocol nor __array_interface__; "
        "numpy.asarray() may make one of it"
    )


def _with_steps(array):
    """Return array, or a copy if its strides are no multiples of its elements, as those of a structured array's field."""
    numpy = sys.modules.get("numpy")
    if not numpy or not isinstance(array, numpy.ndarray) or not array.itemsize:
        return array
    odd = any(step % array.itemsize for step in array.strides)
    return numpy.ascontiguousarray(array) if odd else array


def read_description(array, interface, called):
    """Return ((code, bits, flags), shape, strides in elements) of this interface or CUDA's. BufferError: as above.

    An element of less than a byte takes a whole byte here, as ml_dtypes' int4 does. DLPack's flag says so.
    """
    if not isinstance(interface, dict):
        raise BufferError(f"{called} is not a dict")
    typestr = interface.get("typestr")
    if isinstance(typestr, str) and (typestr[1:2] == "V" or typestr[1:] == "f1"):  # types of ml_dtypes only have names
        dtype = getattr(array, "dtype", None)
        if getattr(dtype, "names", None):
            raise BufferError(f"structured elements have no type in DLPack; put the fields {dtype.names} one by one")
        typestr = getattr(dtype, "name", typestr)
    elif not isinstance(typestr, str) or typestr[1:2] not in tuple("biufc"):
        raise BufferError(
            f"DLPack has no type for typestr {typestr!r}, only for integers, floats, complex numbers and bools"
        )
    elif typestr[0] == ">" and typestr[2:] != "1":
        raise BufferError(f"the elements are big-endian, unlike DLPack's: use array.astype('<{typestr[1:]}')")
    if interface.get("mask") is not None:
        raise BufferError("DLPack has no masked arrays")
    code, bits = _type_of(typestr)
    try:
        shape = tuple(operator.index(n) for n in interface["shape"])
        steps = _steps(interface.get("strides"), shape, _itemsize(bits), called)
    except (KeyError, TypeError, ValueError) as error:
        raise BufferError(f"{called} cannot be used: {error!r}") from None
    if not all(0 <= n < _LIMIT for n in shape) or not all(-_LIMIT <= n < _LIMIT for n in steps):
        raise BufferError(f"{called}: sizes must be 0 to 2^63-1, and strides below 2^63, not {shape}, {steps}")
    return (code, bits, PADDED if bits % 8 else 0), shape, steps


def _type_of(typestr):
    kind, size = typestr[1:2], typestr[2:]
    if kind in _WIDEST and size.isdecimal() and int(size) > _WIDEST[kind][1] // 8:
        word, widest = _WIDEST[kind]
        raise BufferError(f"DLPack has no {word}{8 * int(size)}: use array.astype('{word}{widest}')")
    try:
        code, bits, _ = parse_dtype(typestr)
    except (TypeError, ValueError):
        raise BufferError(f"elements of {typestr!r} are not known to DLPack: use array.astype() or .view()") from None
    return code, bits


def _itemsize(bits):
    return (bits + 7) // 8


def address_in(interface, called):
    """Return the address in its 'data'."""
    data = interface.get("data")
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], int) and 0 <= data[0] < 2 * _LIMIT:
        return data[0]
    raise BufferError(f"{called} has no address in 'data'")


def _address_of_bytes(data, offset, shape, steps, itemsize):
    """Return the address of element 0 in bytes, as PIL hands out: a copy of the image."""
    try:
        offset = operator.index(offset)
    except TypeError as error:
        raise BufferError(f"__array_interface__ cannot be used: {error!r}") from None
    ends = [(size - 1) * step for size, step in zip(shape, steps, strict=True)]
    first, last = sum(min(end, 0) for end in ends), sum(max(end, 0) for end in ends)
    if 0 in shape:
        first, last = 0, -1
    if offset < 0 or first * itemsize + offset < 0 or (last + 1) * itemsize + offset > len(data):
        at = f" at offset {offset}" if offset else ""
        raise BufferError(f"__array_interface__: {len(data)} bytes of 'data' are too few for shape {shape}{at}")
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value + offset


def _steps(strides, shape, itemsize, called):
    if strides is None:
        steps, step = [], 1
        for size in reversed(shape):
            steps.append(step)
            step *= size or 1
        return tuple(reversed(steps))
    strides = tuple(operator.index(step) for step in strides)
    if len(strides) != len(shape) or any(step % itemsize for step in strides):
        raise BufferError(
            f"{called}: strides must be multiples of the element's size, one for each dimension; put a contiguous copy"
        )
    return tuple(step // itemsize for step in strides)
