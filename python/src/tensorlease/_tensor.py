# SPDX-License-Identifier: Apache-2.0
"""Tensor and Draft: the classes of the extension, with the methods for other libraries."""

import numbers

from . import _core
from ._cuda import interface_of
from ._dtypes import find_dtype, numpy_dtype, parse_dtype
from ._sending import reduce_tensor

_CUDA = 2  # DLPack's numbers
_COMPLEX = 5
_BYTE = (1, 8, 1)
_FLOAT4 = (17, 4, 1)  # PyTorch has it only in pairs, as float4_e2m1fn_x2
# Those for which the buffer protocol has a format.
_PLAIN = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
)


def size_text(nbytes):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            return f"{nbytes} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024


class _Raw:
    """An array for NumPy, of elements without a type, if the buffer protocol has no format for them."""

    def __init__(self, array):
        self.base = array._share()  # holds the lease; and as NumPy calls it, for _reduce_array()
        self.__array_interface__ = {
            "version": 3,
            "data": (array._address, self.base.read_only),
            "shape": array.shape,
            "strides": array.strides,
            "typestr": f"|V{array.itemsize}",
        }


def _as_numpy(array):
    """Return an array over the same memory, writable if that is."""
    if array.__dlpack_device__()[0] == _CUDA:
        raise TypeError(f"the tensor is on {array.device}, whose memory NumPy cannot read: t.torch().cpu().numpy()")
    import numpy

    if array._dtype_word in _PLAIN:
        return numpy.asarray(memoryview(array))
    dtype = numpy_dtype(array._dtype_word)
    if dtype.itemsize != array.itemsize:
        raise TypeError(
            f"NumPy has no packed {array._dtype_word}: its elements take {dtype.itemsize} bytes each; "
            "bytes() has the bytes"
        )
    if not array.size:
        return numpy.empty(array.shape, dtype)
    return numpy.asarray(_Raw(array)).view(dtype)


def rows_like(tensor, count):
    """Return a new array of NumPy with so many rows of the tensor's shape and dtype."""
    import numpy

    dtype = numpy_dtype(tensor._dtype_word)
    if dtype.itemsize != tensor.itemsize:
        raise TypeError(f"NumPy has no packed {tensor._dtype_word}: give an array of another library as out=")
    return numpy.empty((count, *tensor.shape), dtype)


def _dtype(self):
    """The element type: a numpy.dtype if NumPy has one, else a str. Both compare equal to 'float32'."""
    return find_dtype(self._dtype_word)


def _array_method(self, dtype=None, *, copy=None):
    import numpy

    array = _as_numpy(self)
    wanted = array.dtype if dtype is None else numpy.dtype(dtype)
    if copy:
        return numpy.array(array, dtype=wanted)
    if wanted == array.dtype:
        return array
    if copy is False:
        raise ValueError(f"{array.dtype} as {wanted} needs a copy, which copy=False forbids")
    return array.astype(wanted)


# Those that memoryview.tolist() reads, so that numbers can be had without NumPy.
_READ = _PLAIN - {"float16", "complex64", "complex128"}


# Only to name the remedy. An array on the other side computes with a Tensor by itself.
_OPERATORS = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()
_OTHERS = "lt le gt ge neg pos abs invert".split()


def _operator(name):
    def refuse(self, other=0):
        if not isinstance(other, (numbers.Number, _Values)):
            return NotImplemented
        raise TypeError(f"a {type(self).__name__} has no operators but == and !=: use its numpy() or torch()")

    refuse.__name__ = f"__{name}__"
    return refuse


class _Elsewhere:
    """An attribute of arrays that neither a Tensor nor a Draft has. A __getattr__() would delay all others."""

    def __init__(self, method, name):
        self.method, self.name = method, name

    def __get__(self, array, kind=None):
        if array is None:
            kind = getattr(kind, "__name__", kind)
            raise AttributeError(f"type object {kind!r} has no attribute {self.name!r}")
        raise AttributeError(
            f"{type(array).__name__!r} object has no attribute {self.name!r}: use its {self.method}().{self.name}"
        )


