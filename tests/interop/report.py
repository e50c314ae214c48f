# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that tells tests/interop/run the outcome of each test.

It writes each outcome to the file TL_INTEROP_REPORT at once, one JSON object a line, so that a test that kills the
process takes no other result with it.
"""

import json
import os


def tell(line):
    path = os.environ.get("TL_INTEROP_REPORT")
    if path:
        with open(path, "a") as file:
            file.write(json.dumps(line) + "\n")


def pytest_runtest_logreport(report):
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        tell({"test": report.nodeid, "outcome": "skipped", "reason": reason.removeprefix("Skipped: ")})
    elif report.failed:
        tell({"test": report.nodeid, "outcome": "failed", "reason": report.longreprtext[-2000:]})
    elif report.when == "call":
        tell({"test": report.nodeid, "outcome": "passed"})


def pytest_runtest_logstart(nodeid):
    tell({"started": nodeid})
