# SPDX-License-Identifier: Apache-2.0
"""The fixtures of python/tests, the package as pip installs it, and worker groups of real verl on real Ray."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent
PYTHON_TESTS = PACKAGE.parents[1] / "tests"

sys.path.append(str(PYTHON_TESTS))  # limits, distributions

from distributions import install

_spec = importlib.util.spec_from_file_location("python_tests_conftest", PYTHON_TESTS / "conftest.py")
shared = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(shared)

daemon, address, client, time_limit = shared.daemon, shared.address, shared.client, shared.time_limit
daemon_at, eventually = shared.daemon_at, shared.eventually


@pytest.fixture(scope="session", autouse=True)
def installed(tmp_path_factory):
    """Where this process and Ray's find the package and the workers of the tests."""
    pytest.importorskip("verl", reason="verl is not installed")
    paths = [str(install(PACKAGE, tmp_path_factory.mktemp("site"))), str(HERE)]
    sys.path[:0] = paths
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]))
        yield


@pytest.fixture
def store(client):
    """A connection to the daemon. At the end nobody else may have one, and nothing may be held or left."""
    yield client
    client.delete(prefix="", everything=True, missing_ok=True)
    eventually(lambda: len(client.clients()) == 1)
    eventually(lambda: (client.status().tensors, client.status().retired, client.status().drafts) == (0, 0, 0))


@pytest.fixture(scope="module")
def manager(daemon):
    """verl's manager of two workers of an actor and of two replicas of one worker each, on Ray."""
    import ray
    from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
    from workers import Actor, Replica, Rollout, config_of

    from verl.checkpoint_engine import CheckpointEngineManager

    def group(count, cls, *arguments):
        pool = RayResourcePool([count], use_gpu=False, max_colocate_count=1)
        ready = RayClassWithInitArgs(ray.remote(cls), *arguments)
        return RayWorkerGroup(pool, ready, use_gpu=False, device_name="cpu")

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        config = config_of(address=daemon)
        actor = group(2, Actor, config.checkpoint_engine)
        replicas = [Replica(rank, config, None) for rank in range(2)]
        for replica, worker in zip(replicas, group(2, Rollout, config, None).workers, strict=True):
            replica.workers = [worker]
        yield CheckpointEngineManager(config.checkpoint_engine, actor, replicas)
    finally:
        ray.shutdown()
