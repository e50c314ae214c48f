# SPDX-License-Identifier: Apache-2.0
"""For servers of several processes: models of Hugging Face's transformers, converted once and shared by all workers.

A model is a set of tensors below a path, which are published in one step: its parameters, its buffers and what else its
modules have as tensors, and _RECORD, a text in JSON that tells how to make the modules.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import sys
import time
import weakref

import numpy
import torch
import transformers
from transformers import AutoConfig, GenerationConfig, PreTrainedModel
from transformers.utils import cached_file

from . import _cache, _core
from ._errors import DisconnectedError, InvalidError, NotFoundError, NotNewerError
from ._lock import ForkLock
from ._paths import below
from .torch import _store

__all__ = ["from_pretrained", "newest", "publish"]


_core.modules()[__name__] = sys.modules[__name__]  # so that it is not imported twice

_RECORD = ".model"  # no module has such a name
_FORMAT = 1
_FILES = (".json", ".safetensors", ".bin", ".py")
_HUB = ("cache_dir", "force_download", "local_files_only", "proxies", "token", "revision", "subfolder")  # for a file of it

_making = ForkLock()  # for the thread that makes a newer model
_models = weakref.WeakKeyDictionary()  # model -> (_Source, version)


# ---- What a model consists of ----


def _tensors_of(model):
    """Return {name: (module, its own name for it, tensor)} of all tensors that are attributes of modules."""
    found = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for held in (module._parameters, module._buffers, vars(module)):
            for own, tensor in held.items():
                if isinstance(tensor, torch.Tensor):
                    found[f"{path}.{own}" if path else own] = module, own, tensor
    return found


def _refuse(text):
    raise InvalidError(errno.EINVAL, text)


def _check_tensor(name, tensor):
    kind = type(tensor)
    if kind not in (torch.Tensor, torch.nn.Parameter):
        _refuse(f"{name} is a {kind.__module__}.{kind.__qualname__}, and only plain tensors can be shared")
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_quantized:
        _refuse(f"{name} is no plain tensor on the CPU: it has the dtype {tensor.dtype} on {tensor.device}")


def _how(module):
    """Return what has to be the same for a module to do the same with the same tensors, as far as it can be seen."""
    return type(module), len(module._forward_hooks), len(module._forward_pre_hooks), "forward" in vars(module)


def _check_modules(model, skeleton):
    """Raise an InvalidError unless the model is the skeleton with values."""
    there, made = dict(model.named_modules()), dict(skeleton.named_modules())
    for path in {**made, **there}:
        module, other = there.get(path), made.get(path)
        if module is None or other is None or _how(module) != _how(other):
            was, will = (
                f"a {type(one).__module__}.{type(one).__name__}" if one else "missing" for one in (module, other)
            )
            _refuse(
                f"the module {path!r} of {type(model).__name__} is {was}, and {will} when a worker makes it: "
                "conversions that change modules, or hook into them, need build=, which does that in each process"
            )
        for own, value in vars(module).items():
            several = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
            if own not in ("_parameters", "_buffers") and any(isinstance(one, torch.Tensor) for one in several):
                _refuse(f"the module {path!r} keeps tensors in {own!r}, which has no names for them: make them buffers")
            if isinstance(value, torch.ScriptObject):
                _refuse(
                    f"the module {path!r}, a {type(module).__name__}, keeps its weights packed in {own!r}, which is no "
                    "tensor and cannot be shared: convert to tensors of another dtype"
                )


def _check_shapes(what, shapes, skeleton):
    made = {name: list(tensor.shape) for name, (_, _, tensor) in _tensors_of(skeleton).items()}
    for name in {**made, **shapes}:
        if made.get(name) != shapes.get(name):
            _refuse(
                f"{what} has {name} of shape {shapes.get(name)}, and its configuration makes a model with "
                f"{made.get(name)} there (None: it has none): change the configuration with the model, and use one "
                "version of transformers everywhere"
            )


# ---- Where a model comes from ----


class _Source:
    """How models of one name are made in this process, and which of them is the newest."""

    def __init__(self, client, name, auto, build, trust=(), attention=None):
        self.client, self.name, self.trust = client, name, _cache.check_trust(trust)
        self.auto, self.build, self.attention = auto, build, attention
        self.newest = lambda: None

    def class_of(self, name):
        if self.auto is not None and self.auto.__name__ == name:
            return self.auto
        made = getattr(transformers, name, None)
        if not isinstance(made, type) or not issubclass(made, PreTrainedModel):
            _refuse(f"{self.name!r} is a {name}, which transformers does not have: give that class as auto=")
        return made

    def skeleton(self, record):
        """Return the model without values, on "meta"."""
        made = self.class_of(record["class"])
        config = made.config_class.from_dict(record["config"])
        if self.attention is not None:
            config._attn_implementation = self.attention
        with torch.device("meta"):  # in this thread only, unlike what transformers sets to make one of another dtype
            model = (self.build or made)(config)
        if type(model) is not made:
            _refuse(f"build= has made a {type(model).__name__}, and {self.name!r} is a {record['class']}")
        if record["generation"]:
            model.generation_config = GenerationConfig.from_dict(record["generation"])
        return model.requires_grad_(False).eval()

    def get(self):
        """Return (record, {name: Tensor}) of the newest set, or None if it is not there as a whole."""
        try:
            tensors = self.client.get_many(prefix=self.name, mode="c")
        except NotFoundError:
            return None
        if _RECORD not in tensors:
            return None
        for name, tensor in tensors.items():
            _cache.check_owner(self.client, f"{self.name}/{name}", tensor, self.trust)
        record = json.loads(bytes(tensors[_RECORD].bytes()))
        if record.get("format") != _FORMAT:
            _refuse(f"{self.name!r} was published by another version of tensorlease: delete it")
        return (record, tensors) if tensors.keys() >= set(record["tied"].values()) else None

    def model_of(self, found):
        """Return a model over the set's tensors."""
        record, tensors = found
        model = self.skeleton(record)
        _check_shapes(f"{self.name!r}", record["shapes"], model)
        made, loaded = {}, []
        for name, (module, own, old) in _tensors_of(model).items():
            key = record["tied"][name], isinstance(old, torch.nn.Parameter)
            if key not in made:
                tensor = tensors[key[0]].torch()
                made[key] = torch.nn.Parameter(tensor, requires_grad=False) if key[1] else tensor
            loaded.append((module, own, made[key]))
        _store(loaded)
        _models[model] = self, tensors[_RECORD].version
        self.newest = weakref.ref(model)
        return model

    def put(self, model, made, options):
        """Publish a model, if what others will make of it is the same."""
        if not isinstance(model, PreTrainedModel):
            _refuse(f"a {type(model).__name__} is no model of transformers: merge adapters into it, and unwrap it")
        if self.class_of(type(model).__name__) is not type(model):
            _refuse(f"{type(model).__name__} is not the one of transformers: give that class as auto=")
        tensors, first, tied = {}, {}, {}
        for name, (_, _, tensor) in _tensors_of(model).items():
            _check_tensor(name, tensor)
            same = tensor.data_ptr() or id(tensor), tensor.shape, tensor.stride(), tensor.dtype
            tied[name] = first.setdefault(same, name)
            tensors[tied[name]] = tensor.detach()
        generation = getattr(model, "generation_config", None)
        record = {
            "format": _FORMAT,
            "class": type(model).__name__,
            "config": json.loads(model.config.to_json_string(use_diff=False)),
            "generation": generation and json.loads(generation.to_json_string(use_diff=False)),
            "tied": tied,
            "shapes": {name: list(tensors[one].shape) for name, one in tied.items()},
            "made": made,
        }
        skeleton = self.skeleton(record)
        _check_modules(model, skeleton)
        _check_shapes("the model", record["shapes"], skeleton)
        tensors[_RECORD] = numpy.frombuffer(json.dumps(record).encode(), "uint8")
        self.client.put_many(tensors, prefix=self.name, replace=True, **options)


