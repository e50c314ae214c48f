# SPDX-License-Identifier: Apache-2.0
"""One daemon for each module of tests, on a socket of its own; nothing of the machine's is touched."""

import contextlib
import faulthandler
import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import tensorlease

PACKAGE = Path(tensorlease.__file__).parent
LIMIT_S = 120  # for one test


def _listens(address):
    try:
        tensorlease.connect(address, autostart=False).close()
    except tensorlease.NoDaemonError:
        return False
    return True


@contextlib.contextmanager
def run_daemon():
    with tempfile.TemporaryDirectory(prefix="tl-py-") as folder:
        address = f"{folder}/socket"
        process = subprocess.Popen(
            [PACKAGE / "bin" / "tensorleased", "--foreground", "--socket", address, "--capacity", "1G"],
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + 10
        while not _listens(address):
            assert process.poll() is None and time.monotonic() < end, "the daemon did not start"
            time.sleep(0.005)
        yield address
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


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
    """Another connection, to look at what the first one holds."""
    with tensorlease.connect(autostart=False) as client:
        yield client


@pytest.fixture(autouse=True)
def time_limit():
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def leases_of(observer, pid):
    gc.collect()
    return sum(c.leases for c in observer.clients() if c.pid == pid)


def eventually(condition, seconds=10):
    """Waits for what another process does; a condition that stays false fails the test."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.002)
    return True


def run_python(code, *, timeout=60, check=True, **environment):
    """Another interpreter; its result. What it writes is in stdout and stderr."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=check,
        env={**os.environ, **environment},
    )


def from_dlpack(array):
    """numpy.from_dlpack(), where that knows of read-only tensors: since 2.1. Older ones are refused by mode 'r'."""
    import numpy

    if numpy.lib.NumpyVersion(numpy.__version__) >= "2.1.0":
        return numpy.from_dlpack(array)
    return numpy.asarray(array)
