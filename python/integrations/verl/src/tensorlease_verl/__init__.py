# SPDX-License-Identifier: Apache-2.0
"""verl's checkpoint engine "tensorlease". Importing this module registers it: that is verl's custom_backend_module."""

import asyncio
import reprlib
import secrets
import socket

import tensorlease
import torch
from tensorlease._paths import below
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
from verl.workers.rollout.utils import ensure_async_iterator

__all__ = ["TensorleaseCheckpointEngine"]


def _check(prefix, timeout, device):
    rules = {
        "prefix": (prefix, isinstance(prefix, str) and prefix.strip("/"), "a path such as 'policy'"),
        "timeout": (timeout, type(timeout) in (int, float) and timeout > 0, "a number of seconds above 0"),
        "device": (device, device in ("cpu", None), "'cpu' or null"),
    }
    for key, (value, fits, allowed) in rules.items():
        if not fits:
            raise ValueError(f"engine_kwargs.tensorlease: {key} is {reprlib.repr(value)}; it must be {allowed}")


@CheckpointEngineRegistry.register("tensorlease")
class TensorleaseCheckpointEngine(CheckpointEngine):
    """Rank 0 of the actor publishes the weights of an update, and each rollout worker reads them where they lie.

    prefix: the weights of an update are below PREFIX.NUMBER/, for the time of that update.
    address, namespace: as for tensorlease.connect().
    timeout: seconds that rollout workers wait for the weights, and the actor for space.
    device: "cpu": weights are published in shared memory, for workers on any device. None: on the device where the
        actor has them, which each worker must see.
    bucket_size, is_master: verl gives them to each engine; they have no effect.
    """

    def __init__(
        self,
        bucket_size=0,
        is_master=False,
        prefix="verl",
        address=None,
        namespace=None,
        timeout=600.0,
        device="cpu",
    ):
        _check(prefix, timeout, device)
        self._prefix, self._timeout, self._device = below(prefix)[:-1], timeout, device
        self._where = {"address": address, "namespace": namespace}
        self._client = self._start = None
        self._held = {}

    # ---- What verl calls around each update ----

    def prepare(self):
        """Connect to the daemon. The metadata say to which, and how this update is called if this is rank 0."""
        self.finalize()  # an update that failed has left this to us
        self._client = tensorlease.connect(self._where["address"], namespace=self._where["namespace"])
        status = self._client.status()
        return {
            "update": secrets.token_hex(8),
            "node": socket.gethostname(),
            "daemon": (status.address, status.daemon_pid, status.started_ns),
        }

    @classmethod
    def build_topology(cls, actor_wg_world_size, rollout_world_size, metadata):
        """Number the workers, the actor's first, and tell all of them what the update is called."""
        for rank, one in enumerate(metadata):
            for what in ("node", "daemon"):
                if one[what] != metadata[0][what]:
                    raise ValueError(
                        f"the {what} of worker {rank} is {one[what]!r}, and that of worker 0 is {metadata[0][what]!r}: "
                        "actor and rollouts must be on one machine and use one daemon; set "
                        "engine_kwargs.tensorlease.address to its socket"
                    )
        world = range(actor_wg_world_size + rollout_world_size)
        groups = world[:actor_wg_world_size], world[actor_wg_world_size:]
        return tuple({"rank": list(ranks), "update": [metadata[0]["update"]] * len(ranks)} for ranks in groups)

    def init_process_group(self, rank, update):
        """Learn which worker this is. No process talks to another one here."""
        self._publishes = rank == 0
        self._start = f"{self._prefix}.{update}/"

    def finalize(self):
        """Give back what this worker has leased or published for the update. Tensors that are still used stay valid."""
        for tensor in self._held.values():
            tensor.release()
        self._held = {}
        if self._client is not None:
            self._client.close()  # with it go the names that it published, which are bound to it
        self._client = self._start = None

    # ---- An update ----

    def _check_ready(self):
        if self._start is None:
            raise RuntimeError("there is no update: verl calls prepare() and init_process_group() first")

    async def send_weights(self, weights, global_steps=None):
        """Publish the weights, each as it comes, and then say that they are complete.

        weights: an iterable, also an asynchronous one, of names and whole torch.Tensors. Each rank of the actor
            iterates it, since each step may be a collective operation, and rank 0 publishes.
        """
        self._check_ready()
        count = 0
        try:
            async for name, tensor in ensure_async_iterator(weights):
                if self._publishes:
                    self._put(f"{self._start}weights/{name}", tensor.detach())
                    count += 1
            if self._publishes:
                number = torch.tensor(count)
                self._client.put(f"{self._start}complete", number, owner_bound=True, timeout=self._timeout)
        except BaseException:
            self.finalize()  # verl does not call it then
            raise

    def _put(self, name, tensor):
        if self._device is None:
            self._client.put(name, tensor.contiguous(), owner_bound=True, timeout=self._timeout)
            return
        # The one copy of a weight, from the device straight into shared memory.
        with self._client.create(name, tensor.shape, tensor.dtype, owner_bound=True, timeout=self._timeout) as draft:
            draft.torch().copy_(tensor)

    async def receive_weights(self, global_steps=None):
        """Wait until the weights of this update are complete, and yield each name and torch.Tensor.

        The tensors are the shared memory itself, not copied. A write to one is seen by nobody else. They stay valid
        while they are used; finalize() gives back the rest.
        """
        self._check_ready()
        client, start = self._client, self._start
        try:
            with await asyncio.to_thread(client.get, f"{start}complete", timeout=self._timeout) as number:
                count = int(number)
            self._held = client.get_many(prefix=f"{start}weights") if count else {}
        except tensorlease.TimeoutError as error:
            raise TimeoutError(
                f"the actor has not published all weights below {start!r} within {self._timeout} s: look for an error "
                "of its rank 0, or set engine_kwargs.tensorlease.timeout"
            ) from error
        except tensorlease.NotFoundError as error:
            raise self._gone() from error
        if len(self._held) != count:
            raise self._gone()
        for name, tensor in self._held.items():
            yield name, tensor.torch()

    def _gone(self):
        return RuntimeError(f"the weights below {self._start!r} are gone: rank 0 of the actor has ended in the update")
