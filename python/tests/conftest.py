# SPDX-License-Identifier: Apache-2.0
"""Each module of tests has a daemon on a socket of its own, and touches nothing else on the machine."""

import contextlib
import faulthandler
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from limits import limit

import tensorlease

PACKAGE = Path(tensorlease.__file__).parent
LIMIT_S = limit(300)  # for one test, even on a busy machine


def _listens(address):
    try:
        tensorlease.connect(address, autostart=False).close()
    except tensorlease.NoDaemonError:
        return False
    return True


@contextlib.contextmanager
def daemon_at(address, capacity="1G"):
    """A daemon's process, which a test may kill."""
    command = [PACKAGE / "bin" / "tensorleased", "--foreground", "--socket", address, "--capacity", capacity]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: process.poll() is not None or _listens(address))
        assert process.poll() is None, "the daemon did not start"
        yield process
        if process.poll() is None:
            process.terminate()
            assert process.wait(limit(60)) == 0
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def run_daemon():
    with tempfile.TemporaryDirectory(prefix="tl-py-") as folder, daemon_at(f"{folder}/socket"):
        yield f"{folder}/socket"


@pytest.fixture(scope="module")
def daemon():
    with run_daemon() as address:
        yield address


@pytest.fixture
def address(daemon, monkeypatch):
    monkeypatch.setenv("TENSORLEASE_SOCKET", daemon)
    return daemon


@pytest.fixture
def client(address):
    with tensorlease.connect(autostart=False) as client:
        yield client


@pytest.fixture
def observer(address):
    """Another connection, which looks at what the first one holds."""
    with tensorlease.connect(autostart=False) as client:
        yield client


@pytest.fixture(autouse=True)
def time_limit(request):
    """Fails a test that takes too long. If the test does not react, pytest ends with a traceback of where it was."""

    def is_over(*_):
        raise AssertionError(f"it took more than {LIMIT_S} s")

    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        stderr = os.dup(2)
    faulthandler.dump_traceback_later(LIMIT_S + 60, exit=True, file=stderr)
    before = signal.signal(signal.SIGALRM, is_over)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    faulthandler.cancel_dump_traceback_later()
    os.close(stderr)


def leases_of(observer, pid):
    gc.collect()
    return sum(c.leases for c in observer.clients() if c.pid == pid)


def eventually(condition):
    """Waits for what another thread or process does. A condition that stays false fails the test."""
    end = time.monotonic() + limit(60)
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.002)
    return True


@contextlib.contextmanager
def no_client_stays(observer):
    """Waits at its end until clients that came meanwhile are gone: the daemon hears of a process's end after us."""

    def clients():
        return {(c.id, c.pid) for c in observer.clients()}

    before = clients()
    yield
    eventually(lambda: clients() <= before)


def until_asleep(tid):
    """Waits until a thread of any process was seen asleep ten times in a row, unlike in a short sleep for the GIL."""
    seen = 0

    def look():
        nonlocal seen
        with open(f"/proc/{tid}/stat") as stat:
            seen = seen + 1 if stat.read().rpartition(") ")[2].startswith("S") else 0
        return seen == 10

    eventually(look)


def once_asleep(call):
    """Starts a thread that makes a call as soon as the calling thread sleeps."""
    me = threading.get_native_id()

    def work():
        until_asleep(me)
        call()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def close_during(client, call):
    """Closes a client while one of its calls waits. Returns the texts of the errors that the call raises."""
    said = []

    def wait():
        try:
            call()
        except ValueError as error:
            said.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    until_asleep(thread.native_id)
    client.close()
    thread.join()
    return said


def gives_the_gil_up(call):
    """Whether another thread can count during a call. On a busy machine this may take several calls."""
    return eventually(lambda: count_meanwhile(call) > 0)


def count_meanwhile(call):
    """How far another thread counts during a call. It cannot count if the call keeps the GIL."""
    count, over, started = [0], threading.Event(), threading.Event()

    def work():
        while not over.is_set():
            count[0] += 1
            started.set()
            time.sleep(0)  # gives the GIL to a thread that waits for it

    thread = threading.Thread(target=work)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(100)  # no thread takes the GIL unless it is given
    try:
        thread.start()
        started.wait()
        before = count[0]
        call()
        return count[0] - before
    finally:
        sys.setswitchinterval(interval)
        over.set()
        thread.join()


def run_python(code, *, timeout=limit(60), check=True, **environment):
    """Runs code in another interpreter. The result has what it wrote in stdout and stderr."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=check,
        env={**os.environ, **environment},
    )


# Python does this by itself, unless a shell started it in the background.
HEED_SIGINT = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def is_interrupted(call):
    """Whether SIGINT raises KeyboardInterrupt in a call that waits, made in another interpreter with a client."""
    code = (
        f"{HEED_SIGINT}import tensorlease\n"
        "client = tensorlease.connect(autostart=False)\n"
        "print('ready', flush=True)\n"
        f"try: {call}\n"
        "except KeyboardInterrupt: print('interrupted')\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout.readline() == "ready\n"
            until_asleep(child.pid)
            child.send_signal(signal.SIGINT)
            return child.communicate(timeout=limit(60))[0] == "interrupted\n"
        finally:
            child.kill()


def from_dlpack(array):
    """numpy.from_dlpack() where it takes read-only tensors, which is since NumPy 2.1."""
    import numpy

    if numpy.lib.NumpyVersion(numpy.__version__) >= "2.1.0":
        return numpy.from_dlpack(array)
    return numpy.asarray(array)
