# SPDX-License-Identifier: Apache-2.0
"""Reading and making arrays of other libraries."""

import sys

from ._dtypes import _parse_word

_KINDS = "biufc"


def read_interface(array):
    """(address, (code, bits), shape, strides in elements, owner) of an object with __array_interface__.

    BufferError: it describes something that DLPack has no words for.
    """
    interface = array.__array_interface__
    if not isinstance(interface, dict):
        raise BufferError("__array_interface__ is no dict")
    typestr = interface.get("typestr", "")
    if not isinstance(typestr, str) or len(typestr) < 3 or typestr[1] not in _KINDS:
        raise BufferError(f"elements of typestr {typestr!r} have no DLPack type")
    if interface.get("mask") is not None:
        raise BufferError("a masked array has no DLPack type")
    try:
        code, bits, _ = _parse_word(typestr)
    except ValueError as error:
        raise BufferError(str(error)) from None
    try:
        shape = tuple(int(n) for n in interface["shape"])
    except (KeyError, TypeError, ValueError):
        raise BufferError("__array_interface__ has no shape") from None
    return (*_place(interface, shape, bits // 8), (code, bits))[:0] or _row(interface, shape, code, bits)


def _row(interface, shape, code, bits):
    itemsize = bits // 8
    address, owner = _address(interface, shape, itemsize)
    strides = interface.get("strides")
    if strides is None:
        steps, step = [], 1
        for size in reversed(shape):
            steps.append(step)
            step *= size or 1
        return address, (code, bits), shape, tuple(reversed(steps)), owner
    if len(strides) != len(shape) or any(int(step) % itemsize for step in strides):
        raise BufferError("__array_interface__: strides are no multiples of the element's size, one for each dimension")
    return address, (code, bits), shape, tuple(int(step) // itemsize for step in strides), owner
