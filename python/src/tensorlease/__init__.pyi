# SPDX-License-Identifier: Apache-2.0
import builtins
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from queue import Empty, Full
from types import TracebackType
from typing import Any, ClassVar, Generic, Literal, NamedTuple, ParamSpec, Protocol, TypeVar, SupportsFloat, SupportsIndex, overload

from typing_extensions import Buffer, Self

# NumPy, PyTorch and JAX need not be installed: what comes from them is Any.

class _DLPack(Protocol):
    def __dlpack__(self) -> Any: ...

class _ArrayInterface(Protocol):
    @property
    def __array_interface__(self) -> dict[str, Any]: ...

class _CudaArrayInterface(Protocol):
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

_Array = _DLPack | Buffer | _ArrayInterface | _CudaArrayInterface
_Values = _Array | complex | list[Any] | tuple[Any, ...] | range  # numbers, and nested lists of them
_Metadata = Buffer | str | dict[str, Any] | None
_Device = str | int | tuple[int, int] | Any | None  # 'cpu', 'cuda:0', 0, (2, 0), torch.device, ...
_Stream = int | Any | None  # as DLPack numbers them, or an object of another library
_Mode = Literal["r", "c"]
_Format = Literal["npy", "npz", "safetensors", "pb", "png"]
_Seconds = SupportsFloat | None
_Progress = Callable[[int, int], object] | Literal[True] | None
_Trust = Literal["all"] | list[int] | tuple[int, ...] | builtins.set[int] | builtins.frozenset[int]
_Ring = int | Literal["auto"] | None
_P = ParamSpec("_P")
_T = TypeVar("_T")

__version__: str
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
_core: Any  # the extension

class Error(OSError): ...
class NotFoundError(Error, FileNotFoundError, KeyError): ...
class NotNewerError(Error, BlockingIOError): ...
class TimeoutError(Error, builtins.TimeoutError): ...
class InvalidError(Error, ValueError): ...
class PermissionDeniedError(Error, PermissionError): ...
class NoSpaceError(Error): ...
class DisconnectedError(Error, ConnectionError): ...
class KickedError(Error, ConnectionAbortedError): ...
class NoDaemonError(DisconnectedError, ConnectionRefusedError): ...
class TooManyClientsError(Error): ...
class UnsupportedError(Error): ...
class NoDeviceError(Error): ...
class StreamEndedError(Error, BrokenPipeError): ...
class TensorLostError(Error): ...

class Identity(NamedTuple):
    id: int
    label: str
    pid: int
    uid: int
    since_ns: int
    gone: bool

class Info(NamedTuple):
    name: str
    version: int
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    committed_ns: int
    device: str
    uid: int
    metadata: bytes
    device_uuid: str | None
    lost: bool
    owner_bound: bool
    evictable: bool
    ttl: float | None
    ring: int
    publisher: Identity | None = ...

class Status(NamedTuple):
    address: str
    started_ns: int
    capacity: int
    bytes_used: int
    bytes_warm: int
    commits: int
    tensors: int
    retired: int
    drafts: int
    segments: int
    clients: int
    max_tensors: int
    max_clients: int
    daemon_pid: int
    bytes_kept: int
    longest_turn_ns: int
    restarts: int
    restart_ns: int
    restart_reason: str
    keeper: int
    rings: int
    ring_slots: int
    retyped: int
    retyped_name: str

class ClientInfo(NamedTuple):
    id: int
    label: str
    pid: int
    uid: int
    gid: int
    drafts: int
    leases: int
    tensors_held: int
    bytes_held: int
    since_ns: int

class Reader(NamedTuple):
    name: str
    client: Identity
    leases: int

class StreamInfo(NamedTuple):
    name: str
    mode: str
    depth: int
    keep: int
    max_tries: int
    drop_oldest: bool
    shared: bool
    uid: int
    producers: int
    subscribers: int
    rows: int
    ended: bool
    owner_bound: bool
    ttl: float
    first: int
    next: int
    length: int
    nbytes: int
    created_ns: int

class StreamMember(NamedTuple):
    number: int
    role: str
    state: str
    client: int
    position: int
    lag: int
    held: int
    pid: int
    uid: int
    label: str

class Holding(NamedTuple):
    name: str
    version: int
    nbytes: int
    leases: int
    retired: bool

class CudaDevice(NamedTuple):
    number: int
    name: str
    uuid: str
    total_bytes: int
    compute_capability: tuple[int, int]
    driver_version: int
    vmm: bool
    legacy_ipc: bool
    memory_pools: bool
    integrated: bool

