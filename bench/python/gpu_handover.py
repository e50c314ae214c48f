# SPDX-License-Identifier: Apache-2.0
"""One tensor goes from a producer to a consumer that sleeps: the peers, and both processes.

A sample begins with the producer's call, when the GPU has written the tensor. It ends when the consumer has the device
pointer and has read the last bytes by a copy that is ordered on its stream. Each value is another one, and is checked.
The classes are the peers, with the `name` of their rows. `ready()` makes the memory of a sample and fills it. `give()`
is timed, and so is `take()`, which returns (address, size). `drop()` gives it back.
"""

import ctypes
import itertools
import multiprocessing
import pickle
import socket
import time

import tensorlease
from gpu_driver import (
    DISABLE_TIMING,
    INTERPROCESS,
    TAIL,
    TORCH_DEVICE,
    Bytes,
    Child,
    Got,
    Gpu,
    connect,
    hear_from,
    receive_descriptors,
    round_up,
    send_descriptors,
    wait_until,
    why_no_cupy,
    why_no_torch,
)

PAUSE_S = 0.001  # the consumer is to sleep when the producer's call comes
WARM = 4  # samples that are not counted: memory that a consumer knows was seen by then


class Peer:
    """The default: memory of cuMemAlloc that stays the same."""

    why_not = staticmethod(lambda: None)
    memory = None

    def __init__(self, gpu, channel, queue):
        self.gpu, self.channel, self.queue = gpu, channel, queue

    def resize(self, size):  # of the producer
        self.free()
        self.size, self.memory = size, self.gpu.alloc(size)

    def ready(self, byte):
        self.gpu.fill_and_wait(self.memory, byte, self.size)

    def expect(self, size):  # of the consumer, before resize() of the producer
        self.forget()
        self.size = size

    def learn(self):  # of the consumer, after resize()
        pass

    def forget(self):
        pass

    def tail(self, address, size):
        return self.gpu.tail(address, size)

    def drop(self):
        pass

    def free(self):
        if self.memory is not None:
            self.gpu.free(self.memory)
        self.memory = None

    def close(self):  # of either
        self.free()


class Event(Peer):
    """The least: the consumer knows memory and event already, and a byte wakes it."""

    name = "floor: an event"

    def resize(self, size):
        super().resize(size)
        self.recorded = self.gpu.event(INTERPROCESS | DISABLE_TIMING)
        self.channel.send(self.gpu.memory_handle(self.memory) + self.gpu.event_handle(self.recorded))

    def learn(self):
        handles = self.channel.recv(128)
        self.known, self.recorded = self.gpu.open_memory(handles[:64]), self.gpu.open_event(handles[64:])

    known = None

    def forget(self):
        if self.known:
            self.gpu.close_memory(self.known)
            self.gpu.use("cuEventDestroy_v2", self.recorded)
        self.known = None

    def give(self):
        self.gpu.record(self.recorded)
        self.channel.send(b"x")

    def take(self):
        self.channel.recv(1)
        self.gpu.after(self.recorded)
        return self.known, self.size

    def close(self):
        self.forget()
        self.free()


class Copy(Peer):
    """What a copy on the GPU would take, without any hand-over. It has no consumer."""

    name = "floor: a copy on the GPU"

    def resize(self, size):
        super().resize(size)
        self.target = self.gpu.alloc(size)

    def sample(self):
        begin = time.monotonic_ns()
        self.gpu.copy(self.target, self.memory, self.size)
        self.gpu.synchronize(self.gpu.work)
        return time.monotonic_ns() - begin

    def free(self):
        if self.memory is not None:
            self.gpu.free(self.target)
        super().free()


class Export(Peer):
    name = "cuMem export, a descriptor"

    def resize(self, size):
        self.free()
        self.size, self.space = size, round_up(size)
        self.handle = self.gpu.create(self.space)
        self.memory = self.gpu.map(self.handle, self.space)

    def free(self):
        if self.memory is not None:
            self.gpu.unmap(self.memory, self.space)
            self.gpu.release(self.handle)
        self.memory = None

    def give(self):
        send_descriptors(self.channel, [self.gpu.export(self.handle)])

    def take(self):
        (fd,) = receive_descriptors(self.channel, 1)
        self.known = self.gpu.take(fd, round_up(self.size))
        return self.known, self.size

    def drop(self):
        self.gpu.unmap(self.known, round_up(self.size))


