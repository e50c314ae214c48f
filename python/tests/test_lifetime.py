# SPDX-License-Identifier: Apache-2.0
"""Leases end with del, gc, threads and processes, and fork and spawn work."""

import ctypes
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from conftest import eventually, from_dlpack, in_child, leases_of, no_client_stays, run_python, until_asleep
from limits import limit

import tensorlease


@pytest.fixture
def held(client, observer):
    client.put("life/t", np.arange(5000, dtype="int32"))
    assert leases_of(observer, os.getpid()) == 0
    return lambda: leases_of(observer, os.getpid())


def test_del_and_gc(client, held):
    tensor = client.get("life/t")
    assert held() == 1
    del tensor
    assert held() == 0
    ring = [client.get("life/t")]
    ring.append(ring)
    del ring
    gc.collect()
    assert held() == 0
    for _ in range(1000):
        client.get("life/t", mode="c")
    assert held() == 0


def test_exceptions_hold_no_leases(client, held):
    def fails():
        tensor = client.get("life/t")
        raise KeyError(tensor.shape)

    with pytest.raises(KeyError):
        fails()
    gc.collect()
    assert held() == 0


def test_threads_that_end(client, held):
    local = threading.local()

    def work():
        local.tensor = client.get("life/t")
        local.view = client.get("life/t").numpy()
        assert held() >= 2

    for _ in range(10):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert held() == 0


def test_a_tensor_may_be_given_back_by_another_thread(client, held):
    tensors = [client.get("life/t", mode=mode) for mode in "rc" * 50]
    threads = [
        threading.Thread(target=lambda part: [t.release() for t in part], args=(tensors[n::4],)) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert held() == 0


N = 1 << 16


def _raw(tensor):
    return np.ndarray(N, "uint8", buffer=pickle.PickleBuffer(tensor).raw())


def _out_of_band(tensor):
    kept = []
    data = pickle.dumps(tensor.numpy(), 5, buffer_callback=kept.append)
    return lambda: pickle.loads(data, buffers=kept)


# All of them keep the memory by way of what another library holds of ours.
HOLDERS = {
    "memoryview": memoryview,
    "memoryview.obj": lambda t: memoryview(t).obj,
    "memoryview.cast": lambda t: memoryview(t)[1:].cast("b").toreadonly(),
    "bytes().obj": lambda t: t.bytes().obj,
    "numpy().base": lambda t: t.numpy().base,
    "numpy().base.obj": lambda t: t.numpy().base.obj,
    "ndarray(memoryview)": lambda t: np.ndarray(N, "uint8", buffer=memoryview(t)),
    "ndarray(memoryview.cast)": lambda t: np.ndarray(N, "uint8", buffer=memoryview(t).cast("c")),
    "ndarray(tensor)": lambda t: np.ndarray(N, "uint8", buffer=t),
    "ndarray(bytes())": lambda t: np.ndarray(N, "uint8", buffer=t.bytes()),
    "ndarray(PickleBuffer.raw())": _raw,
    "frombuffer": lambda t: np.frombuffer(t, "uint8"),
    "frombuffer(memoryview)": lambda t: np.frombuffer(memoryview(t), "uint8"),
    "asarray": np.asarray,
    "array(copy=False)": lambda t: np.array(t, copy=None if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else False),
    "from_dlpack": from_dlpack,
    "PickleBuffer": pickle.PickleBuffer,
    "out of band": _out_of_band,
    "view()": lambda t: t.view("int8").numpy(),
    "DLPack capsule": lambda t: t.__dlpack__(max_version=(1, 0), copy=None, dl_device=None),
}


def _bytes_held(holder):
    holder = holder() if callable(holder) else holder
    if type(holder).__name__ == "PyCapsule":
        holder = from_dlpack(Capsule(holder))
    return np.frombuffer(holder, "uint8")


class Capsule:
    """What has one capsule to give."""

    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self, **_):
        return self.capsule

    def __dlpack_device__(self):
        return (1, 0)


def _overwrite(client, name):
    """Publishes others until all memory that is free was used again."""
    client.delete(name)
    for i in range(8):
        client.put(f"{name}/{i}", np.full(N, 0xEE, "uint8"))
    client.delete(prefix=f"{name}/")


@pytest.mark.parametrize("mode", "rc")
@pytest.mark.parametrize("way", HOLDERS)
def test_whoever_holds_a_part_of_a_tensor_holds_its_bytes(client, observer, way, mode):
    before = leases_of(observer, os.getpid())
    client.put("life/held", np.full(N, 7, "uint8"))
    with client.get("life/held", mode=mode) as tensor:
        holder = HOLDERS[way](tensor)
    _overwrite(client, "life/held")
    held = _bytes_held(holder)
    unchanged = bool((held == 7).all())
    assert held.size >= N - 1 and unchanged, f"{way}: the bytes have changed"
    del tensor, holder, held
    assert leases_of(observer, os.getpid()) == before


