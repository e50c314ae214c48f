# SPDX-License-Identifier: Apache-2.0
"""tensorlease.Queue does what multiprocessing.Queue does, where it says so, and what it says beyond that."""

import contextlib
import gc
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import weakref

import numpy as np
import pytest
from conftest import (
    at_each_line,
    end_child,
    eventually,
    is_interrupted,
    run_python,
    start_child,
    until_asleep,
)
from limits import limit

import tensorlease

METHODS = ["fork", "spawn", "forkserver"]
WAIT = limit(60)
BIG = 300_000  # bytes of an array that is mapped and not copied


@pytest.fixture(autouse=True)
def nothing_stays(client):
    yield
    gc.collect()
    assert [info.name for info in client.list()] == []


@pytest.fixture(params=["multiprocessing", "tensorlease"])
def make(request, client):
    """Makes queues of either kind."""
    if request.param == "tensorlease":
        return lambda maxsize=0, method="fork": tensorlease.Queue(maxsize, client=client)
    return lambda maxsize=0, method="fork": multiprocessing.get_context(method).Queue(maxsize)


@contextlib.contextmanager
def process(method, function, *arguments):
    child = multiprocessing.get_context(method).Process(target=function, args=arguments)
    child.start()
    try:
        yield child
        child.join(WAIT)
        assert child.exitcode == 0
    finally:
        child.kill()
        child.join()


