# SPDX-License-Identifier: Apache-2.0
"""Each module of tests has a daemon of its own, on a socket of its own. No daemon of the machine is used."""

import contextlib
import faulthandler
import gc
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from multiprocessing import forkserver
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from limits import limit

import tensorlease

if os.environ.get("TL_TEST_GPU") != "real":
    os.environ["TENSORLEASE_FAKE_GPU"] = "1"  # daemons that tests start take the memory of the fake driver

PACKAGE = Path(tensorlease.__file__).parent
LIMIT_S = limit(300)  # for one test, on a busy machine
FLAKY_MAX = 3
WRONG, FAILED = 2, 3  # exit statuses of forked children
# The signals of a crash, as subprocess shows them and as exit statuses.
CRASH = "died with <Signals.SIG(SEGV|BUS|FPE|ILL|SYS|ABRT|TRAP)|(assert|ended with|status) -(4|5|6|7|8|11|31)\\b|crashed: "
# An assertion about bytes or versions is final, and so is a crash.
FINAL = re.compile(rf"^E .*(byte|version|array|equal|torn|mixed|{CRASH})", re.M | re.I)


def pytest_runtest_protocol(item, nextitem):
    """A test that fails is run once more after all others, unless what failed is final or TL_TEST_STRICT is set."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    failures = [r.longreprtext for r in reports if r.failed]
    if failures and not os.environ.get("TL_TEST_STRICT") and not any(FINAL.search(text) for text in failures):
        item.session.stash.setdefault(AGAIN, []).append((item, failures))
    else:
        _log(item, reports)
    return True


@pytest.hookimpl(hookwrapper=True)
def pytest_runtestloop(session):
    yield
    flaky = 0
    for item, failures in session.stash.get(AGAIN, []):
        item._initrequest()  # gives the function a request of its own, as the first time
        reports = runtestprotocol(item, nextitem=None, log=False)
        _log(item, reports)
        if not any(r.failed for r in reports):
            flaky += 1
            print(f"\nFLAKY {item.nodeid}: passed when it ran again; at first:\n{failures[0]}", flush=True)
    if flaky > FLAKY_MAX:
        print(f"\nFAIL  {flaky} flaky tests, and {FLAKY_MAX} are the limit", flush=True)
        session.testsfailed += flaky


def _log(item, reports):
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


AGAIN = pytest.StashKey()


def _listens(address):
    try:
        tensorlease.connect(address, autostart=False).close()
    except tensorlease.NoDaemonError:
        return False
    return True


@contextlib.contextmanager
def daemon_at(address, capacity="1G", more=()):
    """A daemon as a process, which a test may kill. If it ends otherwise, that is final."""
    command = [PACKAGE / "bin" / "tensorleased", "--foreground", "--socket", address, "--capacity", capacity]
    command += ["--keeper", "no", *more]  # its death is to be the end of it
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(command, stderr=stderr)
        what = "the daemon did not start"
        try:
            eventually(lambda: process.poll() is not None or _listens(address))
            if process.poll() is None:
                what = "crashed: the daemon"
                yield process
            if process.poll() is None:
                process.terminate()
                process.wait(limit(60))
        finally:
            process.kill()
            status = process.wait()
            if status not in (0, -signal.SIGKILL) or what.endswith("start"):
                stderr.seek(0)
                said = stderr.read().decode(errors="replace")
                raise AssertionError(f"{what}: exit status {status}\n{said[-4000:]}")


def replace_daemon(client):
    """Kills the daemon and waits for the one that its keeper starts."""
    pid = client.status().daemon_pid
    os.kill(pid, signal.SIGKILL)

    def is_new():
        try:
            return client.status().daemon_pid != pid
        except tensorlease.Error:
            return False

    eventually(is_new)


@contextlib.contextmanager
def run_daemon():
    """A daemon that no test may kill."""
    with tempfile.TemporaryDirectory(prefix="tl-py-") as folder, daemon_at(f"{folder}/socket") as process:
        yield f"{folder}/socket"
        assert process.poll() is None, "crashed: the daemon has ended"


@pytest.fixture(scope="module")
def daemon():
    with run_daemon() as address:
        yield address
    forkserver._forkserver._stop()  # its processes have the environment of this daemon's tests


@pytest.fixture
def address(daemon, monkeypatch):
    monkeypatch.setenv("TENSORLEASE_SOCKET", daemon)
    return daemon


_closed = set()  # (address, id) of clients that fixtures have closed, and whose end the daemon may not have seen yet


@contextlib.contextmanager
def _connected(address):
    with tensorlease.connect(autostart=False) as client:
        number = max(c.id for c in client.clients() if c.pid == os.getpid())
        yield client
    _closed.add((address, number))


def _await_former(client, address):
    """Waits until the clients of former tests have ended, so that their leases and drafts do not count as this test's.

    A test that failed may hold a tensor for ever, in its traceback. So the wait ends after some seconds in any case.
    """
    former = {number for where, number in _closed if where == address}
    _closed.clear()
    end = time.monotonic() + limit(5)
    while not former.isdisjoint(c.id for c in client.clients()) and time.monotonic() < end:
        gc.collect()
        time.sleep(0.002)


@pytest.fixture
def client(address):
    with _connected(address) as client:
        _await_former(client, address)
        yield client


@pytest.fixture
def observer(address):
    """Another connection, which can see what the first one holds."""
    with _connected(address) as client:
        _await_former(client, address)
        yield client


def _print_where_children_are():
    """Lets processes that were forked from here print their stacks: those below this one that have its signal's handler."""
    parents, pids, mask = {}, {os.getpid()}, 1 << (signal.SIGUSR2 - 1)
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
            parents[int(status.parent.name)] = int(fields["PPid"]), int(fields["SigCgt"], 16)
    for _ in range(4):  # children of children
        pids |= {pid for pid, (parent, _) in parents.items() if parent in pids}
    for pid in pids - {os.getpid()}:
        if parents[pid][1] & mask:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR2)


