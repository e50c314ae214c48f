# SPDX-License-Identifier: Apache-2.0
"""A state_dict of 320 tensors goes from one trainer to some workers: the ways, and the processes.

The time begins with the trainer's call, when the GPU has written all of it. It ends when the last worker has a pointer
for each tensor and has read the last bytes of the last one. Then each worker checks all 320. The classes are the ways.
`prepare()`, `give()` and `back()` are the trainer's, of which give() is timed; `wait()`, `take()` and `drop()` are a
worker's, of which take() is timed. `models()` says how many models lie on the GPU.
"""

import os
import pickle
import socket
import time
import weakref

import tensorlease
from gpu_driver import (
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
    why_no_torch,
)

LAYERS, LAYERS_PER_BLOCK = 32, 4
PARTS = {"q": 12, "k": 4, "v": 4, "o": 12, "gate": 22, "up": 23, "down": 23}  # in percent of a layer
NORMS, NORM = ("norm1", "norm2", "q_norm"), 8192
PREFIX = "bench/weights"
PROFILE = 0.005  # seconds between two looks at the GPU's memory


def layout(total):
    """Return {name: bytes} of a model of about that many bytes."""
    layer = total // LAYERS - len(NORMS) * NORM
    sizes = {}
    for number in range(LAYERS):
        for part, percent in PARTS.items():
            sizes[f"layers.{number}.{part}"] = layer * percent // 100 // 256 * 256
        for norm in NORMS:
            sizes[f"layers.{number}.{norm}"] = NORM
    return sizes


class Way:
    """The default: a model in a few large blocks, given by tensorlease without PyTorch."""

    why_not = staticmethod(lambda: None)
    copies = 0  # models that the trainer copies on the GPU because it was asked to
    kept = 0  # models in use between two rounds
    slow = False  # it is measured once
    blocks = None

    def __init__(self, gpu, sizes, channels):
        self.gpu, self.sizes, self.channels = gpu, sizes, channels
        self.names, self.last = list(sizes), list(sizes)[-1]
        self.client = connect()

    @staticmethod
    def models(workers):
        return 1

    # ---- The trainer ----

    def make(self):
        self.blocks, self.arrays = [], {}
        per_block = len(self.names) // (LAYERS // LAYERS_PER_BLOCK)
        for first in range(0, len(self.names), per_block):
            names = self.names[first : first + per_block]
            size = round_up(sum(self.sizes[name] for name in names))
            address = self.allocate(size)
            self.blocks.append((address, size))
            for name in names:
                self.arrays[name] = Bytes(self.gpu, address, self.sizes[name])
                address += self.sizes[name]

    def allocate(self, size):
        return tensorlease.cuda_alloc(size)

    def release(self, address, size):
        tensorlease.cuda_free(address, stream=-1)

    def prepare(self, byte):
        self.make()
        self.fill(byte)

    def fill(self, byte):
        self.lent = {name: array.deleted for name, array in self.arrays.items()}
        for address, size in self.blocks:
            self.gpu.fill(address, byte, size, self.gpu.work)
        self.gpu.synchronize(self.gpu.work)

    def give(self, workers):
        copied = self.client.publish_many(self.arrays, prefix=PREFIX, stream=-1)
        if copied:
            raise ValueError(f"{copied} tensors were copied, and none should be")

    def back(self):
        self.take_back()
        self.free()

    def take_back(self):
        self.client.delete(prefix=PREFIX)
        arrays = self.arrays.items()
        wait_until(lambda: all(a.deleted > self.lent[n] for n, a in arrays), "the model was not given back")

    def free(self):
        for address, size in self.blocks or ():
            self.release(address, size)
        self.blocks = None

    # ---- A worker ----

    def wait(self):
        """Before the trainer gives, untimed."""

    def take(self):
        self.tensors = self.client.get_many(self.names, prefix=PREFIX, timeout=60)
        self.got = {name: Got(self.gpu, tensor) for name, tensor in self.tensors.items()}
        self.read(self.last)

    def address(self, name):
        return self.got[name].address

    def read(self, name):
        return self.gpu.tail(self.address(name), self.sizes[name])

    def check(self, byte):
        for name in self.names:
            tail = self.read(name)
            if tail != bytes([byte]) * TAIL:
                raise ValueError(f"{name} ends with {tail.hex()}, not with {byte:02x}")
        if any(tensor.copied for tensor in self.tensors.values()):
            raise ValueError("a tensor was copied, and none should be")

    def drop(self):
        for got in self.got.values():
            got.drop()
        self.got = self.tensors = None

    def close(self):
        self.free()
        self.client.close()


