# SPDX-License-Identifier: Apache-2.0
"""Tensor and Draft: the classes of the extension, with the methods for other libraries."""

import weakref

from . import _core
from ._cuda import interface_of
from ._dtypes import find_dtype, numpy_dtype


_CUDA = 2  # DLPack's numbers
_COMPLEX = 5


def _size_text(nbytes):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            return f"{nbytes} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024


class _Raw:
    """The bytes of an array for NumPy, if the buffer protocol has no format for its elements."""

    def __init__(self, array):
        self.shared = array._share()  # holds the lease
        self.__array_interface__ = {
            "version": 3,
            "data": (array._address, self.shared.read_only),
            "shape": (array.nbytes,),
            "typestr": "|u1",
        }


def _as_numpy(array):
    """Return an array over the same memory, writable if that is."""
    if array.__dlpack_device__()[0] == _CUDA:
        raise TypeError(f"the tensor is on {array.device}, whose memory NumPy cannot read: t.torch().cpu().numpy()")
    import numpy

    code, _, lanes = array._dtype_tuple
    if code in (0, 1, 2, 5, 6) and lanes == 1 and isinstance(array.itemsize, int):
        return numpy.asarray(memoryview(array))
    dtype = numpy_dtype(array._dtype_word)
    if dtype.itemsize != array.itemsize:
        raise TypeError(f"NumPy has no packed {array._dtype_word}: its elements take {dtype.itemsize} bytes each")
    if not array.size:
        return numpy.empty(array.shape, dtype)
    return numpy.asarray(_Raw(array)).view(dtype).reshape(array.shape)


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


def _no_interface():
    raise AttributeError("the tensor is on the CPU: it has no __cuda_array_interface__")


class Tensor(_core.Tensor):
    """A tensor that another process published, held by a lease. Client.get() returns it.

    Its bytes do not change until the Tensor and all views of it are gone: arrays of other libraries, memoryviews,
    DLPack capsules. Any thread may use it and drop it. After release() its attributes and methods raise a ValueError,
    and the protocols raise a BufferError. In mode 'r' it is the shared memory itself, read-only. In mode 'c' it is
    copy-on-write: writable, and without a copy until a page is written to; only this Tensor and its views see what is
    written.

    Other libraries accept it as it is: ``numpy.asarray(t)``, ``numpy.from_dlpack(t)``, ``torch.from_dlpack(t)``,
    ``memoryview(t)``. A library that may ignore DLPack's read-only flag (PyTorch, CuPy, tvm-ffi) gets a copy-on-write
    view of its own from a read-only Tensor. This makes no copy either, and what it writes affects nobody. A library
    that asks for a DLPack capsule without a version (JAX, NumPy before 2.1) gets a BufferError from a read-only Tensor:
    get it with ``mode='c'``, or use jax() and numpy().

    On a GPU there is no mode 'c', and no NumPy. Each ``torch.from_dlpack(t)`` or ``cupy.from_dlpack(t)`` names its
    stream. That stream waits for the producer's work, and the lease ends when the work that is queued on it by then is
    done. The consumer gets the shared memory, flagged as read-only. It must not write to it, though nothing may stop
    it.
    """

    __slots__ = ("__weakref__",)

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
        sees what is written to it. In mode 'c' all torch.Tensors of this Tensor share its memory.
        copy: True makes a copy. BufferError or RuntimeError: PyTorch has no such dtype.
        """
        import torch

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

    def copy_on_write(self):
        """Return another Tensor of the same version in mode 'c', with a lease of its own and without a copy.

        UnsupportedError: it is on a GPU.
        """
        return self._remap("c")

    def read_only_view(self):
        """Return another Tensor of the same version in mode 'r', without what was written to this one."""
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
        if self.released:
            return "<tensorlease.Tensor, released>"
        where = "" if self.device == "cpu" else f", {self.device}"
        called = "" if self.name is None else f" {self.name!r} version {self.version}"
        mode = "read-only" if self.read_only else "copy-on-write" if called else "writable"
        return f"<tensorlease.Tensor{called}: {self.dtype} {self.shape}, {_size_text(self.nbytes)}, {mode}{where}>"

    def __reduce__(self):
        raise TypeError("a Tensor is a lease of this process: send its name and version, and get() it there")


class Draft(_core.Draft):
    """Memory for a tensor that is not published yet. Client.create() returns it.

    Write to it through numpy(), torch(), ``draft[...] = values``, ``memoryview(draft)`` or DLPack, then call commit()
    or abort(). As a context manager it is committed when the block ends, and aborted if the block raises. Views stay
    valid after the commit but must not be written to, because others read those bytes. The commit makes arrays that
    numpy() returned read-only; with other views this is up to the writer. Any thread may write to it, and one of them
    commits it: a second commit is a ValueError. It belongs to the process that made it: after a fork the child must not
    touch it.

    On a GPU consumers wait for the work of one stream. It is the one named by commit(stream=...) or the attribute
    stream, else the one that was named when the draft was taken by DLPack, as torch() does, else CUDA's legacy default
    stream. NumPy, ``draft[...] = values`` and memoryview() cannot write to it: fill ``draft.torch()``.
    """

    __slots__ = ("__weakref__", "_array")

    def numpy(self):
        """Return a writable numpy.ndarray over the draft's memory. ValueError: it was committed or aborted."""
        reference = getattr(self, "_array", None)
        array = None if reference is None else reference()
        if array is None or self.state != "open":
            array = _as_numpy(self)
            self._array = weakref.ref(array)
        return array

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

    def __getitem__(self, index):
        return self.numpy()[index]

    def __setitem__(self, index, value):
        self.numpy()[index] = value

    def __len__(self):
        if not self.ndim:
            raise TypeError("a draft without dimensions has no length")
        return self.shape[0]

    def commit(self, *, metadata=None, wait=True, stream=None):
        version = super().commit(metadata=metadata, wait=wait, stream=stream)
        self._seal()
        return version

    commit.__doc__ = _core.Draft.commit.__doc__

    def _seal(self):
        reference = getattr(self, "_array", None)
        array = None if reference is None else reference()
        if array is not None:
            array.flags.writeable = False

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        if kind is not None:
            self.abort()
        elif self.state == "open":
            self.commit()

    def __repr__(self):
        if self.state != "open":
            return f"<tensorlease.Draft {self.name!r}, {self.state}>"
        return f"<tensorlease.Draft {self.name!r}: {self.dtype} {self.shape}, {_size_text(self.nbytes)}, not committed>"

    def __reduce__(self):
        raise TypeError("a Draft belongs to the process that created it")
