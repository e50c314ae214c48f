# SPDX-License-Identifier: Apache-2.0
"""The named tuples that methods of the Client return."""

from typing import NamedTuple


class Identity(NamedTuple):
    """Who a client is."""

    id: int  # as in ClientInfo
    label: str  # its own name for itself: label of connect()
    pid: int  # 0: it is in another PID namespace
    uid: int
    since_ns: int  # when it connected, as time.time_ns()
    gone: bool  # its connection has ended


class Rows(list):
    """A list of named tuples, which a notebook shows as a table."""

    def _repr_html_(self):
        from ._html import rows_html

        return rows_html(self)


class Info(NamedTuple):
    """The properties of a tensor."""

    name: str
    version: int
    shape: tuple
    dtype: str
    nbytes: int  # of its elements
    committed_ns: int  # time of publishing, as time.time_ns()
    device: str  # 'cpu', 'cuda:0'; 'cuda' if this process has not used that GPU through tensorlease
    uid: int  # of the user who published it
    metadata: bytes
    device_uuid: str  # "GPU-..." of a GPU or an instance of MIG, the same in all processes; None for the CPU
    lost: bool  # its GPU memory is gone with the process that published it
    owner_bound: bool  # the name goes with the connection that published it
    evictable: bool  # the name may go to free space
    ttl: float  # seconds until the name goes; None: it has no time to live
    ring: int  # how many tensors the name's ring has memory for; 0: it has no ring
    publisher: Identity | None = None  # who published the name last; None: not known any more

    @classmethod
    def _of(cls, values):
        return cls(*values[:-1], values[-1] and Identity._make(values[-1]))


class Status(NamedTuple):
    """The state of a daemon. Sizes are in bytes."""

    address: str
    started_ns: int  # as time.time_ns()
    capacity: int  # that all tensors together may use
    bytes_used: int  # by all segments, including warm ones
    bytes_warm: int  # kept empty for the next tensor of the same size
    commits: int  # tensors published since the daemon started
    tensors: int  # that have a name
    retired: int  # that have no name any more but are still held
    drafts: int
    segments: int
    clients: int
    max_tensors: int
    max_clients: int
    daemon_pid: int
    bytes_kept: int  # of bytes_used: hold no tensor any more, but processes map them still
    longest_turn_ns: int  # so long has one user's request kept all others waiting, at most
    restarts: int  # how often another daemon has begun to serve where one had ended
    restart_ns: int  # how long nobody served, the last time
    restart_reason: str  # why the last one ended
    keeper: int  # who starts the daemon again when it dies: 0 nobody, 1 its parent, 2 systemd
    rings: int  # names that are published without the daemon
    ring_slots: int  # tensors that these have memory for
    retyped: int  # how often a program gave a name another type or shape than another program had lately
    retyped_name: str  # the last such name; empty if there is none, or if it has gone

    def _repr_html_(self):
        from ._html import status_html

        return status_html(self)


class ClientInfo(NamedTuple):
    """A client of the daemon."""

    id: int
    label: str  # the name of its program
    pid: int
    uid: int
    gid: int
    drafts: int
    leases: int
    tensors_held: int
    bytes_held: int
    since_ns: int  # when it connected, as time.time_ns()


class Reader(NamedTuple):
    """A client that holds a tensor of a name."""

    name: str
    client: Identity
    leases: int  # that it has on this tensor


class StreamInfo(NamedTuple):
    """A stream of the daemon."""

    name: str
    mode: str  # "broadcast" or "queue"
    depth: int
    keep: int
    max_tries: int
    drop_oldest: bool
    shared: bool
    uid: int
    producers: int  # that have put something and are there
    subscribers: int  # lossy ones, too
    rows: int  # items for which it has memory
    ended: bool
    owner_bound: bool
    ttl: float  # seconds; 0: it stays
    first: int  # the number of its first item
    next: int  # the number that the next item gets; the ends of producers have a number too
    length: int  # of a queue: items that nobody has taken; of a broadcast: how far the slowest subscriber is behind
    nbytes: int  # of memory, held or not
    created_ns: int


class StreamMember(NamedTuple):
    """A producer or a subscriber of a stream."""

    number: int  # of one member at a time; Item.producer is this
    role: str  # "producer", "subscriber" or "lossy"
    state: str  # "live"; "joining": it subscribes just now; "gone": its process may still hold items
    client: int  # for Client.kick(); 0: its connection has ended
    position: int  # of a subscriber: the number that it looks at next
    lag: int  # of a subscriber to a broadcast: how far that is behind the end
    held: int  # of a subscriber: items that its client holds; of a producer: items for which it has memory
    pid: int  # 0: it is in another PID namespace
    uid: int
    label: str  # the name of its program


class Holding(NamedTuple):
    """A tensor that a client holds."""

    name: str
    version: int  # 0: it is memory for an item of the stream of that name
    nbytes: int
    leases: int
    retired: bool  # its name was deleted, or means another tensor


class Published(NamedTuple):
    """The result of publish()."""

    version: int  # None with wait=False
    copied: bool  # whether the bytes were copied


class Loaded(NamedTuple):
    """The result of load()."""

    names: list  # of the tensors, in the order of the file
    metadata: dict  # texts about the whole file: the __metadata__ of .safetensors


for _class in (Identity, Info, Status, ClientInfo, Reader, Holding, Published, Loaded):
    _class.__module__ = "tensorlease"  # as users write it, and pickles too
