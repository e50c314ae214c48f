# SPDX-License-Identifier: Apache-2.0
"""The libraries: how each takes a tensor, which tensors it takes, and how to look at what it made of one.

A library is imported when its adapter is made. The tests demand what is declared here in both directions: a library
that takes an element type, a way or a mode that is not listed fails too, so the table stays true.
"""

import ctypes
import importlib
import importlib.metadata
import importlib.util
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
FLOAT8 = (
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)
SMALL = ("int4", "uint4", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "float4_e2m1fnx2")
WORDS = ("bool", *INTEGERS, *FLOATS, "bfloat16", *COMPLEX, *FLOAT8, *SMALL)
NUMPY = ("bool", *INTEGERS, *FLOATS, *COMPLEX)

REFUSED = "refused"  # an error, nothing consumed
SHARED = "shared"  # the shared memory itself, which is mapped read-only
PRIVATE = "private"  # a copy-on-write mapping of its own
OWN = "own"  # the mode "c" Tensor's memory


class Way(NamedTuple):
    """One way of handing a Tensor to a library, and whose memory the library gets from each mode."""

    name: str
    consume: Callable  # (adapter, what export() gave) -> array
    r: str = PRIVATE
    c: str = OWN
    export: Callable = None  # makes a capsule of the Tensor
    takes: tuple = None  # element types, if they are not the library's
    max_ndim: int = None
    writable: bool = True

    def take(self, adapter, tensor):
        return self.consume(adapter, self.export(tensor) if self.export else tensor)


def legacy(tensor):
    return tensor.__dlpack__()


def versioned(tensor):
    return tensor.__dlpack__(max_version=(1, 0))


def capsules(consume, **of_versioned):
    """The two ways of a library that takes capsules. A read-only Tensor has no capsule without a version."""
    return (
        Way("capsule", consume, export=versioned, **of_versioned),
        Way("legacy capsule", consume, export=legacy, r=REFUSED),
    )


class Exporter:
    """An object whose __dlpack__ returns what a function of another library makes of an array."""

    def __init__(self, array, export):
        self.array, self.export = array, export

    def __dlpack__(self, **_):
        return self.export(self.array)

    def __dlpack_device__(self):
        return (1, 0)


class Library:
    name = ""
    module = ""
    distribution = None  # pip's name, if it is not the module's
    ways = ()
    takes = ()  # element types
    makes = None  # what make() makes; None if that is what the first way takes
    max_ndim = 64
    strided = True  # it has non-contiguous arrays
    keeps_tensor = False  # its array holds the Tensor too, with a lease of its own
    shows_writes = True  # write() writes to the array itself

    def __init__(self):
        self.lib = importlib.import_module(self.module)

    def version(self):
        return importlib.metadata.version(self.distribution or self.module)

    def address(self, array):
        raise NotImplementedError

    def shape(self, array):
        return tuple(int(n) for n in array.shape)

    def bytes(self, array, nbytes):
        """The array's content in C order, asked of the library if it has a name for the element type."""
        return ctypes.string_at(self.address(array), nbytes) if nbytes else b""

    def make(self, word, shape, payload):
        """An array in the library's own memory."""
        raise NotImplementedError

    def transposed(self, array):
        """A non-contiguous view of a matrix."""
        return array.T

    def takes_shape(self, way, shape):
        if way.max_ndim == 1:
            return len(shape) == 1
        return len(shape) <= (way.max_ndim or self.max_ndim)

    def write(self, array, nbytes):
        """Overwrites all elements with zeros, in place."""
        raise NotImplementedError

    def produces(self, array):
        """Return the object that put() is given for the array."""
        return array

    def says(self, word):
        """The library's name for the element type of its arrays."""
        return word


def numpy_array(word, shape, payload):
    import numpy

    try:
        dtype = numpy.dtype(word)
    except TypeError:
        import ml_dtypes

        dtype = numpy.dtype(getattr(ml_dtypes, word))
    return numpy.frombuffer(bytearray(payload), dtype).reshape(shape)


