# SPDX-License-Identifier: Apache-2.0
"""Real vLLM on the CPU: a server whose weights come from a daemon, and engines that read the same ones from disk.

The models are tiny and made here, so nothing is downloaded.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent
PYTHON_TESTS = PACKAGE.parents[1] / "tests"

SETTINGS = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_CI_ENV": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "tensorlease",
    "VLLM_SERVER_DEV_MODE": "1",  # for the routes of weight updates
}
os.environ.update(SETTINGS)
sys.path.append(str(PYTHON_TESTS))  # limits, distributions

from distributions import install

_spec = importlib.util.spec_from_file_location("python_tests_conftest", PYTHON_TESTS / "conftest.py")
shared = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(shared)

daemon, time_limit, daemon_at = shared.daemon, shared.time_limit, shared.daemon_at


@pytest.fixture(scope="session", autouse=True)
def installed(tmp_path_factory):
    """The plug-in, where this process and those that it starts find it and its entry point."""
    folder = tmp_path_factory.mktemp("site")
    site = install(PACKAGE, folder)
    # `vllm serve` asks for the version of "vllm", and chooses the CPU by it.
    from importlib.metadata import version

    metadata = site / "vllm.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version('vllm-cpu')}+cpu\n")
    paths = [str(site), str(HERE)]
    sys.path[:0] = paths
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]))
        patch.setenv("VLLM_CACHE_ROOT", str(folder / "cache"))
        patch.setenv("VLLM_CONFIG_ROOT", str(folder / "config"))
        yield


@pytest.fixture(scope="session")
def models(installed, tmp_path_factory):
    """The folders of two models that differ in nothing but their weights."""
    from tiny import make

    folder = tmp_path_factory.mktemp("models")
    return {name: make(folder / name, seed) for seed, name in enumerate("ab")}


def answers_of(folders, temporary):
    """What new engines answer that read the weights of these folders."""
    output = temporary / "answers"
    settings = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # each process imports vLLM anew
    command = [sys.executable, HERE / "tiny.py", output, *folders]
    subprocess.run(command, env=settings, check=True, timeout=shared.limit(600))
    return json.loads(output.read_text())


@pytest.fixture(scope="session")
def expected(models, tmp_path_factory):
    """What new engines answer that have read these weights from disk."""
    found = dict(zip(models, answers_of(models.values(), tmp_path_factory.mktemp("expected")), strict=True))
    assert found["a"] != found["b"]
    return found


class Server:
    """A process of `vllm serve`."""

    def __init__(self, arguments, log):
        self.log = log
        with open(log, "w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            self.url = self._await()
        except BaseException:
            self.end()
            raise

    def _await(self):
        import psutil
        import requests

        process, end = psutil.Process(self.process.pid), time.monotonic() + shared.limit(600)
        while True:
            assert self.process.poll() is None and time.monotonic() < end, self.log.read_text()[-4000:]
            for connection in process.net_connections("tcp4"):
                url = f"http://127.0.0.1:{connection.laddr.port}"
                try:
                    if connection.status == psutil.CONN_LISTEN and requests.get(f"{url}/health", timeout=5).ok:
                        return url
                except requests.ConnectionError:
                    pass
            time.sleep(0.1)

    def end(self):
        import psutil

        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.terminate()
        try:
            self.process.wait(shared.limit(60))
        finally:
            self.process.kill()
            self.process.wait()
            for child in children:
                if child.is_running():
                    child.kill()

    def post(self, path, json=None, **parameters):
        import requests

        answer = requests.post(f"{self.url}/{path}", json=json, params=parameters, timeout=shared.limit(120))
        assert answer.ok, f"{answer.status_code} {answer.text}\n{self.log.read_text()[-4000:]}"
        return answer

    def ask(self, cached=False):
        """The tokens that follow each prompt.

        cached: False: as the weights are now. True: as its users see it, with what it still knows of prompts.
        """
        from tiny import PROMPTS, TOKENS

        if not cached:
            self.post("reset_prefix_cache")
        request = {"prompt": PROMPTS, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        answer = self.post("v1/completions", {**request, "model": "tiny", "return_token_ids": True}).json()
        self.known = (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        return [one["token_ids"] for one in sorted(answer["choices"], key=lambda one: one["index"])]


@pytest.fixture(scope="module")
def started(daemon, models, expected, tmp_path_factory):
    """A server that has loaded the weights "a" from the daemon; `first` is what it answered then."""
    import tensorlease

    with tensorlease.connect(daemon, autostart=False) as client:
        client.load("start", models["a"] / "model.safetensors")
    # TRL asks for the model by its path.
    arguments = [models["a"], "--served-model-name", "tiny", models["a"], "--host", "127.0.0.1", "--port", "0", "--dtype", "float32"]
    arguments += ["--enforce-eager", "--max-model-len", "512", "--max-num-batched-tokens", "2048"]
    arguments += ["--enable-prompt-tokens-details"]
    arguments += ["--load-format", "tensorlease", "--weight-transfer-config", '{"backend": "tensorlease"}']
    arguments += ["--model-loader-extra-config", json.dumps({"prefix": "start", "address": daemon})]
    server = Server([str(one) for one in arguments], tmp_path_factory.mktemp("server") / "log")
    try:
        server.first = server.ask()
        yield server
    finally:
        server.end()


@pytest.fixture
def trainer(daemon, started, models):
    """trainer(name) starts a trainer of the model of that name."""
    from tensorlease_vllm.trainer import TensorleaseTrainerInitInfo
    from transformers import AutoModelForCausalLM
    from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient, ModuleSource, WeightTransferTrainerFactory

    trainers = []

    def start(name, address=daemon, **options):
        trainers.append(
            WeightTransferTrainerFactory.trainer_init(
                TensorleaseTrainerInitInfo(prefix="policy", rank=0, address=address, **options),
                client=HTTPVLLMWeightSyncClient(started.url),
                source=ModuleSource(AutoModelForCausalLM.from_pretrained(models[name])),
            )
        )
        return trainers[-1]

    yield start
    for one in trainers:
        one.shutdown()


@pytest.fixture
def server(started, trainer):
    """The server, with the weights "a"."""
    trainer("a").send_weights()
    return started
