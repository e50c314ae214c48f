# SPDX-License-Identifier: Apache-2.0
"""All that is said to ROS 2: topics of bytes."""

import array

from std_msgs.msg import UInt8MultiArray


def advertise(node, topic, qos):
    """Return a function that publishes bytes."""
    publisher = node.create_publisher(UInt8MultiArray, topic, qos)
    return lambda data: publisher.publish(UInt8MultiArray(data=array.array("B", data)))


def subscribe(node, topic, qos, function):
    """Have function called with the bytes of each message. Return the subscription."""
    return node.create_subscription(UInt8MultiArray, topic, lambda message: function(bytes(message.data)), qos)


def warn(node, text):
    node.get_logger().warning(text, throttle_duration_sec=5.0)
