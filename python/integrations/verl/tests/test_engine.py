# SPDX-License-Identifier: Apache-2.0
"""Updates of rollout workers by verl's own manager, and what is left when somebody fails or dies."""

import asyncio
import inspect
import os
import signal

import pytest
from conftest import daemon_at, eventually

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


def values_of(manager):
    """What each rollout worker has, and their processes."""
    import ray

    found = [ray.get(worker.values.remote()) for replica in manager.replicas for worker in replica.workers]
    assert all(kinds == {(torch.bfloat16, (8, 8))} for _, kinds, _ in found)
    return [values for values, _, _ in found], [pid for _, _, pid in found]


def expected(value, actors):
    from workers import NAMES

    return {name: float(actors * (value + number)) for number, name in enumerate(NAMES)}


# ---- With verl's manager and workers, on Ray ----


def test_all_rollouts_get_each_update(manager, client):
    for step in (1, 2, 3):
        manager.update_weights(global_steps=step)
        got, pids = values_of(manager)
        assert got == [expected(step, 2)] * 2 and len(set(pids)) == 2
        assert client.keys() == []


def test_killed_workers_leave_nothing(manager, store):
    import ray

    manager.update_weights(global_steps=1)
    ray.get(manager.actor_wg.workers[0].die_at.remote(2))
    with pytest.raises(ray.exceptions.RayError):
        manager.update_weights(global_steps=5)
    eventually(lambda: store.keys() == [])
    got, pids = values_of(manager)
    assert got == [expected(1, 2)] * 2  # the rollouts keep the tensors themselves
    assert store.status().retired > 0
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    ray.kill(manager.actor_wg.workers[1])
    eventually(lambda: store.status().retired == 0)


# ---- One engine with another, in this process ----


def engine_of(address, **options):
    import tensorlease_verl  # noqa: F401  registers
    from verl.checkpoint_engine import CheckpointEngineRegistry

    return CheckpointEngineRegistry.new("tensorlease", bucket_size=1 << 20, address=address, **options)


@pytest.fixture
def pair(store, address):
    """pair(**options) makes the engines of an actor and of a rollout, which are ready for an update."""
    engines = []

    def pair(**options):
        made = [engine_of(address, **options) for _ in range(2)]
        engines.extend(made)
        connect(made)
        return made

    yield pair
    for engine in engines:
        engine.finalize()


def connect(engines):
    metadata = [engine.prepare() for engine in engines]
    groups = type(engines[0]).build_topology(1, len(engines) - 1, metadata)
    arguments = [dict(zip(group, values, strict=True)) for group in groups for values in zip(*group.values(), strict=True)]
    for engine, given in zip(engines, arguments, strict=True):
        engine.init_process_group(**given)


async def receive(engine):
    return {name: tensor async for name, tensor in engine.receive_weights()}


def update(actor, rollout, weights):
    async def both():
        received = asyncio.ensure_future(receive(rollout))
        await actor.send_weights(weights)
        return await received

    return asyncio.run(both())


def test_the_engine_is_registered_and_has_the_methods_of_verl():
    import tensorlease_verl

    from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry

    engine = tensorlease_verl.TensorleaseCheckpointEngine
    assert CheckpointEngineRegistry.get("tensorlease") is engine
    assert issubclass(engine, CheckpointEngine) and engine.wire_format == "named_tensors"
    assert not inspect.isabstract(engine)
    for name in ("prepare", "build_topology", "finalize", "send_weights", "receive_weights"):
        theirs, ours = (inspect.signature(getattr(one, name)).parameters for one in (CheckpointEngine, engine))
        assert list(theirs) == list(ours)
    assert inspect.isasyncgenfunction(engine.receive_weights) and inspect.iscoroutinefunction(engine.send_weights)


@pytest.mark.parametrize("device", ["cpu", None])
def test_weights_of_any_kind_arrive(device, pair):
    weights = {
        "a.bfloat16": torch.randn(3, 5).to(torch.bfloat16),
        "a.float8": torch.randn(4).to(torch.float8_e4m3fn),
        "a.strided": torch.arange(12.0).view(3, 4)[:, ::2].t(),
        "number": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    received = update(*pair(device=device), weights.items())
    assert received.keys() == weights.keys()
    for name, tensor in weights.items():
        assert received[name].dtype == tensor.dtype and received[name].shape == tensor.shape
        assert torch.equal(received[name].float(), tensor.detach().float()), name


def test_no_weights_and_an_asynchronous_iterator(pair):
    async def none():
        for item in ():
            yield item

    assert update(*pair(), none()) == {}


def test_tensors_that_are_kept_stay_valid_after_finalize(pair, store):
    actor, rollout = pair()
    received = update(actor, rollout, [("a", torch.full((1000,), 3.0)), ("b", torch.zeros(9))])
    kept = received.pop("a")
    received.clear()
    actor.finalize()
    rollout.finalize()
    assert store.keys() == []
    eventually(lambda: store.status().retired == 1)
    assert kept.unique().tolist() == [3.0]


def test_an_engine_serves_one_update_after_the_other(pair):
    actor, rollout = pair()
    for value in (1.0, 2.0):
        assert update(actor, rollout, [("a", torch.full((4,), value))])["a"].unique().tolist() == [value]
        for engine in (actor, rollout):
            engine.finalize()
        connect([actor, rollout])


def test_an_iterator_that_raises_leaves_nothing(pair, store):
    actor, rollout = pair(timeout=1)

    def fails():
        yield "a", torch.zeros(4)
        raise ArithmeticError("no gradient")

    with pytest.raises(ArithmeticError):
        asyncio.run(actor.send_weights(fails()))
    eventually(lambda: store.keys() == [])
    with pytest.raises(TimeoutError, match=r"all weights below 'verl\.[0-9a-f]{16}/' within 1 s.*engine_kwargs"):
        asyncio.run(receive(rollout))
    connect([actor, rollout])
    assert update(actor, rollout, [("a", torch.ones(4))])["a"].sum() == 4


def test_weights_that_are_gone_are_an_error(pair, store):
    actor, rollout = pair()
    asyncio.run(actor.send_weights([("a", torch.zeros(4)), ("b", torch.zeros(4))]))
    (name,) = (name for name in store.keys() if name.endswith("/b"))
    store.delete(name)
    with pytest.raises(RuntimeError, match="are gone: rank 0 of the actor has ended"):
        asyncio.run(receive(rollout))


def test_calls_in_another_order_are_an_error(address):
    engine = engine_of(address)
    with pytest.raises(RuntimeError, match="verl calls prepare"):
        asyncio.run(receive(engine))
    engine.finalize()


def test_workers_with_different_daemons_are_refused(store, address, tmp_path):
    with daemon_at(str(tmp_path / "socket")):
        engines = [engine_of(address), engine_of(str(tmp_path / "socket"))]
        try:
            with pytest.raises(ValueError, match="the daemon of worker 1 is .* use one daemon"):
                connect(engines)
        finally:
            for engine in engines:
                engine.finalize()


@pytest.mark.parametrize("option", [{"prefix": "/"}, {"prefix": 3}, {"timeout": 0}, {"timeout": True}, {"device": "gpu"}])
def test_wrong_options_are_named(option):
    (key,) = option
    with pytest.raises(ValueError, match=f"engine_kwargs.tensorlease: {key} is .*; it must be"):
        engine_of(None, **option)
