# SPDX-License-Identifier: Apache-2.0
"""DLPack's structs by ctypes, to look into our capsules and to make wrong ones."""

import ctypes as c

READ_ONLY, IS_COPIED, PADDED = 1, 2, 4


class DType(c.Structure):
    _fields_ = [("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16)]


class Tensor(c.Structure):
    _fields_ = [
        ("data", c.c_void_p),
        ("device_type", c.c_int32),
        ("device_id", c.c_int32),
        ("ndim", c.c_int32),
        ("dtype", DType),
        ("shape", c.POINTER(c.c_int64)),
        ("strides", c.POINTER(c.c_int64)),
        ("byte_offset", c.c_uint64),
    ]


class Managed(c.Structure):
    pass


LegacyDeleter = c.CFUNCTYPE(None, c.POINTER(Managed))
Managed._fields_ = [("tensor", Tensor), ("ctx", c.c_void_p), ("deleter", LegacyDeleter)]


class Versioned(c.Structure):
    pass


Deleter = c.CFUNCTYPE(None, c.POINTER(Versioned))
Versioned._fields_ = [
    ("major", c.c_uint32),
    ("minor", c.c_uint32),
    ("ctx", c.c_void_p),
    ("deleter", Deleter),
    ("flags", c.c_uint64),
    ("tensor", Tensor),
]


class Exchange(c.Structure):
    _fields_ = [
        ("major", c.c_uint32),
        ("minor", c.c_uint32),
        ("previous", c.c_void_p),
        ("allocate", c.c_void_p),
        ("from_py", c.PYFUNCTYPE(c.c_int, c.py_object, c.POINTER(c.POINTER(Versioned)))),
        ("to_py", c.PYFUNCTYPE(c.c_int, c.POINTER(Versioned), c.POINTER(c.py_object))),
        ("borrow", c.c_void_p),
        ("stream", c.PYFUNCTYPE(c.c_int, c.c_int32, c.c_int32, c.POINTER(c.c_void_p))),
    ]


api = c.pythonapi
api.PyCapsule_New.restype = c.py_object
api.PyCapsule_New.argtypes = [c.c_void_p, c.c_void_p, c.c_void_p]
api.PyCapsule_GetName.restype = c.c_char_p
api.PyCapsule_GetName.argtypes = [c.py_object]
api.PyCapsule_GetPointer.restype = c.c_void_p
api.PyCapsule_GetPointer.argtypes = [c.py_object, c.c_char_p]
api.PyCapsule_SetName.argtypes = [c.py_object, c.c_char_p]

USED = c.create_string_buffer(b"used_dltensor_versioned")
USED_LEGACY = c.create_string_buffer(b"used_dltensor")
for name in (USED, USED_LEGACY):  # capsules may outlive this module
    c.pythonapi.Py_IncRef(c.py_object(name))


def name_of(capsule):
    return api.PyCapsule_GetName(capsule).decode()


def versioned_of(capsule):
    return Versioned.from_address(api.PyCapsule_GetPointer(capsule, b"dltensor_versioned"))


def legacy_of(capsule):
    return Managed.from_address(api.PyCapsule_GetPointer(capsule, b"dltensor"))


def exchange_of(array):
    """Returns the C exchange interface of its type."""
    return Exchange.from_address(api.PyCapsule_GetPointer(array.__dlpack_c_exchange_api__, b"dlpack_exchange_api"))


def consume(capsule):
    """Takes the capsule as a consumer does, by renaming it. Returns the struct, whose deleter we must call."""
    if name_of(capsule) == "dltensor":
        managed = legacy_of(capsule)
        api.PyCapsule_SetName(capsule, c.cast(USED_LEGACY, c.c_char_p))
    else:
        managed = versioned_of(capsule)
        api.PyCapsule_SetName(capsule, c.cast(USED, c.c_char_p))
    return managed


def bytes_of(tensor, n):
    return c.string_at(tensor.data + tensor.byte_offset, n)


class Producer:
    """An object whose __dlpack__ returns whatever the test wants."""

    def __init__(
        self,
        payload=bytes(range(64)),
        *,
        legacy=False,
        name=None,
        major=1,
        minor=0,
        flags=0,
        shape=(4,),
        strides="contiguous",
        ndim=None,
        dtype=(0, 32, 1),
        device=(1, 0),
        says_device=None,
        data="payload",
        byte_offset=0,
        deleter=True,
        raises=None,
        returns=None,
    ):
        self.payload = c.create_string_buffer(bytes(payload), len(payload))
        self.deleted = 0
        self.calls = []
        self.legacy = legacy
        self.raises = raises
        self.returns = returns
        self.says_device = device if says_device is None else says_device
        self.name = c.create_string_buffer((name or ("dltensor" if legacy else "dltensor_versioned")).encode())
        self.shape = (c.c_int64 * max(len(shape or ()), 1))(*(shape or ()))
        if strides == "contiguous":
            steps, step = [], 1
            for n in reversed(shape or ()):
                steps.append(step)
                step *= n
            strides = tuple(reversed(steps))
        self.strides = None if strides is None else (c.c_int64 * max(len(strides), 1))(*strides)
        self.managed = Managed() if legacy else Versioned(major=major, minor=minor, flags=flags)
        self.callback = (LegacyDeleter if legacy else Deleter)(self._delete)
        if deleter:
            self.managed.deleter = self.callback
        tensor = self.managed.tensor
        tensor.data = c.addressof(self.payload) if data == "payload" else data
        tensor.device_type, tensor.device_id = device
        tensor.ndim = len(shape or ()) if ndim is None else ndim
        tensor.dtype = DType(*dtype)
        if shape is not None:
            tensor.shape = c.cast(self.shape, c.POINTER(c.c_int64))
        if self.strides is not None:
            tensor.strides = c.cast(self.strides, c.POINTER(c.c_int64))
        tensor.byte_offset = byte_offset

    def _delete(self, _):
        self.deleted += 1

    def __dlpack_device__(self):
        return self.says_device

    def __dlpack__(self, **kwargs):
        self.calls.append(kwargs)
        if self.raises is not None:
            raise self.raises
        if self.legacy and kwargs:
            raise TypeError("an old producer")
        if self.returns is not None:
            return self.returns
        self.capsule = api.PyCapsule_New(c.addressof(self.managed), c.addressof(self.name), None)
        return self.capsule
