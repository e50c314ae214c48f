# SPDX-License-Identifier: Apache-2.0
"""Locks that do not keep a child of fork() waiting for a thread that it does not have."""

import os
import threading


class ForkLock:
    """``with lock():`` holds a lock of this process. One that another thread held at a fork stays with the parent."""

    def __init__(self):
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self):
        self._lock = threading.Lock()

    def __call__(self):
        return self._lock
