# SPDX-License-Identifier: Apache-2.0
"""The headers in C++: a program whose destructors give everything back (interop.cpp), and DLPack's own header beside
ours (upstream.cpp). The library is that of the wheel, from the same build as the daemon."""

import array
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

import pytest
from conftest import eventually, no_client_stays
from limits import limit

import tensorlease

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parents[2] / "include"
LIBRARY = Path(tensorlease.__file__).parent / "lib"
SO_VERSION = tensorlease.__version__.rpartition(".")[0]
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"]


@pytest.fixture(params=["g++", "clang++"])
def compiler(request):
    if not shutil.which(request.param):
        pytest.skip(f"no {request.param}")
    return request.param


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="tl-") as name:
        yield Path(name)


@pytest.fixture(params=["c++17", "c++20"])
def compile(compiler, request, folder):
    """compile(output, arguments...) returns the result and checks nothing."""

    def run(output, *arguments):
        command = [compiler, f"-std={request.param}", *WARNINGS, "-I", INCLUDE, "-o", folder / output, *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=folder)

    return run


def linked():
    return ["-pthread", f"-L{LIBRARY}", f"-l:libtensorlease.so.{SO_VERSION}", f"-Wl,-rpath,{LIBRARY}"]


def test_a_cpp_program_and_a_python_program_read_each_others_tensors(compile, folder, address, client, observer):
    result = compile("interop", HERE / "interop.cpp", *linked())
    assert result.returncode == 0, result.stderr
    client.put(
        "cpp/from-python", memoryview(array.array("h", (n * 1000 for n in range(15)))).cast("B").cast("h", (3, 5))
    )
    with no_client_stays(observer):
        result = subprocess.run([folder / "interop", address], capture_output=True, text=True, timeout=limit(100))
    assert (result.returncode, result.stdout) == (0, tensorlease.__version__ + "\n"), result.stderr
    with client.get("cpp/draft") as tensor:
        assert (tensor.shape, tensor.dtype, tensor.metadata) == ((100, 1000), "float32", b"from C++")
        assert bytes(tensor) == array.array("f", range(100000)).tobytes()
    with client.get("cpp/transposed") as tensor:
        assert bytes(tensor) == bytes(n // 4 + n % 4 * 3 for n in range(12))
    for name in ("cpp/published", "cpp/linked"):
        with client.get(name) as tensor:
            assert bytes(tensor) == b"\x2a" * 5000
    eventually(lambda: observer.status().retired == 0 and sum(c.leases + c.drafts for c in observer.clients()) == 0)
    for info in client.list("cpp/"):
        client.delete(info.name)


def dlpack_headers():
    """The DLPack headers of the installed libraries."""
    for folder in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for path in sorted(Path(folder).rglob("dlpack.h")):
            text = path.read_text()
            if "DLPACK_DLPACK_H_" in text and "define DLPACK_MAJOR_VERSION 1" in text:
                yield path


def test_dlpacks_own_header_goes_before_and_after_ours(compile, folder):
    headers = list(dlpack_headers())
    if not headers:
        pytest.skip("no installed library has a dlpack.h of DLPack 1")
    for header in headers:
        upstream = ["-isystem", header.parent, f'-DUPSTREAM="{header}"']
        for output, order in (("first.o", ["-DOURS_FIRST"]), ("second.o", [])):
            result = compile(output, "-c", HERE / "upstream.cpp", *upstream, *order)
            assert result.returncode == 0, f"{header}: {result.stderr}"
        result = compile("both", "first.o", "second.o", *linked())
        assert result.returncode == 0, result.stderr
        assert subprocess.run([folder / "both"]).returncode == 0, header


@pytest.mark.parametrize(
    "version, words", [("", "older than DLPack 1.0"), ("#define DLPACK_MAJOR_VERSION 2", "not of DLPack 1.x")]
)
def test_a_header_of_another_dlpack_is_refused_in_words(compile, folder, version, words):
    (folder / "other.h").write_text(f"#ifndef DLPACK_DLPACK_H_\n#define DLPACK_DLPACK_H_\n{version}\n#endif\n")
    result = compile("other.o", "-c", HERE / "upstream.cpp", f'-DUPSTREAM="{folder}/other.h"')
    assert result.returncode != 0 and words in result.stderr
    result = compile("other.o", "-c", HERE / "upstream.cpp", f'-DUPSTREAM="{folder}/other.h"', "-DOURS_FIRST")
    assert result.returncode == 0, result.stderr  # theirs has the same include guard as ours