class Legacy(Peer):
    name = "cuIpc handle, a socket"

    def give(self):
        self.channel.send(self.gpu.memory_handle(self.memory))

    def take(self):
        self.known = self.gpu.open_memory(self.channel.recv(64))
        return self.known, self.size

    def drop(self):
        self.gpu.close_memory(self.known)


class CuPy(Peer):
    name = "CuPy's IPC handle"
    why_not = staticmethod(why_no_cupy)

    def __init__(self, *arguments):
        super().__init__(*arguments)
        import cupy

        self.runtime = cupy.cuda.runtime
        self.runtime.setDevice(0)

    def resize(self, size):
        self.free()
        self.size, self.memory = size, self.runtime.malloc(size)

    def free(self):
        if self.memory is not None:
            self.runtime.free(self.memory)
        self.memory = None

    def give(self):
        self.channel.send(self.runtime.ipcGetMemHandle(self.memory))

    def take(self):
        self.known = self.runtime.ipcOpenMemHandle(self.channel.recv(64))
        return self.known, self.size

    def drop(self):
        self.runtime.ipcCloseMemHandle(self.known)


class Torch(Peer):
    name = "torch queue"
    why_not = staticmethod(why_no_torch)
    tensor = None

    def __init__(self, *arguments):
        super().__init__(*arguments)
        import torch
        import torch.multiprocessing  # registers how tensors are pickled

        self.torch = torch

    def wait(self):
        if TORCH_DEVICE != "cpu":
            self.torch.cuda.synchronize()

    def resize(self, size):
        self.size = size
        self.tensor = self.torch.empty(size, dtype=self.torch.uint8, device=TORCH_DEVICE)

    def ready(self, byte):
        self.tensor.fill_(byte)
        self.wait()

    def tail(self, address, size):
        if TORCH_DEVICE == "cpu":
            return ctypes.string_at(address + size - TAIL, TAIL)
        stream = self.torch.cuda.current_stream().cuda_stream
        return self.gpu.read(address + size - TAIL, TAIL, stream)

    def give(self):
        self.queue.put(self.tensor)

    def take(self):
        self.got = self.queue.get(timeout=60)
        return self.got.data_ptr(), self.got.numel()

    def drop(self):
        self.got = None

    def free(self):
        self.tensor = None
        if TORCH_DEVICE != "cpu":
            self.torch.cuda.ipc_collect()
            self.torch.cuda.empty_cache()


class TorchNew(Torch):
    name = "torch queue, new memory"

    def ready(self, byte):
        self.free()
        self.resize(self.size)
        super().ready(byte)


# ---- tensorlease ----


class Named(Peer):
    """A name, whose consumer waits for a newer version. Three arrays take turns."""

    turns, version = 3, 0

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.client = connect()
        self.label = f"bench/{type(self).__name__}"

    def take(self):
        tensor = self.client.get(self.label, newer_than=self.version, timeout=60, stream=self.gpu.work)
        self.version, self.got = tensor.version, Got(self.gpu, tensor)
        return self.got.address, tensor.nbytes

    def drop(self):
        self.got.drop()
        self.got = None

    def free(self):
        if self.memory is not None:
            self.client.delete(self.label, missing_ok=True)
        self.memory = None

    def close(self):
        super().close()
        self.client.close()


class Draft(Named):
    name = "tensorlease: a name, a draft"

    def resize(self, size):
        self.free()
        self.size = size
        self.memory = ()  # is the daemon's

    def ready(self, byte):
        self.draft = self.client.create(self.label, self.size, "uint8", device=0)
        self.gpu.fill_and_wait(Got(self.gpu, self.draft).address, byte, self.size)

    def give(self):
        self.draft.commit(stream=self.gpu.work)

    def free(self):
        self.draft = None
        super().free()


