# SPDX-License-Identifier: Apache-2.0
"""The worker's side of the weight transfer backend "tensorlease", and the trainer's side for vLLM 0.25."""

import contextlib
import json
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorlease
import torch
from tensorlease._weights import published, received
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from ._options import check

_HTTP_S = 300  # until a worker has answered; it loads a whole model meanwhile


@dataclass
class TensorleaseInitInfo(WeightTransferInitInfo):
    """How workers connect; as for tensorlease.connect()."""

    address: str | None = None
    namespace: str | None = None

    def __post_init__(self):
        check("init_info", vars(self))


@dataclass
class TensorleaseUpdateInfo(WeightTransferUpdateInfo):
    """Which weights a worker is to load."""

    prefix: str
    names: list[str]
    update: str  # is attached to each of these weights, so that no others are taken for them

    def __post_init__(self):
        check("update_info", vars(self))


@dataclass
class TensorleaseSendWeightsArgs:
    """The trainer_args of trainer_send_weights(). send_mode, url and llm_handle are as for vLLM's own backends."""

    prefix: str
    send_mode: str | Callable[[TensorleaseUpdateInfo], None]
    llm_handle: Any = None
    url: str | None = None
    address: str | None = None
    namespace: str | None = None
    timeout: float = 60.0

    def __post_init__(self):
        check("trainer_args", {key: vars(self)[key] for key in ("prefix", "address", "namespace", "timeout")})
        needed = {"http": self.url, "ray": self.llm_handle}
        if not callable(self.send_mode) and needed.get(self.send_mode) is None:
            raise ValueError(
                f"trainer_args: send_mode is {self.send_mode!r}; it must be 'http' with a url, 'ray' with an "
                "llm_handle, or a function"
            )

    def send(self, info):
        """Make each worker load the weights that info names."""
        if callable(self.send_mode):
            self.send_mode(TensorleaseUpdateInfo(**info))
        elif self.send_mode == "ray":
            import ray

            handles = self.llm_handle if isinstance(self.llm_handle, list) else [self.llm_handle]
            ray.get([handle.update_weights.remote({"update_info": info}) for handle in handles])
        else:
            request = urllib.request.Request(
                f"{self.url.rstrip('/')}/update_weights",
                json.dumps({"update_info": info}).encode(),
                {"Content-Type": "application/json"},
            )
            urllib.request.urlopen(request, timeout=_HTTP_S).close()


def _of_any_layers():
    """Within it load_weights() accepts weights without those of the layers for multi-token prediction."""
    try:
        from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
    except ImportError:  # vLLM 0.25.1 does not check it
        return contextlib.nullcontext()
    return disable_mtp_completeness_check()


class TensorleaseEngine(WeightTransferEngine[TensorleaseInitInfo, TensorleaseUpdateInfo]):
    """Loads weights that a trainer has published, from where they lie."""

    init_info_cls = TensorleaseInitInfo
    update_info_cls = TensorleaseUpdateInfo
    _tensorlease = None
    _reloads = False  # the model was prepared for weights: until it is finished it answers no requests

    def init_transfer_engine(self, init_info):
        """Connect to the daemon, which the trainer uses already."""
        self.shutdown()
        self._tensorlease = tensorlease.connect(init_info.address, namespace=init_info.namespace, autostart=False)

    def start_weight_update(self):
        """Do nothing to the model yet. Its weights may never come, and a request that came first would end the server."""
        self._reloads = False

    def _begin_reload(self):
        """Let the model take weights as a checkpoint has them."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        if not self._reloads:
            initialize_layerwise_reload(self.model)
        self._reloads = True

    def finish_weight_update(self):
        """Bring the weights into the form in which the model computes with them, if any have come."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        if self._reloads:
            finalize_layerwise_reload(self.model, self.model_config)
        self._reloads = False

    def receive_weights(self, update_info):
        """Load exactly the weights of this update. RuntimeError: they are not there, or others are."""
        if self._tensorlease is None:
            raise RuntimeError("the engine has no connection to tensorlease: init_weight_transfer_engine comes first")
        with received(self._tensorlease, vars(update_info), self.device) as weights:
            self._begin_reload()
            with _of_any_layers():
                self.model.load_weights(weights)

    def shutdown(self):
        """Disconnect. The engine can be initialised again."""
        if self._tensorlease is not None:
            self._tensorlease.close()
            self._tensorlease = None

    @staticmethod
    def trainer_send_weights(iterator, trainer_args):
        """Publish copies of the weights and make the workers load them, from a trainer with vLLM 0.25.

        iterator: of names and whole torch.Tensors. With several ranks each one calls this, and rank 0 publishes.
        trainer_args: a TensorleaseSendWeightsArgs, or a dict of its fields.
        The caller starts the update before, and finishes it after.
        """
        args = TensorleaseSendWeightsArgs(**trainer_args) if isinstance(trainer_args, dict) else trainer_args
        if torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_rank():
            for _ in iterator:
                pass  # each may take a collective operation of all ranks
            return
        with tensorlease.connect(args.address, namespace=args.namespace) as client:
            with published(client, args.prefix, iterator, keep=True, timeout=args.timeout) as info:
                args.send(info)
