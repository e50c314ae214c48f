# SPDX-License-Identifier: Apache-2.0
"""Producers that publish in memory that outlives them, and end at once."""

import contextlib
import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
import time

import dlpack_abi as abi
import gpu_help
import pytest
from conftest import eventually, until_asleep
from cuda_driver import LEGACY, Array, Child, Driver, Taken, run
from gpu_help import N, take
from limits import limit

import tensorlease

daemon, gpus = gpu_help.daemon, gpu_help.gpus

PROGRAM = """
import os
from test_gpu_close import publish
client = publish(7)
if os.environ["ENDING"] != "exit":
    client.close() if os.environ["ENDING"] == "close" else None
    del client
    os._exit(0)
"""


def publish(byte, timeout=limit(60)):
    client, driver = tensorlease.connect(autostart=False, timeout=timeout), Driver()
    with client.create("t", (N,), "uint8", device=0) as draft:
        taken = Taken(driver, draft, LEGACY)
        taken.fill(byte)
        taken.give_back()
    return client


@pytest.mark.parametrize("ending", ["close", "collected", "exit"])
def test_what_was_published_stays(gpus, monkeypatch, ending):
    monkeypatch.setenv("FAKECUDA_DELAY_US", "50000")
    monkeypatch.setenv("ENDING", ending)
    subprocess.run([sys.executable, "-c", PROGRAM], cwd=os.path.dirname(__file__), check=True, timeout=limit(120))
    monkeypatch.delenv("FAKECUDA_DELAY_US")
    run(take, 7)
    run(delete)


LATE_PROGRAM = """
import ctypes, os, sys
import test_gpu_close as test
client, array = test.publish_in_place()
print(os.getpid(), flush=True)
input()
for kept in client, test.publish(7):  # as by a thread that is in a call of theirs
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
sys.alive = os.fdopen(int(os.environ["ALIVE"]), "w")
"""


def publish_in_place(through=lambda array: array):
    client, driver = tensorlease.connect(autostart=False), Driver()
    array = Array(driver, (N,)).fill(1)
    driver.synchronize(array.work)
    client.publish("a", through(array))
    return client, array


def sleeps(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "S"


def test_no_deleter_is_called_when_the_interpreter_has_ended(gpus, observer, monkeypatch):
    read, write = os.pipe()
    monkeypatch.setenv("ALIVE", str(write))
    program = subprocess.Popen(
        [sys.executable, "-c", LATE_PROGRAM],
        cwd=os.path.dirname(__file__),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[write],
    )
    os.close(write)
    try:
        assert int(program.stdout.readline()) == program.pid
        gpus.hold(program.pid)
        program.stdin.write("\n")
        program.stdin.close()
        assert os.read(read, 1) == b""  # the interpreter has ended
        eventually(lambda: sleeps(program.pid))  # exit() waits for the GPU
        observer.delete("a")
        eventually(lambda: observer.stat("t").version == 1)
        gpus.hold(0)
        assert program.wait(limit(60)) == 0
    finally:
        program.kill()
        program.wait()
        program.stdout.close()
        os.close(read)
    run(take, 7)
    run(delete)


def use():
    Driver()


def delete():
    tensorlease.connect(autostart=False).delete("t")


def close_while_another_thread_works(link):
    link.recv()  # its work is held
    client = publish(8)
    closed = threading.Event()

    def work():
        eventually(lambda: client.closed)  # the other thread is in tl_close(), or was there
        link.send(closed.is_set())

    thread = threading.Thread(target=work)
    thread.start()
    client.close()
    closed.set()
    thread.join()
    link.send(client.closed)
    link.recv()


def test_other_threads_go_on_while_it_closes(gpus):
    run(use)  # so that there is a machine that can be held
    child = Child(close_while_another_thread_works)
    gpus.hold(child.pid)
    child.tell()
    assert child.hear() is False  # close() had not returned when this thread ran
    gpus.hold(0)
    assert child.hear() is True
    child.end()
    run(take, 8)
    run(delete)


def publish_in_a_hurry():
    """Publishes with a client of little time, in which connecting or creating may not succeed each time."""
    while True:
        with contextlib.suppress(tensorlease.TimeoutError):
            return publish(9, timeout=0.2)


def close_too_early(link):
    link.recv()
    client = publish_in_a_hurry()
    with pytest.raises(tensorlease.TimeoutError, match="has not written 1 of the tensors"):
        client.close()
    assert client.closed
    client.close()
    unraisable = []
    client = publish_in_a_hurry()
    gc.collect()  # also of clients that were too late
    sys.unraisablehook = unraisable.append
    del client
    gc.collect()
    assert [u.exc_type for u in unraisable] == [tensorlease.TimeoutError]
    unraisable.clear()
    link.send("closed")
    link.recv()


def test_it_says_what_was_not_finished_in_time(gpus):
    run(use)  # so that there is a machine that can be held
    child = Child(close_too_early)
    gpus.hold(child.pid)
    child.tell()
    assert child.hear() == "closed"
    gpus.hold(0)
    child.end()
    run(delete)


# ---- Deleters, while the interpreter ends ----

ENDING_PROGRAM = """
import ctypes
import sys
import test_gpu_close as test
client, arrays = test.publish_what_is_deleted_slowly(THROUGH)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(arrays))  # as memory of a library that outlives the interpreter
for number in range(len(arrays)):
    client.delete(str(number))
"""


class Slow(Array):
    """Its deleter says when it begins and when it ends, and needs the GIL again and again."""

    def _delete(self, _):
        os.write(1, b"(")
        for _ in range(20):
            time.sleep(0.001)
        os.write(1, b")")


def publish_what_is_deleted_slowly(through):
    client, driver = tensorlease.connect(autostart=False), Driver()
    arrays = [Slow(driver, (1000,)).fill(1) for _ in range(20)]
    for number, array in enumerate(arrays):
        client.publish(str(number), through(array), sealed=True)
    return client, arrays


def tensor_over(array):
    """A Tensor over another library's, as by a function of C++ that returns it."""
    out = ctypes.py_object()
    assert abi.exchange_of(tensorlease.Tensor).to_py(ctypes.byref(array.managed), ctypes.byref(out)) == 0
    tensor = out.value
    ctypes.pythonapi.Py_DecRef(out)  # the reference that is ours
    return tensor


def end(program):
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=os.path.dirname(__file__),
        check=True,
        stdout=subprocess.PIPE,
        timeout=limit(120),
    )
    return result.stdout


