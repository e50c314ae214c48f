# SPDX-License-Identifier: Apache-2.0
"""How long tests wait for what must happen, before they give up."""

import os


def limit(seconds):
    """So many seconds; where $TL_TEST_TIMEOUT gives a program of tests more than the usual 600, so much more."""
    return max(1, seconds * int(os.environ.get("TL_TEST_TIMEOUT") or 600) // 600)
