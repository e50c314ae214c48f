# SPDX-License-Identifier: Apache-2.0
"""For programs with PyTorch: models whose weights all processes share, and datasets that are decoded once.

Importing this module teaches torch.utils.data.default_collate() to take Tensors.
"""

import contextlib
import functools
import json
import math
import operator
import os
import struct
import sys
import threading
import weakref

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.data import Dataset, IterableDataset
from torch.utils.data._utils.collate import default_collate_fn_map

from . import _core
from ._client import Client, connect
from ._errors import InvalidError, NotFoundError
from ._paths import below
from ._tensor import Tensor

__all__ = ["CachedDataset", "allocator", "load_model", "meta_weights"]


def _collate(batch, **_):
    return torch.stack([tensor.torch() for tensor in batch])


default_collate_fn_map[Tensor] = _collate
_core.modules()[__name__] = sys.modules[__name__]  # so that it is not imported twice


# ---- Memory of GPUs ----


@functools.cache
def _pluggable():
    return torch.cuda.memory.CUDAPluggableAllocator(_core.library_path(), "tl_cuda_alloc", "tl_cuda_free")


def allocator():
    """Return an allocator for torch.cuda.MemPool whose memory can be shared.

        pool = torch.cuda.MemPool(tensorlease.torch.allocator())
        with torch.cuda.use_mem_pool(pool):
            model = Model().cuda()
        client.publish_many(model.state_dict(), prefix="model")

    publish() and publish_many() share tensors in it in place, and once the GPU has written them they outlive this
    process. PyTorch divides it and uses it again; published tensors keep theirs until it is given back. It needs no
    client: the daemon counts memory when something in it is published. The pool must live as long as its tensors.
    """
    return _pluggable().allocator()


# ---- Models ----


_RANDOM = (torch.Tensor.normal_, torch.Tensor.uniform_)


class _Unfilled(TorchFunctionMode):
    """Leaves out the initial values of tensors on "meta".

    They have none, but PyTorch loads a compiler to find that out, which takes seconds.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in _RANDOM or getattr(function, "__module__", None) == "torch.nn.init":
            tensor = args[0] if args else kwargs.get("tensor")
            if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                return tensor
        return function(*args, **kwargs)


class _OnMeta:
    """What Module.register_parameter() is while threads are within meta_weights(). There is one, `_on_meta`."""

    def __init__(self):
        self.lock = threading.Lock()
        self.users = []  # [the number of its thread] for each
        self.loading = threading.local()  # .on: this thread stores what it has loaded
        self.register = None  # what it was before
        self.instead = lambda module, name, param: self.call(module, name, param)
        self.made = {}  # id of a parameter -> (weak reference to it, the one on "meta"), so that tied ones stay tied

    def enter(self, user):
        with self.lock:
            self.users.append(user)
            if torch.nn.Module.register_parameter is not self.instead:
                self.register = torch.nn.Module.register_parameter
                torch.nn.Module.register_parameter = self.instead

    def leave(self, user):
        """End what enter(user) has begun, or has not, if an exception came in between."""
        with self.lock:
            self.users = [other for other in self.users if other is not user]
            self.end_unless_used()

    def end_unless_used(self):
        if not self.users and torch.nn.Module.register_parameter is self.instead:
            torch.nn.Module.register_parameter = self.register
            self.made.clear()

    def forked(self):
        """Go on in a child of fork(), which has none of the other threads. One of them may have been in enter()."""
        self.lock = threading.Lock()
        self.users = [user for user in self.users if user == [threading.get_ident()]]
        self.end_unless_used()

    def call(self, module, name, param):
        """Register the parameter on "meta" instead. One that is lazy has no memory yet, and nothing to be copied."""
        loading = getattr(self.loading, "on", False)
        if not loading and param is not None and not param.is_meta and not torch.nn.parameter.is_lazy(param):
            param = self.like(param)
        self.register(module, name, param)

    def like(self, param):
        reference, made = self.made.get(id(param), (None, None))
        if reference is None or reference() is not param:
            made = torch.nn.Parameter(param.detach().to("meta"), param.requires_grad)
            self.made[id(param)] = (weakref.ref(param), made)
        return made


_on_meta = _OnMeta()
os.register_at_fork(after_in_child=_on_meta.forked)


@contextlib.contextmanager
def meta_weights():
    """Within it modules are made with their parameters on the device "meta", and with all their buffers as usual.

    load_model() then has nothing to replace that took memory or was filled at random. ``torch.device("meta")`` would
    leave without values those buffers that a state_dict does not have, as the models of transformers have some. It is
    for all threads of the process, and for a child of fork() if the thread that forks is within it. What load_model()
    puts into a model meanwhile stays as it is, and nothing else: ``load_state_dict(..., assign=True)`` in another thread
    puts its tensors on "meta" too.
    """
    user = [threading.get_ident()]
    try:
        _on_meta.enter(user)
        with _Unfilled():
            yield
    finally:
        _on_meta.leave(user)


def _slots(model):
    """Yield (name, module, its own name for it, tensor, whether it is a parameter) for all that a state_dict has."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        dot = prefix + "." if prefix else ""
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield dot + name, module, name, parameter, True
        for name, buffer in module._buffers.items():
            if buffer is not None:
                yield dot + name, module, name, buffer, False


