# SPDX-License-Identifier: Apache-2.0
"""Element types: names such as 'float32', and DLPack's triples (code, bits, lanes)."""

import errno
import math
import operator
import re
from functools import lru_cache

from ._errors import InvalidError

# NumPy's other names, in native byte order.
_LETTERS = {
    "?": "bool",
    "b1": "bool",
    "e": "float16",
    "f": "float32",
    "d": "float64",
    "F": "complex64",
    "D": "complex128",
    "b": "int8",
    "h": "int16",
    "i": "int32",
    "l": "int64",
    "q": "int64",
    "B": "uint8",
    "H": "uint16",
    "I": "uint32",
    "L": "uint64",
    "Q": "uint64",
    "half": "float16",
    "float": "float64",
    "double": "float64",
    "int": "int64",
    "uint": "uint64",
    "long": "int64",
    "longlong": "int64",
    "ulonglong": "uint64",
    "short": "int16",
    "complex": "complex128",
    "cfloat": "complex64",
    "cdouble": "complex128",
    "bool_": "bool",
}
_CODES = {"int": 0, "uint": 1, "float": 2, "opaque": 3, "bfloat": 4, "complex": 5}
_NAMED = {
    "bool": (6, 8),
    "float8_e3m4": (7, 8),
    "float8_e4m3": (8, 8),
    "float8_e4m3b11fnuz": (9, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8),
    "float6_e2m3fn": (15, 6),
    "float6_e3m2fn": (16, 6),
    "float4_e2m1fn": (17, 4),
}
_WIDTHS = {"i": "int", "u": "uint", "f": "float", "c": "complex"}


def _parse_base(text):
    if text in _NAMED:
        return _NAMED[text]
    numbered = re.fullmatch(r"([a-z]+)([0-9]+)", text)
    if numbered and numbered[1] in _CODES and 0 < int(numbered[2]) < 256:
        return (_CODES[numbered[1]], int(numbered[2]))
    return None


@lru_cache(maxsize=256)
def _parse_word(word):
    text = word.removeprefix("torch.").removeprefix("jax.numpy.").replace("fn_x", "fnx")
    if text[:1] in "<=|":
        text = text[1:]
    elif text[:1] in (">", "!"):
        if text[1:] not in ("i1", "u1", "b1", "b", "B", "?"):
            raise ValueError(f"dtype {word!r} is big-endian; DLPack's types are little-endian")
        text = text[1:]
    letters = re.fullmatch(r"([iufc])([0-9]+)", text)
    if letters:
        text = f"{_WIDTHS[letters[1]]}{int(letters[2]) * 8}"
    text = _LETTERS.get(text, text)
    found = _parse_base(text)
    if found:
        return (*found, 1)
    base, x, count = text.rpartition("x")
    found = _parse_base(base)
    if found and x and re.fullmatch("[0-9]{1,5}", count) and 0 < int(count) < 65536:
        return (*found, int(count))
    raise ValueError(f"dtype {word!r} is not known; use a name such as 'float32', 'uint8', 'bfloat16' or 'bool'")


def parse_dtype(dtype):
    """Return (code, bits, lanes) of an element type.

    dtype is a str ('float32', '<f4', 'bfloat16', 'int4', 'float32x4'), a triple, a dtype or scalar type of NumPy,
    ml_dtypes, JAX or PyTorch, or Python's bool, int, float or complex. ValueError or TypeError: it is none of them.
    """
    if isinstance(dtype, str):
        return _parse_word(dtype)
    if isinstance(dtype, tuple) and len(dtype) == 3:
        code, bits, lanes = (operator.index(n) for n in dtype)
        if not (0 <= code < 256 and 0 < bits < 256 and 0 < lanes < 65536):
            raise ValueError(f"dtype {dtype}: a triple must be (code, bits, lanes), of 8, 8 and 16 bits, the last two not 0")
        return (code, bits, lanes)
    if isinstance(dtype, type):
        if dtype in (bool, int, float, complex):
            return _parse_word(dtype.__name__)
        return _parse_word(dtype.__name__.removesuffix("_"))  # numpy.float32 and such
    byteorder = getattr(dtype, "byteorder", "=")
    if byteorder == ">":
        raise ValueError(f"dtype {dtype!r} is big-endian; DLPack's types are little-endian")
    name = getattr(dtype, "name", None)
    if isinstance(name, str):
        return _parse_word(name)
    if str(dtype).startswith("torch."):
        return _parse_word(str(dtype))
    raise TypeError(f"dtype must be an element type such as 'float32', not {dtype!r}")


def numpy_dtype(word):
    """Return NumPy's dtype for a name. TypeError: NumPy has none, even with ml_dtypes."""
    import numpy

    try:
        return numpy.dtype(word)
    except TypeError:
        pass
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError(f"NumPy has no dtype {word!r}; install the package ml_dtypes, which may have it") from None
    found = getattr(ml_dtypes, word, None)
    if found is None:
        raise TypeError(f"neither NumPy nor ml_dtypes has a dtype {word!r}")
    return numpy.dtype(found)


@lru_cache(maxsize=256)
def find_dtype(word):
    """Return NumPy's dtype for a name, or the name if there is none."""
    try:
        return numpy_dtype(word)
    except (ImportError, TypeError):
        return word


_SIZE_MAX = 2**63 - 1


def _parse_shape(shape):
    try:
        return (operator.index(shape),)
    except TypeError:
        pass
    try:
        if not isinstance(shape, (str, bytes, bytearray)):
            return tuple(operator.index(n) for n in shape)
    except TypeError:
        pass
    raise TypeError(f"shape must be an int or a sequence of ints, not {shape!r}")


def _check_size(sizes, bits):
    for i, size in enumerate(sizes):
        if not 0 <= size <= _SIZE_MAX:
            raise InvalidError(errno.EINVAL, f"shape: dimension {i} is {size}; it must be 0 to 2^63-1")
    if math.prod(size or 1 for size in sizes) * bits > 8 * _SIZE_MAX:
        raise InvalidError(errno.EINVAL, f"shape: {sizes} of {bits} bits each is more than 2^63-1 bytes")


def parse_sizes(shape, dtype, padded=False):
    """Return a tuple of sizes, and (code, bits, lanes)."""
    sizes, element = _parse_shape(shape), parse_dtype(dtype)
    _check_size(sizes, 8 if padded else element[1] * element[2])
    return sizes, element
