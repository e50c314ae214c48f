# SPDX-License-Identifier: Apache-2.0
"""The entry point registers what a version of vLLM has an interface for, and never raises."""

import logging
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")


def registered():
    """Which classes vLLM knows: of the loader, the engine and the trainer."""
    import vllm_double
    from vllm.distributed import weight_transfer

    factories = [getattr(weight_transfer, f"WeightTransfer{one}Factory", None) for one in ("Engine", "Trainer")]
    return [vllm_double.loaders.get("tensorlease")] + [
        factory.find("tensorlease") if factory and factory.known else None for factory in factories
    ]


def names(classes):
    return [one and one.__name__ for one in classes]


def test_all_of_it_is_registered_once(version, caplog):
    import tensorlease_vllm

    tensorlease_vllm.register()
    tensorlease_vllm.register()
    trainer = "TensorleaseTrainer" if version == "0.33.0" else None
    assert names(registered()) == ["TensorleaseModelLoader", "TensorleaseEngine", trainer]
    assert not caplog.records


def test_engines_are_imported_when_they_are_needed(version):
    code = (
        "import sys, tensorlease_vllm; assert 'torch' not in sys.modules and 'vllm' not in sys.modules\n"
        "tensorlease_vllm.register()\n"
        "assert not {'tensorlease_vllm.engine', 'tensorlease_vllm.trainer'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_trainer_needs_no_plugins(use):
    use("0.33.0")
    import tensorlease_vllm.trainer

    assert names(registered()) == [None, None, "TensorleaseTrainer"]
    tensorlease_vllm.register()
    assert None not in registered()


def test_an_older_interface_is_left_out_and_said(use, caplog):
    use("0.20.2")
    import tensorlease_vllm

    with caplog.at_level(logging.WARNING):
        tensorlease_vllm.register()
    assert names(registered()) == ["TensorleaseModelLoader", None, None]
    (record,) = caplog.records
    assert record.getMessage() == (
        "the weight transfer backend 'tensorlease' is left out: vLLM 0.20.2 differs from 0.25.1, 0.32.0 and 0.33.0: "
        "WeightTransferEngine has no start_weight_update()"
    )


@pytest.mark.parametrize("module", ["vllm.model_executor.model_loader", "vllm.distributed.weight_transfer"])
def test_a_missing_interface_is_left_out_and_said(module, version, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, module, None)
    import tensorlease_vllm

    tensorlease_vllm.register()
    said = [record.getMessage() for record in caplog.records]
    assert said and all("is left out" in text and module in text for text in said)


def test_a_name_that_is_taken_is_left_and_said(version, caplog):
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    WeightTransferEngineFactory.register_engine("tensorlease", dict)
    import tensorlease_vllm

    tensorlease_vllm.register()
    assert registered()[1] is dict
    assert ["registered already" in record.getMessage() for record in caplog.records] == [True]
