# SPDX-License-Identifier: Apache-2.0
"""Refs to tensors, for other processes."""

import errno
import os
from typing import NamedTuple

from ._errors import NotFoundError
from ._lock import ForkLock

_clients: dict = {}  # (pid, how to connect) -> a Client
_clients_lock = ForkLock()


def client_for(address, namespace, autostart, timeout):
    """Return a Client that is connected once in this process, for what names its daemon and has no Client."""
    from ._client import connect  # which needs this module

    key = (os.getpid(), address, namespace, autostart, timeout)
    with _clients_lock():
        client = _clients.get(key)
        if client is None or client.closed:
            client = _clients[key] = connect(address, namespace=namespace, autostart=autostart, timeout=timeout)
        return client


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
        return client_for(self.address, self.namespace, self.autostart, self.timeout)


Ref.__module__ = "tensorlease"  # as users write it, and pickles too
