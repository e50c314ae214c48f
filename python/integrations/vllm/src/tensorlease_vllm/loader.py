# SPDX-License-Identifier: Apache-2.0
"""The load format "tensorlease": weights that somebody has published below a prefix."""

import tensorlease
from tensorlease._weights import below, leased
from vllm.model_executor.model_loader import BaseModelLoader

from ._options import check

_KEYS = ("prefix", "address", "namespace", "timeout")


def _options(given):
    what = "model_loader_extra_config of the load format 'tensorlease'"
    if not isinstance(given, dict) or "prefix" not in given:
        raise ValueError(f"{what} is {given!r}; it must have a prefix, as in '{{\"prefix\": \"llama/\"}}'")
    for key, value in given.items():
        if key not in _KEYS:
            raise ValueError(f"{what}: {key!r}, which is {value!r}, is unknown; there are {', '.join(_KEYS)}")
    check(what, given)
    return {"address": None, "namespace": None, "timeout": 0, **given}


def _computed(model):
    """Yield the names of parameters that vLLM may compute by itself, such as the scales of a quantised KV cache."""
    for prefix, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if getattr(method, "uses_meta_device", False) or hasattr(method, "process_weights_after_loading"):
            for name, _ in module.named_parameters():
                yield f"{prefix}.{name}" if prefix else name


def _check_complete(model, loaded, start):
    missing = {name for name, _ in model.named_parameters()}.difference(loaded, _computed(model))
    if missing:
        some = ", ".join(sorted(missing)[:3])
        raise ValueError(f"{len(missing)} parameters of the model have no weights below {start!r}, such as {some}")


class TensorleaseModelLoader(BaseModelLoader):
    """Copies published weights into the model's own parameters, straight from where they lie."""

    def __init__(self, load_config):
        super().__init__(load_config)
        self._options = _options(load_config.model_loader_extra_config)

    def download_model(self, model_config):
        """Do nothing: who has published the weights has them."""

    def load_weights(self, model, model_config):
        """Load all weights below the prefix, as of one moment."""
        start, timeout = below(self._options["prefix"]), self._options["timeout"]
        # With nobody to wait for, a daemon that was started here would only be empty.
        autostart = None if timeout else False
        address, namespace = self._options["address"], self._options["namespace"]
        with tensorlease.connect(address, namespace=namespace, autostart=autostart) as client:
            tensors = client.get_many(prefix=start, timeout=timeout)
            with leased(tensors) as weights:
                loaded = model.load_weights(weights)
        if loaded is not None and model_config.quantization is None:
            _check_complete(model, loaded, start)