def _some(options, *names):
    return {name: options[name] for name in names if name in options}


def _files_of(id, options):
    """Return what tells one state of a model's files from another: a commit of the Hub, or sizes and times."""
    path = cached_file(id, "config.json", **_some(options, *_HUB))
    commit = re.search("/snapshots/([0-9a-f]{40})/", path)
    if commit and not os.path.isdir(id):
        return commit[1]
    found = [(file.name, file.stat()) for file in os.scandir(os.path.dirname(path)) if file.name.endswith(_FILES)]
    return str(sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in found))


def _made_of(id, files, auto, dtype, prepare, key, options):
    """Return what tells one conversion from another, as texts."""
    if prepare is not None and key is None:
        key = f"{getattr(prepare, '__module__', '')}.{getattr(prepare, '__qualname__', '<')}"
        if "<" in key or key.startswith("__main__."):
            raise TypeError("prepare= needs key=, a text that says what it does, unless it is a function of a module")
    others = {*options}.difference(_HUB, ["attn_implementation"])
    return {
        "id": os.path.realpath(id) if os.path.isdir(id) else id,
        "files": files,
        "class": auto.__name__,
        "dtype": str(dtype).removeprefix("torch."),
        "prepare": str(key),
        "options": repr(sorted((name, repr(options[name])) for name in others)) + str(options.get("subfolder", "")),
        "transformers": transformers.__version__,
    }


def _check_made(name, stored, made):
    """One that publish() has put there is anything that is wanted."""
    for what in made if stored else ():
        if made[what] != stored.get(what):
            _refuse(
                f"{name!r} is there, but was made with {what} {stored.get(what)}, and not {made[what]}: choose another "
                f"name, replace it with publish(), or delete it: `tensorlease rm --below {name}`"
            )


