# SPDX-License-Identifier: Apache-2.0
"""python -m tensorlease.camera NAME --device DEVICE: the one process that owns a camera, and publishes its frames.

Any number of processes then get the newest frame by that name, as uint8 of (height, width, 3), and frame_info() tells
what comes with it. Only real devices and video files need OpenCV; the device "synthetic" needs NumPy alone.
"""

import argparse
import contextlib
import math
import os
import signal
import struct
import sys
import time
from typing import NamedTuple

from ._client import connect
from ._errors import DisconnectedError, Error, NoDaemonError, NoSpaceError, NotNewerError, TimeoutError

__all__ = ["FrameInfo", "frame_info", "is_live", "main"]

_METADATA = struct.Struct("<QqHBBI")  # 24 bytes, which is what a slot of a ring has room for
_VERSION, _COLORS = 1, ("rgb", "bgr")
_FPS_MIN, _FPS_MAX, _SIDE_MAX = 0.01, 655, 16384
_RING = 8  # slots; readers that hold more frames cost a request to the daemon for each
_STREAM_DEPTH, _STREAM_TTL = 64, 60.0
_FOR_A_WHILE = (NoSpaceError, NotNewerError, DisconnectedError, NoDaemonError, TimeoutError)


class FrameInfo(NamedTuple):
    """What a camera says about a frame."""

    number: int  # counts the frames of the device from 0, and those that were not published too
    captured_ns: int  # when the device gave it, as time.monotonic_ns(), which all processes of a machine share
    fps: float  # frames in a second, as the device was set
    color: str  # the order of the last axis: 'rgb' or 'bgr'
    pid: int  # of the camera's process


def frame_info(frame):
    """Return the FrameInfo of a Tensor, an Info or an Item of a stream. ValueError: no camera has published it."""
    data, tensor = frame.metadata, getattr(frame, "tensor", frame)
    number, captured, fps, color, version, pid = _METADATA.unpack(data) if len(data) == _METADATA.size else (0,) * 6
    if version != _VERSION or color >= len(_COLORS) or len(tensor.shape) != 3 or tensor.shape[2] != 3:
        raise ValueError(f"{tensor.name!r} is no frame of a camera: publish it by `python -m tensorlease.camera`")
    return FrameInfo(number, captured, fps / 100, _COLORS[color], pid)


def is_live(client, name):
    """Return whether the connection that has published name is still there."""
    with client.watch(name, until_gone=True, timeout=None) as watch:
        found = watch.poll()
        watch.poll()  # this one notices that nothing more will come
        return found is not None and not watch.over


class _Failed(Exception):
    """The device cannot be used; the text says what to do."""


class _Paced:
    """A device that has no clock of its own. grab() waits for the time of the next frame."""

    fps, due = 30.0, None  # due: when the last frame was

    def _wait(self):
        now = time.monotonic()
        self.due = now if self.due is None else max(now, self.due + 1 / self.fps)
        time.sleep(self.due - now)


class _Synthetic(_Paced):
    """Diagonal stripes that move by one step with each frame: byte (y, x, c) of frame n in RGB is y + x + 85c + n."""

    def __init__(self, options):
        import numpy

        self.width, self.height = options.width or 640, options.height or 480
        self.fps = options.fps or self.fps
        places = numpy.indices((self.height, self.width, 3)).sum(0) + 84 * numpy.arange(3)
        self._first = places.astype("uint8")[..., :: 1 if options.color == "rgb" else -1]

    def grab(self):
        self._wait()
        return True

    def read_into(self, array, number):
        import numpy

        numpy.add(self._first, numpy.uint8(number % 256), out=array)


class _OpenCV(_Paced):
    """A device or a video file, by OpenCV. A file is played at its own rate, or at that of the options, once."""

    def __init__(self, options):
        try:
            import cv2
        except ImportError as error:
            raise _Failed(
                f"device {options.device!r} needs OpenCV ({error}): pip install opencv-python-headless, or use the "
                "device 'synthetic'"
            ) from None
        self._cv2, self._device, self._rgb = cv2, options.device, options.color == "rgb"
        self._is_file = os.path.isfile(options.device)
        self._capture = cv2.VideoCapture(int(options.device) if options.device.isdecimal() else options.device)
        if not self._capture.isOpened():
            raise _Failed(
                f"device {self._device!r} cannot be opened: see whether it is there (ls /dev/video*), whether this "
                "user may read it, and that no other process has it"
            )
        if options.fourcc:
            self._set("pixel format", cv2.CAP_PROP_FOURCC, cv2.VideoWriter_fourcc(*options.fourcc))
        self.width = round(self._set("width", cv2.CAP_PROP_FRAME_WIDTH, options.width))
        self.height = round(self._set("height", cv2.CAP_PROP_FRAME_HEIGHT, options.height))
        self.fps = self._set("fps", cv2.CAP_PROP_FPS, None if self._is_file else options.fps)
        self.fps = (self._is_file and options.fps) or self.fps
        if not (self.width > 0 and self.height > 0 and _FPS_MIN <= self.fps <= _FPS_MAX):
            raise _Failed(
                f"device {self._device!r} says {self.width}x{self.height} at {self.fps:g} fps, of which no frames can "
                "be published: say --width, --height and --fps"
            )
        self._bgr = None

    def _set(self, what, key, value):
        if value is not None and not self._is_file:
            self._capture.set(key, value)
        found = self._capture.get(key)
        if value is not None and not math.isclose(found, value, rel_tol=1e-3):
            found = repr(struct.pack("<I", int(found))) if key == self._cv2.CAP_PROP_FOURCC else f"{found:g}"
            raise _Failed(
                f"device {self._device!r} has {what} {found} where {value:g} was asked for: `v4l2-ctl "
                "--list-formats-ext` shows what a device has; some give more with --fourcc MJPG"
            )
        return found

    def grab(self):
        if self._is_file:
            self._wait()
        if self._capture.grab():
            return True
        if self._is_file:
            return False
        raise _Failed(f"device {self._device!r} gives no more frames: see whether it is still plugged in, and start again")

    def read_into(self, array, number):
        good, found = self._capture.retrieve(self._bgr if self._rgb else array)
        if not good or found is None or found.shape != array.shape:
            has = "no image" if found is None or not good else "x".join(map(str, found.shape[1::-1]))
            raise _Failed(f"frame {number} of device {self._device!r} is {has}, and not {self.width}x{self.height}")
        if self._rgb:
            self._bgr = found  # OpenCV decodes into it again
            self._cv2.cvtColor(found, self._cv2.COLOR_BGR2RGB, dst=array)
        elif found is not array:
            array[...] = found