class Publish(Named):
    """Memory of cuda_alloc(), which consumers keep mapped."""

    name = "tensorlease: a name, in place"

    def resize(self, size):
        self.free()
        self.size = size
        self.memory = [Bytes(self.gpu, tensorlease.cuda_alloc(size), size) for _ in range(self.turns)]
        self.turn = itertools.cycle(self.memory)
        self.lent = {array.address: 0 for array in self.memory}

    def ready(self, byte):
        self.array = next(self.turn)
        self.back(self.array)
        self.gpu.fill_and_wait(self.array.address, byte, self.size)

    def back(self, array):
        wait_until(lambda: array.deleted == self.lent[array.address], "an array was not given back")

    def give(self):
        self.lent[self.array.address] += 1
        self.client.publish(self.label, self.array, stream=self.gpu.work, no_copy=True)

    def free(self):
        arrays = self.memory
        super().free()
        for array in arrays or ():
            self.back(array)
            tensorlease.cuda_free(array.address, stream=-1)


class PublishNew(Named):
    """Memory of cuMemCreate, which no consumer has mapped any more when it is given back."""

    name = "tensorlease: a name, new memory"

    def resize(self, size):
        self.free()
        self.size, self.space, self.memory, self.array = size, round_up(size), (), None

    def ready(self, byte):
        self.take_back()
        handle = self.gpu.create(self.space)
        self.array = Bytes(self.gpu, self.gpu.map(handle, self.space), self.size)
        self.gpu.release(handle)  # the mapping keeps the memory
        self.gpu.fill_and_wait(self.array.address, byte, self.size)

    def take_back(self):
        self.client.delete(self.label, missing_ok=True)
        if self.array:
            wait_until(lambda: self.array.deleted, "an array was not given back")
            self.gpu.unmap(self.array.address, self.space)
        self.array = None

    def give(self):
        self.client.publish(self.label, self.array, stream=self.gpu.work, no_copy=True)

    def free(self):
        if self.memory is not None:
            self.take_back()
        super().free()


class Stream(Peer):
    """put() copies on the GPU, as it does on the CPU."""

    name = "tensorlease: a stream"

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.client = connect()
        self.stream = self.client.stream("bench/Stream", "queue", depth=4)
        self.items = None

    def resize(self, size):
        super().resize(size)
        self.array = Bytes(self.gpu, self.memory, size)

    def expect(self, size):
        super().expect(size)
        self.items = self.items or self.stream.subscribe()

    def give(self):
        self.stream.put(self.array, stream=self.gpu.work)

    def take(self):
        self.item = self.items.get(timeout=60)
        self.got = Got(self.gpu, self.item.tensor)
        return self.got.address, self.item.tensor.nbytes

    def drop(self):
        self.got.drop()
        self.item.release()
        self.got = self.item = None

    def close(self):
        producer = self.memory is not None
        super().close()
        if self.items:
            self.items.close()
        self.stream.close()
        if producer:
            self.client.delete("bench/Stream")
        self.client.close()


class PublishTorch(Named):
    """Tensors of PyTorch, also for the consumer, in PyTorch's usual memory."""

    name = "tensorlease: a name, torch"
    why_not = staticmethod(why_no_torch)

    def __init__(self, *arguments):
        super().__init__(*arguments)
        import torch

        self.torch = torch

    def resize(self, size):
        self.free()
        self.memory = self.make(size)
        self.turn = itertools.cycle(self.memory)
        self.size = size

    def make(self, size):
        return [self.torch.empty(size, dtype=self.torch.uint8, device=TORCH_DEVICE) for _ in range(self.turns)]

    wait, tail = Torch.wait, Torch.tail

    def ready(self, byte):
        self.tensor = next(self.turn)
        self.tensor.fill_(byte)
        self.wait()

    def give(self):
        self.client.publish(self.label, self.tensor)

    def take(self):
        tensor = self.client.get(self.label, newer_than=self.version, timeout=60)
        self.version, self.got = tensor.version, tensor.torch()
        return self.got.data_ptr(), self.got.numel()

    def drop(self):
        self.got = None

    def free(self):
        super().free()
        self.tensor = self.turn = None
        if TORCH_DEVICE != "cpu":
            self.torch.cuda.empty_cache()


