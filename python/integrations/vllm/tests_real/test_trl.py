# SPDX-License-Identifier: Apache-2.0
"""A training with real TRL whose rollouts a server of real vLLM makes."""

import inspect
import os
import signal
import subprocess
import sys

import pytest
from conftest import HERE, answers_of
from limits import limit
from trl_trainer import STEPS

import tensorlease

pytest.importorskip("trl", reason="TRL is not installed")


@pytest.fixture
def training(server, daemon, models, tmp_path):
    """training(*point) starts a training of the model "a"; `output` is where it saves the model."""
    processes = []

    def start(*point):
        command = [sys.executable, HERE / "trl_trainer.py", models["a"], daemon, server.url, tmp_path / "trained", *point]
        log = open(tmp_path / "log", "w+")  # noqa: SIM115  closed below
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        process.log, process.output = log, tmp_path / "trained"
        processes.append(process)
        return process

    yield start
    for process in processes:
        try:
            os.killpg(process.pid, signal.SIGKILL)  # its process for rollouts, too
        except ProcessLookupError:
            pass
        process.communicate()
        process.log.close()


def said_by(process):
    process.log.seek(0)
    return process.log.read()[-4000:]


def test_the_class_has_the_methods_of_the_protocol():
    from tensorlease_vllm.trl import TensorleaseWeightTransfer
    from trl.experimental.async_grpo.async_grpo_trainer import WeightTransferProtocol

    wanted = {name: one for name, one in vars(WeightTransferProtocol).items() if inspect.isfunction(one)}
    wanted = {name: list(inspect.signature(one).parameters) for name, one in wanted.items() if name[0] != "_"}
    assert set(wanted) == {"init_weight_transfer", "pause", "send_weights", "resume", "destroy"}
    for name, parameters in wanted.items():
        assert list(inspect.signature(getattr(TensorleaseWeightTransfer, name)).parameters) == parameters


def test_the_server_has_the_weights_of_the_last_step(training, server, expected, tmp_path):
    process = training()
    said, _ = process.communicate(timeout=limit(600))
    assert process.returncode == 0, said_by(process)
    assert f"updates {STEPS + 1}\n" in said  # one before the first step
    (trained,) = answers_of([process.output], tmp_path)
    assert server.ask() == trained != expected["a"]


def test_a_killed_trainer_leaves_a_server_that_goes_on(training, server, daemon, trainer, expected):
    process = training("started")
    assert "reached started\n" in iter(process.stdout.readline, ""), said_by(process)
    with tensorlease.connect(daemon, autostart=False) as client:
        update = {tensor.metadata for tensor in client.get_many(prefix="policy").values()}
    assert len(update) == 1  # whole weights
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    server.post("finish_weight_update")
    server.post("resume")
    assert server.ask() == expected["a"]
    trainer("b").send_weights()
    assert server.ask() == expected["b"]


@pytest.fixture
def transfer(server, daemon):
    from accelerate import PartialState
    from tensorlease_vllm.trl import TensorleaseWeightTransfer

    PartialState(cpu=True)  # as TRL's trainer does; its log needs that
    made = TensorleaseWeightTransfer(server.url, "policy", address=daemon)
    made.init_weight_transfer()
    return made


def weights_of(models, name):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(models[name]).named_parameters()


def test_after_a_failed_update_the_server_answers_by_the_former_weights(server, daemon, transfer, models, expected):
    call = transfer._server.update_weights

    def without_one(info, **options):
        with tensorlease.connect(daemon, autostart=False) as client:
            client.delete(info["prefix"] + info["names"][-1])
        call(info, **options)

    transfer._server.update_weights = without_one
    transfer.pause()
    with pytest.raises(RuntimeError, match="did not get the weights below 'policy'"):
        transfer.send_weights(weights_of(models, "b"))
    assert "are gone" in server.log.read_text()
    assert server.ask() == expected["a"]
    transfer._server.update_weights = call
    transfer.pause()
    transfer.send_weights(weights_of(models, "b"))
    transfer.resume()
    assert server.ask() == expected["b"]


def test_weights_that_cannot_be_published_leave_the_server_as_it_was(server, transfer, expected):
    def fails():
        yield from ()
        raise OSError("the weights cannot be gathered")

    transfer.pause()
    with pytest.raises(RuntimeError, match="cannot be gathered"):
        transfer.send_weights(fails())
    assert server.ask() == expected["a"]
