# SPDX-License-Identifier: Apache-2.0
"""The contents of the wheel."""

import importlib.metadata
import os
import queue
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from conftest import PACKAGE, run_python

import tensorlease

SO_VERSION = tensorlease.__version__.rpartition(".")[0]


def test_library_and_daemon_are_carried():
    assert (PACKAGE / "lib" / f"libtensorlease.so.{SO_VERSION}").is_file() and (PACKAGE / "py.typed").is_file()
    version = subprocess.run(
        [PACKAGE / "bin" / "tensorleased", "--version"], capture_output=True, text=True, check=True
    )
    assert tensorlease.__version__ in version.stdout


def test_a_second_import_has_the_classes_of_the_first(address):
    """As test runners and mock.patch.dict(sys.modules) do it, which put the first one back in the end."""
    code = """
import sys, unittest.mock
import tensorlease
from tensorlease import NotFoundError
client = tensorlease.connect(autostart=False)
with unittest.mock.patch.dict(sys.modules):
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorlease"]:
        del sys.modules[name]
    import tensorlease as second
    from tensorlease._sending import pickle_for
    from tensorlease._tensor import Tensor
    for one in (client, second.connect(autostart=False)):
        for error in (NotFoundError, second.NotFoundError):
            try:
                one.get("nowhere")
            except error as caught:
                print(type(caught) is NotFoundError)
    client.put("a", b"abc")
    print(type(client.get("a")) is Tensor is tensorlease.Tensor, second._core is tensorlease._core)
print(sys.modules["tensorlease"] is tensorlease is second, client["a"].tolist())
import importlib
print(importlib.reload(tensorlease) is tensorlease, tensorlease.NotFoundError is NotFoundError)
"""
    assert run_python(code).stdout == "True\n" * 4 + "True True\nTrue [97, 98, 99]\nTrue True\n"


def test_a_second_import_of_the_part_for_torch(address):
    pytest.importorskip("torch")
    code = """
import sys, unittest.mock
import tensorlease.torch as first
with unittest.mock.patch.dict(sys.modules):
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorlease"]:
        del sys.modules[name]
    import tensorlease.torch as second
print(first is second)
"""
    assert run_python(code).stdout == "True\n"


def test_tracebacks_call_the_errors_as_users_do():
    errors = [x for x in vars(tensorlease).values() if isinstance(x, type) and issubclass(x, Exception)]
    errors = [x for x in errors if x not in (queue.Empty, queue.Full)]
    assert len(errors) >= 14 and {x.__module__ for x in errors} == {"tensorlease"}


def test_the_extension_is_of_the_stable_abi():
    from importlib.metadata import files, version

    if not sysconfig.get_config_var("Py_GIL_DISABLED"):  # free-threaded interpreters have no stable ABI
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
    defined |= {name.name for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "queue" for name in node.names}
    assert {name for name in defined if not name.startswith("_")} == set(tensorlease.__all__)
    for name in ("Client", "Tensor", "Draft"):
        members = set()
        for node in [classes[name], *([classes["_Described"]] if name != "Client" else [])]:
            members |= {m.name for m in node.body if isinstance(m, (ast.FunctionDef, ast.AsyncFunctionDef))}
        given = getattr(tensorlease, name)
        public = {m for m in dir(given) if not m.startswith("_") and hasattr(given, m)}
        assert public == {m for m in members if not m.startswith("_")}, name
    for name in ("Identity", "Info", "Status", "ClientInfo", "Reader", "Holding", "Published", "Loaded", "CudaDevice", "DeviceUsage"):
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


SOURCES = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_elsewhere_the_build_says_that_it_needs_linux(platform):
    code = f"import runpy, shutil, sys; sys.platform = {platform!r}; runpy.run_path({str(SOURCES / 'setup.py')!r})"
    result = run_python(code, check=False)
    assert result.returncode == 1 and result.stderr.count("\n") == 1 and "use it on Linux" in result.stderr


@pytest.mark.parametrize("wrapper", ["", "env "])  # as CC="ccache gcc" is
def test_the_build_says_which_headers_are_missing(tmp_path, wrapper):
    pytest.importorskip("setuptools", minversion="77", reason="this Python has no setuptools that reads pyproject.toml")
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\n! grep -q -e uv.h -e zlib.h\n")
    compiler.chmod(0o755)
    command = [sys.executable, "setup.py", "-q", "build_ext", "-b", tmp_path, "-t", tmp_path]
    result = subprocess.run(command, cwd=SOURCES, env={**os.environ, "CC": f"{wrapper}{compiler}"}, capture_output=True, text=True)
    said = result.stderr.splitlines()[-1]
    assert result.returncode == 1 and "lacks uv.h, zlib.h: apt-get install libuv1-dev zlib1g-dev, or dnf" in said


def test_the_licence_is_in_the_wheel():
    files = importlib.metadata.files("tensorlease")
    (licence,) = [file for file in files if file.name == "LICENSE"]
    assert licence.read_text() == (SOURCES / "LICENSE").read_text()
    top = SOURCES.parent / "LICENSE"
    if top.exists():
        assert licence.read_text() == top.read_text()


@pytest.mark.parametrize("command", [["-m", "tensorlease"], ["-c", "from tensorlease.__main__ import daemon; daemon()"]])
def test_the_programs_are_in_the_package(command):
    result = subprocess.run([sys.executable, *command, "--version"], capture_output=True, text=True, check=True)
    assert tensorlease.__version__ in result.stdout


def test_the_scripts_run_the_programs(address):
    script = Path(sys.executable).parent / "tensorlease"
    if not script.exists():
        pytest.skip("the package is not installed in this environment")
    listed = subprocess.run([script, "status"], capture_output=True, text=True, check=True).stdout
    assert address in listed
