# SPDX-License-Identifier: Apache-2.0
"""Tensors in pickles, for other processes: Client.pickle_tensors() has the words."""

import contextlib
import pickle
import sys
import threading

from . import _core
from ._errors import Error

_sender = None  # the Client that Tensors are pickled for; None: they are not
_sent = threading.local()  # .refs: what was handed on by the put() that this thread is in
_originals: dict = {}  # class -> its method that is replaced while there is a sender


def pickle_for(client):
    """Client.pickle_tensors() has the words."""
    global _sender
    _sender = client
    if client is None:
        return
    from multiprocessing import queues  # takes long to import
    from multiprocessing.reduction import ForkingPickler

    for queue in (queues.Queue, queues.JoinableQueue):
        _replace(queue, "put", _put)
    with contextlib.suppress(ImportError):
        import numpy

        ForkingPickler.register(numpy.ndarray, _reduce_array)
    reducers = sys.modules.get("joblib._memmapping_reducer")
    if reducers:
        _replace(reducers.ArrayMemmapForwardReducer, "__call__", _reduce_for_joblib)
    if "ray" in sys.modules:
        _register_with_ray()


def _replace(owner, name, function):
    if owner not in _originals:
        _originals[owner] = vars(owner)[name]
        setattr(owner, name, lambda self, *args, **kwargs: function(_originals[owner], self, *args, **kwargs))


def _reduce_for_joblib(original, self, array):
    """Without this joblib writes a large array to a file in /dev/shm."""
    return _reduce_view(array) or original(self, array)


def _register_with_ray():
    """An object of Ray may be read by many, and again later."""
    from ray.util import register_serializer

    from ._tensor import Tensor

    register_serializer(
        Tensor, serializer=lambda tensor: reduce_tensor(tensor, once=False)[1], deserializer=lambda args: _get_sent(*args)
    )


def reduce_tensor(tensor, once=True):
    """What pickle writes for a Tensor, which is handed on by it."""
    if _sender is None:
        raise TypeError(
            "a Tensor is a lease of this process: send client.ref(tensor), whose get() returns it there; or call "
            "client.pickle_tensors() once, after which Tensors are sent like that by themselves"
        )
    if tensor.copied:
        raise ValueError(f"{tensor!r} cannot be sent: it is a copy, and its name means the tensor on another device")
    ref = _sender.ref(tensor, once=once)
    if hasattr(_sent, "refs"):
        _sent.refs.append(ref)
    return _get_sent, (ref, "r" if tensor.read_only else "c", tensor._dtype_tuple, tensor.shape)


def _get_sent(ref, mode, dtype, shape):
    """What a Tensor is pickled as. A process that is sent Tensors in this way sends them like that too."""
    client = ref._connect()
    if _sender is None:
        pickle_for(client)
    tensor = ref.get(client, mode)
    if (tensor._dtype_tuple, tensor.shape) == (dtype, shape):
        return tensor
    return tensor._view(dtype, shape)  # the sender's was one


# ---- arrays ---------------------------------------------------------------------------------------------------------


def _tensor_of(array):
    """The Tensor whose memory the array is a view of, or None."""
    while array is not None and not isinstance(array, _core.Tensor):
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
    return array


def _reduce_view(array):
    """What is pickled for an array over a Tensor that can be sent; None: the array must be copied."""
    tensor = _tensor_of(array)
    if _sender is None or tensor is None or not array.nbytes:
        return None
    try:
        if not tensor.read_only:  # what was written to it would not be sent
            return None
        begin = _bytes_of(tensor).__array_interface__["data"][0]
        sent = reduce_tensor(tensor)
    except ValueError:  # it was released, which its arrays do not mind, or is of another daemon
        return None
    offset = array.__array_interface__["data"][0] - begin
    return _view_sent, (*sent, array.dtype, array.shape, array.strides, offset)


def _reduce_array(array):
    """What multiprocessing pickles an array as."""
    return _reduce_view(array) or array.__reduce_ex__(4)


def _bytes_of(tensor):
    import numpy

    return numpy.frombuffer(tensor.bytes(), numpy.uint8)


def _view_sent(get, arguments, dtype, shape, strides, offset):
    import numpy

    return numpy.ndarray(shape, dtype, _bytes_of(get(*arguments)), offset, strides)


# ---- multiprocessing's queues ---------------------------------------------------------------------------------------


class _Pickled:
    """What is put into a queue in place of an object with Tensors in it."""

    def __init__(self, data):
        self.data = data

    def __reduce__(self):
        return pickle.loads, (self.data,)


def _has_tensor(thing):
    if isinstance(thing, dict):
        return any(map(_has_tensor, thing.values()))
    if isinstance(thing, (tuple, list)):
        return any(map(_has_tensor, thing))
    return _tensor_of(thing) is not None


def _put(original, self, thing, *args, **kwargs):
    """A queue pickles in a thread, when the Tensor may have been released, and prints what goes wrong there. So what has
    Tensors is pickled here."""
    from multiprocessing.reduction import ForkingPickler

    if _sender is None or not _has_tensor(thing):
        return original(self, thing, *args, **kwargs)
    refs = _sent.refs = []
    try:
        thing = _Pickled(bytes(ForkingPickler.dumps(thing)))
        del _sent.refs  # another put() may be called while this one waits
        return original(self, thing, *args, **kwargs)
    except BaseException:  # such as Full
        vars(_sent).pop("refs", None)
        for ref in refs:
            with contextlib.suppress(Error):
                ref.get(_sender).release()
        raise