@pytest.fixture(autouse=True)
def time_limit(request):
    """Fails a test that takes too long, and prints where its processes are. If it does not react, ends everything."""

    def is_over(*_):
        _print_where_children_are()
        raise AssertionError(f"it took more than {LIMIT_S} s")

    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        stderr = os.dup(2)
    faulthandler.dump_traceback_later(LIMIT_S + 60, exit=True, file=stderr)
    faulthandler.register(signal.SIGUSR2, file=stderr)
    before = signal.signal(signal.SIGALRM, is_over)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    faulthandler.cancel_dump_traceback_later()
    faulthandler.unregister(signal.SIGUSR2)
    os.close(stderr)


@contextlib.contextmanager
def interrupted_as(name, n=1):
    """Raises KeyboardInterrupt as the n-th call of a C function of that name returns, as a signal's handler may."""
    calls = 0

    def look(_, event, function):
        nonlocal calls
        if event == "c_return" and function.__qualname__ == name:
            calls += 1
            if calls == n:
                raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)


def at_each_line(file, work, handler):
    """Does work again and again. The n-th time handler() runs before the n-th line of a file, as a signal's handler may.

    Returns how many lines work runs there.
    """
    n, left = 0, 0

    def look(frame, event, _):
        nonlocal left
        if not frame.f_code.co_filename.endswith(file):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                handler()
        return look

    while left <= 0:
        n += 1
        left = n
        sys.settrace(look)
        try:
            work()
        finally:
            sys.settrace(None)
    return n - 1


def leases_of(observer, pid):
    gc.collect()
    return sum(c.leases for c in observer.clients() if c.pid == pid)


def eventually(condition):
    """Waits for the effect of another process. Fails the test if the condition stays false."""
    end = time.monotonic() + limit(60)
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.002)
    return True


@contextlib.contextmanager
def no_client_stays(observer):
    """Waits at its end until clients that came meanwhile have ended: the daemon hears of a process's end after us."""

    def clients():
        return {(c.id, c.pid) for c in observer.clients()}

    before = clients()
    yield
    eventually(lambda: clients() <= before)


def until_asleep(tid):
    """Waits until a thread of any process sleeps in the kernel: ten looks in a row, unlike a sleep for the GIL."""
    seen = 0

    def look():
        nonlocal seen
        with open(f"/proc/{tid}/stat") as stat:
            seen = seen + 1 if stat.read().rpartition(") ")[2].startswith("S") else 0
        return seen == 10

    eventually(look)


def waiters():
    """The threads that wait for tasks: a client's ends a while after the last of its waits."""
    return [thread for thread in threading.enumerate() if thread.name == "tensorlease-aget"]


def until_the_waiter_sleeps():
    """Waits for the only waiter. It has no native_id before it runs."""
    numbers = []

    def look():
        numbers[:] = [thread.native_id for thread in waiters()]
        return len(numbers) == 1 and numbers[0] is not None

    eventually(look)
    until_asleep(numbers[0])


def once_asleep(call):
    """Makes a call on a thread as soon as the thread that started it sleeps."""
    me = threading.get_native_id()

    def work():
        until_asleep(me)
        call()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def close_during(client, call, wake=None, *arguments):
    """Closes a client during one of its calls that waits, and may then wake it. Returns what that call raises."""
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
    if wake:
        wake(*arguments)
    thread.join()
    return said


def gives_the_gil_up(call):
    """Another thread must count during one of the calls. On a busy machine it may not do so in each of them."""
    return eventually(lambda: count_meanwhile(call) > 0)


def count_meanwhile(call):
    """Returns how far another thread counts during a call: not at all if the call keeps the GIL."""
    count, over, started = [0], threading.Event(), threading.Event()

    def work():
        while not over.is_set():
            count[0] += 1
            started.set()
            time.sleep(0)  # gives the GIL to a thread that waits for it

    thread = threading.Thread(target=work)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(100)  # no thread takes the GIL by itself
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
    """Runs another interpreter and returns its result, with stdout and stderr."""
    try:
        return subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", code],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=check,
            env={**os.environ, **environment},
        )
    except subprocess.TimeoutExpired as late:
        late.cmd = "another interpreter"  # FINAL must not match the words of its code
        raise


class ChildFailed(Exception):
    """Something went wrong in a forked child; its stderr has the exception."""


def start_child(work):
    """Runs it in a forked child, which then ends at once and is killed if it waits for ever."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = FAILED
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(limit(120))
            status = 0 if work() in (None, True) else WRONG
        except BaseException as error:
            status = WRONG if isinstance(error, AssertionError) else FAILED
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def end_child(pid):
    """Waits for a child of start_child()'s, in which no assertion may have failed, and work() not have returned False."""
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status != WRONG, "bytes or answers are wrong in the child"
    if status:
        raise ChildFailed(f"exit status {status}")


def in_child(work):
    end_child(start_child(work))


# Python does this by itself, unless a shell started it in the background.
HEED_SIGINT = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def is_interrupted(call):
    """Returns whether SIGINT ends a waiting call, in another interpreter, by KeyboardInterrupt."""
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
            said = child.communicate(timeout=limit(60))[0]
            assert child.returncode == 0
            return said == "interrupted\n"
        finally:
            child.kill()


def from_dlpack(array):
    """numpy.from_dlpack() if it supports read-only tensors, as since 2.1. Mode 'r' refuses older ones."""
    import numpy

    if numpy.lib.NumpyVersion(numpy.__version__) >= "2.1.0":
        return numpy.from_dlpack(array)
    return numpy.asarray(array)