class Copy(Way):
    """What one copy of the model on the GPU takes, without any hand-over."""

    name = "floor: a copy on the GPU"
    alone = True

    def allocate(self, size):
        return self.gpu.alloc(size)

    def release(self, address, size):
        self.gpu.free(address)

    @staticmethod
    def models(workers):
        return 2

    def prepare(self, byte):
        super().prepare(byte)
        self.targets = [self.gpu.alloc(size) for _, size in self.blocks]

    def give(self, workers):
        for (address, size), target in zip(self.blocks, self.targets, strict=True):
            self.gpu.copy(target, address, size)
        self.gpu.synchronize(self.gpu.work)

    def back(self):
        for target in self.targets:
            self.gpu.free(target)
        self.free()


class Export(Way):
    """The least for memory that workers do not know: a descriptor for each block. Names and sizes are known."""

    name = "cuMem export, 8 descriptors"

    def allocate(self, size):
        self.handles = getattr(self, "handles", {})
        handle = self.gpu.create(size)
        address = self.gpu.map(handle, size)
        self.handles[address] = handle
        return address

    def release(self, address, size):
        self.gpu.unmap(address, size)
        self.gpu.release(self.handles.pop(address))

    def give(self, workers):
        for channel in self.channels[:workers]:
            send_descriptors(channel, [self.gpu.export(self.handles[address]) for address, _ in self.blocks])

    def back(self):
        self.free()

    def take(self):
        fds = receive_descriptors(self.channels[0], LAYERS // LAYERS_PER_BLOCK)
        self.known, self.got = [], {}
        per_block = len(self.names) // len(fds)
        for number, fd in enumerate(fds):
            names = self.names[number * per_block : (number + 1) * per_block]
            size = round_up(sum(self.sizes[name] for name in names))
            address = self.gpu.take(fd, size)
            self.known.append((address, size))
            for name in names:
                self.got[name] = address
                address += self.sizes[name]
        self.tensors = {}
        self.read(self.last)

    def address(self, name):
        return self.got[name]

    def drop(self):
        for address, size in self.known:
            self.gpu.unmap(address, size)


class InPlace(Way):
    name = "tensorlease: in place"


class Again(Way):
    """The next step of training, in the same memory."""

    name = "tensorlease: in place, known memory"
    kept = 1

    def prepare(self, byte):
        if not self.blocks:
            self.make()
        self.fill(byte)

    def back(self):
        self.take_back()


class Put(Way):
    """The memory of a copy that was deleted stays ready for the next one for some seconds."""

    name = "tensorlease: put_many, a copy"
    copies = kept = 1

    @staticmethod
    def models(workers):
        return 2

    def give(self, workers):
        self.client.put_many(self.arrays, prefix=PREFIX, stream=-1)

    def take_back(self):
        self.client.delete(prefix=PREFIX)


class Own(Way):
    """Each worker copies the model into weights of its own."""

    name = "tensorlease: in place, each copies"

    @staticmethod
    def models(workers):
        return 1 + workers

    def wait(self):
        self.own = {name: self.gpu.alloc(size) for name, size in self.sizes.items()}

    def take(self):
        tensors = self.client.get_many(self.names, prefix=PREFIX, timeout=60)
        for name, tensor in tensors.items():
            got = Got(self.gpu, tensor)
            self.gpu.copy(self.own[name], got.address, self.sizes[name])
            got.drop()
        self.tensors = {}
        self.read(self.last)

    def address(self, name):
        return self.own[name]

    def drop(self):
        for address in self.own.values():
            self.gpu.free(address)


# ---- With PyTorch ----


class Torch(Way):
    """The engine "ipc" of vLLM's weight transfer: a handle for each tensor, the same for all workers."""

    name = "torch IPC, in place"
    why_not = staticmethod(why_no_torch)

    def __init__(self, *arguments):
        super().__init__(*arguments)
        import torch
        import torch.multiprocessing

        self.torch, self.arrays = torch, None
        if TORCH_DEVICE == "cpu":
            torch.multiprocessing.set_sharing_strategy("file_system")  # whose handles several can open
        torch.zeros(1, device=TORCH_DEVICE).fill_(1)  # loads what a GPU needs for that
        self.on_gpu()

    def on_gpu(self):
        if TORCH_DEVICE != "cpu":
            self.torch.cuda.synchronize()

    def make(self):
        empty, kind = self.torch.empty, self.torch.uint8
        self.arrays = {name: empty(size, dtype=kind, device=TORCH_DEVICE) for name, size in self.sizes.items()}

    def fill(self, byte):
        for tensor in self.arrays.values():
            tensor.fill_(byte)
        self.on_gpu()

    def give(self, workers):
        from multiprocessing.reduction import ForkingPickler

        data = bytes(ForkingPickler.dumps(self.arrays))  # by reduce_tensor() of torch.multiprocessing
        for channel in self.channels[:workers]:
            channel.sendall(len(data).to_bytes(8, "little") + data)

    def take_back(self):
        pass

    def free(self):
        self.arrays = None
        self.forget()

    def forget(self):
        if TORCH_DEVICE != "cpu":
            self.torch.cuda.ipc_collect()
            self.torch.cuda.empty_cache()

    def take(self):
        self.got = self.receive()
        self.read(self.last)

    def receive(self):
        channel = self.channels[0]
        size = int.from_bytes(channel.recv(8, socket.MSG_WAITALL), "little")
        return pickle.loads(channel.recv(size, socket.MSG_WAITALL))

    def read(self, name):
        return bytes(self.got[name][-TAIL:].cpu().tolist())

    def check(self, byte):
        self.tensors = {}
        super().check(byte)

    def drop(self):
        self.got = None
        self.on_gpu()
        self.forget()


class TorchOwn(Torch):
    name = "torch IPC, each copies"

    @staticmethod
    def models(workers):
        return 1 + workers

    def wait(self):
        empty, kind = self.torch.empty, self.torch.uint8
        self.got = {name: empty(size, dtype=kind, device=TORCH_DEVICE) for name, size in self.sizes.items()}

    def take(self):
        for name, tensor in self.receive().items():
            self.got[name].copy_(tensor)
        self.on_gpu()
        self.read(self.last)


class LoadModel(Torch):
    """publish_many() of PyTorch's own tensors; the workers' modules are made on "meta", untimed."""

    name = "tensorlease: load_model()"

    def give(self, workers):
        copied = self.client.publish_many(self.arrays, prefix=PREFIX, stream=-1)
        if copied and TORCH_DEVICE != "cpu":
            raise ValueError(f"{copied} tensors were copied, and none should be")

    def take_back(self):
        self.client.delete(prefix=PREFIX)

    def free(self):
        """Wait until the library holds no tensor any more, so that PyTorch can give their memory back."""
        held = [weakref.ref(tensor) for tensor in (self.arrays or {}).values()]
        self.arrays = None
        wait_until(lambda: not any(tensor() is not None for tensor in held), "the model was not given back")
        super().free()

    def wait(self):
        import tensorlease.torch

        nn = self.torch.nn
        with tensorlease.torch.meta_weights():
            self.model = nn.Module()
            self.model.layers = nn.ModuleList(nn.Module() for _ in range(LAYERS))
            for name, size in self.sizes.items():
                _, number, part = name.split(".")
                parameter = nn.Parameter(self.torch.empty(size, dtype=self.torch.uint8), requires_grad=False)
                setattr(self.model.layers[int(number)], part, parameter)

    def take(self):
        tensorlease.torch.load_model(self.client, PREFIX, self.model, timeout=60)
        self.got = dict(self.model.named_parameters())
        self.read(self.last)

    def drop(self):
        self.model = None
        super().drop()


class SafeTensors(Torch):
    """The trainer saves a file in /dev/shm, and each worker loads it to the GPU."""

    name = "safetensors in /dev/shm"
    slow = True
    path = "/dev/shm/tensorlease-bench.safetensors"

    @staticmethod
    def why_not():
        try:
            import safetensors.torch  # noqa: F401
        except ImportError as error:
            return f"{error}"
        return why_no_torch()

    @staticmethod
    def models(workers):
        return 1 + workers

    def prepare(self, byte):
        room = os.statvfs("/dev/shm")
        if room.f_blocks and room.f_bavail * room.f_frsize < sum(self.sizes.values()) * 1.1:
            raise MemoryError("/dev/shm has no room for the model")
        super().prepare(byte)

    def give(self, workers):
        from safetensors.torch import save_file

        save_file(self.arrays, f"{self.path}.{os.getpid()}")
        for channel in self.channels[:workers]:
            channel.sendall(os.getpid().to_bytes(8, "little"))

    def take(self):
        from safetensors.torch import load_file

        pid = int.from_bytes(self.channels[0].recv(8, socket.MSG_WAITALL), "little")
        self.got = load_file(f"{self.path}.{pid}", device=TORCH_DEVICE)
        self.read(self.last)

    def free(self):
        if os.path.exists(f"{self.path}.{os.getpid()}"):
            os.unlink(f"{self.path}.{os.getpid()}")
        super().free()


PLAIN = [Copy, Export, InPlace, Again, Put, Own]
WITH_TORCH = [Torch, LoadModel, TorchOwn, SafeTensors]
IN_PLACE = (InPlace, Again, LoadModel)


def reasons():
    """Return why ways cannot be measured, or None, by their names. It is for a process of its own."""
    return {kind.name: kind.why_not() for kind in PLAIN + WITH_TORCH}


# ---- The processes ----


def since(copied, gpu):
    """Return how many bytes were copied since that number of them, or None."""
    return None if copied is None else gpu.copied_bytes() - copied


def train(link, torch, total, channels):
    gpu, ways = Gpu(), WITH_TORCH if torch else PLAIN
    sizes, way = layout(total), None
    link.send(gpu.free_bytes())
    for what, *values in iter(link.recv, None):
        if what == "way":
            way = ways[values[0]](gpu, sizes, channels)
            link.send(None)
        elif what == "prepare":
            way.prepare(*values)
            link.send(None)
        elif what == "give":
            cpu, copied, begin = time.process_time_ns(), gpu.copied_bytes(), time.monotonic_ns()
            way.give(*values)
            end = time.monotonic_ns()
            gpu.use("cuCtxSynchronize")
            link.send((begin, end, time.process_time_ns() - cpu, since(copied, gpu)))
        else:
            getattr(way, what)()
            link.send(None)


def work(link, torch, total, channel):
    gpu, ways = Gpu(), WITH_TORCH if torch else PLAIN
    sizes, way = layout(total), None
    link.send(None)
    for what, *values in iter(link.recv, None):
        if what == "way":
            way = ways[values[0]](gpu, sizes, [channel])
        elif what == "take":
            way.wait()
            link.send("waiting")
            cpu, copied = time.process_time_ns(), gpu.copied_bytes()
            way.take()
            end = time.monotonic_ns()
            used = time.process_time_ns() - cpu
            way.check(*values)
            link.send((end, used, since(copied, gpu)))
            continue
        else:
            getattr(way, what)()
        link.send(None)


def look(link):
    """Note the most of the GPU's memory that is in use, from a word of link to the next."""
    gpu = Gpu()
    link.send(None)
    for _ in iter(link.recv, None):
        most = 0
        while not link.poll(PROFILE):
            most = max(most, gpu.used_bytes())
        link.recv()
        link.send(max(most, gpu.used_bytes()))


class Group:
    """A trainer, workers, and one that looks at the GPU's memory, as gpu.py sees them."""

    def __init__(self, torch, total, workers):
        self.ways = WITH_TORCH if torch else PLAIN
        self.total = sum(layout(total).values())
        pairs = [socket.socketpair() for _ in range(workers)]
        self.children = [Child(train, torch, total, [ours for ours, _ in pairs])]
        self.children += [Child(work, torch, total, theirs) for _, theirs in pairs]
        for pair in pairs:
            for end in pair:
                end.close()
        self.free = max(hear_from(self.children, number) or 0 for number in range(workers + 1))
        self.looker, self.base = Child(look), None
        self.looker.hear()

    def tell(self, who, *words):
        """Tell some of them, and return what they answer."""
        for number in who:
            self.children[number].tell(words)
        return [hear_from(self.children, number) for number in who]

    def choose(self, kind):
        self.tell(range(len(self.children)), "way", self.ways.index(kind))
        if self.base is None:  # PyTorch has loaded what it needs on a GPU, and there is no model
            self.base = self.used_bytes()

    def drop_way(self):
        self.tell(range(len(self.children)), "close")

    def give(self, workers, byte, alone=False):
        """Return (ns, CPU ns of trainer and workers, bytes copied by the trainer, by the workers)."""
        takers = range(1, 0 if alone else workers + 1)
        self.tell([0], "prepare", byte)
        self.tell(takers, "take", byte)
        time.sleep(0.003)  # they are to sleep when the trainer's call comes
        ((begin, end, cpu, copied),) = self.tell([0], "give", workers)
        answers = [hear_from(self.children, number) for number in takers]
        most = max([end for end, _, _ in answers], default=end)
        total = cpu + sum(used for _, used, _ in answers)
        by_workers = sum(copied or 0 for _, _, copied in answers)
        return most - begin, total, copied, by_workers

    def take_back(self, workers, alone=False):
        self.tell(range(1, 0 if alone else workers + 1), "drop")
        self.tell([0], "back")

    def peak(self, what):
        """Return the most memory in use while what() runs, without what was in use when the group was made."""
        self.looker.tell("look")
        what()
        self.looker.tell("tell")
        return self.looker.hear() - self.base

    def settle(self, models):
        """Wait until no more than so many models are in use: workers unmap what was freed a moment later."""
        most = (models + 0.02) * self.total

        what = "memory of the former round is in use"
        wait_until(lambda: self.used_bytes() - self.base <= most, what, 10)

    def used_bytes(self):
        self.looker.tell("look")
        self.looker.tell("tell")
        return self.looker.hear()

    def end(self):
        for child in [*self.children, self.looker]:
            child.end()
