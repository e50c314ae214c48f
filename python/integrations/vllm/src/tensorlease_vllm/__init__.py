# SPDX-License-Identifier: Apache-2.0
"""vLLM's load format "tensorlease" and its weight transfer backend of that name.

vLLM finds register() by an entry point. The classes are in modules of their own, since they derive from vLLM's.
"""

import logging

__all__ = ["register"]

NAME = "tensorlease"

_log = logging.getLogger(__name__)
_tried = set()


def _register_loader():
    from vllm.model_executor.model_loader import register_model_loader

    from .loader import TensorleaseModelLoader

    register_model_loader(NAME)(TensorleaseModelLoader)


def _register_engine():
    from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory

    if not hasattr(WeightTransferEngine, "start_weight_update"):
        raise ImportError("WeightTransferEngine has no start_weight_update()")
    WeightTransferEngineFactory.register_engine(NAME, f"{__name__}.engine", "TensorleaseEngine")


def _register_trainer():
    from vllm.distributed import weight_transfer

    factory = getattr(weight_transfer, "WeightTransferTrainerFactory", None)
    if factory is not None:  # vLLM 0.25.1 has none: its trainers call trainer_send_weights() of the engine
        factory.register_engine(NAME, f"{__name__}.trainer", "TensorleaseTrainer")


def _register(what, part):
    """A plug-in that raises would keep vLLM from starting, so a part that does not fit is left out."""
    if part in _tried:
        return
    _tried.add(part)
    try:
        part()
    except Exception as error:
        import vllm

        version = getattr(vllm, "__version__", "of an unknown version")
        _log.warning("%s is left out: vLLM %s differs from 0.25.1, 0.32.0 and 0.33.0: %s", what, version, error)


def register():
    """Register all of it, once in a process. vLLM calls this in each of its processes."""
    _register(f"the load format {NAME!r}", _register_loader)
    _register(f"the weight transfer backend {NAME!r}", _register_engine)
    register_trainer()


def register_trainer():
    """Register what a trainer needs. A trainer loads no plug-ins, so the module trainer calls this."""
    _register(f"the trainer's part of the weight transfer backend {NAME!r}", _register_trainer)
