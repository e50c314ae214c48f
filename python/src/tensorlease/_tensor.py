# SPDX-License-Identifier: Apache-2.0
"""Tensor and Draft: the objects of the extension, with what other libraries want of them."""

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
    """The bytes of an array for NumPy, where the buffer protocol has no words for its elements."""

    def __init__(self, array):
        self.shared = array._share()  # holds the lease
        self.__array_interface__ = {
            "version": 3,
            "data": (array._address, self.shared.read_only),
            "shape": (array.nbytes,),
            "typestr": "|u1",
        }


def _as_numpy(array):
    """Over the same memory; writable if that is."""
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
    """Element type: a numpy.dtype if NumPy is installed and has one, else its name, a str. Both equal 'float32'."""
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
        raise ValueError(f"{array.dtype} as {wanted} is a copy, which copy=False forbids")
    return array.astype(wanted)


def _no_interface():
    raise AttributeError("the tensor is on the CPU: it has no __cuda_array_interface__")


class Tensor(_core.Tensor):
    """A tensor that another process published, held by a lease.

    Its bytes stay as they are until it and all views of it are gone: arrays of other libraries, memoryviews,
    DLPack capsules. Any thread may use it and let go of it; after release() its attributes and methods raise a
    ValueError, protocols a BufferError. Got by Client.get(); mode 'r' is the shared memory itself, read-only;
    mode 'c' is copy-on-write: writable, zero-copy until a page is written to, and what is written is seen by
    this Tensor and its views alone.

    Libraries take it as it is: ``numpy.asarray(t)``, ``numpy.from_dlpack(t)``, ``torch.from_dlpack(t)``,
    ``memoryview(t)``. A library that may ignore DLPack's read-only flag (PyTorch, CuPy, tvm-ffi) is given a
    copy-on-write view of its own of a read-only Tensor, still without a copy, so that its writes
    reach nobody. One that asks for a DLPack capsule without a version (JAX, NumPy before 2.1) gets a
    BufferError from a read-only Tensor: get it with ``mode='c'``, or use jax() and numpy().

    On a GPU there is no mode 'c', and no NumPy. Each ``torch.from_dlpack(t)``, ``cupy.from_dlpack(t)`` names its
    stream, which is made to wait for the producer's work; the lease ends when what that stream has got until then
    is done. They are given the shared memory, flagged read-only: writing to it is an error that nobody may see.
    """

    __slots__ = ("__weakref__",)

    def numpy(self, *, copy=False):
        """A numpy.ndarray over the same memory: read-only of a mode 'r' Tensor, writable of a mode 'c' one.

        copy: True makes an independent, writable array.
        bfloat16 and the float8 types need the package ml_dtypes. TypeError: NumPy has no such dtype.
        """
        array = _as_numpy(self)
        return array.copy() if copy else array

    def torch(self, *, copy=False):
        """A torch.Tensor, zero-copy and writable: of a mode 'r' Tensor, over a copy-on-write view of its own.

        PyTorch knows no read-only tensors, so it never gets the shared memory itself. What is written to a tensor
        from a mode 'r' Tensor is in that torch.Tensor alone; torch tensors of one mode 'c' Tensor share its memory.
        copy: True makes a copy. BufferError or RuntimeError: PyTorch has no such dtype.
        """
        import torch

        try:
            array = torch.from_dlpack(self)
        except BufferError:  # an old PyTorch, which asks for a capsule without a version
            if not self.read_only or self.__dlpack_device__()[0] == _CUDA:
                raise
            array = torch.from_dlpack(self.copy_on_write())
        return array.clone() if copy else array

    def jax(self, *, copy=False):
        """A jax.Array, zero-copy over a copy-on-write view; on a GPU over the memory itself. copy: True makes a copy.

        JAX only takes memory that it could write to, and never shows a write: its arrays are immutable.
        TypeError: elements of 64 bits, which JAX would cut to 32 unless jax_enable_x64 is set.
        """
        import jax

        code, bits, _ = self._dtype_tuple
        if bits > (64 if code == _COMPLEX else 32) and not jax.config.jax_enable_x64:
            raise TypeError(
                f"JAX would copy {self.dtype} to half its bits: jax.config.update('jax_enable_x64', True) lets it take "
                "the tensor as it is"
            )

        if self.__dlpack_device__()[0] == _CUDA:
            taken = self.unflagged()
        else:
            taken = self.copy_on_write() if self.read_only else self
        array = jax.dlpack.from_dlpack(taken)
        return array.copy() if copy else array

    def copy_on_write(self):
        """Another Tensor of the same name and version with mode 'c', with a lease of its own; no copy.

        UnsupportedError: it is on a GPU.
        """
        return self._remap("c")

    def read_only_view(self):
        """Another Tensor of the same name and version with mode 'r': without what was written here."""
        return self._remap("r")

    @property
    def __cuda_array_interface__(self):
        """Version 3, of a tensor on a GPU: for CuPy and Numba. Its stream is that of get(), or the legacy one."""
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
        raise TypeError("a Tensor is a lease of this process; send its name and version, and get it there")


class Draft(_core.Draft):
    """Memory for a tensor that is not published yet; made by Client.create().

    Write to it through numpy(), torch(), ``draft[...] = values``, ``memoryview(draft)`` or DLPack, then commit() or
    abort(). As a context manager it is committed when the block ends, and aborted if that raises. Views stay valid
    after the commit but must not be written to: others read those bytes. Arrays that numpy() returned are made
    read-only by the commit; of other views the writer has to take care.
    Any thread may write to it, and one of them commits it: a second commit is a ValueError.
    It belongs to the process that made it: after a fork the child must not touch it.

    On a GPU consumers of what is committed wait for one stream's work: the one that commit(stream=...) or the attribute
    stream says; else the one that was named when the draft was taken by DLPack, as torch() does; else CUDA's legacy
    default stream. To NumPy, ``draft[...] = values`` and memoryview() it is closed: fill ``draft.torch()``.
    """

    __slots__ = ("__weakref__", "_array")

    def numpy(self):
        """A writable numpy.ndarray over the draft's memory. ValueError: it was committed or aborted."""
        reference = getattr(self, "_array", None)
        array = None if reference is None else reference()
        if array is None or self.state != "open":
            array = _as_numpy(self)
            self._array = weakref.ref(array)
        return array

    def torch(self):
        """A torch.Tensor over the draft's memory. It must not be written to after the commit. Errors as numpy()."""
        import torch

        return torch.from_dlpack(self)

    @property
    def __cuda_array_interface__(self):
        """Version 3, writable, of a draft on a GPU: for CuPy and Numba. Say then on which stream it is written."""
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