def _load_one(start, name, tensor, old, is_parameter):
    """Return what takes the place of old in the model."""
    if torch.nn.parameter.is_lazy(old):
        raise InvalidError(
            22,
            f"{name} of the model is lazy and has no shape yet, so that {start}{name} cannot be loaded: call the model "
            "once, or make it without lazy modules",
        )
    tensor = tensor.torch()
    if tensor.shape != old.shape:
        raise InvalidError(22, f"{start}{name} has the shape {tuple(tensor.shape)}, the model's {tuple(old.shape)}")
    if not is_parameter:
        return tensor.clone()
    numbers = tensor.is_floating_point() or tensor.is_complex()  # no others have a gradient
    return torch.nn.Parameter(tensor, requires_grad=old.requires_grad and numbers)


def _load(start, got, model, strict):
    """Return what to store in the model, as (module, name, tensor), and the names that stay without values."""
    wanted = model.state_dict(keep_vars=True)
    groups = {}  # tied weights are one object under several names
    for slot in _slots(model):
        groups.setdefault(id(slot[3]), []).append(slot)
    loaded, left = [], []
    for slots in groups.values():
        names = [slot[0] for slot in slots]
        name = next((name for name in names if name in got), None)
        _, _, _, old, is_parameter = slots[0]
        if name is not None:
            tensor = _load_one(start, name, got[name], old, is_parameter)
            for _, module, own, _, _ in slots:
                loaded.append((module, own, tensor))
        elif strict and any(name in wanted for name in names):
            raise NotFoundError(2, f"there is no tensor {start}{names[0]} for the model")
        elif old.is_meta:
            left.extend(names)
    return loaded, left


def load_model(client, prefix, model, *, strict=True, timeout=None):
    """Put the tensors below PREFIX/ into model, without a copy of its weights, and return it.

    prefix: as it was given to Client.load(); a '/' at its end makes no difference.
    model: a torch.nn.Module, best made within meta_weights(), so that its weights have no memory of their own.
    strict: whether each parameter and each buffer of model.state_dict() must be there.
    timeout: seconds to wait until there are tensors below PREFIX/. None: do not wait.
    Parameters become shared memory, over copy-on-write mappings: writing to one gives this process pages of its
    own. Buffers are copied, because modules write to theirs. Both get the dtypes of the tensors, whatever the
    model's are. Weights that are tied in the model stay tied, and it is enough if the tensor of one of their names
    is there. Buffers that a state_dict does not have are left alone; on "meta" they have no values, and with strict it
    is an InvalidError if one is left there.
    NotFoundError: a tensor is missing. InvalidError (a ValueError): one has another shape, or the model's parameter is
    lazy, as those of torch.nn.LazyLinear are until the model is called for the first time. After an error the model is
    as it was.
    """
    start = below(prefix)
    got = client.get_many(prefix=prefix, timeout=timeout)
    loaded, left = _load(start, got, model, strict)
    if strict and left:
        raise InvalidError(
            22,
            f"{left[0]} has no values: it is on the device meta, and no state_dict has it; make the model within "
            "tensorlease.torch.meta_weights()",
        )
    _on_meta.loading.on = True
    try:
        for module, own, tensor in loaded:  # nothing has changed before, and nothing fails below
            setattr(module, own, tensor)  # as an assignment, of which modules such as LSTM take note
    finally:
        _on_meta.loading.on = False
    return model


# ---- Samples as one tensor of bytes ----

_ALIGN = 64
_LENGTH = struct.Struct("<Q")
_COPIED = 1 << 20  # samples of at most so many bytes are copied, not mapped


