# SPDX-License-Identifier: Apache-2.0
"""Share named tensors between processes without a copy.

    import tensorlease

    with tensorlease.connect() as client:          # starts a daemon for this user if none runs
        client.put("cam0/rgb", frame)              # publish a copy
        with client.create("cam0/rgb", (720, 1280, 3), "uint8") as draft:
            camera.read_into(draft.numpy())        # write to shared memory; the end of the block publishes it

        frame = client.get("cam0/rgb", timeout=1)  # the same memory, in any process
        frame.numpy(), frame.torch(), frame.jax()

        client.publish("act/7", cuda_tensor)       # of PyTorch, CuPy, ...: shares the GPU memory
        client.get("act/7").torch()

        client.put_many(model.state_dict(), prefix="model")        # many in one step
        layers = client.get_many(prefix="model")                   # all as of one moment
        client.load("llama", "model.safetensors")                  # a whole file; save() writes one

The lease on a tensor lasts as long as the Tensor or any view of it.
"""

import os as _os
import sys as _sys

from . import _core

_modules = _core.modules()
_sys.modules.update(_modules)  # a second import in this process is the first, whose classes the extension raises

from ._arrays import read_interface as _read_interface
from ._arrays import read_values as _read_values
from ._arrays import write_metadata as _write_metadata
from ._core import explain_faults
from ._cache import cached
from ._client import Client, connect
from ._cuda import CudaDevice, DeviceUsage, cuda_alloc, cuda_devices, cuda_free
from ._cuda import read_interface as _read_cuda_interface
from ._cuda import device_pair as _device_pair
from ._cuda import stream_number as _stream_number
from ._errors import (
    BY_ERRNO as _BY_ERRNO,
)
from ._errors import (
    CONNECTING as _CONNECTING,
)
from ._errors import (
    DisconnectedError,
    Error,
    InvalidError,
    KickedError,
    NoDaemonError,
    NoDeviceError,
    NoSpaceError,
    NotFoundError,
    NotNewerError,
    PermissionDeniedError,
    StreamEndedError,
    TensorLostError,
    TimeoutError,
    TooManyClientsError,
    UnsupportedError,
)
from ._queue import Empty, Full, Queue
from ._ref import Ref
from ._stream import Item, ItemDraft, Stream, Subscription
from ._tensor import Draft, Tensor
from ._tuples import (
    ClientInfo,
    Holding,
    Identity,
    Info,
    Loaded,
    Published,
    Reader,
    Status,
    StreamInfo,
    StreamMember,
)
from ._watch import Event, Events, Watch

_modules.update({name: module for name, module in list(_sys.modules.items()) if f"{name}.".startswith(f"{__name__}.")})
_core.register(
    _BY_ERRNO,
    _CONNECTING,
    Error,
    Tensor,
    Draft,
    _read_interface,
    _read_cuda_interface,
    _stream_number,
    _device_pair,
    _read_values,
    _write_metadata,
)

if _os.environ.get("TENSORLEASE_EXPLAIN_FAULTS") == "1":
    explain_faults()

__version__ = _core.library_version

__all__ = [
    "Client",
    "ClientInfo",
    "CudaDevice",
    "DeviceUsage",
    "DisconnectedError",
    "Draft",
    "Empty",
    "Error",
    "Event",
    "Events",
    "Full",
    "Holding",
    "Identity",
    "Info",
    "InvalidError",
    "Item",
    "ItemDraft",
    "KickedError",
    "Loaded",
    "NoDaemonError",
    "NoDeviceError",
    "NoSpaceError",
    "NotFoundError",
    "NotNewerError",
    "PermissionDeniedError",
    "Published",
    "Queue",
    "Reader",
    "Ref",
    "Status",
    "Stream",
    "StreamEndedError",
    "StreamInfo",
    "StreamMember",
    "Subscription",
    "Tensor",
    "TensorLostError",
    "TimeoutError",
    "TooManyClientsError",
    "UnsupportedError",
    "Watch",
    "cached",
    "connect",
    "cuda_alloc",
    "cuda_devices",
    "cuda_free",
    "explain_faults",
]