@pytest.mark.parametrize("way", [*(way for way in HOLDERS if way != "view()"), "ctypes"])
def test_whoever_holds_a_part_of_a_draft_holds_its_bytes(client, observer, way):
    before = leases_of(observer, os.getpid())
    with client.create("life/held", (N,), "uint8") as draft:
        draft.numpy().fill(7)
        holder = HOLDERS.get(way, (ctypes.c_ubyte * N).from_buffer)(draft)
    _overwrite(client, "life/held")
    held = _bytes_held(holder)
    unchanged = bool((held == 7).all())
    assert held.size >= N - 1 and unchanged, f"{way}: the bytes have changed"
    del draft, holder, held
    assert leases_of(observer, os.getpid()) == before


def test_ctypes_writes_to_no_shared_memory_of_a_tensor(client):
    client.put("life/held", np.full(N, 7, "uint8"))
    with client.get("life/held") as tensor, pytest.raises(TypeError, match="not writable"):
        (ctypes.c_ubyte * N).from_buffer(tensor)
    with client.get("life/held", mode="c") as tensor:
        held = (ctypes.c_ubyte * N).from_buffer(tensor)
    _overwrite(client, "life/held")
    assert bytes(held) == bytes([7]) * N


def test_a_view_keeps_its_draft_open(client):
    array = np.asarray(memoryview(client.create("life/view", (N,), "uint8")))
    view = memoryview(client.create("life/other", (N,), "uint8")).obj
    array.fill(3)
    assert not client.publish("life/view", array).copied
    assert view.numpy().flags.writeable and "life/other" not in client
    assert (client.get("life/view").numpy() == 3).all()


def test_descriptors_and_mappings_do_not_pile_up(client):
    client.put("life/fd", np.zeros(100000))
    client.get("life/fd", mode="c").numpy()[0] = 1

    def count():
        gc.collect()
        with open("/proc/self/maps") as maps:
            return len(os.listdir("/proc/self/fd")), sum("tensorlease" in line for line in maps)

    counts = [count()]
    for _ in range(10):  # a slot has a descriptor and mappings, and on a busy machine the ring grows, a few times
        for i in range(200):
            client.put("life/fd", np.full(100000, i))
            client.get("life/fd", mode="c").numpy()[0] = 1
            from_dlpack(client.get("life/fd"))
            client.get("life/fd").copy_on_write().numpy()[1] = 1
        counts.append(count())
        if counts[-1] == counts[-2]:
            break
    assert counts[-1] == counts[-2], counts
    assert client.stat("life/fd").ring >= 3


def test_a_killed_process_holds_nothing(client, observer):
    client.put("life/killed", np.arange(5000))
    code = (
        "import sys, tensorlease; c = tensorlease.connect()\n"
        "held = [c.get('life/killed', mode=m) for m in 'rc' * 500]; view = held[0].numpy()\n"
        "print('ready', flush=True); sys.stdin.read()\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"ready\n"
    assert leases_of(observer, child.pid) == 1000
    child.kill()
    child.wait()
    eventually(lambda: not any(c.pid == child.pid for c in observer.clients()))
    client.delete("life/killed")
    eventually(lambda: "life/killed" not in observer)
    child.stdin.close()
    child.stdout.close()


def test_a_process_that_ends_without_closing(client, observer):
    code = (
        "import tensorlease, numpy as np; c = tensorlease.connect()\n"
        "t = c.get('life/end'); a = t.numpy(); d = c.create('life/draft', 3, 'int8'); w = c.get('life/end', mode='c').numpy()\n"
    )
    client.put("life/end", np.arange(5000))
    with no_client_stays(observer):
        result = run_python(code)
    assert result.stderr == ""
    assert "life/draft" not in client


# ---- fork ----


def test_fork_keeps_everything_usable(client, observer):
    client.put("life/fork", np.arange(5000))
    read, cow = client.get("life/fork"), client.get("life/fork", mode="c")
    array, view, capsule = read.numpy(), memoryview(cow), read.__dlpack__(max_version=(1, 0))
    cow.numpy()[0] = 5

    def child():
        assert array[4999] == 4999 and view[0] == 5
        cow.numpy()[1] = 6
        assert client.get("life/fork").version == 1
        client.put("life/fork", np.zeros(3))
        assert client.get("life/fork", newer_than=1).shape == (3,)
        assert not read.copy_on_write().numpy()[0]
        with client.create("life/child", 3, "int8") as draft:
            draft[...] = 1

    in_child(child)
    assert view[1] == 1 and view[0] == 5 and array[1] == 1
    assert client.get("life/child").numpy().tolist() == [1, 1, 1]
    assert client.get("life/fork").shape == (3,)
    assert read.name == "life/fork" and capsule is not None
    del array, view, capsule, read, cow
    assert leases_of(observer, os.getpid()) == 0


def test_children_of_children_and_many_forks(client):
    client.put("life/tree", np.arange(5000))
    tensor = client.get("life/tree")

    def leaf():
        assert tensor.numpy()[7] == 7 and client.get("life/tree").numpy()[8] == 8

    def child():
        leaf()
        in_child(leaf)

    for _ in range(10):
        in_child(child)


def test_a_fork_while_threads_get(client):
    client.put("life/busy", np.arange(5000))
    over = threading.Event()
    failures = []

    def work():
        try:
            while not over.is_set():
                assert client.get("life/busy").numpy()[9] == 9
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()

    def child():
        for _ in range(100):
            assert client.get("life/busy").numpy()[9] == 9

    try:
        for _ in range(15):
            in_child(child)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert failures == []


def test_a_fork_while_another_thread_waits(client):
    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(client.get("life/waited", timeout=limit(60)).nbytes))
    thread.start()
    until_asleep(thread.native_id)

    def child():
        client.put("life/from_child", b"1")
        client.close()

    in_child(child)
    client.put("life/waited", b"12")
    thread.join()
    assert outcome == [2]


