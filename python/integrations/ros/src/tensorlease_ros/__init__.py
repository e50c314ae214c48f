# SPDX-License-Identifier: Apache-2.0
"""Topics of ROS 2 whose messages carry tensors by 32 bytes, whatever their size.

A publisher puts each tensor under a name and hands it on; a subscriber gets this very tensor, without a copy, even if
the name means a newer one by then.
"""

import tensorlease

from . import _topics

__all__ = ["TensorPublisher", "TensorSubscription"]

_TOKEN = 32  # bytes


class TensorPublisher:
    """Publishes tensors on a topic.

    node: an rclpy Node.
    topic: of type std_msgs/msg/UInt8MultiArray. Nothing else may be published there.
    name: of the tensors, for programs without ROS. None: `ros/` and the topic. One publisher at a time uses it.
    client: a tensorlease.Client, or None: one that is connected to the default address, and closed by destroy().
    qos: as for Node.create_publisher().
    keep: seconds for which the daemon keeps a tensor that was published for subscribers that have not received it. It
        keeps 1,024 tensors of this client at most.
    """

    def __init__(self, node, topic, *, name=None, client=None, qos=10, keep=1.0):
        if not keep > 0:
            raise ValueError(f"keep is {keep!r}; it must be more than 0 seconds")
        self.name = f"ros/{topic.strip('/')}" if name is None else name
        self._keep = keep
        self._owned = None if client else tensorlease.connect()
        self._client = client or self._owned
        self._send = _topics.advertise(node, topic, qos)

    def publish(self, array, *, metadata=None):
        """Copy the array into shared memory and publish it there and on the topic.

        array: anything that Client.put() takes. What a Draft of Client.create() has is not copied.
        metadata: bytes to attach, at most 1,024, such as a stamp and a frame's name; subscribers read tensor.metadata.
        What put() and ref() raise is raised here, and then nothing was sent.
        """
        version = self._client.put(self.name, array, metadata=metadata)
        with self._client.get(self.name) as tensor:
            if tensor.version != version:
                raise RuntimeError(f"somebody else publishes {self.name!r}: give each TensorPublisher a name of its own")
            self._send(self._client.ref(tensor, ttl=self._keep, once=False).token)

    def destroy(self):
        """Disconnect, if it has connected itself. Tensors that were not received by then go; the last one's name stays."""
        if self._owned is not None:
            self._owned.close()


class TensorSubscription:
    """Calls a function with each tensor of a topic of a TensorPublisher.

    node, topic, client, qos: as for TensorPublisher.
    callback: is called with a Tensor, by the node's executor. The tensor stays as long as the callback keeps it.
    mode: as for Client.get(): "c" for an array that the callback writes to.
    missed: how many tensors had gone when their message came, since the executor was later than `keep` of the publisher,
        or the publisher had ended. The node's log says so.
    """

    def __init__(self, node, topic, callback, *, client=None, qos=10, mode="r"):
        self._node, self._topic, self._callback, self._mode = node, topic, callback, mode
        self._owned = None if client else tensorlease.connect()
        self._client = client or self._owned
        self.missed = 0
        self._subscription = _topics.subscribe(node, topic, qos, self._received)

    def _received(self, data):
        if len(data) != _TOKEN:
            _topics.warn(self._node, f"{self._topic}: a message of {len(data)} bytes; a TensorPublisher sends {_TOKEN}")
            return
        try:
            tensor = self._client.receive(data, mode=self._mode)
        except tensorlease.NotFoundError as error:
            self.missed += 1
            _topics.warn(self._node, f"{self._topic}: {self.missed} tensors missed; the last: {error.strerror}")
            return
        self._callback(tensor)

    def destroy(self):
        """Unsubscribe, and disconnect if it has connected itself."""
        self._node.destroy_subscription(self._subscription)
        if self._owned is not None:
            self._owned.close()
