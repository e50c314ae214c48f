# SPDX-License-Identifier: Apache-2.0
"""The camera and its configuration. LeRobot finds the class by the name of its configuration's."""

import contextlib
import math
import select
import shlex
import time
from dataclasses import dataclass

import tensorlease
from lerobot.cameras import Camera, CameraConfig, ColorMode
from lerobot.utils.errors import DeviceAlreadyConnectedError, DeviceNotConnectedError
from tensorlease.camera import frame_info, is_live

_READ_S = 10.0  # as LeRobot's own cameras have it
_NO_DAEMON_S = 0.1  # so often a daemon is looked for while there is none


@CameraConfig.register_subclass("tensorlease")
@dataclass(kw_only=True)
class TensorleaseCameraConfig(CameraConfig):
    """name: of the frames, as `python -m tensorlease.camera` was told.

    width, height, fps, color_mode: what the frames must be. The first three may be None: what they are.
    copy: whether each frame is an array of its own, which may be written to. Otherwise it is the shared memory, read-only.
    warmup_s: how long connect() waits for a frame.
    address, namespace: as for tensorlease.connect().
    """

    name: str
    color_mode: ColorMode = ColorMode.RGB
    copy: bool = False
    warmup_s: float = 1.0
    address: str | None = None
    namespace: str | None = None

    def __post_init__(self):
        self.color_mode = ColorMode(self.color_mode)
        if not (self.warmup_s >= 0 and math.isfinite(self.warmup_s)):
            raise ValueError(f"warmup_s is {self.warmup_s}; it must be 0 seconds or more")


