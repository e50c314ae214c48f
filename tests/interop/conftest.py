# SPDX-License-Identifier: Apache-2.0
"""The fixtures of the tests with real libraries: those of python/tests, and the libraries that are tested."""

import gc
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from libraries import LIBRARIES, OWN, REFUSED, WORDS
from report import tell

HERE = Path(__file__).resolve().parent
PYTHON_TESTS = HERE.parent.parent / "python" / "tests"

sys.path.append(str(PYTHON_TESTS))  # dlpack_abi, limits

_spec = importlib.util.spec_from_file_location("python_tests_conftest", PYTHON_TESTS / "conftest.py")
shared = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(shared)

daemon, address, client, observer, time_limit = (
    shared.daemon,
    shared.address,
    shared.client,
    shared.observer,
    shared.time_limit,
)
eventually, leases_of, no_client_stays = shared.eventually, shared.leases_of, shared.no_client_stays


# ---- Which libraries, and what was found ----


def pytest_addoption(parser):
    parser.addoption("--library", action="append", default=[], help="test with this library, which must be installed")


def chosen(config):
    names = config.getoption("--library")
    unknown = set(names) - {library.name for library in LIBRARIES}
    assert not unknown, f"no such library: {unknown}"
    return [library for library in LIBRARIES if library.name in names]


def cells(library, wanted):
    """Yields (way, mode, word) for one library, as far as a test asks for them by the names of its arguments."""
    for way in library.ways if {"taken", "exported", "refused", "way"} & wanted else [None]:
        if "way" in wanted and (way.c != OWN or way.name.startswith("t.")):
            continue
        if "exported" in wanted and not way.export:
            continue
        takes = (way or library.ways[0]).takes or library.takes
        if "word" in wanted:
            words = takes
        elif "foreign" in wanted:
            words = [word for word in WORDS if word not in takes]
        elif "made" in wanted:
            words = library.makes or takes
        else:
            words = [None]
        for mode in "rc" if {"taken", "exported", "refused"} & wanted else [None]:
            if mode and (getattr(way, mode) == REFUSED) != ("refused" in wanted):
                continue
            for word in words:
                yield way, mode, word


def pytest_generate_tests(metafunc):
    wanted = set(metafunc.fixturenames)
    if "library_class" not in wanted:
        return
    pairs, words = {"taken", "exported", "refused"}, {"word", "foreign", "made"}
    names = [name for name in metafunc.fixturenames if name in pairs | words | {"way"}]
    rows, ids = [], []
    for library in chosen(metafunc.config):
        for way, mode, word in cells(library, wanted):
            values = ((way, mode) if name in pairs else word if name in words else way for name in names)
            rows.append([library, *values])
            ids.append("-".join(filter(None, (library.name, way and way.name, mode, word))))
    metafunc.parametrize(["library_class", *names], rows, ids=ids)


def pytest_configure(config):
    config.addinivalue_line("markers", "library(name): a test of that library alone")


def pytest_collection_modifyitems(config, items):
    """Drops tests of what a library does not have, and tests of other libraries."""
    names = {library.name for library in chosen(config)}
    of = {item: [mark.args[0] for mark in item.iter_markers("library")] for item in items}
    items[:] = [item for item in items if "NOTSET" not in item.name and names.issuperset(of[item])]


_loaded = {}


@pytest.fixture
def library(library_class):
    """The adapter of the library, which is imported by then."""
    if library_class not in _loaded:
        _loaded[library_class] = library_class()
        tell({"library": library_class.name, "version": _loaded[library_class].version()})
    return _loaded[library_class]


@pytest.fixture
def found(library_class):
    """found(way, mode, what=value) notes what the test saw, for the table in docs/INTEROP.md."""
    return lambda way, mode, **what: tell({"library": library_class.name, "way": way.name, "mode": mode, **what})


@pytest.fixture(scope="module")
def quick_collections():
    """Keeps gc.collect() from looking at all that pytest and the library have made before the module's tests."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


# ---- Memory ----


def mapping_of(address):
    """(object, offset in it, bytes of private pages) at an address. The same object and offset are the same memory."""
    with open("/proc/self/smaps") as smaps:
        found = None
        for line in smaps:
            head = re.match(r"([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) (\S+) (\d+)", line)
            if head:
                if found:
                    break
                start, end = int(head[1], 16), int(head[2], 16)
                if start <= address < end:
                    found = [(head[4], head[5]), int(head[3], 16) + address - start, None]
            elif found and line.startswith("Anonymous:"):
                found[2] = int(line.split()[1]) * 1024
    assert found, f"nothing is mapped at {address:#x}"
    return tuple(found)


# ---- Other processes ----


class Peer:
    """A process that has tensorlease but none of the libraries; see peer.py."""

    def __init__(self, address):
        self.process = subprocess.Popen(
            [sys.executable, HERE / "peer.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TENSORLEASE_SOCKET": address},
        )

    def __call__(self, what, *arguments):
        print(json.dumps([what, *arguments]), file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline() or '["error", "the peer has ended"]')
        assert answer[0] == "ok", answer
        return answer[1]

    def read(self, name):
        """(dtype's name, shape, bytes) of a tensor, as that process sees it."""
        dtype, shape, text = self("read", name)
        return dtype, tuple(shape), bytes.fromhex(text)


@pytest.fixture(scope="module")
def peer(daemon):
    peer = Peer(daemon)
    yield peer
    peer.process.stdin.close()
    assert peer.process.wait(shared.limit(60)) == 0
    peer.process.stdout.close()


@pytest.fixture
def holder(address):
    """holder(library's name, way's number, mode, tensor's name) starts a process that holds arrays; see holder.py."""
    children = []

    def start(*arguments):
        child = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", HERE / "holder.py", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        ready = child.stdout.readline()
        assert ready == "ready\n", (ready, child.communicate()[1])
        return child

    yield start
    for child in children:
        if child.poll() is None:
            child.kill()
        child.communicate()
