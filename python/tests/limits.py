# SPDX-License-Identifier: Apache-2.0
"""How long tests wait for something that must happen before they fail."""

import os


def limit(seconds):
    """Returns the seconds, scaled up as $TL_TEST_TIMEOUT is above the usual 600."""
    return max(1, seconds * int(os.environ.get("TL_TEST_TIMEOUT") or 600) // 600)
