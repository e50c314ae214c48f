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
    """A tensor that was handed on, to be sent to another process. Client.ref() returns it.

    The daemon keeps the tensor until get() was called once, wherever that is, even if its name means another one by
    then. Further calls of get() work as long as some process holds the tensor, or its name means this version.
    """

    name: str | None  # None: the tensor is of a stream
    version: int | None
    address: str  # these four as for connect(), by the process that made it
    namespace: str
    autostart: bool
    timeout: float
    token: bytes

    def get(self, client=None, mode="r"):
        """Return the Tensor. client: None: one that is connected once in this process for all Refs from there.

        NotFoundError: the tensor is not there any more: it was got before, the time of ref() has passed, or the client
        that handed it on has ended.
        """
        client = client or self._connect()
        try:
            return client.receive(self.token, mode=mode)
        except NotFoundError as error:
            return self._get_named(client, mode, error)

    def _get_named(self, client, mode, error):
        """The tensor may be had by its name still."""
        if self.name is None:
            raise error from None
        try:
            tensor = client.get(self.name, mode=mode)
        except NotFoundError:
            raise error from None
        if tensor.version != self.version:
            found = tensor.version
            tensor.release()
            raise NotFoundError(
                errno.ENOENT, f"{error.strerror}; {self.name!r} is version {found} now, not {self.version}"
            ) from None
        return tensor

    def _connect(self):
        return client_for(self.address, self.namespace, self.autostart, self.timeout)


Ref.__module__ = "tensorlease"  # as users write it, and pickles too