class NumPy(Library):
    name, module = "numpy", "numpy"
    takes = NUMPY
    makes = (*NUMPY, "bfloat16", *FLOAT8)
    ways = (
        Way("np.from_dlpack(t)", lambda a, t: a.lib.from_dlpack(t), r=SHARED),
        Way("np.asarray(t)", lambda a, t: a.lib.asarray(t), r=SHARED, takes=makes),
        Way("t.numpy()", lambda a, t: t.numpy(), r=SHARED, takes=makes),
    )

    def address(self, array):
        return array.__array_interface__["data"][0]

    def bytes(self, array, nbytes):
        return array.tobytes()

    def make(self, word, shape, payload):
        return numpy_array(word, shape, payload)

    def write(self, array, nbytes):
        array[...] = self.lib.zeros((), array.dtype)


class NumPy1(NumPy):
    """from_dlpack() knows no read-only tensors before 2.1 and no bool before 1.25. ml_dtypes is of that time too."""

    name = "numpy1"
    max_ndim = 32
    makes = (
        *NUMPY,
        "bfloat16",
        *(word for word in FLOAT8 if word not in ("float8_e3m4", "float8_e4m3", "float8_e8m0fnu")),
    )
    ways = (
        Way(
            "np.from_dlpack(t)",
            lambda a, t: a.lib.from_dlpack(t),
            r=REFUSED,
            takes=tuple(word for word in NUMPY if word != "bool"),
            writable=False,
        ),
        NumPy.ways[1]._replace(takes=makes),
        NumPy.ways[2]._replace(takes=makes),
    )


class Torch(Library):
    name, module = "torch", "torch"
    takes = (
        *("bool", *INTEGERS, *FLOATS, "bfloat16", *COMPLEX),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fnx2"),
    )
    ways = (
        Way("torch.from_dlpack(t)", lambda a, t: a.lib.from_dlpack(t)),
        Way("t.torch()", lambda a, t: t.torch()),
        *capsules(lambda a, capsule: a.lib.utils.dlpack.from_dlpack(capsule)),
    )

    def address(self, array):
        return array.data_ptr()

    def bytes(self, array, nbytes):
        return bytes(array.contiguous().reshape(-1).view(self.lib.uint8).tolist())

    def make(self, word, shape, payload):
        flat = self.lib.tensor(list(payload), dtype=self.lib.uint8)
        return flat.view(getattr(self.lib, word.replace("fnx2", "fn_x2"))).reshape(shape)

    def write(self, array, nbytes):
        array.reshape(-1).view(self.lib.uint8).zero_()


class Torch1(Torch):
    """Version 1.13 takes legacy capsules only."""

    name = "torch1"
    takes = ("int8", "int16", "int32", "int64", "uint8", *FLOATS, "bfloat16", *COMPLEX)
    ways = (
        Way("torch.from_dlpack(t)", lambda a, t: a.lib.from_dlpack(t), r=REFUSED),
        Way("t.torch()", lambda a, t: t.torch()),
        *capsules(lambda a, capsule: a.lib.utils.dlpack.from_dlpack(capsule), r=REFUSED, c=REFUSED),
    )

    def version(self):
        return self.lib.__version__


class Jax(Library):
    name, module = "jax", "jax"
    takes = ("bool", *INTEGERS, *FLOATS, "bfloat16", *COMPLEX, *FLOAT8)
    strided = False
    shows_writes = False
    ways = (
        Way("jax.dlpack.from_dlpack(t)", lambda a, t: a.lib.dlpack.from_dlpack(t), r=REFUSED),
        Way("t.jax()", lambda a, t: t.jax()),
    )

    def __init__(self):
        super().__init__()
        self.lib.config.update("jax_enable_x64", True)

    def address(self, array):
        return array.unsafe_buffer_pointer()

    def bytes(self, array, nbytes):
        import numpy

        return numpy.asarray(array).tobytes()

    def make(self, word, shape, payload):
        return self.lib.numpy.array(numpy_array(word, shape, payload))

    def write(self, array, nbytes):
        """JAX's arrays are immutable, but it may write to a buffer that is given away."""
        zeros = self.lib.jit(lambda x: self.lib.numpy.zeros_like(x), donate_argnums=0, keep_unused=True)
        zeros(array).block_until_ready()