def _refuse(sample, instead):
    kind = type(sample)
    raise TypeError(f"a sample of {kind.__module__}.{kind.__qualname__} cannot be shared: {instead}")


def _plain_tensor(sample):
    """Return the same elements on the CPU, dense and in their order in memory, without what bytes do not say."""
    if type(sample) is not torch.Tensor:
        _refuse(sample, "it would come back as a torch.Tensor; give sample.as_subclass(torch.Tensor), and wrap it again")
    if sample.requires_grad:
        _refuse(sample, "it has a gradient, and would come back without one; give sample.detach()")
    if sample.layout != torch.strided or sample.is_quantized:
        _refuse(sample, "it is sparse or quantized; to_dense() and dequantize() make tensors that can be")
    plain = sample.detach().resolve_conj().resolve_neg().cpu()
    return plain if plain.is_contiguous() else plain.clone()


def _describe_array(sample, arrays):
    import numpy

    dtype = sample.dtype
    named = dtype.type.__module__ == "ml_dtypes"  # the others say by dtype.str what they are
    if isinstance(sample, numpy.ma.MaskedArray) or dtype.hasobject or (dtype.kind == "V" and not named):
        _refuse(sample, f"its elements are masked, or not numbers and texts, but {dtype}; give the fields one by one")
    if type(sample) not in (numpy.ndarray, numpy.memmap, dtype.type):
        _refuse(sample, "it would come back as one of NumPy's own types; give numpy.asarray(sample), and wrap it again")
    in_order = sample.flags.c_contiguous
    dense = numpy.ascontiguousarray(sample) if in_order else numpy.array(sample, order="K")
    array = dense.reshape(-1) if in_order else dense.ravel("K")
    arrays.append(torch.from_numpy(array.view("uint8") if array.nbytes else numpy.empty(0, "uint8")))
    kind = "scalar" if isinstance(sample, numpy.generic) else "numpy"
    # array.dtype: an empty text, "<U0", becomes one of a character
    described = [dtype.name if named else array.dtype.str, list(sample.shape)]
    return {kind: described if dense.flags.c_contiguous else [*described, list(dense.strides)]}


def _describe(sample, arrays):
    """Return a description of the sample for JSON, and append what has bytes to arrays."""
    if isinstance(sample, Tensor):
        sample = sample.torch()
    if isinstance(sample, torch.Tensor):
        plain = _plain_tensor(sample)
        described = [str(sample.dtype).removeprefix("torch."), list(sample.shape)]
        if plain.numel() and plain.stride() != torch.empty(plain.shape, device="meta").stride():  # as channels_last
            described.append(list(plain.stride()))
            plain = plain.as_strided((plain.numel(),), (1,))
        arrays.append(plain)
        return {"torch": described}
    if sample is None or type(sample) in (bool, int, float, str):
        return {"": sample}
    if hasattr(sample, "__array_interface__") and hasattr(sample, "dtype"):
        return _describe_array(sample, arrays)
    if type(sample) in (bytes, bytearray):
        arrays.append(torch.frombuffer(bytearray(sample), dtype=torch.uint8) if sample else torch.empty(0))
        return {type(sample).__name__: len(sample)}
    if type(sample) in (list, tuple):
        return {type(sample).__name__: [_describe(one, arrays) for one in sample]}
    if type(sample) is dict:
        return {"dict": [[_describe_key(key), _describe(one, arrays)] for key, one in sample.items()]}
    _refuse(sample, "make it of tensors, arrays, numbers, texts, bytes, lists, tuples and dicts, in the dataset")


def _describe_key(key):
    if key is None or type(key) in (bool, int, float, str):
        return key
    _refuse(key, "keys of a dict are texts and numbers")


def _encode(sample):
    arrays = []
    text = json.dumps(_describe(sample, arrays)).encode()
    parts, at = [_LENGTH.pack(len(text)), text], _LENGTH.size + len(text)
    for array in arrays:
        parts.append(bytes(-at % _ALIGN))
        data = bytes(array.reshape(-1).view(torch.uint8).numpy()) if array.numel() else b""
        parts.append(data)
        at += len(parts[-2]) + len(data)
    return b"".join(parts)


def _numpy_dtype(word):
    import numpy

    if word[0] in "<>|=":
        return numpy.dtype(word)
    import ml_dtypes

    return numpy.dtype(getattr(ml_dtypes, word))


_loads = functools.lru_cache(maxsize=4096)(json.loads)  # many samples are alike; what it returns is only read


