# SPDX-License-Identifier: Apache-2.0
"""The fixtures of python/tests, and workers and trainers over doubles of vLLM's interfaces."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent
PYTHON_TESTS = PACKAGE.parents[1] / "tests"
VERSIONS = ("0.25.1", "0.33.0")

sys.path.append(str(PYTHON_TESTS))  # limits, distributions

_spec = importlib.util.spec_from_file_location("python_tests_conftest", PYTHON_TESTS / "conftest.py")
shared = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(shared)

daemon, address, client, time_limit = shared.daemon, shared.address, shared.client, shared.time_limit
eventually, once_asleep = shared.eventually, shared.once_asleep


def paths(version):
    """Where a Python finds the plug-in, the double of that version, and what the tests have for it."""
    doubles = HERE / "doubles"
    return [str(path) for path in (PACKAGE / "src", doubles / "common", doubles / f"vllm_{version.replace('.', '_')}")]


def _forget():
    """The next import finds another version, and a plug-in that has registered nothing."""
    for name in list(sys.modules):
        if name.split(".")[0] in ("vllm", "vllm_double", "worker", "tensorlease_vllm"):
            del sys.modules[name]


@pytest.fixture
def use(monkeypatch):
    """use(version) makes that double of vLLM the one that this process, and those that it starts, import."""

    def use(version):
        for path in paths(version):
            monkeypatch.syspath_prepend(path)
        found = [*paths(version), str(HERE), *os.environ.get("PYTHONPATH", "").split(":")]
        monkeypatch.setenv("PYTHONPATH", ":".join(found))
        _forget()

    yield use
    _forget()


@pytest.fixture(params=VERSIONS)
def version(request, use):
    """Each version that is supported."""
    use(request.param)
    return request.param


@pytest.fixture
def store(client):
    """A connection to the daemon. At the end nobody else may have one, and nothing may be held or left."""
    me = {(one.id, one.pid) for one in client.clients()}
    yield client
    eventually(lambda: {(one.id, one.pid) for one in client.clients()} <= me)
    client.delete(prefix="", everything=True, missing_ok=True)
    eventually(lambda: (client.status().tensors, client.status().retired, client.status().drafts) == (0, 0, 0))


@pytest.fixture
def start(version, address):
    """start() starts a Worker, which ends with the test."""
    from control import Worker

    workers = []

    def start():
        workers.append(Worker())
        return workers[-1]

    yield start
    for worker in workers:
        worker.end()
