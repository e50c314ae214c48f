# SPDX-License-Identifier: Apache-2.0
"""mpi4py 3.1 and 4 over a real MPI: two ranks (ranks.py) send what they hold and receive into drafts. This process, a
third one, looks at what was published.

mpi4py 3.1 calls the deleter of a DLPack capsule at once and continues to use the pointer. mpi4py 4 leaves the capsule
to its destructor. Neither may lose the memory during a transfer.
"""

import array
import ctypes
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from conftest import eventually, no_client_stays
from limits import limit

mpi4py = pytest.importorskip("mpi4py", reason="mpi4py is not installed")
if not shutil.which("mpirun"):
    pytest.skip("no mpirun: mpi4py has no MPI to run on", allow_module_level=True)

RANKS = Path(__file__).with_name("ranks.py")
VERSION = int(mpi4py.__version__.split(".")[0])
# mpi4py 3 asks for a capsule without a version, which a read-only tensor does not have.
MODES = [("buffer", "r"), ("buffer", "c"), ("dlpack", "c"), *([("dlpack", "r")] if VERSION >= 4 else [])]
COUNTED = [("counted", "r"), ("counted", "c")]  # with the number of bytes

SIZES = {
    **{"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint32": 4, "int64": 8},
    **{"float32": 4, "float64": 8, "complex64": 8, "complex128": 16},
    **{"bfloat16": 2, "float8_e4m3fn": 1, "float4_e2m1fn": 0.5},
}
COUNTS = (0, 1, 1000, 1 << 18)


def options(folder):
    """Runs Open MPI on this machine alone, with its files where they are cleaned up."""
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=True).stdout
    if "Open MPI" not in version:
        return []
    alone = ["--mca", "plm", "isolated", "--mca", "btl", "self,vader", "--mca", "btl_vader_backing_directory", folder]
    return ["--oversubscribe", *alone, *(["--allow-run-as-root"] if os.getuid() == 0 else [])]


@pytest.fixture
def run(address, observer):
    """run(scenario, arguments...) runs both ranks, which must succeed and hold nothing at the end."""

    def start(*arguments):
        # When a rank's client has ended, so have its leases and drafts.
        with tempfile.TemporaryDirectory(prefix="tl-") as folder, no_client_stays(observer):
            result = subprocess.run(
                [
                    "mpirun",
                    "-n",
                    "2",
                    *options(folder),
                    sys.executable,
                    "-X",
                    "faulthandler",
                    "-m",
                    "mpi4py",
                    RANKS,
                    *arguments,
                ],
                env={**os.environ, "TMPDIR": folder},
                capture_output=True,
                text=True,
                timeout=limit(100),
            )
        assert result.returncode == 0, result.stdout + result.stderr
        eventually(lambda: observer.status().retired == 0)

    yield start
    for info in observer.list("mpi/"):
        observer.delete(info.name)


def put(client, name, dtype, count, payload):
    with client.create(name, count, dtype) as draft:
        if payload:
            ctypes.memmove(draft._address, payload, len(payload))


def content(client, name):
    with client.get(name) as tensor:
        return ctypes.string_at(tensor._address, int(tensor.nbytes)) if tensor.nbytes else b""


@pytest.mark.parametrize("way, mode", MODES + COUNTED)
def test_what_one_rank_holds_the_other_publishes(run, client, way, mode):
    sent = {}
    for dtype, size in SIZES.items():
        for count in COUNTS:
            name = f"mpi/{dtype}/{count}"
            pattern = bytes(n % 2 if dtype == "bool" else n * 37 % 251 for n in range(16000))
            nbytes = math.ceil(count * size)
            sent[name] = (pattern * (nbytes // 16000 + 1))[:nbytes]
            if count == 1 and dtype == "float4_e2m1fn":
                sent[name] = b"\x05"
            put(client, name, dtype, count, sent[name])
    run("exchange", way, mode)
    got = [name for name in sent if f"{name}/got" in client]
    assert len(got) >= 40 and ((way, mode) != ("counted", "c") or len(got) == len(sent))
    for name in got:
        assert client.stat(f"{name}/got").dtype == client.stat(name).dtype
        assert content(client, f"{name}/got") == sent[name] == content(client, name)


def test_a_send_outlives_the_name(run, client):
    client.put("mpi/later", b"\1" * (1 << 23))
    run("later")
    for way in ("buffer", "dlpack"):
        assert content(client, f"mpi/later/{way}") == b"\1" * (1 << 23)


@pytest.mark.parametrize("way, mode", MODES + COUNTED)
def test_bcast(run, client, way, mode):
    payload = array.array("f", range(100000))
    client.put("mpi/bcast", payload)
    run("bcast", way, mode)
    assert content(client, "mpi/bcast/got") == payload.tobytes() == content(client, "mpi/bcast")


@pytest.mark.parametrize("way, mode", MODES)
def test_allreduce(run, client, way, mode):
    for rank in (0, 1):
        client.put(f"mpi/part/{rank}", array.array("d", (n * (rank + 1) for n in range(1000))))
    run("allreduce", way, mode)
    for rank in (0, 1):
        assert content(client, f"mpi/sum/{rank}") == array.array("d", (n * 3 for n in range(1000))).tobytes()
        assert content(client, f"mpi/in-place/{rank}") == array.array("q", (3 * (n == 7) for n in range(50))).tobytes()
        assert content(client, f"mpi/part/{rank}") == array.array("d", (n * (rank + 1) for n in range(1000))).tobytes()


def test_what_is_received_into_a_got_tensor_stays_private(run, client):
    client.put("mpi/private", b"\1" * 1000)
    run("private")
    assert content(client, "mpi/private") == b"\1" * 1000


def test_what_cannot_be_sent_is_refused_and_given_back(run, client):
    client.put("mpi/private", b"\1" * 1000)
    client.create("mpi/float16", 10, "float16").commit()
    run("errors")
    assert "mpi/too-small" not in client and "mpi/aborted" not in client
