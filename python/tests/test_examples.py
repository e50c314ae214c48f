# SPDX-License-Identifier: Apache-2.0
"""The examples run and leave nothing in the daemon."""

import re
import subprocess
import sys
from pathlib import Path

import gpu_help
import pytest
from limits import limit

gpus = gpu_help.gpus
EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("dataloader", ["--batches", "12", "--workers", "2"], "12 batches"),
        ("dataloader", ["--batches", "12", "--workers", "2", "--method", "fork"], "12 batches"),
        ("camera", ["60"], "slow: "),
        ("web_workers", ["20"], "model 2: 20 answers of "),
        ("weights", ["30"], "worker with rollouts of 20 ms: "),
        ("rollouts", ["--actors", "2", "--rollouts", "9"], "18 rollouts of 2 actors, 3 MiB, none lost"),
        ("pipeline", ["--images", "12"], "12 images scaled, none lost"),
        ("recorder", ["--frames", "60"], "recorder: 60 frames, each of them"),
        ("state_dict", ["--save", "model.safetensors"], "48 tensors saved to model.safetensors"),
    ],
)
def test_example(name, arguments, says, client, tmp_path):
    if name == "state_dict":
        pytest.importorskip("torch")
    result = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", *arguments],
        capture_output=True,
        text=True,
        timeout=limit(100),
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert client.list() == []
    assert says in result.stdout and not result.stderr


# PyTorch cannot use the fake driver, so CUDA's own calls stand for it, as those of a library with a current stream.
RL_WEIGHTS_ON_CUDA = """
import sys
sys.path[:0] = sys.argv[1:3]
import ctypes
import numpy
import rl_weights
from cuda_driver import LEGACY, Array, Driver, Taken

driver, arrays = None, {}

def train_layer(name, step, device):
    global driver
    assert device == "cuda:0"
    driver = driver or Driver(0)
    if name not in arrays:
        arrays[name] = Array(driver, rl_weights.LAYERS[name], dtype=(2, 32, 1))
    array = arrays[name]
    values = numpy.full(array.nbytes // 4, step, "float32")
    stream = ctypes.c_void_p(array.work)
    driver.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(array.address), values.ctypes, ctypes.c_size_t(array.nbytes), stream)
    driver.synchronize(array.work)  # the host's memory ends here
    return array

def weights_of(tensor):
    global driver
    assert tensor.device == "cuda:0" and not tensor.copied
    driver = driver or Driver(0)
    return numpy.frombuffer(Taken(driver, tensor, LEGACY).read(), "float32")

rl_weights.train_layer, rl_weights.weights_of = train_layer, weights_of
sys.argv[1:] = sys.argv[3:]
rl_weights.main()
"""


def check_rl_weights(result, client, rounds):
    assert result.returncode == 0 and not result.stderr, result.stderr
    assert client.list() == []
    seen = re.findall(r"worker (\d+): trainer (\d+), steps ([\d ]+)\n", result.stdout)
    assert [worker for worker, _, _ in seen] == ["0", "0", "1", "1"]
    first, second = dict.fromkeys(trainer for _, trainer, _ in seen)
    for worker in "01":
        steps = {trainer: [int(step) for step in found.split()] for who, trainer, found in seen if who == worker}
        assert list(steps) == [first, second]
        assert len(steps[first]) == rounds + 3 and len(steps[second]) == rounds  # 3 while nobody trained
        assert steps[first] == sorted(steps[first]) and len(set(steps[first])) >= rounds
        assert steps[second] == sorted(set(steps[second]))
        assert 0 < steps[first][0] and steps[first][-1] <= steps[second][0]
        assert steps[first][-1] == steps[first][-2]
    assert "2 workers saw whole steps only, of 2 trainers, the first of them killed\n" in result.stdout


def test_rl_weights(client):
    command = [sys.executable, EXAMPLES / "rl_weights.py", "--rounds", "5"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=limit(100))
    check_rl_weights(result, client, 5)


def test_rl_weights_on_a_fake_gpu(gpus, client):
    command = [sys.executable, "-c", RL_WEIGHTS_ON_CUDA, EXAMPLES, Path(__file__).parent]
    command += ["--rounds", "5", "--device", "cuda:0"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=limit(100))
    check_rl_weights(result, client, 5)


def test_rl_weights_on_a_gpu(client):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    command = [sys.executable, EXAMPLES / "rl_weights.py", "--rounds", "5", "--device", "cuda:0"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=limit(100))
    check_rl_weights(result, client, 5)


def test_all_examples_are_tried():
    names = {"dataloader", "camera", "pipeline", "recorder", "rl_weights", "rollouts", "state_dict", "weights"}
    names |= {"web_workers", "environments", "model_server"}  # test_gymnasium.py, test_transformers.py
    assert {path.stem for path in EXAMPLES.glob("*.py")} == names
