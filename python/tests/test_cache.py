# SPDX-License-Identifier: Apache-2.0
"""get_or_put() and cached(): what is computed once on the machine."""

import inspect
import itertools
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import typing

import numpy as np
import pytest
from conftest import (
    at_each_line,
    close_during,
    daemon_at,
    eventually,
    in_child,
    interrupted_as,
    is_interrupted,
    once_asleep,
    run_python,
)
from limits import limit

import tensorlease
import tensorlease._cache


def never():
    raise AssertionError("it is there already")


def test_the_first_one_makes_it(client):
    made = []

    def make():
        made.append(1)
        return np.arange(10)

    tensor = client.get_or_put("cache/a", make, metadata=b"m")
    assert tensor.read_only and tensor.tolist() == list(range(10)) and tensor.metadata == b"m"
    assert client.stat("cache/a").evictable
    assert client.get_or_put("cache/a", never)._address == tensor._address and made == [1]
    assert not client.get_or_put("cache/a", never, mode="c").read_only
    client.delete("cache/a")
    assert client.get_or_put("cache/a", make, evictable=False, ttl=1000).version == 2 and made == [1, 1]
    info = client.stat("cache/a")
    assert not info.evictable and info.ttl > 0


def test_threads_wait_for_the_one_that_makes_it(client):
    calls, tensors, begun = [], [], threading.Event()

    def make():
        calls.append(1)
        begun.wait(limit(60))
        return np.full(1000, 7)

    threads = [
        threading.Thread(target=lambda: tensors.append(client.get_or_put("cache/threads", make))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: calls)
    begun.set()
    for thread in threads:
        thread.join()
    assert calls == [1] and len({t._address for t in tensors}) == 1 and len(tensors) == 8


def work(address, folder, n, results):
    def make():
        with open(f"{folder}/made", "a") as made:
            made.write("x")
        time.sleep(0.05)
        return np.full(1000, os.getpid())

    with tensorlease.connect(address, autostart=False) as client:
        results.put(int(client.get_or_put(f"cache/processes/{n}", make)[0]))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_wait_for_the_one_that_makes_it(address, method, tmp_path):
    context = multiprocessing.get_context(method)
    results = context.Queue()
    processes = [context.Process(target=work, args=(address, tmp_path, method, results)) for _ in range(4)]
    for process in processes:
        process.start()
    assert len({results.get(timeout=limit(60)) for _ in processes}) == 1
    for process in processes:
        process.join()
    assert (tmp_path / "made").read_text() == "x"


def test_another_takes_over_if_the_maker_raises(client):
    begun, failed = threading.Event(), []

    def fails():
        begun.set()
        time.sleep(0.05)
        raise KeyError("no picture")

    def other():
        with pytest.raises(KeyError):
            client.get_or_put("cache/fails", fails)
        failed.append(1)

    thread = threading.Thread(target=other)
    thread.start()
    begun.wait(limit(60))
    assert client.get_or_put("cache/fails", lambda: np.arange(3)).tolist() == [0, 1, 2]
    thread.join()
    assert failed == [1]


def test_another_takes_over_if_the_maker_is_killed(client):
    told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            client.get_or_put("cache/killed", lambda: os.write(told[1], b"x") and time.sleep(1000))
        finally:
            os._exit(1)
    os.read(told[0], 1)
    with pytest.raises(tensorlease.TimeoutError, match="another client"):
        client.get_or_put("cache/killed", never, timeout=0.1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert client.get_or_put("cache/killed", lambda: np.arange(3)).version == 1
    for end in told:
        os.close(end)


def test_nobody_waits_for_ever_for_a_maker_that_hangs(client):
    """Unless it says so: nothing tells whether a process that lives will ever publish."""
    for waits in (client.get_or_put, tensorlease.cached):
        assert 60 <= inspect.signature(waits).parameters["timeout"].default < 3600
    client._claim("cache/hangs", 1, [])
    with tensorlease.connect(autostart=False) as other:
        for timeout in (0, None, 0.01):
            with pytest.raises(tensorlease.TimeoutError, match=r"timeout= sets how long.*status --clients"):
                other.get_or_put("cache/hangs", never, timeout=timeout)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_only_what_the_user_or_root_has_made_is_taken():
    def stranger():
        os.setuid(4321)
        with tensorlease.connect(address, autostart=False) as client:
            for name in ("theirs", "cache/" + tensorlease._cache._key_of("", (1,), {})):
                client.put(name, np.arange(3))
            assert client.get_or_put("ours", never).tolist() == [7]
            assert client.get_or_put("theirs", never).tolist() == [0, 1, 2]

    with tempfile.TemporaryDirectory(prefix="tl-py-") as folder, daemon_at(f"{folder}/socket"):
        address = f"{folder}/socket"
        os.chmod(folder, 0o755)
        with tensorlease.connect(address, autostart=False) as client:
            client.put("ours", np.array([7]))
            in_child(stranger)
            for make, trust in itertools.product((never, lambda: np.zeros(1)), ((), [], {0, 99})):
                with pytest.raises(tensorlease.PermissionDeniedError, match=r"belongs to user 4321.*trust=\[4321\]"):
                    client.get_or_put("theirs", make, trust=trust)
            assert [c.leases for c in client.clients()] == [0]
            for trust in ([4321], (99, 4321), {4321}, "all"):
                assert client.get_or_put("theirs", never, trust=trust).tolist() == [0, 1, 2]
                assert tensorlease.cached("cache/", client=client, trust=trust)(never)(1).tolist() == [0, 1, 2]
            with pytest.raises(tensorlease.PermissionDeniedError):
                tensorlease.cached("cache/", client=client)(never)(1)


@pytest.mark.parametrize("trust", [None, 5, "everybody", ["root"], [True]])
def test_whom_to_trust_is_checked(client, trust):
    with pytest.raises(TypeError, match="trust must be 'all', or a list of uids"):
        client.get_or_put("cache/trust", never, trust=trust)


def test_a_child_that_the_maker_leaves_does_not_keep_the_claim(client):
    told = os.pipe()
    pid = os.fork()
    if pid == 0:

        def make():
            if os.fork() == 0:  # it goes on after its parent
                os.read(told[0], 1)
                os._exit(0)
            os._exit(0)

        client.get_or_put("cache/left", make)
    os.waitpid(pid, 0)
    assert client.get_or_put("cache/left", lambda: np.arange(3), timeout=limit(60)).version == 1
    os.write(told[1], b"x")
    for end in told:
        os.close(end)


def test_make_may_not_ask_for_what_it_makes(client):
    def make():
        return client.get_or_put("cache/itself", make)

    with pytest.raises(RuntimeError, match="cache/itself"):
        client.get_or_put("cache/itself", make)
    assert client.get_or_put("cache/outer", lambda: client.get_or_put("cache/inner", lambda: np.ones(2))).shape == (2,)


def test_make_may_ask_for_the_same_name_elsewhere(client, tmp_path):
    with daemon_at(tmp_path / "socket"), tensorlease.connect(tmp_path / "socket") as other:
        made = client.get_or_put("cache/both", lambda: other.get_or_put("cache/both", lambda: np.full(2, 7)).numpy() + 1)
        assert made.tolist() == [8, 8] and other.get("cache/both").tolist() == [7, 7]
    address = client.status().address
    with tensorlease.connect(f"tensorlease://{address}") as same:

        def make():
            return same.get_or_put("cache/same", make)

        with pytest.raises(RuntimeError, match="cache/same"):
            client.get_or_put("cache/same", make, timeout=0)


def test_a_maker_that_makes_nothing_is_told_with_the_name(client):
    with pytest.raises(TypeError, match="'cache/nothing': None is not an array"):
        client.get_or_put("cache/nothing", lambda: None)


def test_cached_functions(client):
    calls = []

    @tensorlease.cached("cache/f/", client=client)
    def squares(n, *, power=2):
        "Squares."
        calls.append((n, power))
        return np.arange(n) ** power

    assert squares(4).tolist() == [0, 1, 4, 9] and squares(4).tolist() == [0, 1, 4, 9]
    assert squares(4, power=3).tolist() == [0, 1, 8, 27] and squares.__doc__ == "Squares."
    assert calls == [(4, 2), (4, 3)]
    with pytest.raises(TypeError, match="key"):
        squares([4])

    @tensorlease.cached("cache/g/", client=client, key=lambda path: path.replace("/", "_"))
    def picture(path):
        return np.zeros(3)

    picture("a/b.png")
    assert "cache/g/a_b.png" in client


def test_a_cached_function_needs_a_prefix():
    with pytest.raises(TypeError, match="takes a prefix"):

        @tensorlease.cached
        def nothing():
            return None


def test_a_cached_function_forgets_for_all(client):
    calls = []

    @tensorlease.cached("cache/clear/", client=client)
    def squares(n):
        calls.append(n)
        return np.arange(n) ** 2

    assert squares(3).tolist() == squares(3).tolist() and calls == [3]
    squares.cache_clear()
    assert client.keys("cache/clear/") == [] and squares(3).tolist() == [0, 1, 4] and calls == [3, 3]
    assert squares.__wrapped__(2).tolist() == [0, 1]


class Rounded(typing.NamedTuple):
    x: float

    def __repr__(self):
        return f"Rounded({self.x:.0f})"


class Box(tuple):
    def __repr__(self):
        return "Box"


def test_arguments_that_look_alike_are_others(client):
    @tensorlease.cached("cache/alike/", client=client)
    def total(values):
        return np.array(sum(values))

    for values in (Rounded(1.1), Rounded(1.2), Box((1, 5)), Box((1, 9)), (1, 9), (1, 8.5), ()):
        assert float(total(values)) == sum(values)
    assert len(client.keys("cache/alike/")) == 7
    total.cache_clear()


def test_cached_functions_of_other_processes(address):
    code = (
        "import numpy, os, tensorlease\n"
        "@tensorlease.cached('cache/other/')\n"
        "def pid(n): return numpy.full(n, os.getpid())\n"
        "print(int(pid(3)[0]))\n"
    )
    assert run_python(code).stdout == run_python(code).stdout


def test_a_signal_handler_may_call_a_cached_function_at_any_point(client, monkeypatch):
    monkeypatch.setattr(tensorlease._cache, "_default", None)
    seen = []

    @tensorlease.cached("cache/handler/")
    def squares(n):
        return np.arange(n) ** 2

    def connect_and_call():
        tensorlease._cache._default = None
        seen.append(squares(3).tolist())

    lines = at_each_line("_cache.py", connect_and_call, lambda: seen.append(squares(2).tolist()))
    assert lines > 20 and len(seen) == 2 * lines + 1
    assert all(value in ([0, 1, 4], [0, 1]) for value in seen)
    squares.cache_clear()


def test_a_signal_handler_may_ask_for_what_the_code_under_it_is_to_make(client):
    seen = []

    def ask():
        try:
            seen.append(client.get_or_put("cache/same", lambda: np.arange(3)).tolist())
        except RuntimeError:  # make() runs under the handler
            seen.append(None)

    def call():
        client.delete("cache/same", missing_ok=True)
        assert client.get_or_put("cache/same", lambda: np.arange(3)).tolist() == [0, 1, 2]

    lines = at_each_line("_cache.py", call, ask)
    assert lines > 20 and len(seen) == lines and seen[0] == seen[-1] == [0, 1, 2]
    client.delete("cache/same")


@pytest.mark.parametrize("function", ["Client._claim", "Client._unclaim", "dict.get", "dict.pop"])
def test_an_interrupted_get_or_put_leaves_no_claim(client, observer, function):
    with pytest.raises(KeyboardInterrupt), interrupted_as(function):
        client.get_or_put("cache/cut", lambda: np.ones(2))
    client.delete("cache/cut", missing_ok=True)
    assert observer._claim("cache/cut", 0, [])
    observer._unclaim("cache/cut")
    assert client.get_or_put("cache/cut", lambda: np.ones(2)).size == 2
    client.delete("cache/cut")


def test_claims_on_many_names(client, observer):
    """Beyond the 256 that a client may have they are ours without being held."""
    names, held = tuple(f"cache/many/{n}" for n in range(300)), []
    assert observer._claim(names[1], 0, [])
    client.put(names[2], np.ones(2))
    assert client._claim_many(names[:3], held) == [True, None, False] and held == [names[0]]
    assert client._claim_many(names[3:], held) == [True] * 297
    assert held == [names[0], *names[3:258]]
    for name in held:
        client._unclaim(name)
    held.clear()
    assert client._claim_many((), held) == []
    with pytest.raises(tensorlease.InvalidError, match="b//c"):
        client._claim_many(("a", "b//c"), held)
    with pytest.raises(TypeError, match="name"):
        client._claim_many(("a", 1), held)
    assert held == [] and observer._claim("a", limit(60), [])
    observer._unclaim("a")
    observer._unclaim(names[1])
    client.delete(names[2])


def test_a_claim_that_comes_with_a_signal_is_given_up(client, observer):
    class Stop(Exception):
        pass

    def stop(*_):
        raise Stop

    def signal_and_leave():
        os.kill(os.getpid(), signal.SIGUSR1)
        observer._unclaim("cache/signal")

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        for _ in range(5):
            assert observer._claim("cache/signal", 0, [])
            thread = once_asleep(signal_and_leave)
            with pytest.raises(Stop):
                client.get_or_put("cache/signal", never, timeout=limit(60))
            thread.join()
            assert observer._claim("cache/signal", limit(60), [])
            observer._unclaim("cache/signal")
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_close_and_signals_end_the_wait(client, observer):
    begun, over = threading.Event(), threading.Event()
    maker = threading.Thread(
        target=lambda: observer.get_or_put("cache/wait", lambda: begun.set() or over.wait(limit(60)) and np.ones(2))
    )
    maker.start()
    begun.wait(limit(60))
    assert is_interrupted("client.get_or_put('cache/wait', dict)")
    assert close_during(client, lambda: client.get_or_put("cache/wait", never)) == [
        "the client was closed during a get_or_put"
    ]
    over.set()
    maker.join()
