# SPDX-License-Identifier: Apache-2.0
"""Consumers whose daemon ends for good: nobody waits on the dead, or believes what they left."""

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import socket
import threading
import time

import pytest
from conftest import daemon_at, eventually, once_asleep, until_asleep
from limits import limit

import tensorlease


def in_asyncio(wait):
    return lambda client, timeout: asyncio.run(wait(client, timeout))


async def aget(client, timeout):
    with await client.aget("s/a", newer_than=5, timeout=timeout) as tensor:
        return tensor.version


WAITS = {
    "get": lambda client, timeout: client.get("s/a", timeout=timeout).version,
    "newer": lambda client, timeout: client.get("s/a", newer_than=5, timeout=timeout).version,
    "spin": lambda client, timeout: client.get("s/a", newer_than=5, timeout=timeout, spin=timeout).version,
    "many": lambda client, timeout: client.get_many(["s/b", "s/a"], timeout=timeout)["s/a"].version,
    "prefix": lambda client, timeout: client.get_many(prefix="s/", timeout=timeout)["a"].version,
    "watch": lambda client, timeout: next(client.watch("s/a", newer_than=5, timeout=timeout)).version,
    "aget": in_asyncio(aget),
}


@pytest.fixture(params=WAITS)
def wait(request):
    return WAITS[request.param]


def until_it_sleeps():
    time.sleep(0.05)  # whether it does is not what is tested


def test_a_wait_goes_on_with_the_next_daemon(wait, tmp_path):
    address, got = str(tmp_path / "socket"), []
    with daemon_at(address) as first, tensorlease.connect(address, autostart=False) as client:
        for _ in range(6):
            client.put("gone", b"x")
        thread = threading.Thread(target=lambda: got.append(wait(client, limit(60))))
        thread.start()
        until_it_sleeps()
        first.kill()
        first.wait()
        with daemon_at(address), tensorlease.connect(address, autostart=False) as producer:
            producer.put_many({"s/a": b"1", "s/b": b"2"})
            thread.join()
    assert got and got[0] > 6


def obey_modes():
    """Lets the mode of a file count for this thread, and for those that it starts, even if it is root's."""
    header, sets = (ctypes.c_uint32 * 2)(0x20080522), (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None)
    assert not libc.capget(header, sets)
    sets[0] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert not libc.capset(header, sets)


@contextlib.contextmanager
def socket_for_nobody(address):
    """A socket as systemd makes it: it is given to its user and group later."""
    os.unlink(address)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        mask = os.umask(0o777)
        listener.bind(address)
        os.umask(mask)
        listener.listen()
        yield
    os.unlink(address)


def test_a_waiter_survives_a_socket_that_is_not_for_it_yet(wait, tmp_path, request):
    address, got, threads = str(tmp_path / "socket"), [], []

    def run():
        obey_modes()
        try:
            got.append(wait(client, limit(60)))
        except tensorlease.Error as error:
            got.append(error)

    def start():
        threads.append(threading.Thread(target=run))
        threads[-1].start()

    with daemon_at(address) as first, tensorlease.connect(address, autostart=False) as client:
        for _ in range(6):
            client.put("gone", b"x")
        start()
        if "spin" in request.node.name:
            until_it_sleeps()
        else:
            until_asleep(threads[0].native_id)  # the request with which a watch begins has been answered
        first.kill()
        first.wait()
        with socket_for_nobody(address):
            if "watch" not in request.node.name:  # that begins with a request
                start()
            threads[0].join(1.5)  # a wait that gave up would end within a second
            assert not got
        with daemon_at(address), tensorlease.connect(address, autostart=False) as producer:
            producer.put_many({"s/a": b"1", "s/b": b"2"})
            for thread in threads:
                thread.join()
    assert len(got) == len(threads) and min(got) > 6