class TensorleaseCamera(Camera):
    """A reader of frames that another process takes from the device. Any number of them may read one camera.

    frame_info: what the camera said about the last frame that was read, a tensorlease.camera.FrameInfo.
    """

    def __init__(self, config):
        super().__init__(config)
        self.config = config
        self.frame_info = None
        self._client = self._watch = None

    def __str__(self):
        return f"{type(self).__name__}({self.config.name})"

    @property
    def is_connected(self):
        return self._watch is not None

    @staticmethod
    def find_cameras():
        """Return the cameras of the daemon that tensorlease.connect() finds, and of its default namespace."""
        try:
            with tensorlease.connect(autostart=False) as client:
                return _cameras(client)
        except tensorlease.NoDaemonError:
            return []

    def connect(self, warmup=True):
        """Begin to read. With warmup, wait for a frame that is new.

        ConnectionError: no camera publishes under that name. RuntimeError: its frames are not what the configuration
        says. DeviceAlreadyConnectedError: it was called before.
        """
        if self.is_connected:
            raise DeviceAlreadyConnectedError(f"{self} is already connected.")
        try:
            self._client = tensorlease.connect(self.config.address, namespace=self.config.namespace, autostart=False)
            self._watch = self._client.watch(self.config.name)
            self._skip()  # may be what is left of a camera that has ended
            if warmup:
                self._next(self.config.warmup_s)
        except BaseException as error:
            self._close()
            if isinstance(error, tensorlease.NoDaemonError):
                raise ConnectionError(f"{self}: {error.strerror}. {self._start()}") from None
            if isinstance(error, TimeoutError):
                raise ConnectionError(str(error)) from None
            raise

    def disconnect(self):
        """Read no more. Frames that were read stay valid. DeviceNotConnectedError: it is not connected."""
        self._check_connected()
        self._close()

    def read(self):
        """Return the next frame that is captured from now on. TimeoutError: none came within 10 s."""
        self._check_connected()
        self._skip()
        return self._next(_READ_S)

    def async_read(self, timeout_ms=200):
        """Return the newest frame that no read before has returned, at once or as soon as it comes.

        TimeoutError: none came in that time; the text says what became of the camera. A later call goes on when it is
        there again. RuntimeError: frames are not what the configuration says.
        """
        self._check_connected()
        return self._next(timeout_ms / 1000)

    def read_latest(self, max_age_ms=500):
        """Return the newest frame, which may have been read before.

        TimeoutError: it was captured more than max_age_ms before. RuntimeError: there is none, or it is not what the
        configuration says.
        """
        self._check_connected()
        try:
            tensor = self._client.get(self.config.name)
        except tensorlease.NotFoundError:
            raise RuntimeError(f"{self}: {self._whereabouts()}") from None
        with tensor:
            age = (time.monotonic_ns() - self._check(tensor).captured_ns) / 1e6
            if age > max_age_ms:
                raise TimeoutError(f"{self}: the newest frame is {age:.0f} ms old, of {max_age_ms:g} at most. {self._whereabouts()}")
            return self._take(tensor)

    # ---- Parts of these ----

    def _check_connected(self):
        if not self.is_connected:
            raise DeviceNotConnectedError(f"{self} is not connected. Call connect() first.")

    def _close(self):
        watch, client = self._watch, self._client
        self._watch = self._client = None
        if watch is not None:
            watch.close()
        if client is not None:
            client.close()

    def _skip(self):
        """The frame that is there now is not given any more."""
        with contextlib.suppress(tensorlease.DisconnectedError):
            tensor = self._watch.poll()
            if tensor is not None:
                tensor.release()

    def _next(self, seconds):
        end = time.monotonic() + seconds
        while True:
            try:
                tensor, pause = self._watch.poll(), math.inf
            except tensorlease.DisconnectedError:
                tensor, pause = None, _NO_DAEMON_S
            if tensor is not None:
                with tensor:
                    return self._take(tensor)
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{self}: no new frame came within {seconds * 1000:g} ms. {self._whereabouts()}")
            if pause < left:
                time.sleep(pause)
            else:
                select.select([self._watch], [], [], left)

    def _take(self, tensor):
        self.frame_info = self._check(tensor)
        frame = tensor.numpy()
        return frame.copy() if self.config.copy else frame

    def _check(self, tensor):
        """Return what the camera says about a frame, if that is what the configuration says. Set what that left open."""
        try:
            info = frame_info(tensor)
        except ValueError as error:
            raise RuntimeError(f"{self}: {error}") from None
        height, width, _ = tensor.shape
        mine = self.width or width, self.height or height, self.fps or info.fps, self.config.color_mode.value
        if mine[:2] != (width, height) or not math.isclose(mine[2], info.fps, rel_tol=1e-3) or mine[3] != info.color:
            raise RuntimeError(
                f"{self}: the camera gives {width}x{height} {info.color} at {info.fps:g} fps, where the configuration has "
                f"{mine[0]}x{mine[1]} {mine[3]} at {mine[2]:g} fps. Change it, or start the camera with other options."
            )
        self.width, self.height, self.fps = mine[:3]
        return info

    def _whereabouts(self):
        """Say what is known about the camera, and what to do."""
        name = self.config.name
        try:
            info = frame_info(self._client.stat(name))
            live = is_live(self._client, name)
        except ValueError as error:
            return f"{error}."
        except tensorlease.NotFoundError:
            there = ", ".join(repr(camera["id"]) for camera in _cameras(self._client))
            return f"Nothing is published as {name!r}{f', but {there}' if there else ''}. {self._start()}"
        except tensorlease.Error as error:
            return f"The daemon does not answer: {error.strerror}."
        last = f"Process {info.pid} published frame {info.number}, the last one, {_age_of(info):.1f} s ago"
        if live:
            return f"{last}, and still runs: see whether its device gives frames."
        return f"{last}, and has ended. {self._start()}"

    def _start(self):
        return f"Start the camera: python -m tensorlease.camera {shlex.quote(self.config.name)} --device DEVICE"


def _age_of(info):
    return (time.monotonic_ns() - info.captured_ns) / 1e9


def _cameras(client):
    found = []
    for one in client.list():
        try:
            info = frame_info(one)
        except ValueError:
            continue
        profile = {"width": one.shape[1], "height": one.shape[0], "fps": info.fps, "format": info.color}
        found.append({"name": f"tensorlease {one.name}", "type": "tensorlease", "id": one.name, "default_stream_profile": profile})
    return found
