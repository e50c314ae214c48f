# SPDX-License-Identifier: Apache-2.0
"""Reads the camera of its command line. Each line of the standard input is [what to call, arguments...].

The answer is [number, checksum] of a frame for each that was read, or [exception, text].
"""

import json
import sys
import zlib
from dataclasses import dataclass, field

import draccus
from lerobot.cameras import CameraConfig, make_cameras_from_configs
from lerobot.utils.import_utils import register_third_party_plugins


@dataclass
class Options:
    """As those of LeRobot's robots."""

    cameras: dict[str, CameraConfig] = field(default_factory=dict)


def main():
    register_third_party_plugins()
    options = draccus.parse(Options, args=sys.argv[1:])
    (camera,) = make_cameras_from_configs(options.cameras).values()
    held = []

    def one(call, *arguments):
        frame = getattr(camera, call)(*arguments)
        if frame is None:
            return None
        held.append(frame)
        return camera.frame_info.number, zlib.crc32(frame)

    for line in sys.stdin:
        call, *arguments = json.loads(line)
        try:
            if call == "many":
                answer = []
                for _ in range(arguments[0]):
                    answer.append(one("async_read", 60000))
                    held.clear()
            elif call == "keep":
                answer = [one("async_read", 60000) for _ in range(arguments[0])]
            elif call == "release":
                held.clear()
                answer = None
            else:
                answer = one(call, *arguments)
        except Exception as error:
            answer = type(error).__name__, str(error)
        print(json.dumps(answer), flush=True)


main()