def test_without_a_daemon_a_wait_says_since_when(wait, tmp_path):
    address, errors = str(tmp_path / "socket"), []

    def run():
        try:
            wait(client, 1.0)
        except tensorlease.Error as error:
            errors.append(error)

    with daemon_at(address) as first, tensorlease.connect(address, autostart=False) as client:
        client.put("gone", b"x")
        thread = threading.Thread(target=run)
        start = time.monotonic()
        thread.start()
        until_it_sleeps()
        first.kill()
        first.wait()
        thread.join()
        assert time.monotonic() - start > 0.9
        run()  # and when it is gone from the start
        assert [type(error) for error in errors] == [tensorlease.DisconnectedError] * 2
        assert all(re.search(r"ended \d+\.\d+ s ago", str(error)) for error in errors), errors


def error_of(wait, client, timeout):
    try:
        wait(client, timeout)
    except tensorlease.Error as error:
        return error


def error_across_a_restart(wait, address, timeout):
    """Returns the error of a wait during which one daemon is killed and another one starts."""
    errors = []
    with daemon_at(address) as first, tensorlease.connect(address, autostart=False) as client:
        thread = threading.Thread(target=lambda: errors.append(error_of(wait, client, timeout)))
        thread.start()
        first.kill()
        first.wait()
        with daemon_at(address):
            thread.join()
    return errors[0]


def test_a_timeout_says_which_version_there_is(wait, tmp_path, request):
    address = str(tmp_path / "socket")
    if "newer" in request.node.name or "aget" in request.node.name:
        with daemon_at(address), tensorlease.connect(address, autostart=False) as client:
            client.put("s/a", b"x")
            assert "'s/a' above 5 came within 0.05 s: it has version 1" in str(error_of(wait, client, 0.05))
    for timeout in (1, 4, 16, 60):  # a busy machine may need longer to start the next daemon
        error = error_across_a_restart(wait, address, timeout)
        if re.search(r"the daemon was started \d+\.\d s ago", str(error)):
            break
    else:
        pytest.fail(repr(error))
    assert type(error) is tensorlease.TimeoutError


def error_of_a_late_wait(wait, address, timeout):
    """Returns the error of a wait that ends late, during which a daemon was started more than its timeout ago."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(daemon_at(address))
        client = stack.enter_context(tensorlease.connect(address, autostart=False))

        def replace(*_):
            first.kill()
            first.wait()
            stack.enter_context(daemon_at(address))
            there = time.monotonic()
            eventually(lambda: time.monotonic() - there > timeout)

        stack.callback(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, replace))
        thread = once_asleep(lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1))
        error = error_of(wait, client, timeout)
        thread.join()
    return error


@pytest.mark.parametrize("name", sorted(WAITS.keys() - {"spin", "aget"}))  # these do not sleep in this thread
def test_a_wait_that_ends_late_says_that_the_daemon_is_new(name, tmp_path):
    for timeout in (0.2, 1, 4, 16):  # a busy machine may need longer to notice that it sleeps
        error = error_of_a_late_wait(WAITS[name], str(tmp_path / "socket"), timeout)
        if re.search(r"the daemon was started \d+\.\d s ago", str(error)):
            return
    pytest.fail(repr(error))


def test_a_dead_daemon_is_not_believed(tmp_path):
    address = str(tmp_path / "socket")
    with daemon_at(address) as first, tensorlease.connect(address, autostart=False) as client:
        client.put("a", b"x")
        client.get("a").release()
        first.kill()
        first.wait()
        client.get("a").release()  # it is mapped, and this takes a lease
        for look in (
            lambda: "a" in client,
            lambda: client.stat("a"),
            lambda: client.list(),
            lambda: client.status(),
            lambda: client.get("b"),
            lambda: client.get("a", newer_than=1),
            lambda: client.get_many(["a", "b"]),
            lambda: client.get_many(prefix="c"),
        ):
            with pytest.raises(tensorlease.DisconnectedError):
                look()
        with daemon_at(address) as second:
            assert "a" not in client
            assert client.status().daemon_pid == second.pid
            assert client.list() == []
            client.put("a", b"x")
            assert client.stat("a").version > 1
