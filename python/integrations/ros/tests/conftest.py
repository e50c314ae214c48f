# SPDX-License-Identifier: Apache-2.0
"""The fixtures of python/tests, and doubles of rclpy's Node and of std_msgs."""

import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent
PYTHON_TESTS = PACKAGE.parents[1] / "tests"

sys.path[:0] = [str(PACKAGE / "src"), str(HERE / "doubles"), str(HERE)]
sys.path.append(str(PYTHON_TESTS))  # limits

_spec = importlib.util.spec_from_file_location("python_tests_conftest", PYTHON_TESTS / "conftest.py")
shared = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(shared)

daemon, address, client, time_limit = shared.daemon, shared.address, shared.client, shared.time_limit
eventually = shared.eventually