class TensorFlow(Library):
    name, module, distribution = "tensorflow", "tensorflow", "tensorflow_cpu"
    takes = ("bool", *INTEGERS, *FLOATS, "bfloat16", *COMPLEX)
    strided = False
    ways = capsules(lambda a, capsule: a.lib.experimental.dlpack.from_dlpack(capsule), r=REFUSED, c=REFUSED)[::-1]

    def address(self, array):
        import dlpack_abi

        tensor = dlpack_abi.legacy_of(self.lib.experimental.dlpack.to_dlpack(array)).tensor
        return (tensor.data or 0) + tensor.byte_offset

    def bytes(self, array, nbytes):
        return array.numpy().tobytes()

    def make(self, word, shape, payload):
        return self.lib.constant(numpy_array(word, shape, payload))

    def write(self, array, nbytes):
        """TensorFlow's tensors are immutable, but this operation writes to one."""
        rows = self.lib.range(array.shape[0])
        self.lib.raw_ops.InplaceUpdate(x=array, i=rows, v=self.lib.zeros_like(array))


class Tvm(Library):
    name, module, distribution = "tvm-ffi", "tvm_ffi", "apache-tvm-ffi"
    takes = WORDS
    makes = NUMPY
    strided = False
    ways = (
        Way("tvm_ffi.from_dlpack(t)", lambda a, t: a.lib.from_dlpack(t)),
        *capsules(lambda a, capsule: a.lib.from_dlpack(capsule)),
    )

    def address(self, array):
        return array.data_ptr()

    def make(self, word, shape, payload):
        """It has no memory of its own in Python."""
        return self.lib.from_dlpack(numpy_array(word, shape, payload))

    def write(self, array, nbytes):
        """Writes as a kernel does."""
        ctypes.memset(array.data_ptr(), 0, nbytes)


class MXNet(Library):
    name, module = "mxnet", "mxnet"
    takes = ("int8", "int32", "int64", "uint8", *FLOATS, "bfloat16")
    makes = ("int8", "int32", "int64", "uint8", *FLOATS)
    strided = False
    ways = capsules(lambda a, capsule: a.lib.nd.from_dlpack(capsule), r=REFUSED, c=REFUSED)[::-1]

    def address(self, array):
        from mxnet.base import _LIB, check_call

        data = ctypes.c_void_p()
        check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(data)))
        return data.value or 0

    def bytes(self, array, nbytes):
        if array.ndim > 32:  # more than NumPy had at its time
            return super().bytes(array, nbytes)
        return array.asnumpy().tobytes()

    def takes_shape(self, way, shape):
        return 0 not in shape[1:]  # it takes the strides of an empty tensor for zeros

    def make(self, word, shape, payload):
        return self.lib.nd.array(numpy_array(word, shape, payload), dtype=word)

    def write(self, array, nbytes):
        array[:] = 0
        array.wait_to_read()

    def produces(self, array):
        return Exporter(array, self.lib.nd.to_dlpack_for_read)


class OnnxRuntime(Library):
    name, module = "onnxruntime", "onnxruntime"
    takes = (*INTEGERS, *FLOATS, "bfloat16")
    makes = ("bool", *INTEGERS, *FLOATS)
    strided = False
    ways = (
        Way("OrtValue.from_dlpack(t)", lambda a, t: a.lib.OrtValue.from_dlpack(t), r=REFUSED),
        Way("legacy capsule", lambda a, c: a.lib.OrtValue.from_dlpack(c), export=legacy, r=REFUSED),
    )

    def address(self, array):
        return array.data_ptr()

    def shape(self, array):
        return tuple(array.shape())

    def make(self, word, shape, payload):
        return self.lib.OrtValue.ortvalue_from_numpy(numpy_array(word, shape, payload))

    def says(self, word):
        return "uint8" if word == "bool" else word

    def write(self, array, nbytes):
        array.update_inplace(numpy_array("float32", array.shape(), bytes(nbytes)))