_ELSEWHERE = {
    "numpy": "T all any argmax argmin astype copy cumsum dot fill flatten max mean min ravel reshape round sort squeeze std "
    "sum tobytes transpose var",
    "torch": "clone contiguous cpu cuda detach float half is_contiguous permute requires_grad requires_grad_ storage to "
    "unsqueeze",
}


class _Values:
    """What Tensor and Draft have in common: their elements as numbers, as an array of NumPy would give them."""

    __slots__ = ()

    def __getitem__(self, index):
        return self.numpy()[index]

    for _name in [*_OPERATORS, *(f"r{name}" for name in _OPERATORS), *_OTHERS]:
        vars()[f"__{_name}__"] = _operator(_name)
    for _method, _names in _ELSEWHERE.items():
        for _name in _names.split():
            vars()[_name] = _Elsewhere(_method, _name)
    del _name, _method, _names

    def __dir__(self):
        own = getattr(self, "__dict__", ())
        return [name for name in super().__dir__() if name in own or hasattr(type(self), name)]

    def __contains__(self, value):
        return value in self.numpy()

    def __len__(self):
        if not self.ndim:
            raise TypeError("a tensor without dimensions has no length")
        return self.shape[0]

    def __iter__(self):
        return iter(self.numpy())

    def bytes(self):
        """Return a memoryview of the bytes, without a copy and whatever the type: as read-only as the tensor is."""
        return memoryview(self._view(_BYTE, (self.nbytes,)))

    def tolist(self):
        """Return the elements as numbers in nested lists, or a number if there are no dimensions."""
        if self._dtype_word in _READ and self.__dlpack_device__()[0] != _CUDA:
            return memoryview(self).tolist()
        return _as_numpy(self).tolist()

    def item(self):
        """Return the only element as a number. ValueError: there are more, or none."""
        if self.size != 1:
            raise ValueError(f"a tensor of shape {self.shape} is not one number; tolist() and numpy() have all of them")
        value = self.tolist()
        while isinstance(value, list):
            value = value[0]
        return value

    def _number(self, kind):
        if self.size != 1:
            raise TypeError(f"a tensor of shape {self.shape} does not become one {kind.__name__}; numpy() is an array")
        return kind(self.item())

    # Without these, int() and float() would read the bytes as digits, and a tensor of zeros would be true.

    def __int__(self):
        return self._number(int)

    def __float__(self):
        return self._number(float)

    def __complex__(self):
        return self._number(complex)

    def __index__(self):
        if self.ndim or self._dtype_tuple[0] > 1:
            raise TypeError(f"only a tensor of integers without dimensions is an index, not {self.dtype} {self.shape}")
        return int(self.item())

    def __bool__(self):
        return bool(self.item())

    def __eq__(self, other):
        values = _values_of(other)
        return NotImplemented if values is None else _as_numpy(self) == values

    def __ne__(self, other):
        values = _values_of(other)
        return NotImplemented if values is None else _as_numpy(self) != values

    __hash__ = object.__hash__


def _values_of(other):
    """Return what an array can be compared with element by element, or None: it is something else than numbers."""
    if isinstance(other, _Values):
        return _as_numpy(other)
    if isinstance(other, (numbers.Number, list, tuple)) or hasattr(other, "__array__"):
        return other
    return None


def _no_interface():
    raise AttributeError("the tensor is on the CPU: it has no __cuda_array_interface__")