def threads(*functions):
    """Runs functions on threads, all at once, and raises what one of them raised."""
    errors = []

    def run(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    started = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    if errors:
        raise errors[0]


# ---- What both queues do ----


def echo(source, target):
    while (thing := source.get(timeout=WAIT)) is not None:
        target.put(thing)


THINGS = [
    1,
    "text",
    b"x" * 100_000,
    {"obs": np.arange(BIG), "more": [np.zeros(3), (np.float32(2), np.ones((50, 60), np.uint8))], "n": None},
    [np.full(2000, i) for i in range(20)],
    np.arange(12.0).reshape(3, 4),
    np.zeros((0, 5)),
    np.array(7),
]


def same(a, b):
    if isinstance(a, np.ndarray):
        return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("method", METHODS)
def test_objects_go_to_a_child_and_back_in_order(make, method):
    there, back = make(4, method), make(4, method)
    with process(method, echo, there, back):
        for thing in THINGS:
            there.put(thing)
            assert same(back.get(timeout=WAIT), thing)
        there.put(None)


def test_full_and_empty(make):
    q = make(2)
    with pytest.raises(queue.Empty):
        q.get(False)
    with pytest.raises(queue.Empty):
        q.get_nowait()
    with pytest.raises(queue.Empty):
        q.get(timeout=0.01)
    with pytest.raises(queue.Empty):
        q.get(True, -1)
    q.put(1)
    q.put(2, block=False)
    with pytest.raises(queue.Full):
        q.put(3, False)
    with pytest.raises(queue.Full):
        q.put_nowait(3)
    with pytest.raises(queue.Full):
        q.put(3, timeout=0.01)
    with pytest.raises(queue.Full):
        q.put(3, True, -1)
    assert q.get(timeout=WAIT) == 1
    q.put(3, timeout=WAIT)
    assert [q.get(timeout=WAIT) for _ in range(2)] == [2, 3]


def test_full_says_why(client):
    q = tensorlease.Queue(1, client=client)
    q.put(1)
    with pytest.raises(queue.Full, match=f"'{q.name}' is full: 1 items are not taken"):
        q.put(2, timeout=0.01)
    assert q.get(timeout=WAIT) == 1


def test_it_counts_what_waits(make):
    q = make(3)
    assert q.qsize() == 0
    assert q.empty() and not q.full()
    for i in range(3):
        q.put(i)
        assert q.qsize() == i + 1
    assert q.full()
    eventually(lambda: not q.empty())
    q.get(timeout=WAIT)
    assert q.qsize() == 2 and not q.full()
    for _ in range(2):
        q.get(timeout=WAIT)
    assert q.empty() and q.qsize() == 0


def test_who_gets_an_array_may_write_to_it(make):
    q = make()
    for size in (10, 5000, BIG):
        sent = np.zeros(size, np.uint8)
        sent.flags.writeable = False
        q.put([sent, sent[::2]])
        got, half = q.get(timeout=WAIT)
        got[:] = 1
        half[:] = 2
        q.put(sent)
        assert not sent.any() and not q.get(timeout=WAIT).any()


def test_after_close(make):
    q = make()
    with pytest.raises(AssertionError):
        q.join_thread()
    q.cancel_join_thread()
    q.put(1)
    assert q.get(timeout=WAIT) == 1
    q.close()
    q.close()
    for call in (lambda: q.put(1), q.get, lambda: q.put_nowait(1), q.get_nowait):
        with pytest.raises(ValueError, match="is closed"):
            call()
    q.join_thread()


def put_all(q, numbers):
    for number in numbers:
        q.put((number, np.full(2000, number)), timeout=WAIT)


def get_all(q, results):
    found = []
    for number, array in iter(lambda: q.get(timeout=WAIT), None):
        assert (array == number).all()
        found.append(number)
    results.put(found)


def test_threads_get_each_object_once(make):
    q, results = make(8), queue.Queue()

    def produce(first):
        put_all(q, range(first, first + 100))

    def end():
        threads(*[lambda i=i: produce(i * 100) for i in range(4)])
        for _ in range(4):
            q.put(None, timeout=WAIT)

    threads(end, *[lambda: get_all(q, results) for _ in range(4)])
    found = [results.get_nowait() for _ in range(4)]
    assert sorted(number for some in found for number in some) == list(range(400))
    for some in found:
        assert all(some.index(n) < some.index(m) for n, m in zip(some, some[1:]) if n // 100 == m // 100 and n < m)


@pytest.mark.parametrize("method", METHODS)
def test_processes_get_each_object_once(make, method):
    q, results = make(8, method), make(0, method)
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(process(method, get_all, q, results))
        with process(method, put_all, q, range(50)), process(method, put_all, q, range(50, 100)):
            pass
        for _ in range(2):
            q.put(None)
        assert sorted(sum((results.get(timeout=WAIT) for _ in range(2)), [])) == list(range(100))


def test_a_call_that_does_not_wait_returns_beside_one_that_waits(make):
    q = make(1)
    waiting = threading.Thread(target=q.get)
    waiting.start()
    until_asleep(waiting.native_id)
    with pytest.raises(queue.Empty):
        q.get_nowait()
    with pytest.raises(queue.Empty):
        q.get(timeout=0.01)
    q.put(1)
    waiting.join()
    q.put(2)
    waiting = threading.Thread(target=q.put, args=(3,))
    waiting.start()
    until_asleep(waiting.native_id)
    with pytest.raises(queue.Full):
        q.put_nowait(4)
    with pytest.raises(queue.Full):
        q.put(4, timeout=0.01)
    assert q.get(timeout=WAIT) == 2
    waiting.join()
    assert q.get(timeout=WAIT) == 3


def test_a_child_forked_while_a_thread_waits(make):
    q, other = make(), make()
    waiting = threading.Thread(target=q.get)
    waiting.start()
    until_asleep(waiting.native_id)
    with process("fork", other.put, 5):
        assert other.get(timeout=WAIT) == 5
    q.put(None)
    waiting.join()


# ---- What only ours does ----


def test_the_exceptions_are_those_of_queue():
    assert tensorlease.Full is queue.Full and tensorlease.Empty is queue.Empty


def test_ctrl_c_ends_a_wait(address):
    assert is_interrupted("tensorlease.Queue(client=client).get()")
    assert is_interrupted("q = tensorlease.Queue(1, client=client); q.put(1); q.put(2)")


def test_ctrl_c_at_any_moment_leaves_it_usable(client):
    q = tensorlease.Queue(2, client=client)
    things = [1, [np.zeros(5000)], np.zeros(5000)]
    interrupted = 0

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGPROF, interrupt)
    try:
        for i in range(300):
            signal.setitimer(signal.ITIMER_PROF, 0.001 + i % 17 * 0.0001)
            try:
                while True:
                    q.put(things[i % 3])
                    q.get()
            except KeyboardInterrupt:
                interrupted += 1
            with contextlib.suppress(queue.Empty):
                while True:
                    q.get_nowait()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    assert interrupted == 300
    threads(lambda: q.put(5, timeout=WAIT), lambda: same(q.get(timeout=WAIT), 5))


def test_a_signal_handler_may_use_it(client):
    q = tensorlease.Queue(8, client=client)

    def handler():
        with contextlib.suppress(queue.Full):
            q.put_nowait(2)
        with contextlib.suppress(queue.Empty):
            q.get_nowait()

    def work():
        q.put([1], timeout=WAIT)
        q.get(timeout=WAIT)

    assert at_each_line("_queue.py", work, handler) > 50


def test_a_name_is_for_unrelated_processes(client, address):
    q = tensorlease.Queue(4, name="named", client=client)
    q.put(np.arange(BIG))
    run_python(
        "import tensorlease\n"
        "q = tensorlease.Queue(name='named')\n"
        "q.put(q.get(timeout=60) * 2)\n"
    )
    assert np.array_equal(q.get(timeout=WAIT), np.arange(BIG) * 2)
    del q
    gc.collect()
    tensorlease.Queue(name="named", client=client).put(1)  # others may have it
    assert tensorlease.Queue(4, name="named").get(timeout=WAIT) == 1
    with pytest.raises(tensorlease.InvalidError, match="the stream 'named' has depth 4, and was opened with 5"):
        tensorlease.Queue(5, name="named")
    client.delete("named")


@pytest.mark.parametrize("mode", ["c", "r"])
def test_arrays_come_back_as_they_were(client, mode):
    q = tensorlease.Queue(client=client, mode=mode)
    plain = np.arange(BIG, dtype=np.int64)
    shared = [plain] * 3
    for array in [
        plain.reshape(100, -1)[::2, 1::3],
        np.asfortranarray(plain.reshape(100, -1)),
        plain.astype("M8[s]"),
        plain.astype(">i4"),
        plain.astype("S8"),
        np.zeros(5000, [("a", "i4"), ("b", "f8", 3)]),
        plain.astype(np.complex64),
        np.arange(5000, dtype=np.longdouble),
        plain > 5,
    ]:
        q.put(array)
        got = q.get(timeout=WAIT)
        assert type(got) is np.ndarray and got.dtype == array.dtype and np.array_equal(got, array)
        assert got.flags.f_contiguous == array.flags.f_contiguous or not array.flags.forc
    sent = np.array([plain, None, "x"], dtype=object)
    q.put(sent)
    assert same(list(q.get(timeout=WAIT)), list(sent))
    masked = np.ma.masked_less(plain, 50)
    q.put(masked)
    got = q.get(timeout=WAIT)
    assert isinstance(got, np.ma.MaskedArray) and got.sum() == masked.sum() and np.array_equal(got.mask, masked.mask)
    q.put(shared)
    first, *others = q.get(timeout=WAIT)
    assert all(other is first for other in others)


def test_mode_r_gives_the_shared_memory(client):
    q = tensorlease.Queue(client=client, mode="r")
    for size in (5000, BIG):
        q.put(np.zeros(size))
        got = q.get(timeout=WAIT)
        with pytest.raises(ValueError, match="read-only"):
            got[0] = 1
        with open("/proc/self/maps") as maps:
            address = got.__array_interface__["data"][0]
            ranges = [line.split() for line in maps]
        [[_, access, *_]] = [r for r in ranges if int(r[0].split("-")[0], 16) <= address < int(r[0].split("-")[1], 16)]
        assert access == "r--s"


def test_tensors(client):
    client.put("t", np.arange(BIG, dtype=np.float16).reshape(3, -1))
    sent = client.get("t")
    client.delete("t")
    for mode in ("c", "r"):
        q = tensorlease.Queue(client=client, mode=mode)
        q.put({"t": sent})
        got = q.get(timeout=WAIT)["t"]
        assert type(got) is tensorlease.Tensor and got.dtype == "float16" and got.read_only == (mode == "r")
        assert np.array_equal(got.numpy(), sent.numpy())


class Array:
    """An array of some library that has DLPack, whose namespace is this module."""

    def __init__(self, values):
        self.values, self.nbytes = values, values.nbytes

    def __dlpack__(self, **arguments):
        return self.values.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()

    def __array_namespace__(self):
        return sys.modules[__name__]


def from_dlpack(array):
    return Array(np.from_dlpack(array) if isinstance(array, np.ndarray) else array.numpy())


@pytest.mark.parametrize("mode", ["c", "r"])
def test_other_libraries(client, mode):
    q = tensorlease.Queue(client=client, mode=mode)
    q.put([Array(np.arange(BIG))])
    [got] = q.get(timeout=WAIT)
    assert type(got) is Array and got.values.flags.writeable and np.array_equal(got.values, np.arange(BIG))


def test_torch_tensors(client):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    for mode in ("c", "r"):
        q = tensorlease.Queue(client=client, mode=mode)
        for sent in [
            torch.arange(10),
            torch.arange(10_000).reshape(100, 100).T,
            torch.arange(BIG),
            torch.ones(BIG, dtype=torch.bfloat16),
            torch.ones(3, dtype=torch.bfloat16),
            torch.tensor(True),
            torch.zeros(3, 0),
            torch.arange(5000).to(torch.complex64).conj(),
        ]:
            q.put((sent, "x"))
            got, _ = q.get(timeout=WAIT)
            assert type(got) is torch.Tensor and got.dtype == sent.dtype and torch.equal(got, sent)
            before = sent.clone()
            got.zero_()
            assert torch.equal(sent, before)


@pytest.mark.parametrize("method", METHODS)
def test_torch_tensors_go_to_a_child(client, method):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    there, back = tensorlease.Queue(client=client), tensorlease.Queue(client=client)
    with process(method, echo, there, back):
        for sent in [torch.arange(10), torch.arange(BIG), torch.nn.Parameter(torch.ones(3))]:
            there.put({"t": sent})
            got = back.get(timeout=WAIT)["t"]
            assert torch.equal(got, sent) and got.requires_grad == sent.requires_grad
        there.put(None)


def test_nothing_waits_for_a_collection(client, observer):
    """What a queue was given, and what it gave, goes with its last reference."""
    gc.collect()
    gc.disable()
    try:
        for mode in ("c", "r"):
            q = tensorlease.Queue(client=client, mode=mode)
            sent = [np.zeros(BIG), np.zeros(BIG, ">i4")]
            refs = [weakref.ref(array) for array in sent]
            q.put(sent)
            del sent
            assert not any(ref() is not None for ref in refs)
            before = sum(c.leases for c in observer.clients())
            got = q.get(timeout=WAIT)
            assert sum(c.leases for c in observer.clients()) > before
            del got
            assert sum(c.leases for c in observer.clients()) == before
    finally:
        gc.enable()


def test_large_pickles_and_many_arrays(client):
    q = tensorlease.Queue(client=client)
    for thing in ["x" * 3_000_000, list(range(100_000)), [np.full(1000, i) for i in range(5000)]]:
        q.put(thing)
        assert same(q.get(timeout=WAIT), thing)


def test_what_cannot_be_pickled_is_told_to_the_caller_of_put(client):
    q = tensorlease.Queue(2, client=client)
    q.put([1, np.zeros(BIG)])
    used = client.status().bytes_used
    for _ in range(20):
        with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
            q.put([np.zeros(BIG), lambda: 1])
    assert client.status().bytes_used == used
    q.put(2)
    assert q.get(timeout=WAIT)[0] == 1 and q.get(timeout=WAIT) == 2


class Bad:
    def __reduce__(self):
        return os.kill, (os.getpid(), "no signal")


def test_an_object_that_cannot_be_made_is_gone(client):
    q = tensorlease.Queue(client=client)
    q.put(Bad())
    q.put(1)
    with pytest.raises(TypeError):
        q.get(timeout=WAIT)
    assert q.get(timeout=WAIT) == 1


def test_an_item_of_others_is_refused(client):
    q = tensorlease.Queue(name="named", client=client)
    client.stream("named", existing=True).put(np.zeros(3))
    q.put(1)
    with pytest.raises(TypeError, match="not put by a tensorlease.Queue"):
        q.get(timeout=WAIT)
    assert q.get(timeout=WAIT) == 1
    client.delete("named")


def test_wrong_arguments(client):
    with pytest.raises(ValueError, match="maxsize is 513"):
        tensorlease.Queue(513, client=client)
    with pytest.raises(ValueError, match="mode is 'w'"):
        tensorlease.Queue(client=client, mode="w")


def test_an_object_that_is_too_large(client):
    q = tensorlease.Queue(client=client)
    with pytest.raises(tensorlease.NoSpaceError):
        q.put(np.zeros(2 << 30, np.uint8))
    with pytest.raises(queue.Empty):
        q.get_nowait()


def test_a_deleted_queue(client):
    q = tensorlease.Queue(client=client)
    q.put(1)
    client.delete(q.name)
    for call in (lambda: q.put(1), lambda: q.get(timeout=WAIT)):
        with pytest.raises((tensorlease.Error, tensorlease.NotFoundError), match=r"gone|queue/"):
            call()
    named = tensorlease.Queue(name="named", client=client)
    named.put(1)
    client.delete("named")
    with pytest.raises(tensorlease.Error, match="gone"):
        named.put(1)
    named.put(2)  # to a new one
    assert named.get(timeout=WAIT) == 2
    client.delete("named")


# ---- The end of processes ----


def take_and_wait(q, conn):
    held = [q.get(timeout=WAIT) for _ in range(3)]
    conn.send(len(held))
    signal.pause()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_killed_consumer_takes_along_what_it_got_and_no_more(client, method):
    q = tensorlease.Queue(4, client=client, mode="r")
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context(method).Process(target=take_and_wait, args=(q, theirs))
    child.start()
    for i in range(6):
        q.put((i, np.full(BIG, i)), timeout=WAIT)
    assert ours.poll(WAIT) and ours.recv() == 3
    child.kill()
    child.join()
    assert [q.get(timeout=WAIT)[0] for _ in range(3)] == [3, 4, 5]
    with pytest.raises(queue.Empty):
        q.get_nowait()
    for i in range(50):  # more than there is memory for, if that of the killed one were lost
        q.put(np.zeros(20 << 20, np.uint8), timeout=WAIT)
        q.get(timeout=WAIT)


def get_for_ever(q):
    while True:
        q.get()


def put_for_ever(q):
    while True:
        q.put(np.zeros(5000))


@pytest.mark.parametrize("work", [get_for_ever, put_for_ever])
def test_processes_that_are_killed_at_any_moment_hold_nobody_up(client, work):
    q = tensorlease.Queue(4, client=client)
    other = put_for_ever if work is get_for_ever else get_for_ever
    context = multiprocessing.get_context("fork")
    steady = context.Process(target=other, args=(q,))
    steady.start()
    for _ in range(20):
        child = context.Process(target=work, args=(q,))
        child.start()
        for _ in range(20):  # it works meanwhile
            if work is get_for_ever:
                q.get(timeout=WAIT)
            else:
                q.put(1, timeout=WAIT)
        child.kill()
        child.join()
    for _ in range(20):
        if work is get_for_ever:
            q.get(timeout=WAIT)
        else:
            q.put(1, timeout=WAIT)
    steady.kill()
    steady.join()


def half_work(q, results, conn):
    number, array = q.get(timeout=WAIT)
    assert (array == number).all()
    results.put(number)
    if number == 0:
        conn.send("working")
        signal.pause()
    q.task_done()


def test_what_a_killed_worker_had_goes_to_another(client):
    q = tensorlease.Queue(4, client=client, redeliver=True)
    results = tensorlease.Queue(client=client)
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=half_work, args=(q, results, theirs))
    child.start()
    q.put((0, np.full(BIG, 0)))
    assert ours.poll(WAIT) and ours.recv() == "working"
    q.put((1, np.full(BIG, 1)))
    child.kill()
    child.join()
    found = [q.get(timeout=WAIT)[0] for _ in range(2)]
    assert sorted(found) == [0, 1] and results.get(timeout=WAIT) == 0
    q.task_done()
    with pytest.raises(ValueError, match="too many"):
        q.task_done()
    with pytest.raises(queue.Empty):
        q.get_nowait()


