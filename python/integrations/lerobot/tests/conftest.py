# SPDX-License-Identifier: Apache-2.0
"""The fixtures of python/tests, and the plug-in as pip installs it, which LeRobot itself has to find."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent
PYTHON_TESTS = PACKAGE.parents[1] / "tests"

sys.path.append(str(PYTHON_TESTS))  # limits, cameras, distributions

from distributions import install

_spec = importlib.util.spec_from_file_location("python_tests_conftest", PYTHON_TESTS / "conftest.py")
shared = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(shared)

daemon, address, client, time_limit = shared.daemon, shared.address, shared.client, shared.time_limit
daemon_at, eventually = shared.daemon_at, shared.eventually


@pytest.fixture(scope="session", autouse=True)
def installed(tmp_path_factory):
    """Where this process, and those that it starts, find the plug-in."""
    pytest.importorskip("draccus", reason="LeRobot is not installed")
    paths = [str(install(PACKAGE, tmp_path_factory.mktemp("plug-in")))]
    if importlib.util.find_spec("torch") is None:
        paths.append(str(HERE / "without_torch"))
    sys.path[:0] = paths
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]))
        yield


@pytest.fixture
def store(client):
    """A connection to the daemon. At the end nobody else may have one, and nothing may be held or left."""
    yield client
    client.delete(prefix="", everything=True, missing_ok=True)
    eventually(lambda: len(client.clients()) == 1)
    eventually(lambda: (client.status().tensors, client.status().retired, client.status().drafts) == (0, 0, 0))


class Reader:
    """A process that reads a camera as LeRobot's programs do. reader.py says what it is told, and answers."""

    def __init__(self, name, **options):
        camera = ", ".join(f"{key}: {value}" for key, value in {"type": "tensorlease", "name": name, **options}.items())
        command = [sys.executable, HERE / "reader.py", f"--cameras={{front: {{{camera}}}}}"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, call, *arguments):
        self.process.stdin.write(json.dumps([call, *arguments]) + "\n")
        self.process.stdin.flush()

    def answer(self):
        return json.loads(self.process.stdout.readline())

    def ask(self, call, *arguments):
        self.tell(call, *arguments)
        return self.answer()

    def end(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def reader(store):
    """reader(name, **options) starts a Reader, which ends with the test."""
    readers = []

    def start(*arguments, **options):
        readers.append(Reader(*arguments, **options))
        return readers[-1]

    yield start
    for one in readers:
        one.end()
