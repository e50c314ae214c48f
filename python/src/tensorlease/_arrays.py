# SPDX-License-Identifier: Apache-2.0
"""Reading objects that have __array_interface__ (NumPy's older protocol; PIL images, for one, have only that)."""

from ._dtypes import parse_dtype


def read_interface(array):
    """(address, (code, bits), shape, strides in elements, owner) of an object with __array_interface__.

    BufferError: it describes something that DLPack has no words for.
    """
    interface = array.__array_interface__
    dtype, shape, steps = read_description(array, interface, "__array_interface__")
    address, owner = _address(array, interface)
    return address, dtype, shape, steps, owner


def read_description(array, interface, called):
    """((code, bits), shape, strides in elements) that such an interface, or CUDA's, tells. BufferError as above."""
    if not isinstance(interface, dict):
        raise BufferError(f"{called} is no dict")
    typestr = interface.get("typestr")
    if isinstance(typestr, str) and (typestr[1:2] == "V" or typestr[1:] == "f1"):  # ml_dtypes', which only have names
        typestr = getattr(getattr(array, "dtype", None), "name", typestr)
    elif not isinstance(typestr, str) or typestr[1:2] not in tuple("biufc"):
        raise BufferError(
            f"elements of typestr {typestr!r} have no DLPack type; integers, floats, complex numbers and bools have"
        )
    elif typestr[0] == ">" and typestr[2:] != "1":
        raise BufferError(f"the elements are big-endian, DLPack's types are not: array.astype('<{typestr[1:]}')")
    if interface.get("mask") is not None:
        raise BufferError("a masked array has no DLPack type")
    try:
        code, bits, _ = parse_dtype(typestr)
        shape = tuple(int(n) for n in interface["shape"])
    except (KeyError, TypeError, ValueError) as error:
        raise BufferError(f"{called} cannot be used: {error!r}") from None
    if any(n < 0 for n in shape):
        raise BufferError(f"{called} has a negative size: {shape}")
    return (code, bits), shape, _steps(interface.get("strides"), shape, bits // 8, called)


def _address(array, interface):
    data = interface.get("data")
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], int):
        return data[0], array
    if isinstance(data, bytes):  # PIL: a copy of the image
        import ctypes

        return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0, (array, data)
    raise BufferError("__array_interface__ has no address in 'data'")


def _steps(strides, shape, itemsize, called):
    if strides is None:
        steps, step = [], 1
        for size in reversed(shape):
            steps.append(step)
            step *= size or 1
        return tuple(reversed(steps))
    if len(strides) != len(shape) or any(int(step) % itemsize for step in strides):
        raise BufferError(f"{called}: strides are no multiples of the element's size, one for each dimension")
    return tuple(int(step) // itemsize for step in strides)