class Tensor(_Values, _core.Tensor):
    """A tensor that another process published, held by a lease. Client.get() returns it.

    Its bytes do not change until the Tensor and all views of it are freed: arrays of other libraries, memoryviews,
    DLPack capsules. Any thread may use it and drop it. After release() its attributes and methods raise a ValueError,
    and the protocols raise a BufferError. In mode 'r' it is the shared memory itself, read-only. In mode 'c' it is
    copy-on-write: writable, and without a copy until a page is written to; only this Tensor and its views see what is
    written.

    ``t[0]``, ``len(t)``, iteration, ``==`` and tolist() are those of ``t.numpy()``. A tensor of one element becomes a
    number by ``int(t)``, ``float(t)``, ``bool(t)`` and item(). Tensors are hashed by identity, as PyTorch's are.

    Other libraries accept it as it is: ``numpy.asarray(t)``, ``numpy.from_dlpack(t)``, ``torch.from_dlpack(t)``,
    ``memoryview(t)``. A library that may ignore DLPack's read-only flag (PyTorch, CuPy, tvm-ffi) gets a copy-on-write
    view of its own from a read-only Tensor. This makes no copy either, and what it writes affects nobody. A library
    that asks for a DLPack capsule without a version (JAX, NumPy before 2.1) gets a BufferError from a read-only Tensor:
    get it with ``mode='c'``, or use jax() and numpy().

    On a GPU there is no mode 'c', and no NumPy. Each ``torch.from_dlpack(t)`` or ``cupy.from_dlpack(t)`` names its
    stream, and waits until the producer has written the tensor, for at most the client's timeout. The lease ends when
    the work that is queued on that stream by then is done. The consumer gets the shared memory, flagged as read-only. It
    must not write to it, though nothing may stop it.
    """

    __slots__ = ("__weakref__",)

    def __setitem__(self, index, value):
        raise TypeError(
            "a Tensor cannot be written to, as others read it: write to its torch(), or to numpy() of one that was got "
            "with mode='c', or publish a new version"
        )

    def numpy(self, *, copy=False):
        """Return a numpy.ndarray over the same memory: read-only in mode 'r', writable in mode 'c'.

        copy: True makes an independent, writable array.
        bfloat16 and the float8 types need the package ml_dtypes. TypeError: NumPy has no such dtype.
        """
        array = _as_numpy(self)
        return array.copy() if copy else array

    def torch(self, *, copy=False):
        """Return a torch.Tensor without a copy, writable: in mode 'r', over a copy-on-write view of its own.

        PyTorch has no read-only tensors, so it never gets the shared memory itself. In mode 'r' only that torch.Tensor
        sees what is written to it. In mode 'c' all torch.Tensors of this Tensor share its memory. Packed float4_e2m1fn
        becomes torch.float4_e2m1fn_x2, whose last dimension is half as long.
        copy: True makes a copy. BufferError or RuntimeError: PyTorch has no such dtype.
        """
        import torch

        if self._dtype_tuple == _FLOAT4 and self.itemsize == 0.5 and self.shape and not self.shape[-1] % 2:
            return self.view("float4_e2m1fnx2").torch(copy=copy)
        try:
            array = torch.from_dlpack(self)
        except BufferError:  # an old PyTorch asks for a capsule without a version
            if not self.read_only or self.__dlpack_device__()[0] == _CUDA:
                raise
            array = torch.from_dlpack(self.copy_on_write())
        return array.clone() if copy else array

    def jax(self, *, copy=False):
        """Return a jax.Array without a copy, over a copy-on-write view, or on a GPU over the memory itself.

        JAX only takes memory that it could write to, but its arrays are immutable.
        copy: True makes a copy. TypeError: the elements have 64 bits, which JAX would cut to 32 unless jax_enable_x64
        is set.
        """
        import jax

        code, bits, _ = self._dtype_tuple
        if bits > (64 if code == _COMPLEX else 32) and not jax.config.jax_enable_x64:
            raise TypeError(
                f"JAX would convert {self.dtype} to half its bits: with jax.config.update('jax_enable_x64', True) it "
                "takes the tensor as it is"
            )

        if self.__dlpack_device__()[0] == _CUDA:
            taken = self.unflagged()
        else:
            taken = self.copy_on_write() if self.read_only else self
        array = jax.dlpack.from_dlpack(taken)
        return array.copy() if copy else array

    def view(self, dtype):
        """Return a Tensor over the same bytes with elements of another type, without a copy.

        The last dimension becomes longer or shorter if the elements have another size. So ``t.view('uint8')`` has the
        bytes of types that other libraries do not have, such as the packed float6_e2m3fn of .safetensors files.
        Elements of less than a byte are packed, unless the tensor has elements of that type and they are not.
        ValueError: the last dimension has no whole number of such elements. TypeError: the tensor is on a GPU.
        """
        if self.__dlpack_device__()[0] == _CUDA:
            raise TypeError(f"view() is for tensors on the CPU, and this one is on {self.device}: t.torch().view(...)")
        wanted = _, bits, lanes = parse_dtype(dtype)
        old, new, shape = int(self.itemsize * 8), bits * lanes, self.shape
        if old != new and wanted != self._dtype_tuple:
            if not shape or shape[-1] * old % new:
                raise ValueError(f"the last dimension of shape {shape} is no whole number of {dtype} elements")
            shape = (*shape[:-1], shape[-1] * old // new)
        return self._view(wanted, shape)

    def copy_on_write(self):
        """Return another Tensor of the same version in mode 'c', with a lease of its own and without a copy.

        UnsupportedError: it is on a GPU, or a copy that get(..., device=) made.
        """
        return self._remap("c")

    def read_only_view(self):
        """Return another Tensor of the same version in mode 'r', without what was written to this one.

        UnsupportedError: it is a copy that get(..., device=) made.
        """
        return self._remap("r")

    @property
    def __cuda_array_interface__(self):
        """The interface, version 3, of a tensor on a GPU. Its stream is that of get(), or the legacy one."""
        if self.__dlpack_device__()[0] != _CUDA:
            _no_interface()
        return interface_of(self, self._cuda_stream(), True)

    dtype = property(_dtype)
    __array__ = _array_method

    def __repr__(self):
        try:
            where = "" if self.device == "cpu" else f", {self.device}"
            called = "" if self.name is None else f" {self.name!r} version {self.version}"
            mode = "read-only" if self.read_only else "copy-on-write" if called else "writable"
            return f"<tensorlease.Tensor{called}: {self.dtype} {self.shape}, {size_text(self.nbytes)}, {mode}{where}>"
        except ValueError:
            return "<tensorlease.Tensor, released>"

    def _repr_html_(self):
        from ._html import tensor_html

        return tensor_html(self)

    def __reduce__(self):
        return reduce_tensor(self)


# Texts of other libraries, as in "expected Tensor as element 0, but got Tensor", tell which class it is.
Tensor.__name__ = "tensorlease.Tensor"


class Draft(_Values, _core.Draft):
    """Memory for a tensor that is not published yet. Client.create() returns it.

    Write to it through numpy(), torch(), ``draft[...] = values``, ``memoryview(draft)`` or DLPack, then call commit()
    or abort(). As a context manager it is committed when the block ends, and aborted if the block raises. The end of
    its client aborts it too, after which a commit is a ValueError. Views stay valid after the commit but must not be
    written to, because others read those bytes. The commit makes arrays that numpy() returned read-only; with other
    views this is up to the writer. Any thread may write to it, and one of them commits it: a second commit is a
    ValueError. It belongs to the process that made it. After a fork the child may write to it too, until the parent
    commits it; a commit in the child is an Error with errno ESTALE.

    On a GPU consumers wait for the work of one stream. It is the one named by commit(stream=...) or the attribute
    stream, else the one that was named when the draft was taken by DLPack, as torch() does, else CUDA's legacy default
    stream. NumPy, ``draft[...] = values`` and memoryview() cannot write to it: fill ``draft.torch()``.
    """

    __slots__ = ("__weakref__",)

    def numpy(self):
        """Return a writable numpy.ndarray over the draft's memory. ValueError: it was committed or aborted."""
        array = self._array()
        return self._array(_as_numpy(self)) if array is None else array

    def torch(self):
        """Return a torch.Tensor over the draft's memory. Do not write to it after the commit. Errors: as numpy()."""
        import torch

        return torch.from_dlpack(self)

    @property
    def __cuda_array_interface__(self):
        """The interface, version 3, of a draft on a GPU, writable. Name the stream that writes it."""
        if self.__dlpack_device__()[0] != _CUDA:
            _no_interface()
        return interface_of(self, None, False)

    dtype = property(_dtype)
    __array__ = _array_method

    def __setitem__(self, index, value):
        self.numpy()[index] = value

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        if kind is not None:
            self.abort()
        elif self.state == "open" or self._closed:
            self.commit()

    def __repr__(self):
        try:
            if self.state == "open":
                size = size_text(self.nbytes)
                return f"<tensorlease.Draft {self.name!r}: {self.dtype} {self.shape}, {size}, not committed>"
        except ValueError:  # another thread commits or aborts it just now
            pass
        return f"<tensorlease.Draft {self.name!r}, {self.state}>"

    def __reduce__(self):
        raise TypeError("a Draft belongs to the process that created it")
