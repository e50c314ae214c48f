# SPDX-License-Identifier: Apache-2.0
"""TRL's AsyncGRPOTrainer with weights from shared memory: what its argument weight_transfer takes."""

import contextlib

import tensorlease
from tensorlease._weights import published
from trl.experimental.async_grpo.vllm_client import VLLMClient

from ._options import check


class TensorleaseWeightTransfer:
    """TRL's WeightTransferProtocol: publishes the weights of each step, and makes a vLLM server load them.

    server_url: of `vllm serve`, as vllm_server_base_url of the trainer's AsyncGRPOConfig.
    prefix: the weights are called PREFIX/NAME.
    address, namespace: as for tensorlease.connect(), for the trainer and for the server. None: each of them takes its
        own default.
    timeout: seconds to wait for space.
    server_timeout: seconds to wait for the server, until it is ready and for each of its answers.

    The main process of the trainer makes all calls. It holds all weights at once while it publishes.
    """

    def __init__(self, server_url, prefix, *, address=None, namespace=None, timeout=60.0, server_timeout=1800.0):
        self._where = {"address": address, "namespace": namespace}
        numbers = {"timeout": timeout, "server_timeout": server_timeout}
        check("TensorleaseWeightTransfer", {"prefix": prefix, **numbers, **self._where})
        self._prefix, self._timeout, self._server_s = prefix, timeout, server_timeout
        self._server = VLLMClient(server_url, server_timeout)

    def init_weight_transfer(self):
        """Wait for the server, and make its workers connect to the daemon."""
        self._server.wait_for_server_ready()
        self._server.init_weight_transfer_engine(self._where, timeout=self._server_s)

    def pause(self):
        """Stop the server's requests. The server forgets what it has computed by the former weights."""
        self._server.pause(timeout=self._server_s)

    def resume(self):
        """Go on with the requests."""
        self._server.resume(timeout=self._server_s)

    def send_weights(self, iterator):
        """Publish the weights, and make an update of the server.

        RuntimeError: it failed. The server is then out of the update and answers again.
        """
        where = self._where
        try:
            with tensorlease.connect(where["address"], namespace=where["namespace"]) as client:
                with published(client, self._prefix, iterator, keep=True, timeout=self._timeout) as info:
                    self._update(info)
        except Exception as error:
            with contextlib.suppress(Exception):  # the error below says more
                self.resume()
            raise RuntimeError(
                f"the vLLM server at {self._server.server_url} did not get the weights below {self._prefix!r}: {error}"
            ) from error

    def _update(self, info):
        self._server.start_weight_update(timeout=self._server_s)
        try:
            self._server.update_weights(info, timeout=self._server_s)
        except BaseException:
            with contextlib.suppress(Exception):
                self._server.finish_weight_update(timeout=self._server_s)
            raise
        self._server.finish_weight_update(timeout=self._server_s)

    def destroy(self):
        """Do nothing: each update has a connection of its own. The newest weights stay, for servers that start later."""