def from_pretrained(
    id,
    *,
    name=None,
    client=None,
    auto=None,
    dtype=None,
    prepare=None,
    key=None,
    build=None,
    evictable=True,
    timeout=_cache.PATIENCE,
    trust=(),
    **options,
):
    """Return a model as transformers would, whose parameters and buffers are the same memory in all processes.

    The first process that asks loads the model, converts it and publishes it. Others wait, and map what it has
    published. If it raises or dies, one of them does its work. What is published stays when that process ends.
    id: of the Hub, or a folder.
    name: the path below which the tensors are. None: "transformers/" and a hash of all that says how the model is made.
    client: a Client. None: one that the first call connects, to the default address.
    auto: a class whose from_pretrained() loads it. None: the one that the configuration names as its architecture.
    dtype, and all other options: for that from_pretrained(). None: the dtype of the files.
    prepare: called with the loaded model. It changes tensors and the configuration, as a merge does, or returns another
        model.
    key: a text that says what prepare does; another one whenever it begins to do something else. None: the name of the
        function.
    build: called with the configuration, it returns the model with the modules that prepare leaves, in each process and
        on the device "meta". For conversions that change modules.
    evictable: whether the daemon may delete the tensors when it needs space and nobody holds them.
    timeout, trust: as for Client.get_or_put().
    The model is in eval(), and no parameter requires a gradient. It is not meant for training: a process that writes to
    a tensor gets pages of its own, which no other process sees.
    InvalidError (a ValueError): what is there under the name was made in another way, or the model cannot be shared, as
    one with packed weights. NoSpaceError: the daemon has no space for it.
    """
    _core.check_seconds("timeout", timeout)
    client = client or _cache._default_client()
    id = os.fspath(id)
    files = _files_of(id, options)
    if re.fullmatch("[0-9a-f]{40}", files):
        options["revision"] = files  # the branch may go on before the model is loaded
    if auto is None:
        config = AutoConfig.from_pretrained(id, **_some(options, *_HUB, "code_revision", "trust_remote_code"))
        architecture = (config.architectures or [None])[0]
        auto = getattr(transformers, str(architecture), None)
        if auto is None:
            _refuse(f"transformers has no {architecture}, which {id} has as its architecture: give its class as auto=")
    made = _made_of(id, files, auto, dtype, prepare, key, options)
    if name is None:
        digest = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:16]
        name = f"transformers/{os.path.basename(made['id'].rstrip('/'))}/{digest}"
    name = below(name)[:-1]
    source = _Source(client, name, auto, build, trust, options.get("attn_implementation"))

    def load():
        model = auto.from_pretrained(id, **options, **({} if dtype is None else {"dtype": dtype}))
        if prepare is not None:
            returned = prepare(model)
            model = model if returned is None else returned
        source.put(model, made, {"evictable": evictable})

    patience = 0.0 if timeout is None else float(timeout)
    held, end, tries = [], time.monotonic() + patience, 0
    try:
        while True:
            found = source.get()
            if found:
                _check_made(name, found[0]["made"], made)
                return source.model_of(found)
            # a record without its tensors is no reason for the daemon to give a claim
            if held or _cache._claim(client, f"{name}/{_RECORD}", end, patience, held) or (tries := tries + 1) > 1:
                load()
    finally:
        if held:
            client._unclaim(f"{name}/{_RECORD}")


def newest(model):
    """Return the newest model under the name of one that from_pretrained() or newest() has returned.

    It is the model itself, at the cost of a look, until publish() puts another one there. Then it is that, as a whole,
    and the same object for all threads. The former one stays as it is for those that use it, and its memory goes with
    the last of them. So ask for each request, and keep what is returned: ``model = newest(model)``.
    A model that was deleted, or a daemon that has ended, changes nothing: the former one is returned.
    InvalidError (a ValueError): a model cannot be made of what is there.
    """
    if model not in _models:
        raise TypeError("newest() takes a model that tensorlease.transformers.from_pretrained() has returned")
    source, version = _models[model]
    last = source.newest()
    if last is not None:
        model, version = last, _models[last][1]
    lock = _making()
    if not lock.acquire(blocking=False):
        return model  # another thread makes one just now
    try:
        with contextlib.suppress(NotNewerError, NotFoundError, DisconnectedError):
            source.client.get(f"{source.name}/{_RECORD}", newer_than=version).release()
            found = source.get()
            return source.model_of(found) if found else model
        return model
    finally:
        lock.release()


def publish(model, name, *, client=None, build=None, evictable=True):
    """Put a model under a name, in place of what is there, in one step. newest() returns it from then on.

    model: of transformers, on the CPU. It is copied.
    name, client, build, evictable: as for from_pretrained(), which then returns this model for that name, whatever its
    other arguments are.
    InvalidError (a ValueError): it cannot be shared. NoSpaceError: the daemon has no space for both.
    """
    source = _Source(client or _cache._default_client(), below(name)[:-1], type(model), build)
    source.put(model, None, {"evictable": evictable})