def test_close_gives_back_what_is_not_done(client, address):
    q = tensorlease.Queue(4, client=client, redeliver=True)
    for i in range(3):
        q.put(i)
    with tensorlease.connect() as other:
        mine = tensorlease.Queue(name=q.name, client=other, redeliver=True)
        assert [mine.get(timeout=WAIT), mine.get(timeout=WAIT)] == [0, 1]
        mine.close()
        assert sorted(q.get(timeout=WAIT) for _ in range(2)) == [1, 2]
    with pytest.raises(queue.Empty):
        q.get_nowait()


def test_an_error_in_a_program_gives_back_what_is_not_done(client, address):
    q = tensorlease.Queue(name="named", client=client, redeliver=True)
    q.put("work")
    run_python(
        "import tensorlease\n"
        "q = tensorlease.Queue(name='named', redeliver=True)\n"
        "assert q.get(timeout=60) == 'work'\n"
    )
    assert q.get(timeout=WAIT) == "work"
    client.delete("named")


def exists(client, name):
    try:
        client.stream(name, existing=True).close()
    except tensorlease.NotFoundError:
        return False
    return True


def test_a_queue_without_a_name_ends_with_its_object(client):
    q = tensorlease.Queue(client=client)
    name = q.name
    q.put(1)
    assert exists(client, name)
    del q
    gc.collect()
    assert not exists(client, name)


