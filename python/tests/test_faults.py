# SPDX-License-Identifier: Apache-2.0
"""explain_faults() names the tensor when a write to its read-only memory ends the process."""

import signal

import numpy as np
import pytest
from conftest import run_python

SAID = "tensorlease: a write to tensor 'faults/t' ends this process"
BEGIN = """
import ctypes, faulthandler, os, signal, threading
import numpy as np, tensorlease
client = tensorlease.connect(autostart=False)
def write(array, at=0):
    ctypes.memset(array.ctypes.data + at, 1, 1)
def get():
    return client.get("faults/t").numpy()
"""


@pytest.fixture
def published(client):
    client.put("faults/t", np.arange(5000, dtype="uint8"))


def died(code, **environment):
    """Runs code that ends by a SIGSEGV, and returns what it said."""
    result = run_python(BEGIN + code, check=False, **environment)
    assert result.returncode == -signal.SIGSEGV and not result.stdout, (result.returncode, result.stderr)
    return result.stderr


@pytest.mark.parametrize(
    "write",
    [
        "write(get())",
        "write(get(), 4999)",
        "write(np.frombuffer(client.get('faults/t').bytes(), 'uint8'))",
        "t = client.get('faults/t'); a = t.numpy(); t.release(); write(a)",
        "all = [get() for i in range(3000)]; write(all[2999])",
        "thread = threading.Thread(target=lambda: write(get())); thread.start(); thread.join()",
    ],
)
def test_a_write_to_a_tensor_is_explained(published, write):
    said = died(f"faulthandler.disable(); tensorlease.explain_faults(); {write}")
    assert said.count(SAID) == 1 and "torch()" in said and 'mode="c"' in said and "Fatal" not in said


def test_the_former_handler_has_its_say(published):
    """faulthandler is on in these interpreters."""
    said = died("tensorlease.explain_faults(); tensorlease.explain_faults(); write(get())")
    assert said.index(SAID) < said.index("Fatal Python error: Segmentation fault")


def test_a_handler_that_was_installed_since_passes_the_signal_on(published):
    said = died(
        "faulthandler.disable(); tensorlease.explain_faults(); faulthandler.enable(); tensorlease.explain_faults(); "
        "write(get())"
    )
    assert said.count(SAID) == said.count("Fatal Python error: Segmentation fault") == 1


def test_it_is_off_unless_asked_for(published):
    assert SAID not in died("write(get())") and SAID not in died("write(get())", TENSORLEASE_EXPLAIN_FAULTS="0")
    assert SAID in died("write(get())", TENSORLEASE_EXPLAIN_FAULTS="1")


@pytest.mark.parametrize(
    "fault",
    [
        "ctypes.string_at(8)",
        "import mmap; m = mmap.mmap(-1, 4096, prot=mmap.PROT_READ); write(np.frombuffer(m, 'uint8'))",
        "os.kill(os.getpid(), signal.SIGSEGV)",
        "a = get(); address = a.ctypes.data; del a; ctypes.memset(address, 1, 1)",
    ],
)
@pytest.mark.parametrize("before", ["", "faulthandler.disable(); "])
def test_other_faults_are_as_without_it(published, fault, before):
    said = died(f"{before}tensorlease.explain_faults(); t = get(); {fault}".replace("t = get(); a = ", "a = "))
    assert "tensorlease: a write" not in said and ("Fatal" in said) == (not before)


def test_more_tensors_than_it_can_name(published):
    code = "faulthandler.disable(); tensorlease.explain_faults(); first = get(); all = [get() for i in range(9000)]; "
    assert SAID in died(code + "del all; all = [get() for i in range(10)]; write(all[9])")
    died(code + "write(all[8999])")
