# SPDX-License-Identifier: Apache-2.0
"""The wheel."""

from conftest import PACKAGE
from distributions import check_wheel


def test_the_wheel_has_the_entry_point(tmp_path):
    entries = check_wheel(PACKAGE, tmp_path, "tensorlease-vllm")
    assert entries == [("vllm.general_plugins", "tensorlease", "tensorlease_vllm:register")]