class PublishPool(PublishTorch):
    """The same in a pool of tensorlease's memory, which consumers keep mapped."""

    name = "tensorlease: a name, torch's pool"

    @staticmethod
    def why_not():
        return why_no_torch() or ("there are pools on GPUs only" if TORCH_DEVICE == "cpu" else None)

    def make(self, size):
        import tensorlease.torch

        self.pool = getattr(self, "pool", None) or self.torch.cuda.MemPool(tensorlease.torch.allocator())
        with self.torch.cuda.use_mem_pool(self.pool):
            return super().make(size)


PEERS = [Event, Copy, Export, Legacy, CuPy, TorchNew, Torch]
PEERS += [PublishNew, Publish, Draft, Stream, PublishTorch, PublishPool]


# ---- The processes ----


def say(channel, *words):
    channel.send(pickle.dumps(words))


def hear(channel):
    data = channel.recv(1024)
    if not data:
        raise ConnectionError("the other process has ended")
    return pickle.loads(data)


def produce(link, number, channel, queue):
    """Answer to sizes and counts of samples. The first answer is why the peer cannot be measured, or None."""
    kind = PEERS[number]
    alone = hasattr(kind, "sample")
    why = kind.why_not()
    link.send(why)
    if why:
        link.recv()
        return
    peer = kind(Gpu(), channel, queue)
    for what, value in iter(link.recv, None):
        if what == "samples":
            link.send([peer.sample() if alone else sample(peer, channel, n) for n in range(WARM + value)][WARM:])
            continue
        if not alone:
            say(channel, "size", value)
            hear(channel)
        peer.resize(value)
        link.send(None)
    if not alone:
        say(channel, "end")
        hear(channel)  # the consumer has closed what it had open
    peer.close()


def sample(peer, channel, number):
    byte = number % 251 + 1
    peer.ready(byte)
    say(channel, "take", byte)
    hear(channel)
    time.sleep(PAUSE_S)
    begin = time.monotonic_ns()
    peer.give()
    (end,) = hear(channel)
    hear(channel)  # it was dropped
    return end - begin


def consume(link, number, channel, queue):
    kind = PEERS[number]
    if kind.why_not():
        link.recv()
        return
    peer = kind(Gpu(), channel, queue)
    for what, *values in iter(lambda: hear(channel), ("end",)):
        if what == "size":
            peer.expect(*values)
            say(channel, "expected")
            peer.learn()
        else:
            take(peer, channel, *values)
    peer.close()
    say(channel, "closed")
    link.recv()


def take(peer, channel, byte):
    say(channel, "ready")
    address, size = peer.take()
    tail = peer.tail(address, size)
    end = time.monotonic_ns()
    if tail != bytes([byte]) * TAIL or size != peer.size:
        raise ValueError(f"{size} bytes that end with {tail.hex()}, not {peer.size} with {byte:02x}")
    say(channel, end)
    peer.drop()
    say(channel, "dropped")


class Pair:
    """Producer and consumer of a peer, as gpu.py sees them."""

    def __init__(self, kind):
        number = PEERS.index(kind)
        self.queue = queue = multiprocessing.get_context("spawn").Queue()  # its semaphores go with this object
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            self.children = [Child(produce, number, ours, queue)]
            if not hasattr(kind, "sample"):
                self.children.append(Child(consume, number, theirs, queue))

    def reason(self):
        """Return why it cannot be measured, or None. This comes first, when the processes have begun."""
        return hear_from(self.children)

    def resize(self, size):
        self.children[0].tell(("size", size))
        hear_from(self.children)

    def samples(self, count):
        self.children[0].tell(("samples", count))
        return hear_from(self.children)

    def end(self):
        for child in self.children:
            child.end()