class DeviceUsage(NamedTuple):
    uuid: str
    bytes_used: int
    capacity: int | None
    user_capacity: int | None
    segments: int

class Published(NamedTuple):
    version: int | None
    copied: bool

class Loaded(NamedTuple):
    names: list[str]
    metadata: dict[str, str]

class _Described:
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Any: ...
    @property
    def strides(self) -> tuple[int, ...] | None: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def itemsize(self) -> int | float: ...
    @property
    def device(self) -> str: ...
    __dlpack_c_exchange_api__: ClassVar[Any]
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> Any: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def __getitem__(self, index: Any) -> Any: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def bytes(self) -> memoryview: ...
    def tolist(self) -> Any: ...
    def item(self) -> Any: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    def __float__(self) -> float: ...
    def __complex__(self) -> complex: ...
    def __bool__(self) -> bool: ...
    def __eq__(self, other: object) -> Any: ...
    def __ne__(self, other: object) -> Any: ...
    def __hash__(self) -> int: ...

class Tensor(_Described):
    @property
    def name(self) -> str | None: ...
    @property
    def version(self) -> int | None: ...
    @property
    def metadata(self) -> bytes | None: ...
    @property
    def committed_ns(self) -> int | None: ...
    @property
    def uid(self) -> int | None: ...
    @property
    def copied(self) -> bool: ...
    @property
    def read_only(self) -> bool: ...
    @property
    def released(self) -> bool: ...
    @property
    def lost(self) -> bool: ...
    def numpy(self, *, copy: bool = False) -> Any: ...
    def torch(self, *, copy: bool = False) -> Any: ...
    def jax(self, *, copy: bool = False) -> Any: ...
    def view(self, dtype: Any) -> Tensor: ...
    def copy_on_write(self) -> Tensor: ...
    def unflagged(self) -> Tensor: ...
    def read_only_view(self) -> Tensor: ...
    def release(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

class Draft(_Described):
    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int | None: ...
    @property
    def state(self) -> Literal["open", "committed", "aborted", "unknown"]: ...
    @property
    def stream(self) -> int | None: ...
    @stream.setter
    def stream(self, stream: _Stream) -> None: ...
    def numpy(self) -> Any: ...
    def torch(self) -> Any: ...
    @overload
    def commit(
        self, *, metadata: _Metadata = None, wait: Literal[True] = True, stream: _Stream = None
    ) -> int: ...
    @overload
    def commit(self, *, metadata: _Metadata = None, wait: bool, stream: _Stream = None) -> int | None: ...
    def abort(self) -> None: ...
    def __setitem__(self, index: Any, value: Any) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

class Event(NamedTuple):
    what: Literal["published", "deleted", "producer-gone", "lost", "restarted"]
    name: str
    version: int
    skipped: int

_Given = TypeVar("_Given")

class _Watching(Generic[_Given]):
    over: bool
    def close(self) -> None: ...
    def fileno(self) -> int: ...
    def poll(self) -> _Given | None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> _Given: ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> _Given: ...

class Watch(_Watching[_Given]):
    skipped: int

class Events(_Watching[Event]):
    def __init__(self, client: Client, prefix: str, new: bool, timeout: _Seconds) -> None: ...

class Item:
    def __init__(self, item: Any) -> None: ...
    metadata: bytes
    number: int
    producer: int
    put_ns: int
    skipped: int
    uid: int
    tries: int
    @property
    def tensors(self) -> builtins.list[Tensor]: ...
    @property
    def tensor(self) -> Tensor: ...
    def keys(self) -> builtins.list[str]: ...
    def values(self) -> builtins.list[Tensor]: ...
    def items(self) -> builtins.list[tuple[str, Tensor]]: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __contains__(self, name: object) -> bool: ...
    def __getitem__(self, key: str | int) -> Tensor: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any: ...
    def done(self) -> None: ...
    def release(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

class ItemDraft:
    def __init__(self, draft: Any, names: tuple[str, ...]) -> None: ...
    tensors: builtins.list[Tensor]
    @property
    def tensor(self) -> Tensor: ...
    def __len__(self) -> int: ...
    def __getitem__(self, key: str | int) -> Tensor: ...
    def commit(self, *, metadata: _Metadata = None, timeout: _Seconds = ..., stream: _Stream = None) -> int: ...
    def abort(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

class Subscription:
    def __init__(self, subscription: Any, name: str) -> None: ...
    name: str
    ended: bool
    def get(self, timeout: _Seconds = ...) -> Item | None: ...
    def take(self, n: int, timeout: _Seconds = ...) -> builtins.list[Item]: ...
    async def aget(self, timeout: _Seconds = ...) -> Item | None: ...
    def fileno(self) -> int: ...
    def __iter__(self) -> Iterator[Item]: ...
    def __next__(self) -> Item: ...
    def __aiter__(self) -> AsyncIterator[Item]: ...
    async def __anext__(self) -> Item: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

class Stream:
    def __init__(
        self,
        client: Client,
        name: str,
        mode: Literal["broadcast", "queue"] | None,
        depth: int,
        keep: int,
        max_tries: int,
        max_bytes: int,
        drop_oldest: bool,
        existing: bool,
        produce: bool,
        shared: bool,
        ttl: float | None,
        owner_bound: bool,
    ) -> None: ...
    name: str
    def put(
        self,
        array: _Array | complex | Mapping[str, _Values] | Sequence[_Array],
        *,
        metadata: _Metadata = None,
        timeout: _Seconds = ...,
        stream: _Stream = None,
    ) -> int: ...
    @overload
    def draft(
        self,
        shape: SupportsIndex | Sequence[SupportsIndex],
        dtype: Any,
        *,
        device: _Device = None,
        metadata_size: int = 0,
        timeout: _Seconds = ...,
    ) -> ItemDraft: ...
    @overload
    def draft(
        self,
        shape: Mapping[
            str,
            tuple[SupportsIndex | Sequence[SupportsIndex], Any]
            | tuple[SupportsIndex | Sequence[SupportsIndex], Any, _Device],
        ],
        dtype: None = None,
        *,
        device: _Device = None,
        metadata_size: int = 0,
        timeout: _Seconds = ...,
    ) -> ItemDraft: ...
    def put_nowait(
        self,
        array: _Array | complex | Mapping[str, _Values] | Sequence[_Array],
        *,
        metadata: _Metadata = None,
        stream: _Stream = None,
    ) -> int: ...
    async def aput(
        self,
        array: _Array | complex | Mapping[str, _Values] | Sequence[_Array],
        *,
        metadata: _Metadata = None,
        timeout: _Seconds = ...,
        stream: _Stream = None,
    ) -> int: ...
    def end(self, timeout: _Seconds = ...) -> None: ...
    async def aend(self, timeout: _Seconds = ...) -> None: ...
    def info(self) -> StreamInfo: ...
    def members(self) -> builtins.list[StreamMember]: ...
    def fileno(self) -> int: ...
    def reopen(self) -> None: ...
    def subscribe(self, *, lossy: bool = False, kept: bool = False) -> Subscription: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

class Queue(Generic[_T]):
    def __init__(
        self,
        maxsize: int = 0,
        *,
        name: str | None = None,
        client: Client | None = None,
        mode: _Mode = "c",
        redeliver: bool = False,
    ) -> None: ...
    name: str
    def put(self, obj: _T, block: bool = True, timeout: float | None = None) -> None: ...
    def get(self, block: bool = True, timeout: float | None = None) -> _T: ...
    def put_nowait(self, obj: _T) -> None: ...
    def get_nowait(self) -> _T: ...
    def task_done(self) -> None: ...
    def qsize(self) -> int: ...
    def empty(self) -> bool: ...
    def full(self) -> bool: ...
    def close(self) -> None: ...
    def join_thread(self) -> None: ...
    def cancel_join_thread(self) -> None: ...

class Ref(NamedTuple):
    name: str | None
    version: int | None
    address: str | os.PathLike[str] | None
    namespace: str | None
    autostart: bool | None
    timeout: float | None
    token: bytes
    def get(self, client: Client | None = None, mode: _Mode = "r") -> Tensor: ...

class Client:
    def __init__(
        self,
        address: str | os.PathLike[str] | None = None,
        *,
        namespace: str | None = None,
        autostart: bool | None = None,
        timeout: _Seconds = 10.0,
        label: str | None = None,
    ) -> None: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...
    def __contains__(self, name: str, /) -> bool: ...
    @overload
    def get(
        self,
        name: str,
        *,
        timeout: _Seconds = None,
        newer_than: int | None = None,
        mode: _Mode = "r",
        spin: _Seconds = None,
        stream: _Stream = None,
        device: _Device = None,
    ) -> Tensor: ...
    @overload
    def get(
        self,
        name: str,
        *,
        timeout: _Seconds = None,
        newer_than: int | None = None,
        mode: _Mode = "r",
        spin: _Seconds = None,
        stream: _Stream = None,
        device: _Device = None,
        default: _T,
    ) -> Tensor | _T: ...
    async def aget(
        self,
        name: str,
        *,
        timeout: _Seconds = ...,
        newer_than: int | None = None,
        mode: _Mode = "r",
        stream: _Stream = None,
    ) -> Tensor: ...
    @overload
    def put(
        self,
        name: str,
        array: _Values,
        *,
        metadata: _Metadata = None,
        timeout: _Seconds = None,
        wait: Literal[True] = True,
        stream: _Stream = None,
        ttl: _Seconds = None,
        owner_bound: bool = False,
        evictable: bool = False,
        ring: _Ring = None,
        evict_idle: float = 0,
        threads: int | None = None,
    ) -> int: ...
    @overload
    def put(
        self,
        name: str,
        array: _Values,
        *,
        metadata: _Metadata = None,
        timeout: _Seconds = None,
        wait: bool,
        stream: _Stream = None,
        ttl: _Seconds = None,
        owner_bound: bool = False,
        evictable: bool = False,
        ring: _Ring = None,
        evict_idle: float = 0,
        threads: int | None = None,
    ) -> int | None: ...
    def create(
        self,
        name: str,
        shape: SupportsIndex | Sequence[SupportsIndex],
        dtype: Any,
        *,
        device: _Device = None,
        metadata: _Metadata = None,
        timeout: _Seconds = None,
        padded: bool = False,
        ttl: _Seconds = None,
        owner_bound: bool = False,
        evictable: bool = False,
        ring: _Ring = None,
        own_pages: bool = False,
        evict_idle: float = 0,
    ) -> Draft: ...
    def empty(
        self,
        name: str,
        shape: SupportsIndex | Sequence[SupportsIndex],
        dtype: Any,
        *,
        device: _Device = None,
        metadata: _Metadata = None,
        timeout: _Seconds = None,
        padded: bool = False,
        ttl: _Seconds = None,
        owner_bound: bool = False,
        evictable: bool = False,
        ring: _Ring = None,
        own_pages: bool = False,
        evict_idle: float = 0,
    ) -> Draft: ...
    def publish(
        self,
        name: str,
        tensor: _Values,
        *,
        stream: _Stream = None,
        sealed: bool = False,
        staging: bool = False,
        no_copy: bool = False,
        metadata: _Metadata = None,
        timeout: _Seconds = None,
        wait: bool = True,
        ttl: _Seconds = None,
        owner_bound: bool = False,
        evictable: bool = False,
        ring: _Ring = None,
        threads: int | None = None,
    ) -> Published: ...
    def put_many(
        self,
        arrays: Mapping[str, _Values],
        *,
        prefix: str = "",
        replace: bool = False,
        metadata: Buffer | str | Mapping[str, _Metadata] | None = None,
        timeout: _Seconds = None,
        stream: _Stream = None,
        ttl: _Seconds = None,
        owner_bound: bool = False,
        evictable: bool = False,
    ) -> None: ...
    def publish_many(
        self,
        arrays: Mapping[str, _Values],
        *,
        prefix: str = "",
        metadata: Buffer | str | None = None,
        timeout: _Seconds = None,
        stream: _Stream = None,
        sealed: bool = False,
        ttl: _Seconds = None,
        owner_bound: bool = False,
        evictable: bool = False,
    ) -> int: ...
    def get_many(
        self,
        names: str | Iterable[str] = "",
        *,
        prefix: str = "",
        timeout: _Seconds = None,
        mode: _Mode = "r",
        device: _Device = None,
    ) -> dict[str, Tensor]: ...
    @overload
    def gather(
        self, names: Iterable[str], out: None = None, *, prefix: str = "", timeout: _Seconds = None
    ) -> Any: ...
    @overload
    def gather(self, names: Iterable[str], out: _T, *, prefix: str = "", timeout: _Seconds = None) -> _T: ...
    def get_or_put(
        self,
        name: str,
        make: Callable[[], _Values],
        *,
        ttl: _Seconds = None,
        evictable: bool = True,
        owner_bound: bool = False,
        metadata: _Metadata = None,
        mode: _Mode = "r",
        timeout: _Seconds = 600.0,
        trust: _Trust = (),
    ) -> Tensor: ...
    def load(
        self,
        prefix: str,
        path: str | os.PathLike[str] | list[str | os.PathLike[str]] | tuple[str | os.PathLike[str], ...],
        *,
        format: _Format | None = None,
        timeout: _Seconds = None,
        progress: _Progress = None,
        ttl: _Seconds = None,
        owner_bound: bool = False,
        evictable: bool = False,
        once: bool = False,
        device: _Device = None,
    ) -> Loaded: ...
    def save(
        self,
        prefix: str,
        path: str | os.PathLike[str],
        *,
        format: _Format | None = None,
        progress: _Progress = None,
        metadata: Mapping[str, str] | None = None,
    ) -> builtins.list[str]: ...
    @overload
    def watch(
        self,
        name: str,
        *,
        prefix: None = None,
        newer_than: int | None = None,
        timeout: _Seconds = ...,
        mode: _Mode = "r",
        stream: _Stream = None,
        device: _Device = None,
        until_gone: bool = False,
    ) -> Watch[Tensor]: ...
    @overload
    def watch(
        self,
        name: None = None,
        *,
        prefix: str,
        newer_than: None = None,
        timeout: _Seconds = ...,
        mode: _Mode = "r",
        stream: None = None,
        device: _Device = None,
        until_gone: bool = False,
    ) -> Watch[dict[str, Tensor]]: ...
    def events(self, prefix: str = "", *, new: bool = False, timeout: _Seconds = ...) -> Events: ...
    def stream(
        self,
        name: str,
        mode: Literal["broadcast", "queue"] | None = None,
        *,
        depth: int = 0,
        keep: int = 0,
        max_tries: int = 0,
        max_bytes: int = 0,
        drop_oldest: bool = False,
        existing: bool = False,
        produce: bool = False,
        shared: bool = False,
        ttl: float | None = None,
        owner_bound: bool = False,
    ) -> Stream: ...
    def streams(self, prefix: str = "") -> builtins.list[StreamInfo]: ...
    def ref(self, tensor: Tensor, *, ttl: float | None = 600.0, once: bool = True) -> Ref: ...
    def receive(self, token: bytes, *, mode: _Mode = "r") -> Tensor: ...
    def pickle_tensors(self) -> None: ...
    @overload
    def delete(
        self,
        name: str,
        /,
        *,
        prefix: None = None,
        everything: Literal[False] = False,
        version: SupportsIndex | None = None,
        missing_ok: bool = False,
    ) -> None: ...
    @overload
    def delete(
        self,
        name: None = None,
        /,
        *,
        prefix: str,
        everything: bool = False,
        version: None = None,
        missing_ok: bool = False,
    ) -> None: ...
    def rename(self, name: str, new_name: str) -> int: ...
    def keys(self, prefix: str = "") -> builtins.list[str]: ...
    def items(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]: ...
    def __getitem__(self, name: str) -> Tensor: ...
    def __setitem__(self, name: str, array: _Values) -> None: ...
    def __delitem__(self, name: str) -> None: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> Literal[True]: ...
    def stat(self, name: str) -> Info: ...
    def list(self, prefix: str = "") -> builtins.list[Info]: ...
    def status(self) -> Status: ...
    def devices(self) -> builtins.list[DeviceUsage]: ...
    def clients(self) -> builtins.list[ClientInfo]: ...
    def readers(self, name: str | None = None) -> builtins.list[Reader]: ...
    def holdings(self, client_id: int) -> builtins.list[Holding]: ...
    def kick(self, client_id: int, /) -> None: ...
    def kick_user(self, uid: int, /) -> int: ...

def cuda_alloc(nbytes: int, device: Any = 0) -> int: ...
def cuda_devices() -> list[CudaDevice]: ...
def cuda_free(address: int, device: Any = None, stream: Any = None) -> None: ...
def explain_faults() -> None: ...

class _Cached(Protocol[_P]):
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> Tensor: ...
    def cache_clear(self) -> None: ...

def cached(
    prefix: str,
    *,
    client: Client | None = None,
    key: Callable[..., str] | None = None,
    ttl: _Seconds = None,
    evictable: bool = True,
    timeout: _Seconds = 600.0,
    trust: _Trust = (),
) -> Callable[[Callable[_P, _Values]], _Cached[_P]]: ...
def connect(
    address: str | os.PathLike[str] | None = None,
    *,
    namespace: str | None = None,
    autostart: bool | None = None,
    timeout: _Seconds = 10.0,
    label: str | None = None,
) -> Client: ...
