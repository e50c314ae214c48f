# SPDX-License-Identifier: Apache-2.0
"""What a process hands to another one: its clients and Refs, and to a child what other threads were doing."""

import asyncio
import ctypes
import gc
import os
import pickle
import signal
import threading
import weakref

import numpy as np
import pytest
from conftest import FAILED, at_each_line, end_child, eventually, in_child, once_asleep, run_python, until_asleep
from limits import limit

import tensorlease
import tensorlease._client
import tensorlease._ref


def held_by_a_thread(lock):
    """Returns a thread that holds the lock until the Event is set."""
    taken, over = threading.Event(), threading.Event()

    def hold():
        with lock:
            taken.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    return thread, over


def test_a_signal_handler_may_get_a_ref_at_any_point(client):
    client.put("processes/ref", np.arange(3))
    ref, seen = client.ref(client.get("processes/ref")), []

    def connect_and_get():
        tensorlease._ref._clients.clear()
        seen.append(ref.get().tolist())

    lines = at_each_line("_ref.py", connect_and_get, lambda: seen.append(ref.get().tolist()))
    assert lines > 10 and seen == [[0, 1, 2]] * (2 * lines + 1)
    tensorlease._ref._clients.clear()
    client.delete("processes/ref")


# ---- children ----


def test_a_child_closes_although_a_thread_of_its_parent_was_in_a_call(client, observer):
    def wait():
        with pytest.raises(ValueError, match="closed"):
            client.get("processes/never", timeout=limit(60))

    def closes():
        assert client.keys("processes/") == []
        assert any(c.pid == os.getpid() for c in observer.clients())
        client.close()
        eventually(lambda: sum(c.pid == os.getpid() for c in observer.clients()) == 1)  # the observer's
        return client.closed

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        for _ in range(3):
            in_child(closes)
    finally:
        client.close()
        thread.join()


def run_in_both(work, children):
    """Runs what forks meanwhile, appending what fork() has returned, and ends the child after it."""
    parent, status = os.getpid(), FAILED
    try:
        work()
        status = 0
    finally:
        if os.getpid() != parent:
            os._exit(status)
    end_child(children[0])


class Over(Exception):
    """A handler of a signal ends the call of the parent by it."""


def test_a_child_that_a_handler_forks_closes_although_other_threads_are_in_calls(client, observer):
    def wait():
        with pytest.raises(ValueError, match="closed"):
            client.get("processes/never", timeout=limit(60))

    def fork(*_):
        children.append(os.fork())
        if children[0]:
            raise Over
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(limit(120))
        client.keys("processes/")  # over a connection of the child's
        client.close()  # which the interrupted call does, when it ends

    def wait_and_fork():
        """In both processes."""
        with pytest.raises((Over, ValueError)):
            client.get("processes/never", timeout=limit(60))
        if not children[0]:
            eventually(lambda: sum(c.pid == os.getpid() for c in observer.clients()) == 1)  # the observer's

    children = []
    before = signal.signal(signal.SIGUSR1, fork)
    other = threading.Thread(target=wait)
    other.start()
    until_asleep(other.native_id)
    thread = once_asleep(lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1))
    try:
        run_in_both(wait_and_fork, children)
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
        client.close()
        other.join()


def test_a_child_closes_a_watch_although_a_thread_of_its_parent_waits(client):
    watch = client.watch("processes/watched", timeout=limit(60))

    def wait():
        for _ in watch:
            break

    def closes():
        other = client.watch("processes/other")
        other.close()
        watch.close()
        return True

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        in_child(closes)
    finally:
        client.put("processes/watched", b"x")
        thread.join()
        watch.close()


def test_a_child_is_not_kept_by_a_thread_of_its_parent_that_connects(client):
    client.put("processes/ref", b"x")
    with client.get("processes/ref") as tensor:
        ref = client.ref(tensor)
        thread, over = held_by_a_thread(tensorlease._ref._clients_lock())
        try:
            in_child(lambda: bytes(ref.get()) == b"x")
        finally:
            over.set()
            thread.join()


def test_a_child_of_a_process_that_connects_for_cached_functions(client, monkeypatch):
    monkeypatch.setenv("TENSORLEASE_SOCKET", client.status().address)
    squares = tensorlease.cached("processes/squares/")(lambda n: np.arange(n))
    thread, over = held_by_a_thread(tensorlease._cache._default_lock())
    try:
        in_child(lambda: squares(3).tolist() == [0, 1, 2])
    finally:
        over.set()
        thread.join()


# ---- other processes ----


