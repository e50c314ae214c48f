# SPDX-License-Identifier: Apache-2.0
"""A Rust program over the C library (interop.rs, which needs only rustc) and this process read what the other one
publishes. The library is that of the wheel, from the same build as the daemon."""

import array
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from conftest import eventually, no_client_stays
from limits import limit

import tensorlease

HERE = Path(__file__).resolve().parent
LIBRARY = Path(tensorlease.__file__).parent / "lib"
SO_VERSION = tensorlease.__version__.rpartition(".")[0]


@pytest.fixture
def program():
    if not shutil.which("rustc"):
        pytest.skip("no rustc")
    with tempfile.TemporaryDirectory(prefix="tl-") as name:
        folder = Path(name)
        (folder / "libtensorlease.so").symlink_to(LIBRARY / f"libtensorlease.so.{SO_VERSION}")
        command = [
            "rustc",
            "--edition",
            "2021",
            "-O",
            "-D",
            "warnings",
            "-L",
            folder,
            "-C",
            f"link-arg=-Wl,-rpath,{LIBRARY}",
        ]
        subprocess.run([*command, "-o", folder / "interop", HERE / "interop.rs"], check=True, cwd=folder)
        yield folder / "interop"


def test_a_rust_program_and_a_python_program_read_each_others_tensors(program, address, client, observer):
    client.put(
        "rust/from-python", memoryview(array.array("h", (n * 1000 for n in range(15)))).cast("B").cast("h", (3, 5))
    )
    with no_client_stays(observer):
        result = subprocess.run([program, address], capture_output=True, text=True, timeout=limit(100))
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == tensorlease.__version__
    with client.get("rust/put") as tensor:
        assert (tensor.shape, tensor.dtype, tensor.metadata) == ((2, 3, 4), "float32", b"from Rust")
        assert bytes(tensor) == bytes(n * 7 % 251 for n in range(96))
    with client.get("rust/draft") as tensor:
        assert tensor.shape == (1000, 1000) and bytes(tensor) == bytes(n * 7 % 251 for n in range(1000000))
    with client.get("rust/transposed") as tensor:
        assert bytes(tensor) == bytes((n // 3 + n % 3 * 4) * 7 % 251 for n in range(12))
    assert {info.name for info in client.list("rust/")} == {
        f"rust/{name}" for name in ("from-python", "put", "transposed", "draft", "published", "linked")
    }
    eventually(lambda: observer.status().retired == 0 and sum(c.leases + c.drafts for c in observer.clients()) == 0)
