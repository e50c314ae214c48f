#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs a wheel or an sdist in bare environments outside the tree, and shares a tensor there between two processes.

Nothing but the package is installed there. What is imported must be the installed package, with its programs, its
licences, its manual pages and what shells complete. With --manylinux the wheel must have a name for other systems. An sdist is built in a folder with a space.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PRODUCER = """
import array, sys, tensorlease
client = tensorlease.connect(sys.argv[1], autostart=False)
assert client.put("made", array.array("d", range(1000))) == 1
input()
"""
CONSUMER = """
import sys, tensorlease
client = tensorlease.connect(sys.argv[1], autostart=False)
tensor = client.get("made", timeout=60)
assert tensor.shape == (1000,) and memoryview(tensor).readonly and sum(memoryview(tensor)) == sum(range(1000))
print(tensorlease.__file__)
"""
# The daemon is there when a connection succeeds.
WAIT = """
import sys, time, tensorlease
for _ in range(6000):
    try:
        tensorlease.connect(sys.argv[1], autostart=False).close()
        break
    except tensorlease.NoDaemonError:
        time.sleep(0.01)
else:
    sys.exit("the daemon did not start")
"""
# The licences of the project and of the libraries in it.
LICENCES = """
import importlib.metadata as m
print(*sorted(f.name for f in m.files("tensorlease") if "licenses" in f.parts and f.read_text().strip()))
"""
LICENCES_EXPECTED = "LICENSE libcjson-dev.txt libinih-dev.txt libuv1-dev.txt libxxhash-dev.txt zlib1g-dev.txt"
SHARED = ["man/man1/tensorlease.1", "man/man8/tensorleased.8", "zsh/site-functions/_tensorlease",
          "fish/vendor_completions.d/tensorlease.fish"]
BASH_COMPLETES = """
. "$1/bash-completion/completions/tensorlease"
COMP_WORDS=(tensorlease doc) COMP_CWORD=1
_tensorlease tensorlease doc tensorlease
echo "${COMPREPLY[*]}"
"""


def run(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def try_package(python, package, folder):
    """Installs the package with that Python, and uses it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TENSORLEASE_"))}
    options = {"cwd": folder, "env": environment}
    run(python, "-m", "venv", folder / "venv", **options)
    if package.suffix != ".whl":
        shutil.unpack_archive(package, folder / "with a space")
        (package,) = (folder / "with a space").iterdir()
    binaries = folder / "venv" / "bin"
    run(binaries / "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", package, **options)
    own = binaries / "python"
    version = run(own, "-c", "import tensorlease; print(tensorlease.__version__)", **options).strip()
    for command in ([binaries / "tensorlease"], [binaries / "tensorleased"], [own, "-m", "tensorlease"]):
        if version not in run(*command, "--version", **options):
            sys.exit(f"{command[0]} --version does not say {version}")
    licences = run(own, "-c", LICENCES, **options).strip()
    if licences != LICENCES_EXPECTED:
        sys.exit(f"the licences are {licences} rather than {LICENCES_EXPECTED}")
    check_shared(folder / "venv", options)
    address = folder / "socket"
    command = [binaries / "tensorleased", "--foreground", "--socket", address]
    daemon = subprocess.Popen(command, stderr=subprocess.DEVNULL, **options)
    try:
        share(own, address, options)
    finally:
        daemon.terminate()
        daemon.wait()


def check_shared(venv, options):
    """What other programs read from share/ is there, and completes by the program of this environment."""
    for path in SHARED:
        text = (venv / "share" / path).read_text()
        if "tensorlease" not in text or re.search("@[A-Z]+@", text):
            sys.exit(f"share/{path} is not as it should be")
    environment = {**options["env"], "PATH": f"{venv / 'bin'}:{os.environ['PATH']}"}
    found = run("bash", "-c", BASH_COMPLETES, "-", venv / "share", **{**options, "env": environment}).strip()
    if found != "doctor":
        sys.exit(f"bash completes 'doc' to '{found}' rather than 'doctor'")


def share(python, address, options):
    """One process publishes and another one gets."""
    run(python, "-c", WAIT, address, **options)
    with subprocess.Popen([python, "-c", PRODUCER, address], stdin=subprocess.PIPE, **options) as producer:
        try:
            place = run(python, "-c", CONSUMER, address, **options)
        finally:
            producer.communicate(b"\n")
    if producer.returncode or Path(options["cwd"]).resolve() not in Path(place.strip()).resolve().parents:
        sys.exit(f"the producer ended with {producer.returncode}; the consumer imported {place}")


def version_of(python):
    code = "import sys, venv, ensurepip, sysconfig as s; print(*sys.version_info[:2], s.get_config_var('Py_GIL_DISABLED') or 0)"
    try:
        asked = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return tuple(map(int, asked.stdout.split())) if asked.returncode == 0 else None


def candidates(minor):
    yield shutil.which(f"python3.{minor}")
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    yield from sorted(pyenv.glob(f"3.{minor}.*/bin/python3.{minor}"))


def pythons(first, package):
    """Yields that Python and, for a wheel of the stable ABI, the oldest and the newest other one of this machine."""
    version = version_of(first)
    if version is None:
        sys.exit(f"{first} cannot make environments: it has no venv or ensurepip")
    yield first, version
    if "-abi3-" not in package.name:
        return
    others = {}
    for minor in range(10, 20):
        for other in candidates(minor):
            found = version_of(other) if other else None
            if found == (3, minor, 0) and found != version:
                others[found] = other
    for found in {min(others), max(others)} if others else ():
        yield others[found], found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--manylinux", action="store_true")
    parser.add_argument("package", type=Path, nargs="+")
    given = parser.parse_args()
    for package in given.package:
        if given.manylinux and not re.search(r"-manylinux_\d+_\d+_\w+\.whl$", package.name):
            sys.exit(f"{package.name} is not for other systems")
        for python, version in pythons(given.python, package):
            with tempfile.TemporaryDirectory(prefix="tl-install-") as folder:
                try_package(python, package.resolve(), Path(folder))
            print(f"{package.name}: well in Python {version[0]}.{version[1]}{'t' if version[2] else ''}")


main()
