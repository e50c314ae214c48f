# SPDX-License-Identifier: Apache-2.0
"""How long tests wait for what must happen before they give up."""

import os


def limit(seconds):
    """The seconds, scaled with $TL_TEST_TIMEOUT, the time of a program of tests (600 if it is not set)."""
    return max(1, seconds * int(os.environ.get("TL_TEST_TIMEOUT") or 600) // 600)
