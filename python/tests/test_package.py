# SPDX-License-Identifier: Apache-2.0
"""The contents of the wheel."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PACKAGE

import tensorlease

SO_VERSION = tensorlease.__version__.rpartition(".")[0]


def test_library_and_daemon_are_carried():
    assert (PACKAGE / "lib" / f"libtensorlease.so.{SO_VERSION}").is_file() and (PACKAGE / "py.typed").is_file()
    version = subprocess.run(
        [PACKAGE / "bin" / "tensorleased", "--version"], capture_output=True, text=True, check=True
    )
    assert tensorlease.__version__ in version.stdout


def test_the_extension_is_of_the_stable_abi():
    from importlib.metadata import files, version

    assert Path(tensorlease._core.__file__).name == "_core.abi3.so"
    assert version("tensorlease") == tensorlease.__version__
    assert any(str(file).endswith(".pyi") for file in files("tensorlease"))


def test_the_daemon_needs_libc_only():
    needed = subprocess.run(["ldd", PACKAGE / "bin" / "tensorleased"], capture_output=True, text=True)
    if needed.returncode:
        pytest.skip("there is no ldd")
    names = set(re.findall(r"^\s*(lib\w+)", needed.stdout, re.M))
    if names & {"libuv", "libinih"}:
        pytest.skip("built where libuv and inih are there as shared libraries only")
    assert names <= {"libc", "libpthread", "libdl", "librt", "libm"}


def test_the_extension_needs_what_it_carries_only():
    needed = subprocess.run(["ldd", tensorlease._core.__file__], capture_output=True, text=True)
    if needed.returncode:
        pytest.skip("there is no ldd")
    places = dict(re.findall(r"^\s*(lib\w+)[^\s]* => (.*?)(?: \(.*)?$", needed.stdout, re.M))
    carried = {name for name, place in places.items() if Path(place).parent.resolve() == (PACKAGE / "lib").resolve()}
    assert "libtensorlease" in carried and carried <= {"libtensorlease", "libcjson"}
    assert set(places) - carried <= {"libc", "libpthread", "libdl", "librt", "libm", "libz"}


def test_importing_loads_no_array_library():
    code = "import sys, tensorlease; print([m for m in ('numpy', 'torch', 'jax') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_stubs_name_what_is_there():
    """The stubs and the package have the same public names and members."""
    import ast

    tree = ast.parse((PACKAGE / "__init__.pyi").read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    defined = set(classes) | {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {name for name in defined if not name.startswith("_")} == set(tensorlease.__all__)
    for name in ("Client", "Tensor", "Draft"):
        members = set()
        for node in [classes[name], *([classes["_Described"]] if name != "Client" else [])]:
            members |= {m.name for m in node.body if isinstance(m, (ast.FunctionDef, ast.AsyncFunctionDef))}
        public = {m for m in dir(getattr(tensorlease, name)) if not m.startswith("_")}
        assert public == {m for m in members if not m.startswith("_")}, name
    for name in ("Info", "Status", "ClientInfo", "Holding", "Published", "Loaded", "CudaDevice", "DeviceUsage"):
        fields = [m.target.id for m in classes[name].body if isinstance(m, ast.AnnAssign)]
        assert fields == list(getattr(tensorlease, name)._fields)


def test_errors_fit_into_pythons():
    import builtins

    for mine, pythons in (
        ("NotFoundError", FileNotFoundError),
        ("TimeoutError", builtins.TimeoutError),
        ("NotNewerError", BlockingIOError),
        ("PermissionDeniedError", PermissionError),
        ("DisconnectedError", ConnectionError),
        ("NoDaemonError", ConnectionRefusedError),
        ("InvalidError", ValueError),
        ("NoSpaceError", OSError),
        ("UnsupportedError", OSError),
        ("NoDeviceError", OSError),
        ("TensorLostError", OSError),
    ):
        kind = getattr(tensorlease, mine)
        assert issubclass(kind, pythons) and issubclass(kind, tensorlease.Error) and issubclass(kind, OSError)
        assert kind(2, "text").errno == 2 and kind(2, "text").strerror == "text" and kind.__doc__