@pytest.mark.parametrize("through", ["lambda array: array", "test.tensor_over"])
def test_no_deleter_is_cut_off_by_the_end_of_the_interpreter(gpus, address, through):
    """Python ends a thread that takes the GIL after that; in a deleter in C++, as PyTorch's, that ends the process."""
    for _ in range(3):
        said = end(ENDING_PROGRAM.replace("THROUGH", through))
        assert said == b"()" * (len(said) // 2)


MODULES_PROGRAM = """
import atexit, ctypes, sys, time
import test_gpu_close as test
client, array = test.publish_in_place(THROUGH)
array.managed.deleter = ctypes.cast(ctypes.CDLL(None).abort, type(array.managed.deleter))
for kept in client, array:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
class Late:
    def __del__(self, delete=client._delete, sleep=time.sleep):
        delete("a", 0)
        sleep(0.3)
sys.late = Late()  # ends when the interpreter does
ENDING
"""


@pytest.mark.parametrize(
    "through, ending",
    [
        ("lambda array: array", "pass"),
        ("test.tensor_over", "pass"),
        ("lambda array: array", "atexit._clear()"),  # then nobody tells the extension that the interpreter ends
    ],
)
def test_no_deleter_is_called_while_modules_go(gpus, address, through, ending):
    end(MODULES_PROGRAM.replace("THROUGH", through).replace("ENDING", ending))


BLOCKED_PROGRAM = """
import ctypes
import signal
import test_gpu_close as test
signal.signal(signal.SIGINT, signal.default_int_handler)
client, array = test.publish_what_is_never_deleted()
ctypes.pythonapi.Py_IncRef(ctypes.py_object(array))
client.delete("t")
test.eventually(lambda: array.begun)
print("ending", flush=True)
"""


class Never(Array):
    begun = False

    def _delete(self, _):
        self.begun = True
        threading.Event().wait()


def publish_what_is_never_deleted():
    client, driver = tensorlease.connect(autostart=False), Driver()
    array = Never(driver, (1000,)).fill(1)
    client.publish("t", array, sealed=True)
    return client, array


def test_ctrl_c_ends_the_wait_for_a_deleter(gpus, address):
    program = subprocess.Popen(
        [sys.executable, "-c", BLOCKED_PROGRAM], cwd=os.path.dirname(__file__), stdout=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout.readline() == "ending\n"
        until_asleep(program.pid)
        program.send_signal(signal.SIGINT)
        program.wait(limit(60))
    finally:
        program.kill()
        program.wait()
        program.stdout.close()
