# SPDX-License-Identifier: Apache-2.0
"""The fixtures of python/tests, and parts of SGLang's installed sources.

SGLang itself cannot be imported without parts that need CUDA. So functions and classes are taken out of its files, and
run with what they name.
"""

import ast
import importlib.util
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent
PYTHON_TESTS = PACKAGE.parents[1] / "tests"

sys.path[:0] = [str(PACKAGE / "src"), str(PYTHON_TESTS)]  # limits, distributions

_spec = importlib.util.spec_from_file_location("python_tests_conftest", PYTHON_TESTS / "conftest.py")
shared = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(shared)

daemon, address, client, time_limit = shared.daemon, shared.address, shared.client, shared.time_limit
eventually = shared.eventually


@pytest.fixture
def store(client):
    """A connection to the daemon. At the end nothing may be held or left."""
    yield client
    client.delete(prefix="", everything=True, missing_ok=True)
    eventually(lambda: (client.status().tensors, client.status().retired, client.status().drafts) == (0, 0, 0))


class Source:
    """A file of SGLang."""

    def __init__(self, path):
        self.path = Path(distribution("sglang").locate_file(f"sglang/srt/{path}"))
        self.text = self.path.read_text()
        self.tree = ast.parse(self.text)

    def node(self, name):
        """The function or class of that name, such as "Class.method"."""
        node = self.tree
        for part in name.split("."):
            kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
            (node,) = (one for one in node.body if isinstance(one, kinds) and one.name == part)
        return node

    def parameters(self, name):
        arguments = self.node(name).args
        return [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]

    def take(self, *names, **known):
        """Run these definitions, where what is known stands for all else that they name. Returns the last of them."""
        for name in names:
            node = self.node(name)
            module = ast.Module([ast.ImportFrom("__future__", [ast.alias("annotations")], 0), node], [])
            exec(compile(ast.fix_missing_locations(module), str(self.path), "exec"), known)  # noqa: S102  its own code
        return known[names[-1].split(".")[-1]]


@pytest.fixture(scope="session")
def source():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    if importlib.util.find_spec("sglang") is None:
        pytest.skip("SGLang is not installed")
    return Source