# ---- multiprocessing: what a DataLoader does ----


def worker(client, tensor, todo, done):
    """A worker of a forked pool inherits client and tensor; one of a spawned pool has a connection of its own."""
    total = 0 if tensor is None else int(tensor.numpy()[4999])
    while (name := todo.get()) is not None:
        with client.get(name, timeout=limit(30)) as source:
            total += int(source.numpy().sum())
            with client.create(f"{name}/out", source.shape, source.dtype) as draft:
                np.multiply(source, 2, out=draft.numpy())
        done.put(f"{name}/out")
    done.put(total)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers(client, method):
    context = multiprocessing.get_context(method)
    todo, done = context.Queue(), context.Queue()
    client.put("life/weights", np.arange(5000))
    weights = client.get("life/weights") if method == "fork" else None
    workers = [context.Process(target=worker, args=(client, weights, todo, done), daemon=True) for _ in range(3)]
    for process in workers:
        process.start()
    for n in range(30):
        client.put(f"life/batch{n}", np.full(5000, n))
        todo.put(f"life/batch{n}")
    results = [client.get(done.get(timeout=limit(60)), mode="c") for _ in range(30)]
    for _ in workers:
        todo.put(None)
    totals = [done.get(timeout=limit(60)) for _ in workers]
    for process in workers:
        process.join(limit(60))
    assert [process.exitcode for process in workers] == [0, 0, 0]
    assert sorted(int(r.numpy()[0]) for r in results) == [2 * n for n in range(30)]
    assert sum(totals) == sum(range(30)) * 5000 + (3 * 4999 if weights is not None else 0)
    for n in range(30):
        client.delete(f"life/batch{n}")
        client.delete(f"life/batch{n}/out")


def test_a_pool_that_is_killed_leaves_nothing(client, observer):
    context = multiprocessing.get_context("fork")
    client.put("life/pool", np.arange(5000))
    tensor = client.get("life/pool")
    ready = context.Queue()

    def hold():
        held = [client.get("life/pool") for _ in range(10)]
        ready.put(len(held) + int(tensor.numpy()[1]))
        signal.pause()

    workers = [context.Process(target=hold, daemon=True) for _ in range(3)]
    for process in workers:
        process.start()
    assert [ready.get(timeout=limit(60)) for _ in workers] == [11, 11, 11]
    for process in workers:
        process.kill()
        process.join()
    pids = {process.pid for process in workers}
    eventually(lambda: not any(c.pid in pids for c in observer.clients()))
    assert leases_of(observer, os.getpid()) == 1


def test_get_and_release_take_no_time(client):
    """The aim is 1 us. This only fails if something is very wrong."""
    import time

    client.put("life/fast", np.zeros((720, 1280, 3), "uint8"))
    get = client.get
    get("life/fast")
    eventually(lambda: _timed(get, time.perf_counter) < 20e-6)  # not each time, on a busy machine


def _timed(get, clock):
    start = clock()
    for _ in range(2000):
        get("life/fast").release()
    return (clock() - start) / 2000


def test_the_module_is_not_for_two_versions():
    assert tensorlease.__version__ == tensorlease._core.library_version
