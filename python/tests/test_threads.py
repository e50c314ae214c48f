# SPDX-License-Identifier: Apache-2.0
"""Threads that share one object. In a free-threaded interpreter they run at once."""

import contextlib
import os
import sys
import sysconfig
import threading

import pytest
from limits import limit

import tensorlease

THREADS, ROUNDS = 4, 300


def at_once(*works):
    """Runs each of them on a thread of its own, all from one moment on. Raises what one of them raised."""
    barrier, failed = threading.Barrier(len(works)), []

    def run(work):
        barrier.wait()
        try:
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit(120))
        assert not thread.is_alive()
    if failed:
        raise failed[0]


LATE = (ValueError, BufferError)


def until_late(call, begun):
    """A work that sets the Event when a call has succeeded, and repeats it until it is too late, which raises LATE."""

    def work():
        try:
            call()
        finally:
            begun.set()
        with contextlib.suppress(*LATE):
            while True:
                call()

    return work


def after(begun, call):
    """A work that makes a call when all Events are set. With a GIL, the last thread of a barrier is the first to run."""

    def work():
        for event in begun:
            event.wait()
        call()

    return work


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this interpreter always has a GIL")
def test_the_import_does_not_bring_the_gil_back():
    assert "PYTHON_GIL" in os.environ or not sys._is_gil_enabled()


def test_a_tensor_is_released_while_others_read_it(client):
    client.put("threads/release", b"x" * 4096)

    def look(tensor):
        assert tensor.shape == (4096,) and tensor.nbytes == 4096 and tensor.device == "cpu"
        assert tensor.name == "threads/release" and tensor.strides == (1,) and tensor.itemsize == 1

    def view(tensor):
        assert bytes(memoryview(tensor)[:2]) == b"xx" and bytes(tensor.view("uint16").bytes()[:1]) == b"x"
        tensor.__dlpack__(max_version=(1, 0)), tensor.copy_on_write().release(), repr(tensor)

    for _ in range(ROUNDS):
        tensor = client.get("threads/release")
        begun = threading.Event(), threading.Event()
        works = (until_late(lambda work=work: work(tensor), event) for work, event in zip((look, view), begun))
        at_once(*works, after(begun, tensor.release), after(begun, tensor.release))
    assert tensor.released


def test_a_draft_is_committed_once(client):
    for n in range(ROUNDS // 3):
        name, draft = f"threads/draft/{n % 3}", client.create(f"threads/draft/{n % 3}", 8, "uint8")
        memoryview(draft)[:] = bytes(8)
        versions, begun = [], threading.Event()

        def commit(draft=draft, versions=versions):
            with contextlib.suppress(*LATE):
                versions.append(draft.commit())

        def look(draft=draft):
            assert draft.state in ("open", "committed") and draft.name and memoryview(draft).nbytes == 8
            if draft.state == "committed":
                raise ValueError("it is late")

        works = after([begun], commit), after([begun], commit)
        at_once(*works, until_late(look, begun), lambda draft=draft: repr(draft))
        assert len(versions) == 1 and client.get(name).version == versions[0] == draft.version


class Bytes:
    """Keeps a draft's memory by a capsule, and not the Draft."""

    def __init__(self, draft):
        self.capsule = draft.__dlpack__(max_version=(1, 0))

    def __dlpack__(self, **_):
        return self.capsule

    def __dlpack_device__(self):
        return (1, 0)


def test_memory_of_a_draft_is_published_while_the_draft_goes_away(client):
    for n in range(ROUNDS):
        drafts = [client.create("threads/gone", 16, "uint8")]
        memoryview(drafts[0])[:] = bytes([n % 256]) * 16
        array = Bytes(drafts[0])
        at_once(lambda array=array: client.publish("threads/gone", array), drafts.clear)
        assert bytes(memoryview(client["threads/gone"])) == bytes([n % 256]) * 16


def test_threads_share_a_client(client):
    def work(mine):
        for n in range(ROUNDS):
            client.put(f"threads/shared/{n % 7}", bytes([n % 256]) * 64)
            tensor = client.get(f"threads/shared/{(n + mine) % 7}", default=None)
            if tensor is not None:
                assert len(set(bytes(memoryview(tensor)))) == 1
            with client.create(f"threads/own/{mine}", 64, "uint8") as draft:
                memoryview(draft)[:] = bytes([mine]) * 64
            assert bytes(memoryview(client[f"threads/own/{mine}"])) == bytes([mine]) * 64
            if n % 16 == 0:
                assert client.stat(f"threads/own/{mine}").nbytes == 64 and client.list("threads/own/")
                client.put_many({"a": b"1", "b": b"2"}, prefix=f"threads/many/{mine}/")
                assert len(client.get_many(prefix=f"threads/many/{mine}/")) == 2

    at_once(*(lambda mine=mine: work(mine) for mine in range(THREADS)))


def test_a_client_is_closed_while_others_use_it(address):
    for _ in range(20):
        client = tensorlease.connect(autostart=False)
        client.put("threads/close", b"x")

        begun = threading.Event(), threading.Event()

        def work(client=client):
            client.get("threads/close").release()
            client.put("threads/close", b"y")
            client.create("threads/close", 1, "uint8").abort()

        def wait(client=client):
            with pytest.raises(ValueError):
                client.get("threads/close", newer_than=10**15, timeout=limit(100))

        works = [until_late(work, event) for event in begun]
        at_once(*works, wait, after(begun, client.close), after(begun, client.close))
        assert client.closed


def test_one_of_many_threads_makes_what_all_ask_for(client):
    for n in range(20):
        made = []

        def make(made=made):
            made.append(1)
            return b"made"

        def work(n=n, make=make):
            assert bytes(memoryview(client.get_or_put(f"threads/made/{n}", make))) == b"made"

        at_once(*[work] * THREADS)
        assert made