def get_late(q, conn):
    conn.send(None)
    conn.recv()
    conn.send([q.get(timeout=WAIT) for _ in range(2)])


@pytest.mark.parametrize("method", METHODS)
def test_a_queue_that_a_child_has_stays(client, method):
    q = tensorlease.Queue(client=client)
    name = q.name
    ours, theirs = multiprocessing.Pipe()
    with process(method, get_late, q, theirs):
        assert ours.poll(WAIT)
        ours.recv()
        q.put(1)
        q.put(np.zeros(BIG))
        q.close()
        del q
        gc.collect()
        ours.send(None)
        assert ours.poll(WAIT) and ours.recv()[0] == 1
    assert exists(client, name)
    client.delete(name)


PARENT = """
import multiprocessing, sys, tensorlease

def work(q):
    print(q.get(timeout=60), flush=True)
    sys.stdin.readline()
    print(q.get(timeout=60), flush=True)

if __name__ == "__main__":
    q = tensorlease.Queue()
    print(q.name, flush=True)
    q.put("one"), q.put("two")
    multiprocessing.get_context("fork").Process(target=work, args=(q,)).start()
"""


def test_it_ends_with_its_process_after_the_children(client, address):
    said = run_python(PARENT).stdout.split()
    assert said[1:] == ["one", "two"]
    assert not exists(client, said[0])


DAEMON_THREADS = """
import threading, tensorlease

waiting = threading.Barrier(9)

def wait(call):
    waiting.wait()
    call()

for _ in range(4):
    empty, full = tensorlease.Queue(), tensorlease.Queue(1)
    full.put(1)
    for call in (empty.get, lambda full=full: full.put(2)):
        threading.Thread(target=wait, args=(call,), daemon=True).start()
waiting.wait()
"""


def test_daemon_threads_that_wait_say_nothing_at_the_end(client, address):
    assert not run_python(DAEMON_THREADS).stderr


def test_a_child_of_fork_may_make_queues_of_its_own(client, address):
    def child():
        q = tensorlease.Queue()
        q.put(1)
        assert q.get(timeout=WAIT) == 1
        name = q.name
        del q
        gc.collect()
        assert not exists(tensorlease.connect(), name)

    q = tensorlease.Queue()
    end_child(start_child(child))
    q.put(2)
    assert q.get(timeout=WAIT) == 2
