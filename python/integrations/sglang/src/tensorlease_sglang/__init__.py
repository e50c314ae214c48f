# SPDX-License-Identifier: Apache-2.0
"""SGLang with weights from shared memory: updates by a trainer, and the weights with which a server starts.

load() is for `--custom-weight-loader tensorlease_sglang.load`, send_weights() for the trainer. SGLang finds register()
by an entry point; the loader is in a module of its own, since it derives from SGLang's.
"""

import base64
import io
import json
import threading
import urllib.error
import urllib.request
from multiprocessing.reduction import ForkingPickler

import tensorlease
import torch
from tensorlease._weights import published, received

__all__ = ["HTTPServer", "load", "register", "send_weights"]

LOADER = f"{__name__}.load"
_KEYS = {"prefix", "names", "update", "address", "namespace"}
_clients = {}  # by address and namespace: a server's, one for each trainer that it has heard of
_lock = threading.Lock()


# ---- The server's side ----


def _info_of(named_tensors):
    """Return what send_weights() has sent in the place of weights."""
    names = [name for name, _ in named_tensors]
    try:
        (text,) = names
        info = json.loads(text)
    except ValueError:
        info = None
    if not isinstance(info, dict) or info.keys() != _KEYS:
        some = ", ".join(names[:3])
        raise ValueError(
            f"{LOADER} got {len(names)} tensors, such as {some[:200]!r}, that do not say which weights to load: make "
            "the update by tensorlease_sglang.send_weights(), or leave out load_format"
        )
    return info


def _client_of(address, namespace):
    with _lock:
        if (address, namespace) not in _clients:
            _clients[address, namespace] = tensorlease.connect(address, namespace=namespace, autostart=False)
        return _clients[address, namespace]


def load(model, named_tensors):
    """Load exactly the weights of one update into a model, for SGLang's --custom-weight-loader.

    named_tensors: one empty tensor, whose name says which weights these are.
    RuntimeError, with the model untouched: the weights are not there, or others are.
    """
    info = _info_of(named_tensors)
    client = _client_of(info["address"], info["namespace"])
    device = next((parameter.device for parameter in model.parameters()), None)
    with received(client, info, device) as weights:
        model.load_weights(weights)


# ---- The trainer's side ----


class HTTPServer:
    """A server of `sglang.launch_server`, with those methods of SGLang's Engine that send_weights() calls.

    url: such as "http://localhost:30000". tp_size: as the server was started. timeout: seconds until it has answered;
    it loads a whole model meanwhile.
    """

    def __init__(self, url, *, tp_size=1, timeout=600.0):
        self._url, self._tp_size, self._timeout = url.rstrip("/"), tp_size, timeout

    def _post(self, path, content):
        request = urllib.request.Request(
            f"{self._url}/{path}", json.dumps(content).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return False, f"{error.code} {error.read().decode(errors='replace')[:2000]}"
        return found["success"], found["message"]

    def begin_weight_update(self):
        return self._post("begin_weight_update", {})

    def update_weights_from_tensor(self, named_tensors, load_format=None, flush_cache=True):
        pickled = io.BytesIO()
        ForkingPickler(pickled).dump(named_tensors)
        content = [base64.b64encode(pickled.getvalue()).decode()] * self._tp_size
        options = {"load_format": load_format, "flush_cache": flush_cache}
        return self._post("update_weights_from_tensor", {"serialized_named_tensors": content, **options})

    def end_weight_update(self):
        return self._post("end_weight_update", {})


def _checked(server, call, *arguments, **options):
    success, message = getattr(server, call)(*arguments, **options)
    if not success:
        raise RuntimeError(f"SGLang's {call}() failed: {message}")


def send_weights(server, prefix, weights, *, address=None, namespace=None, timeout=60.0, keep=True):
    """Publish weights, and make a server load exactly these. It was started with --custom-weight-loader.

    server: an HTTPServer, or an Engine of SGLang.
    prefix: the weights are called PREFIX/NAME, and take the place of all that was below the prefix.
    weights: an iterable of names and whole torch.Tensors. With several ranks each one iterates, and one calls this.
    address, namespace: as for tensorlease.connect(), for the trainer and the server. None: each takes its own default.
    timeout: seconds to wait for space, and with keep=False until nobody holds the weights.
    keep: True: publish copies, which stay. False: publish tensors on GPUs where they lie, for the time of the update.
    RuntimeError: an answer of SGLang says that it failed.
    """
    where = {"address": address, "namespace": namespace}
    with tensorlease.connect(address, namespace=namespace) as client:
        with published(client, prefix, weights, keep=keep, timeout=timeout) as info:
            # An empty tensor is pickled as such. Any other one on the CPU is pickled as memory of this process.
            named_tensors = [(json.dumps({**info, **where}), torch.empty(0))]
            _checked(server, "begin_weight_update")
            try:
                _checked(server, "update_weights_from_tensor", named_tensors, load_format=LOADER)
            except BaseException:
                server.end_weight_update()  # the server would stay in the update
                raise
            _checked(server, "end_weight_update")


# ---- The weights with which a server starts ----


def _get_model_loader(original, load_config, *arguments, **options):
    """Stand in for SGLang's get_model_loader() where the server was started with our options."""
    extra = load_config.model_loader_extra_config
    if not isinstance(extra, dict) or "tensorlease" not in extra:
        return original(load_config, *arguments, **options)
    from .loader import TensorleaseModelLoader

    return TensorleaseModelLoader(load_config)


def register():
    """Hook SGLang's choice of a loader. SGLang calls this in each of its processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.model_loader.loader.get_model_loader", _get_model_loader, HookType.AROUND)
