# SPDX-License-Identifier: Apache-2.0
"""A double of rclpy's Node. Messages of all topics go through two functions, which tests connect as they like."""


class _Publisher:
    def __init__(self, kind, topic, send):
        self._kind, self._topic, self._send = kind, topic, send

    def publish(self, message):
        assert type(message) is self._kind
        self._send(self._topic, message)


class Node:
    def __init__(self, send=None):
        self.log, self._send, self._subscriptions = [], send or self.deliver, []

    def create_publisher(self, kind, topic, qos):
        assert isinstance(qos, int) and qos >= 0
        return _Publisher(kind, topic, self._send)

    def create_subscription(self, kind, topic, callback, qos):
        assert isinstance(qos, int) and qos >= 0
        self._subscriptions.append((kind, topic, callback))
        return self._subscriptions[-1]

    def destroy_subscription(self, subscription):
        self._subscriptions.remove(subscription)
        return True

    def deliver(self, topic, message):
        """What an executor does with a message that has come."""
        for kind, of, callback in self._subscriptions:
            if of == topic:
                assert type(message) is kind
                callback(message)

    def get_logger(self):
        return self

    def warning(self, text, *, throttle_duration_sec):
        self.log.append(text)
