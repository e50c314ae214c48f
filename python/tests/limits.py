# SPDX-License-Identifier: Apache-2.0
"""How long tests wait for something that must happen before they fail."""

import os


def limit(seconds):
    """Returns the seconds, scaled by the one factor of tests/harness/limit.h."""
    scaled = seconds * int(os.environ.get("TL_TEST_TIMEOUT") or 600) // 600
    return max(1, scaled, 3 * seconds if os.environ.get("SAN") else 0)
