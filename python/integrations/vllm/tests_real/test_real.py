# SPDX-License-Identifier: Apache-2.0
"""What a server of real vLLM answers after loads and updates, and after updates that fail or end in the middle."""

import signal
import subprocess
import sys

import pytest
import requests
from conftest import HERE, daemon_at
from dying_trainer import POINTS
from limits import limit

import tensorlease


def test_the_load_format_gives_the_weights_of_the_disk(started, expected):
    assert started.first == expected["a"]


@pytest.mark.parametrize("keep", [True, False])
def test_an_update_gives_the_weights_of_the_trainer(keep, server, trainer, expected):
    assert server.ask() == expected["a"]
    for name in "bab":
        trainer(name, keep=keep).send_weights()
        assert server.ask() == expected[name]


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_trainer_leaves_whole_weights(point, server, daemon, trainer, models, expected):
    command = [sys.executable, HERE / "dying_trainer.py", models["b"], daemon, server.url, point]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        said = iter(process.stdout.readline, "")
        assert f"reached {point}\n" in said
    finally:
        process.kill()
        process.communicate()
    if point != "loaded":  # a worker with new weights must finish first
        assert server.ask() == expected["a"]
    if point in ("started", "loaded"):
        server.post("finish_weight_update")
    assert server.ask() == expected["b" if point == "loaded" else "a"]
    for name in "ba":
        trainer(name).send_weights()
        assert server.ask() == expected[name]


def test_weights_that_are_gone_are_an_error(server, daemon, trainer, expected):
    sender = trainer("b")
    call = sender.client.update_weights

    def without_one(info):
        with tensorlease.connect(daemon, autostart=False) as client:
            client.delete(info["prefix"] + info["names"][-1])
        call(info)

    sender.client.update_weights = without_one
    with pytest.raises(requests.HTTPError, match="500"):
        sender.send_weights()
    assert "are gone" in server.log.read_text()
    assert server.ask() == expected["a"]
    sender.client.update_weights = call
    sender.send_weights()
    assert server.ask() == expected["b"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_new_daemon_serves_the_next_update(number, server, trainer, expected, tmp_path):
    address = str(tmp_path / "socket")
    with daemon_at(address) as process:
        sender = trainer("b", address)
        sender.send_weights()
        assert server.ask() == expected["b"]
        process.send_signal(number)
        process.wait(limit(60))
        assert server.ask() == expected["b"]
    with daemon_at(address):
        for name, one in (("b", sender), ("a", trainer("a", address)), ("b", sender)):
            one.send_weights()
            assert server.ask() == expected[name]


def test_a_pause_around_an_update_empties_the_prefix_cache(server, trainer, expected):
    server.ask()
    for name in "bab":
        assert server.ask(cached=True) and server.known > 0
        server.post("pause", mode="keep")
        trainer(name).send_weights()
        server.post("resume")
        assert (server.ask(cached=True), server.known) == (expected[name], 0)


@pytest.fixture
def of_rank(daemon, models):
    """of_rank(number, held) makes the trainer of a rank that holds these parameters; None: all."""
    from tensorlease_vllm.trainer import TensorleaseTrainerInitInfo
    from transformers import AutoModelForCausalLM
    from vllm.distributed.weight_transfer import ModuleSource, WeightTransferTrainerFactory

    class Source(ModuleSource):
        rounds = 0

        def held_names(self):
            return self.held

        def __iter__(self):
            yield from super().__iter__()
            self.rounds += 1

    def make(number, held=None):
        source = Source(AutoModelForCausalLM.from_pretrained(models["a"]))
        source.held = held
        info = TensorleaseTrainerInitInfo(prefix="ranks", rank=number, address=daemon)
        return WeightTransferTrainerFactory.trainer_init(info, client=None, source=source)

    return make


def test_other_ranks_only_iterate(of_rank, daemon):
    one = of_rank(1)
    one.send_weights()
    assert one.source.rounds == 1
    with tensorlease.connect(daemon, autostart=False) as client:
        assert client.keys("ranks/") == []


def test_rank_0_must_hold_all_parameters(of_rank):
    with pytest.raises(ValueError, match="rank 0 owns 1 of 21 parameters; it must own all of them"):
        of_rank(0, ["lm_head.weight"])
