# SPDX-License-Identifier: Apache-2.0
"""Wheels of the packages below integrations/, which pip builds from a copy: a build writes into its source."""

import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import PathDistribution

import pytest

import tensorlease


def _source(package, folder):
    ignored = shutil.ignore_patterns("build", "*.egg-info", "tests*", "__pycache__")
    return shutil.copytree(package, folder / "source", ignore=ignored)


def _pip(command, *arguments):
    pip = [sys.executable, "-m", "pip", command, "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, *arguments], check=True)


def build_wheel(package, folder):
    """Return the wheel, in that folder."""
    _pip("wheel", "-w", folder, _source(package, folder))
    (found,) = folder.glob("*.whl")
    return found


def install(package, folder):
    """Return the folder in which it is installed, which is for sys.path."""
    _pip("install", "--target", folder / "site", _source(package, folder))
    return folder / "site"


def check_wheel(package, folder, name):
    """Build the wheel of the distribution called name. It has the modules, the licence and our version. Return its entry
    points as (group, name, value)."""
    pytest.importorskip("setuptools", minversion="77", reason="setuptools 77 is not installed")
    wheel = build_wheel(package, folder)
    with zipfile.ZipFile(wheel) as files:
        (info,) = {one.split("/")[0] for one in files.namelist() if ".dist-info/" in one}
        distribution = PathDistribution(zipfile.Path(wheel, f"{info}/"))
        assert distribution.metadata["Name"] == name
        assert distribution.version == tensorlease.__version__
        assert any(one.endswith("LICENSE") for one in files.namelist())
        modules = {one for one in files.namelist() if one.endswith(".py")}
        assert modules == {str(path.relative_to(package / "src")) for path in (package / "src").rglob("*.py")}
        return [(entry.group, entry.name, entry.value) for entry in distribution.entry_points]
