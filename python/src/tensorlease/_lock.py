# SPDX-License-Identifier: Apache-2.0
"""Locks that keep nobody waiting for ever: a child of fork() for a thread that it lacks, or a signal handler for its own."""

import os
import threading


class ForkLock:
    """``with lock():`` holds a lock of this process. One that another thread held at a fork stays with the parent.

    A signal handler or a finalizer may take it again on the thread that holds it. So what it guards must stand that.
    """

    def __init__(self):
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self):
        self._lock = threading.RLock()

    def __call__(self):
        return self._lock
