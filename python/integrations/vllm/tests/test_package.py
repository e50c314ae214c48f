# SPDX-License-Identifier: Apache-2.0
"""The wheel."""

import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest
from conftest import PACKAGE
from distributions import build_wheel

import tensorlease


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("setuptools", minversion="77", reason="setuptools 77 is not installed")
    return build_wheel(PACKAGE, tmp_path_factory.mktemp("wheel"))


def test_the_wheel_has_the_entry_point(wheel):
    with zipfile.ZipFile(wheel) as files:
        (info,) = {name.split("/")[0] for name in files.namelist() if ".dist-info/" in name}
        distribution = PathDistribution(zipfile.Path(wheel, f"{info}/"))
        (entry,) = distribution.entry_points
        assert (entry.group, entry.name, entry.value) == (
            "vllm.general_plugins",
            "tensorlease",
            "tensorlease_vllm:register",
        )
        assert distribution.metadata["Name"] == "tensorlease-vllm"
        assert distribution.version == tensorlease.__version__
        assert any(name.endswith("LICENSE") for name in files.namelist())
        modules = {name for name in files.namelist() if name.endswith(".py")}
    assert modules == {f"tensorlease_vllm/{path.name}" for path in Path(PACKAGE, "src/tensorlease_vllm").glob("*.py")}
