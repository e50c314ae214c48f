# SPDX-License-Identifier: Apache-2.0
"""How conftest.py judges tests, shown with files of tests that fail the first time only."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from limits import limit

HEAD = """
import os, signal, subprocess
from conftest import in_child, run_python

def first():
    try:
        os.mkdir(__file__ + ".first")
    except FileExistsError:
        return False
    return True

def crash(client):
    pid = client.status().daemon_pid
    os.kill(pid, signal.SIGSEGV)
"""


def outcome(tmp_path, tests):
    """Returns the exit status and the output of pytest."""
    path = tmp_path / "test_planted.py"
    path.write_text(HEAD + tests)
    environment = {name: value for name, value in os.environ.items() if name != "TL_TEST_STRICT"}
    environment["PYTHONPATH"] = f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "conftest", path]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=limit(200), check=False
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("others", ["", "def test_next(client): client.put('a', b'b')\n"], ids=["last", "first"])
def test_a_module_whose_daemon_crashes_fails(tmp_path, others):
    status, said = outcome(tmp_path, f"def test_crash(client): assert not first() or not crash(client)\n{others}")
    assert status == 1 and "FLAKY" not in said and "crashed: the daemon: exit status -11" in said, said


@pytest.mark.parametrize(
    "test",
    [
        "def test_it(): assert not first(), 'bytes differ'",
        "def test_it(): first() and run_python('import os; os.abort()')",
        "def test_it(): in_child(lambda: not first())",
        "def test_it(): in_child(lambda: first() and os.kill(os.getpid(), signal.SIGBUS))",
        "def test_it(): code = first() and 'import os; os.abort()' or ''; assert run_python(code, check=False).returncode == 0",
    ],
    ids=["bytes", "interpreter", "answer", "child", "status"],
)
def test_wrong_bytes_and_crashes_are_final(tmp_path, test):
    status, said = outcome(tmp_path, test)
    assert status == 1 and "1 failed" in said and "FLAKY" not in said, said


@pytest.mark.parametrize(
    "test",
    [
        "def test_it(): assert not first()",
        "def test_it(): first() and run_python('raise SystemExit(1)')",
        "def test_it(): first() and run_python('import signal; signal.pause() # an array', timeout=0.1)",
    ],
    ids=["in_time", "interpreter", "code"],
)
def test_what_may_only_have_been_late_is_run_again(tmp_path, test):
    status, said = outcome(tmp_path, test)
    assert status == 0 and "FLAKY test_planted.py::test_it" in said and "1 passed" in said, said
