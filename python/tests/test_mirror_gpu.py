# SPDX-License-Identifier: Apache-2.0
"""tensorlease-mirror: tensors on GPUs come to other hosts as tensors on the CPU, if the rule says so."""

import gpu_help
import numpy as np
from conftest import eventually
from cuda_driver import LEGACY, Child, Driver, Taken
from mirrors import IMPORT, PIECE, SKIPS, came, hosts, nats  # noqa: F401 (fixtures)

import tensorlease

gpus, pytestmark = gpu_help.gpus, SKIPS
SIZE = PIECE + 1000


def keep_on_gpu(link, socket):
    """Publishes what it is told, each on the GPU, until it is told to end."""
    client, driver = tensorlease.connect(socket, autostart=False), Driver(0)
    while told := link.recv():
        name, size, byte = told
        with client.create(name, (size,), "uint8", device=0) as draft:
            Taken(driver, draft, LEGACY).fill(byte)
        link.send(draft.version)
    for name in client.keys():  # nothing may stay on the GPU
        client.delete(name)


class Gpu:
    """A producer on a GPU."""

    def __init__(self, socket):
        self.child = Child(keep_on_gpu, socket)

    def put(self, *what):
        self.child.tell(what)
        return self.child.hear()


def has(there, name, version, size, byte):
    if not came(there, name, version):
        return False
    with there.get(name) as tensor:
        assert tensor.device == "cpu" and np.array_equal(tensor.numpy(), np.full(size, byte, "uint8")), "wrong bytes"
    return True


def test_tensors_on_gpus_are_copied_if_the_rule_says_so(gpus, hosts):
    a = hosts("a", "[export all]\ngpus = copy\n")
    b = hosts("b", IMPORT)
    gpu, here, there = Gpu(a.socket), a.connect(), b.connect("mirror")
    gpu.put("before", SIZE, 7)
    a.start()
    b.start()
    eventually(lambda: has(there, "before", 1, SIZE, 7))
    for n in range(2, 6):
        assert gpu.put("large", SIZE, n) == n - 1
        assert gpu.put("small", 100, n) == n - 1
        here.put("on-cpu", np.full(SIZE, n, "uint8"))
        eventually(lambda n=n: has(there, "large", n - 1, SIZE, n))
        eventually(lambda n=n: has(there, "small", n - 1, 100, n))
        eventually(lambda n=n: has(there, "on-cpu", n - 1, SIZE, n))
    gpu.child.end()
    eventually(lambda: not there.keys())
    for host in (a, b):
        host.end()


def test_a_set_on_a_gpu_comes_as_one(gpus, hosts):
    a = hosts("a", "[export all]\nset = yes\ngpus = copy\n").start()
    b = hosts("b", IMPORT).start()
    gpu, there = Gpu(a.socket), b.connect("mirror")
    for n in range(1, 4):
        for name in ("w/0", "w/1"):
            gpu.put(name, SIZE, n)
        for name in ("w/0", "w/1"):
            eventually(lambda name=name, n=n: has(there, name, n, SIZE, n))
    gpu.child.end()
    eventually(lambda: not there.keys())
    for host in (a, b):
        host.end()
