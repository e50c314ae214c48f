# SPDX-License-Identifier: Apache-2.0
"""Tensors in pickles, for other processes: Client.pickle_tensors() has the words."""

import contextlib
import pickle
import sys
import threading

from . import _core
from ._errors import Error

_sender = None  # the Client that Tensors are pickled for; None: they are not
_sent = threading.local()  # .refs: what is handed on by the pickle that this thread makes
_originals: dict = {}  # class -> its method that is replaced while there is a sender
_POOLS = "multiprocessing.pool", "concurrent.futures.process", "loky.process_executor", "joblib.externals.loky.process_executor"
_ON_THE_WAY = "multiprocessing", "torch", "loky", "joblib", __package__  # whose functions read for a pool


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
    _replace(ForkingPickler, "dumps", lambda *args, **kwargs: _pickled(*args, **kwargs)[0])
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
        original = _originals[owner] = vars(owner)[name]
        kind = classmethod if isinstance(original, classmethod) else lambda method: method
        original = getattr(original, "__func__", original)
        setattr(owner, name, kind(lambda self, *args, **kwargs: function(original, self, *args, **kwargs)))


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
    if getattr(_sent, "refs", None) is not None:
        _sent.refs.append(ref)
    return _get_sent, (ref, "r" if tensor.read_only else "c", tensor._dtype_tuple, tensor.shape)


def _get_sent(ref, mode, dtype, shape):
    """What a Tensor is pickled as. A process that is sent Tensors in this way sends them like that too."""
    try:
        client = ref._connect()
        if _sender is None:
            pickle_for(client)
        tensor = ref.get(client, mode)
    except Error as error:
        if _is_for_a_pool(sys._getframe(1)):
            return _Gone(error)
        raise
    if (tensor._dtype_tuple, tensor.shape) == (dtype, shape):
        return tensor
    return tensor._view(dtype, shape)  # the sender's was one


def _is_for_a_pool(frame):
    """Whether the thread or process of a pool is unpickling: one that gives up, or ends, when that raises."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module in _POOLS:
            return True
        if module.partition(".")[0] not in _ON_THE_WAY:
            return False
        frame = frame.f_back
    return False


class _Gone:
    """What a task, or the caller of a pool, gets in place of a Tensor that could not be received: it raises the error
    whenever it is used. A pool to which unpickling raises it would lose the task, and tell nobody."""

    def __init__(self, error):
        self.__dict__["_error"] = error

    def __reduce__(self):
        return _Gone, (self._error,)

    def _raise(self, *args, **kwargs):
        raise self._error

    __getattr__ = __setattr__ = __len__ = __iter__ = __getitem__ = __setitem__ = __contains__ = __bool__ = __eq__ = _raise
    __enter__ = __exit__ = __array__ = __dlpack__ = __dlpack_device__ = __buffer__ = __float__ = __int__ = _raise


# ---- arrays ---------------------------------------------------------------------------------------------------------


def _tensor_of(array):
    """The Tensor whose memory the array of NumPy is a view of, or None."""
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

    tensor = get(*arguments)
    if isinstance(tensor, _Gone):
        return tensor
    return numpy.ndarray(shape, dtype, _bytes_of(tensor), offset, strides)


# ---- multiprocessing's pickles and queues ---------------------------------------------------------------------------


def _pickled(dumps, cls, obj, *args, **kwargs):
    """Return what ForkingPickler.dumps() returns, and the Refs that it has handed on. If it fails they are taken back."""
    outer = getattr(_sent, "refs", None)
    refs = _sent.refs = []
    try:
        return dumps(cls, obj, *args, **kwargs), refs
    except BaseException:
        _take_back(refs)
        raise
    finally:
        _sent.refs = outer


def _take_back(refs):
    for ref in refs:
        with contextlib.suppress(Error):
            ref.get(_sender).release()


class _Pickled:
    """What is put into a queue in place of an object."""

    def __init__(self, data):
        self.data = data

    def __reduce__(self):
        return pickle.loads, (self.data,)


def _put(original, self, obj, block=True, timeout=None):
    """A queue pickles in a thread, when a Tensor may have been released, and prints what goes wrong there. So it is pickled
    here, unless the queue is one of a pool, which tells what goes wrong there."""
    import queue
    from multiprocessing import queues
    from multiprocessing.reduction import ForkingPickler

    tells = type(self)._on_queue_feeder_error is not queues.Queue._on_queue_feeder_error
    if _sender is None or tells or self._closed:
        return original(self, obj, block, timeout)
    if not self._sem.acquire(block, timeout):  # what is pickled may have a descriptor for whoever receives it
        raise queue.Full
    try:
        data, refs = _pickled(_originals[ForkingPickler].__func__, ForkingPickler, obj)
    finally:
        self._sem.release()
    try:
        return original(self, _Pickled(bytes(data)), block, timeout)
    except BaseException:  # such as Full, if another thread or process was faster
        _take_back(refs)
        raise
