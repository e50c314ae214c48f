# SPDX-License-Identifier: Apache-2.0
"""For programs with PyTorch: models whose weights all processes share, and datasets that are decoded once.

Importing this module teaches torch.utils.data.default_collate() to take Tensors.
"""

import contextlib
import functools
import os
import sys
import threading
import weakref

import torch
from torch.overrides import TorchFunctionMode

from . import _core
from ._dataset import CachedDataset
from ._errors import InvalidError, NotFoundError
from ._loader import DataLoader
from ._paths import below
from ._shared_loader import SharedLoader

__all__ = ["CachedDataset", "DataLoader", "SharedLoader", "allocator", "load_model", "meta_weights"]


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


def _store(loaded):
    """Put tensors into modules, as (module, its own name for it, tensor)."""
    _on_meta.loading.on = True
    try:
        for module, own, tensor in loaded:
            setattr(module, own, tensor)  # as an assignment, of which modules such as LSTM take note
    finally:
        _on_meta.loading.on = False


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
    _store(loaded)  # nothing has changed before, and nothing fails below
    return model
