# SPDX-License-Identifier: Apache-2.0
"""Wheels of the packages below integrations/, which pip builds from a copy: a build writes into its source."""

import shutil
import subprocess
import sys


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
