# SPDX-License-Identifier: Apache-2.0
"""Exceptions. All derive from Error, an OSError; where Python has a fitting class, from that as well."""

import builtins
import errno


class Error(OSError):
    """A call failed. errno and strerror say how, in the words of the library."""


class NotFoundError(Error, FileNotFoundError):
    """No tensor has that name."""


class NotNewerError(Error, BlockingIOError):
    """The name's tensor is not newer than asked for, and there was no time to wait."""


class TimeoutError(Error, builtins.TimeoutError):
    """It did not happen in time."""


class InvalidError(Error, ValueError):
    """An argument is wrong: a name, a shape, a type, the size of the metadata, a DLPack tensor, a file."""


class PermissionDeniedError(Error, PermissionError):
    """The name belongs to another user, or the socket is not for this one."""


class NoSpaceError(Error):
    """It does not fit: the daemon's capacity or this user's quota is used up."""


class DisconnectedError(Error, ConnectionError):
    """The daemon is gone. Later calls connect again by themselves."""


class NoDaemonError(DisconnectedError, ConnectionRefusedError):
    """Nobody listens at the address."""


class UnsupportedError(Error):
    """Memory of a kind that cannot be shared, what a GPU's tensors cannot do, or types of a file that no tensor has."""


class NoDeviceError(Error):
    """CUDA cannot be used in this process, or the GPU is not among those that it sees."""


class TensorLostError(Error):
    """The tensor lay in GPU memory of the process that published it, and that has ended."""


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
    errno.ECONNREFUSED: NoDaemonError,
    errno.ENOTSUP: UnsupportedError,
    errno.ENODEV: NoDeviceError,
    errno.ENODATA: TensorLostError,
}

CONNECTING = {
    **BY_ERRNO,
    errno.ENOENT: NoDaemonError,
}
