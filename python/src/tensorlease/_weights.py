# SPDX-License-Identifier: Apache-2.0
"""How a set of weights is published for an update, and how a model loads one: for the plug-ins of engines.

They are python/integrations/vllm, verl and sglang. Nothing else imports this module, since it needs PyTorch.
"""

import contextlib
import queue
import secrets
import threading
import time
import weakref

import torch

from ._errors import NotFoundError
from ._paths import below


@contextlib.contextmanager
def leased(tensors, device=None):
    """Within it there is an iterator over names and torch.Tensors, as load_weights() of a model takes it.

    tensors: a dict of names and Tensors. Their leases are given back at the end, also after an error, once the device
        (None: the current one) has read them. A view that the model keeps for later has a lease of its own.
    """
    # One after the other, because each view on the CPU is a mapping, of which a process has 65,530 by default.
    views = ((name, tensor.torch()) for name, tensor in tensors.items())
    try:
        yield views
    finally:
        views.close()
        try:
            if torch.accelerator.is_available() and (device is None or device.type != "cpu"):
                torch.accelerator.synchronize(device)
        finally:
            for tensor in tensors.values():
                tensor.release()


@contextlib.contextmanager
def received(client, info, device=None):
    """Within it there is an iterator, as within leased(), over exactly the weights of one update, of one moment.

    info: what published() gave: prefix, names and update. device: as for leased().
    RuntimeError, before anything was read: they are not there, or others are.
    """
    start, update = info["prefix"], info["update"]
    try:
        tensors = client.get_many(info["names"], prefix=start)
    except NotFoundError as error:
        raise RuntimeError(
            f"the weights of this update, below {start!r}, are gone ({error.strerror}): send them again, and "
            "delete or replace them only when all workers have finished"
        ) from error
    with leased(tensors, device) as weights:
        others = [name for name, tensor in tensors.items() if tensor.metadata != update.encode()]
        if others:
            raise RuntimeError(
                f"{len(others)} of {len(tensors)} weights below {start!r} are not of this update, such as "
                f"{others[0]!r}: they were published again meanwhile; let one trainer at a time use a prefix"
            )
        yield weights


@contextlib.contextmanager
def published(client, prefix, weights, *, keep, timeout):
    """Publish weights in one step. Within it there is the info with which workers call received().

    weights: an iterable of names and torch.Tensors.
    keep: True publishes copies, which stay and take the place of all that was below prefix. False publishes tensors on
        GPUs where they lie, beside prefix, and deletes them at the end. It then waits until nobody holds them.
    timeout: seconds to wait for space, and at the end until nobody holds the weights.
    """
    arrays = {name: tensor.detach().contiguous() for name, tensor in weights}
    update, start = secrets.token_hex(8), below(prefix)
    info = {"prefix": start, "names": list(arrays), "update": update}
    if keep:
        client.put_many(arrays, prefix=start, replace=True, metadata=update.encode(), timeout=timeout)
        arrays.clear()
        yield info
        return
    info["prefix"] = start = f"{start[:-1]}.{update}/"
    client.publish_many(
        arrays, prefix=start, metadata=update.encode(), timeout=timeout, sealed=True, owner_bound=True
    )
    # From here on only the library holds these objects, if they were published in place: PyTorch's DLPack keeps the
    # object itself until the deleter is called. A SimpleQueue may be put to anywhere, also within its own get().
    returned = queue.SimpleQueue()
    lent = [weakref.ref(tensor, returned.put) for tensor in arrays.values()]
    arrays.clear()
    try:
        yield info
    finally:
        client.delete(prefix=start, missing_ok=True)
    deadline = time.monotonic() + timeout
    for count in range(len(lent)):
        try:
            returned.get(timeout=min(max(0, deadline - time.monotonic()), threading.TIMEOUT_MAX))
        except queue.Empty:
            raise TimeoutError(
                f"the update is finished, but {len(lent) - count} of {len(lent)} weights, published in place "
                f"below {start!r}, are still held after {timeout} s: end the processes that hold them before these "
                "weights are changed"
            ) from None