def _publish_one(client, name, device, stream, number, metadata):
    """Nothing holds the frame at the end, so that readers alone decide how long its memory is used."""
    with client.create(name, (device.height, device.width, 3), "uint8", metadata=metadata, ring=_RING) as draft:
        array = draft.numpy()
        device.read_into(array, number)
    if stream:
        stream.put(array, metadata=metadata, timeout=None)


def _publish(client, name, device, options, stream):
    """Publish frame after frame, and return how many there were. A frame for which there is no space is skipped."""
    number, trouble = 0, None
    while number != options.frames and device.grab():
        about = (number, time.monotonic_ns(), round(device.fps * 100), _COLORS.index(options.color), _VERSION, os.getpid())
        try:
            _publish_one(client, name, device, stream, number, _METADATA.pack(*about))
            if trouble:
                print(f"frame {number} is published again", file=sys.stderr)
            trouble = None
        except _FOR_A_WHILE as error:
            if type(error) is not trouble:
                print(f"frame {number} is not published: {error.strerror or error}", file=sys.stderr)
            trouble = type(error)
        number += 1
    return number


def _run(options):
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(connect(options.address, namespace=options.namespace))
        if is_live(client, options.name):
            raise _Failed(
                f"{options.name!r} is published by a process that still runs: end that one (`tensorlease clients` shows "
                "all), or choose another name"
            )
        device = (_Synthetic if options.device == "synthetic" else _OpenCV)(options)
        stream = None
        if options.stream:
            stream = client.stream(options.stream, "broadcast", depth=_STREAM_DEPTH, drop_oldest=True, ttl=_STREAM_TTL)
            stack.enter_context(stream).reopen()
            stack.callback(stream.end)
        stack.callback(client.delete, options.name, missing_ok=True)
        print(
            f"{options.name}: {device.width}x{device.height} {options.color} at {device.fps:g} fps from device "
            f"{options.device}, until Ctrl-C or SIGTERM",
            flush=True,
        )
        return _publish(client, options.name, device, options, stream)


def _between(kind, least, most):
    def parse(text):
        value = kind(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not from {least} to {most}")
        return value

    parse.__name__ = "number"
    return parse


def _fourcc(text):
    if len(text) != 4 or not text.isascii():
        raise argparse.ArgumentTypeError(f"{text!r} does not have 4 letters, as MJPG and YUYV have")
    return text


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m tensorlease.camera",
        description="Own a camera, and publish each of its frames under a name for any number of readers.",
        epilog="It deletes the name and ends with status 0 at SIGINT, SIGTERM and the end of a file. It ends with 1 "
        "when the device fails: let a service manager start it again, and readers go on. Each frame is counted, also "
        "one for which there is no space.",
    )
    parser.add_argument("name", metavar="NAME", help="of the frames, such as cam/front")
    parser.add_argument(
        "--device", required=True, help="a number or path of a camera, a video file, or 'synthetic': stripes that move"
    )
    sides = _between(int, 1, _SIDE_MAX)
    parser.add_argument("--width", type=sides, help="in pixels; default: what the device has")
    parser.add_argument("--height", type=sides, help="in pixels; default: what the device has")
    parser.add_argument("--fps", type=_between(float, _FPS_MIN, _FPS_MAX), help="default: what the device has")
    parser.add_argument("--color", choices=_COLORS, default="rgb", help="the order in the last axis; default: rgb")
    parser.add_argument("--fourcc", type=_fourcc, help="the device's own pixel format, such as MJPG")
    parser.add_argument(
        "--stream", metavar="STREAM", help="also put a copy of each frame into this broadcast, for recorders"
    )
    parser.add_argument("--frames", type=_between(int, 1, 2**63), metavar="N", help="end after so many")
    parser.add_argument("--address", help="of the daemon; default: as tensorlease.connect()")
    parser.add_argument("--namespace", help="of the names; default: as tensorlease.connect()")
    return parser


def _on_ends(handler):
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _end(number, frame):
    """Handle the first signal that asks for the end. From then on, and when it ends by itself, they are ignored: they
    would interrupt the end, or change the status, since the interpreter takes its handlers away as it ends.
    """
    _on_ends(signal.SIG_IGN)
    raise KeyboardInterrupt


def main(arguments=None):
    """Run the program, and return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        _on_ends(_end)  # SIGINT too, which a shell's background jobs ignore
        frames = _run(options)
        _on_ends(signal.SIG_IGN)
        print(f"{options.name}: the end, after {frames} frames")
    except KeyboardInterrupt:
        print(f"{options.name}: ended by a signal")
    except (_Failed, Error) as error:
        print(f"{_parser().prog}: {getattr(error, 'strerror', None) or error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
