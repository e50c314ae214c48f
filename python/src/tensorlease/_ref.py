# SPDX-License-Identifier: Apache-2.0
"""Refs to tensors, for other processes."""

import errno
import os
from typing import NamedTuple

from ._errors import NotFoundError
from ._lock import ForkLock

_clients: dict = {}  # (pid, how to connect) -> a Client, for get() of Refs
_clients_lock = ForkLock()


class Ref(NamedTuple):
    """The name and version of a tensor, to be sent to other processes. Client.ref() returns it.

    It holds no lease: who sends it keeps the tensor, or its name, until it was got there.
    """

    name: str
    version: int
    address: str  # these four as for connect(), by the process that made it
    namespace: str
    autostart: bool
    timeout: float

    def get(self, client=None, mode="r"):
        """Return the Tensor. client: None: one that is connected once in this process for all Refs from there.

        NotFoundError: the name is deleted, or means another version now.
        """
        tensor = (client or self._connect()).get(self.name, mode=mode)
        if tensor.version != self.version:
            found = tensor.version
            tensor.release()
            raise NotFoundError(
                errno.ENOENT, f"{self.name!r} is version {found} now, and version {self.version} is asked for"
            )
        return tensor

    def _connect(self):
        from ._client import connect  # which needs this module

        key = (os.getpid(), *self[2:])
        with _clients_lock():
            client = _clients.get(key)
            if client is None or client.closed:
                client = _clients[key] = connect(
                    self.address, namespace=self.namespace, autostart=self.autostart, timeout=self.timeout
                )
            return client


Ref.__module__ = "tensorlease"  # as users write it, and pickles too