class _Reader:
    """Makes samples of bytes that are this process's own, so that tensors may be written to.

    A small sample is copied: that takes less time than a mapping of its own, whose pages come one fault after the
    other. Each call of torch takes as long as the copy of some KiB, so there are as few as can be.
    """

    def __init__(self, tensor):
        if tensor.nbytes <= _COPIED:
            self.data = bytearray(tensor.bytes())
        else:
            self.data = memoryview(tensor.torch().numpy())
        (size,) = _LENGTH.unpack_from(self.data)
        self.at = _LENGTH.size + size
        self.described = _loads(str(self.data[_LENGTH.size : self.at], "utf-8"))

    def take(self, nbytes):
        """Return where the next nbytes begin."""
        start = self.at + -self.at % _ALIGN
        self.at = start + nbytes
        return start

    def read(self, what):
        ((kind, value),) = what.items()
        if kind == "torch":
            dtype, count = getattr(torch, value[0]), math.prod(value[1])
            start = self.take(count * dtype.itemsize)
            if not count:
                return torch.empty(value[1], dtype=dtype)
            flat = torch.frombuffer(self.data, dtype=dtype, count=count, offset=start)
            return flat.as_strided(*value[1:]) if value[2:] else flat.view(value[1])
        if kind in ("numpy", "scalar"):
            import numpy

            dtype, count = _numpy_dtype(value[0]), math.prod(value[1])
            start = self.take(count * dtype.itemsize)
            flat = numpy.frombuffer(self.data, "uint8", count * dtype.itemsize, start)
            if value[2:]:
                return numpy.ndarray(value[1], dtype, flat, 0, value[2])
            array = flat.view(dtype).reshape(value[1])
            return array if kind == "numpy" else array[()]
        if kind in ("bytes", "bytearray"):
            start = self.take(value)
            return (bytes if kind == "bytes" else bytearray)(self.data[start : start + value])
        if kind == "dict":
            return {key: self.read(one) for key, one in value}
        if kind in ("list", "tuple"):
            return (list if kind == "list" else tuple)(self.read(one) for one in value)
        return value


class CachedDataset(Dataset):
    """A map-style dataset whose samples are made once on the machine and shared by all workers of all programs.

    dataset: any dataset with a length and items that are tensors, arrays, numbers, texts, bytes, or lists, tuples and
        dicts of these. What it does at random is done once too: augment what comes out of this.
    client: a Client, or None for one that each process connects when it needs it, to the default address.
    prefix: of the names, PREFIX/INDEX. Another one is needed as soon as the dataset returns something else.
    evictable: whether samples may go when the daemon needs space; then they are made anew.
    ttl: seconds after which a sample goes, and is made anew. None: they stay until clear(), also when all programs have
        ended, and a daemon that was started for them stays too.
    Tensors and arrays of a sample may be written to, and nobody else sees it: those of a sample of more than 1 MiB lie
    in the shared memory, over a copy-on-write mapping; smaller samples are copied, which is faster. The order of their
    dimensions in memory is kept, as torch.channels_last, but no gaps between elements. Only samples of this user and of
    root are taken.
    """

    def __init__(self, dataset, client=None, prefix="dataset", *, evictable=True, ttl=None):
        if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            raise TypeError(f"the samples of {type(dataset)!r} have no indexes: a dataset needs __getitem__ and __len__")
        if client is not None and not isinstance(client, Client):
            raise TypeError(f"client must be a Client or None, not {type(client)!r}")
        self.dataset, self.client, self.evictable, self.ttl = dataset, client, evictable, ttl
        self.prefix = prefix.removesuffix("/")

    def __len__(self):
        return len(self.dataset)

    def _connected(self):
        if self.client is None:
            self.client = connect()
        return self.client

    def clear(self):
        """Delete the samples, for all programs. They are made anew when somebody asks for them."""
        client, start = self._connected(), below(self.prefix)
        for name in client.keys(start):
            if name[len(start) :].isdecimal():
                client.delete(name, missing_ok=True)

    def __getitem__(self, index):
        try:
            index = operator.index(index)
        except TypeError:
            raise TypeError(f"the index of a sample must be an int, not {type(index)!r}") from None
        size = len(self.dataset)
        if not -size <= index < size:
            raise IndexError(f"sample {index} of {size}")
        index %= size
        tensor = self._connected().get_or_put(
            f"{below(self.prefix)}{index}",
            lambda: _encode(self.dataset[index]),
            evictable=self.evictable,
            ttl=self.ttl,
        )
        reader = _Reader(tensor)
        return reader.read(reader.described)
