# SPDX-License-Identifier: Apache-2.0
"""The loader of a server that starts with weights which somebody has published below a prefix."""

import reprlib

import tensorlease
from sglang.srt.model_loader.loader import BaseModelLoader, DefaultModelLoader
from tensorlease._weights import below, leased

_DEFAULTS = {"address": None, "namespace": None, "timeout": 0}


def _options(given):
    what = "--model-loader-extra-config: tensorlease"
    if not isinstance(given, dict) or not isinstance(given.get("prefix"), str) or not given["prefix"].strip("/"):
        raise ValueError(f"{what} is {reprlib.repr(given)}; it must have a prefix, as in {{\"prefix\": \"llama\"}}")
    for key in given.keys() - {"prefix", *_DEFAULTS}:
        raise ValueError(f"{what}: {key!r} is unknown; there are prefix, {', '.join(_DEFAULTS)}")
    timeout = given.get("timeout", 0)
    if type(timeout) not in (int, float) or timeout < 0:
        raise ValueError(f"{what}: timeout is {timeout!r}; it must be a number of seconds, 0 or more")
    return {**_DEFAULTS, **given}


class TensorleaseModelLoader(DefaultModelLoader):
    """SGLang's loader, with weights from shared memory in the place of files."""

    def __init__(self, load_config):
        BaseModelLoader.__init__(self, load_config)  # DefaultModelLoader's refuses options that it does not know
        self._options = _options(load_config.model_loader_extra_config["tensorlease"])

    def download_model(self, model_config):
        """Do nothing: who has published the weights has them."""

    def _get_all_weights(self, model_config, model):
        """Yield all weights below the prefix, as of one moment."""
        start, timeout = below(self._options["prefix"]), self._options["timeout"]
        # With nobody to wait for, a daemon that was started here would only be empty.
        autostart = None if timeout else False
        address, namespace = self._options["address"], self._options["namespace"]
        with tensorlease.connect(address, namespace=namespace, autostart=autostart) as client:
            with leased(client.get_many(prefix=start, timeout=timeout)) as weights:
                yield from weights
