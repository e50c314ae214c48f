# SPDX-License-Identifier: Apache-2.0
"""Exceptions. All derive from Error, which is an OSError, and from a builtin class where one fits."""

import builtins
import errno


class Error(OSError):
    """A call failed. errno says how, and strerror has the text of the library."""


class NotFoundError(Error, FileNotFoundError, KeyError):
    """No tensor has that name."""


class NotNewerError(Error, BlockingIOError):
    """The tensor is not newer than the version that was given, and the call does not wait."""


class TimeoutError(Error, builtins.TimeoutError):
    """The timeout is over: no tensor came, or the daemon did not answer."""


class InvalidError(Error, ValueError):
    """An argument is wrong: a name, a shape, a type, the size of the metadata, a DLPack tensor, a file."""


class PermissionDeniedError(Error, PermissionError):
    """The name belongs to another user, or this user may not use the socket or does not trust the daemon."""


class NoSpaceError(Error):
    """The tensor does not fit: the daemon's capacity, /dev/shm or this user's quota is used up, also after a wait."""


class DisconnectedError(Error, ConnectionError):
    """The daemon is gone. Later calls connect again by themselves."""


class KickedError(Error, ConnectionAbortedError):
    """An administrator has disconnected this client. It stays so: close it and connect anew."""


class NoDaemonError(DisconnectedError, ConnectionRefusedError):
    """Nobody listens at the address."""


class TooManyClientsError(Error):
    """The daemon has as many clients, or this user as many connections, as it may have."""


class UnsupportedError(Error):
    """The memory cannot be shared, a GPU tensor cannot do this, or a file has other types than tensors."""


class NoDeviceError(Error):
    """CUDA cannot be used in this process, or the process does not see that GPU."""


class StreamEndedError(Error, BrokenPipeError):
    """The stream was ended, and takes no more items."""


class TensorLostError(Error):
    """The tensor was in GPU memory of the process that published it, and that process has ended."""


BY_ERRNO = {
    errno.ENOENT: NotFoundError,
    errno.EAGAIN: NotNewerError,
    errno.ETIMEDOUT: TimeoutError,
    errno.EINVAL: InvalidError,
    errno.EACCES: PermissionDeniedError,
    errno.EPERM: PermissionDeniedError,
    errno.ENOSPC: NoSpaceError,
    errno.EDQUOT: NoSpaceError,
    errno.ENOTCONN: DisconnectedError,
    errno.ECONNABORTED: KickedError,
    errno.ECONNREFUSED: NoDaemonError,
    errno.ENOTSUP: UnsupportedError,
    errno.ENODEV: NoDeviceError,
    errno.ENODATA: TensorLostError,
    errno.EPIPE: StreamEndedError,
    errno.EUSERS: TooManyClientsError,
}

for _class in {Error, *BY_ERRNO.values()}:
    _class.__module__ = "tensorlease"  # as users write it, and tracebacks too

CONNECTING = {
    **BY_ERRNO,
    errno.ENOENT: NoDaemonError,
    errno.EDQUOT: TooManyClientsError,
}