class PyArrow(Library):
    name, module = "pyarrow", "pyarrow"
    takes = (*INTEGERS, *FLOATS)
    ways = (
        Way("pa.Tensor.from_dlpack(t)", lambda a, t: a.lib.Tensor.from_dlpack(t), r=SHARED),
        Way(
            "pa.Array.from_dlpack(t)",
            lambda a, t: a.lib.Array.from_dlpack(t),
            r=SHARED,
            max_ndim=1,
            writable=False,
        ),
    )

    def address(self, array):
        return array.to_numpy().__array_interface__["data"][0]

    def shape(self, array):
        return tuple(array.shape) if isinstance(array, self.lib.Tensor) else (len(array),)

    def bytes(self, array, nbytes):
        return array.to_numpy().tobytes()

    def make(self, word, shape, payload):
        return self.lib.Tensor.from_numpy(numpy_array(word, shape, payload))

    def transposed(self, array):
        return self.lib.Tensor.from_numpy(array.to_numpy().T)

    def write(self, array, nbytes):
        array.to_numpy()[...] = 0


class Paddle(Library):
    name, module, distribution = "paddle", "paddle", "paddlepaddle"
    max_ndim = 9
    takes = ("bool", *INTEGERS, *FLOATS, "bfloat16", *COMPLEX, "float8_e4m3fn", "float8_e5m2")
    makes = ("bool", "int8", "int16", "int32", "int64", "uint8", *FLOATS, *COMPLEX)
    ways = (
        Way("paddle.from_dlpack(t)", lambda a, t: a.lib.from_dlpack(t)),
        *capsules(lambda a, capsule: a.lib.utils.dlpack.from_dlpack(capsule)),
    )

    def address(self, array):
        return array.data_ptr()

    def bytes(self, array, nbytes):
        return array.numpy().tobytes()

    def make(self, word, shape, payload):
        return self.lib.to_tensor(numpy_array(word, shape, payload))

    def write(self, array, nbytes):
        array.zero_()


class Nanobind(Library):
    """A C++ extension that takes arrays, nanobind_array.cpp, compiled into the environment."""

    name, module = "nanobind", "nanobind"
    takes = WORDS
    makes = NUMPY
    strided = False
    keeps_tensor = True
    ways = (
        Way("nb::ndarray<>(t)", lambda a, t: a.extension.Array(t)),
        Way("nb::ndarray<nb::ro>(t)", lambda a, t: a.extension.ReadOnlyArray(t), writable=False),
    )

    def __init__(self):
        super().__init__()
        source = Path(__file__).with_name("nanobind_array.cpp")
        binary = Path(sys.prefix) / "nanobind_array.so"
        if not binary.exists() or binary.stat().st_mtime < source.stat().st_mtime:
            self.compile(source, binary)
        spec = importlib.util.spec_from_file_location("nanobind_array", binary)
        self.extension = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.extension)

    def compile(self, source, binary):
        include = Path(self.lib.include_dir())
        folders = (include, include.parent / "ext/robin_map/include", sysconfig.get_paths()["include"])
        sources = [Path(self.lib.source_dir()) / "nb_combined.cpp", source]
        flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing"]
        subprocess.run(["g++", *flags, *(f"-I{folder}" for folder in folders), *sources, "-o", binary], check=True)

    def address(self, array):
        return array.address

    def make(self, word, shape, payload):
        """It has no memory of its own."""
        return self.extension.Array(numpy_array(word, shape, payload))

    def write(self, array, nbytes):
        array.zero()

    def produces(self, array):
        return array.export()


LIBRARIES = (NumPy, NumPy1, Torch, Torch1, Jax, TensorFlow, Tvm, MXNet, OnnxRuntime, PyArrow, Paddle, Nanobind)
