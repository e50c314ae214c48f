# SPDX-License-Identifier: Apache-2.0
"""A camera for LeRobot: frames that one process publishes by `python -m tensorlease.camera`, for any number of readers.

LeRobot finds this package by its name. README.md says how to use it.
"""

from ._camera import TensorleaseCamera, TensorleaseCameraConfig

__all__ = ["TensorleaseCamera", "TensorleaseCameraConfig"]