def test_a_pickled_client_means_the_same_daemon_and_namespace_elsewhere(client, monkeypatch, tmp_path):
    path = client.status().address
    monkeypatch.delenv("TENSORLEASE_NAMESPACE", raising=False)
    monkeypatch.chdir(os.path.dirname(path))
    client.put("processes/pickled", b"x")
    with tensorlease.connect(os.path.basename(path)) as relative, relative.get("processes/pickled") as tensor:
        pickled = pickle.dumps((relative, relative.ref(tensor)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TENSORLEASE_NAMESPACE", "nowhere")
    again, ref = pickle.loads(pickled)
    with again:
        assert "processes/pickled" in again
        assert bytes(ref.get()) == b"x"
        with pytest.raises(tensorlease.PermissionDeniedError, match="nowhere"):
            tensorlease.connect(path)


def test_an_address_is_completed_for_other_processes(monkeypatch, tmp_path):
    def complete(address, namespace, path):
        return tensorlease._client._for_others(address, namespace, lambda: path)

    monkeypatch.setenv("TENSORLEASE_NAMESPACE", "mine")
    monkeypatch.chdir(tmp_path)
    assert complete(None, None, "/run/s") == ("/run/s", "mine")
    assert complete("/x", "", "/x") == ("/x", "")
    assert complete(b"/x", "other", "/x") == ("/x", "other")
    assert complete("link/../s", None, "link/../s") == (f"{tmp_path}/link/../s", "mine")
    assert complete("tensorlease://ns", None, "/run/s") == ("/run/s", "ns")
    assert complete("tensorlease:///x", None, "/x") == ("/x", "mine")
    assert complete("tensorlease:///x", "ns", "/x") == ("/x", "ns")
    assert complete("tensorlease:///", None, "/run/s") == ("/run/s", "mine")
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.chdir(deep)
    assert complete("s", "", "s") == ("s", "")  # the absolute path is too long for a socket


def test_connecting_without_a_working_directory(daemon, tmp_path):
    (tmp_path / "gone").mkdir()
    code = (
        "import os, pickle, sys, tensorlease\n"
        "os.chdir(sys.argv[1])\n"
        "os.rmdir(sys.argv[1])\n"
        "with tensorlease.connect(sys.argv[2]) as client, pickle.loads(pickle.dumps(client)) as again:\n"
        "    print(again.keys('nothing/'))\n"
        "try: tensorlease.connect('relative')\n"
        "except tensorlease.NoDaemonError: print('nobody')\n"
    )
    code = code.replace("sys.argv[1]", repr(str(tmp_path / "gone"))).replace("sys.argv[2]", repr(daemon))
    assert run_python(code).stdout == "[]\nnobody\n"


# ---- cycles, and a thread that fails ----


def test_a_client_that_refers_to_its_watch_is_collected(address):
    client = tensorlease.connect(address)
    client.mine = client.watch("processes/cycle")
    gone = weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None


class Failing(tensorlease.Client):
    fails = True

    def _wait_many(self, *args):
        if self.fails:
            raise MemoryError
        return super()._wait_many(*args)


def test_a_wait_that_runs_out_of_memory_fails_and_the_next_one_does_not(address):
    async def main(client):
        with pytest.raises(MemoryError):
            await client.aget("processes/failing", timeout=limit(60))
        client.fails = False
        wait = asyncio.create_task(client.aget("processes/failing", timeout=limit(60)))
        await asyncio.sleep(0)
        client.put("processes/failing", b"12")
        return (await wait).nbytes

    with Failing(address) as client:
        assert asyncio.run(main(client)) == 2


def test_only_the_thread_that_named_a_stream_uses_it(client, monkeypatch):
    """Stream 2 is another one on each thread."""
    threads, get, order = set(), tensorlease.Client.get, tensorlease.Tensor._order

    def noting_get(client, name, *, stream=None, **more):
        if stream is not None:
            threads.add(threading.current_thread())
        return get(client, name, stream=stream, **more)

    def noting_order(tensor, stream):
        threads.add(threading.current_thread())
        return order(tensor, stream)

    async def main():
        wait = asyncio.create_task(client.aget("processes/stream", stream=2, timeout=limit(60)))
        await asyncio.sleep(0)
        client.put("processes/stream", b"12")
        return (await wait).nbytes

    monkeypatch.setattr(tensorlease.Client, "get", noting_get)
    monkeypatch.setattr(tensorlease.Tensor, "_order", noting_order)
    assert asyncio.run(main()) == 2
    assert threads == {threading.main_thread()}


def test_a_view_of_an_empty_draft_outlives_its_commit(client):
    draft = client.create("processes/empty", (0, 3), "float32")
    view, shared = memoryview(draft), draft._share()
    assert draft.commit() == 1
    assert shared.shape == (0, 3) and shared.nbytes == 0 and view.shape == (0, 3)
    assert np.from_dlpack(shared).shape == (0, 3)


class Buffer(ctypes.Structure):
    """Py_buffer of the stable ABI."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


def test_a_buffer_of_an_empty_draft_outlives_its_commit(client):
    """memoryview() keeps the shape itself; consumers written in C use what the buffer points to."""
    get, release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
    get.argtypes, release.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int], [ctypes.c_void_p]
    draft, view = client.create("processes/buffer", (0, 3, 11), "float32"), Buffer()
    full_ro = 0x11C
    assert get(draft, ctypes.byref(view), full_ro) == 0
    shape = ctypes.addressof(view.shape.contents)
    tensor = draft._share()
    again = Buffer()
    assert draft.commit() == 1
    assert get(tensor, ctypes.byref(again), full_ro) == 0
    assert ctypes.addressof(again.shape.contents) == shape  # it was not freed with what was published
    assert view.shape[:3] == [0, 3, 11] and view.strides[:3] == [132, 44, 4]
    release(ctypes.byref(view))
    release(ctypes.byref(again))


def test_a_draft_is_not_touched_in_a_grandchild(client):
    draft = client.create("processes/generations", (1000,), "float32")
    array = draft.numpy()
    array[:] = 1

    def grandchild():
        for use in (draft.numpy, lambda: draft[0], lambda: draft.__setitem__(0, 1), draft.tolist, draft.bytes):
            with pytest.raises(BufferError, match="the process that created it"):
                use()
        return True

    def child():
        draft[0] = 2
        in_child(grandchild)
        return True

    in_child(child)
    assert draft[0] == 2
    draft.abort()
