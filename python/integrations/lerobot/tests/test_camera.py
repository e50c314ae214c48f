# SPDX-License-Identifier: Apache-2.0
"""The camera in real LeRobot: found by its prefix, with several readers of one camera, whoever is killed."""

import contextlib
import zlib

import numpy as np
import pytest
from cameras import HEIGHT, WIDTH, frame, running
from conftest import PACKAGE, daemon_at, eventually
from distributions import check_wheel
from limits import limit

MATCHING = {"width": WIDTH, "height": HEIGHT, "fps": 200}
LONG_MS = limit(60) * 1000


@pytest.fixture(scope="module")
def plugin(installed):
    """The plug-in, as LeRobot has imported it."""
    import sys

    from lerobot.utils.import_utils import register_third_party_plugins

    assert "lerobot_camera_tensorlease" not in sys.modules
    register_third_party_plugins()
    return sys.modules["lerobot_camera_tensorlease"]


@pytest.fixture
def made(plugin, store):
    """made(name, **options) is a camera, which ends with the test."""
    from lerobot.cameras import make_cameras_from_configs

    cameras = []

    def make(name, **options):
        config = plugin.TensorleaseCameraConfig(name=name, **options)
        cameras.append(make_cameras_from_configs({"front": config})["front"])
        return cameras[-1]

    yield make
    for camera in cameras:
        if camera.is_connected:
            camera.disconnect()


def test_lerobot_finds_it_by_its_prefix(plugin, made):
    from lerobot.cameras import Camera, CameraConfig

    assert CameraConfig.get_choice_class("tensorlease") is plugin.TensorleaseCameraConfig
    camera = made("cam/front", width=640, height=480, fps=30)
    assert type(camera) is plugin.TensorleaseCamera and isinstance(camera, Camera)
    assert camera.config.type == "tensorlease" and (camera.width, camera.height, camera.fps) == (640, 480, 30)
    assert not camera.is_connected and str(camera) == "TensorleaseCamera(cam/front)"


def test_a_camera_is_read_as_lerobot_has_it(made):
    from lerobot.utils.errors import DeviceAlreadyConnectedError, DeviceNotConnectedError

    with running("cam/front", "--fps", 200):
        camera = made("cam/front", warmup_s=limit(60))
        for call in (camera.read, camera.async_read, camera.read_latest, camera.disconnect):
            with pytest.raises(DeviceNotConnectedError):
                call()
        camera.connect()
        assert camera.is_connected and (camera.width, camera.height, camera.fps) == (WIDTH, HEIGHT, 200)
        with pytest.raises(DeviceAlreadyConnectedError):
            camera.connect()
        numbers = []
        for call in (camera.async_read, camera.read, camera.async_read, camera.read):
            picture = call(LONG_MS) if call == camera.async_read else call()
            assert np.array_equal(picture, frame(camera.frame_info.number))
            numbers.append(camera.frame_info.number)
        assert numbers == sorted(set(numbers))
        latest = camera.read_latest(LONG_MS)
        assert camera.frame_info.number >= numbers[-1] and np.array_equal(latest, frame(camera.frame_info.number))
        camera.disconnect()
        assert not camera.is_connected and np.array_equal(picture, frame(numbers[-1])), "a frame stays"


def test_frames_are_shared_unless_copies_are_asked_for(made, store):
    with running("cam/front", "--fps", 200):
        shared, own = made("cam/front", warmup_s=limit(60)), made("cam/front", copy=True, warmup_s=limit(60))
        for camera in (shared, own):
            camera.connect()
        kept, mine = shared.async_read(LONG_MS), own.async_read(LONG_MS)
        assert not kept.flags.writeable and mine.flags.writeable and mine.flags.owndata
        mine[:] = 0
        eventually(lambda: sum(one.leases for one in store.clients()) == 1)  # a camera that looks at a frame has one, too
        del kept


def test_async_read_gives_no_frame_twice(made):
    camera = made("cam/front")
    camera.connect(warmup=False)
    with running("cam/front", "--fps", 0.01):
        camera.async_read(LONG_MS)
        with pytest.raises(TimeoutError, match="within 1 ms"):
            camera.async_read(1)
        assert np.array_equal(camera.read_latest(LONG_MS), frame(0)) and camera.frame_info.number == 0


def test_two_readers_get_the_same_frames(reader):
    with running("cam/front", "--fps", 200):
        readers = [reader("cam/front", **MATCHING, warmup_s=limit(60)) for _ in range(2)]
        for one in readers:
            one.tell("connect")
        assert [one.answer() for one in readers] == [None, None]
        for one in readers:
            one.tell("many", 100)
        answers = [dict(map(tuple, one.answer())) for one in readers]
        for answer in answers:
            assert len(answer) == 100 and list(answer) == sorted(answer)
            assert all(zlib.crc32(frame(number)) == checksum for number, checksum in answer.items())
        assert answers[0].keys() & answers[1].keys()


def test_a_killed_reader_takes_nothing_from_the_other(reader, store):
    with running("cam/front", "--fps", 200):
        first, second = (reader("cam/front", **MATCHING, warmup_s=limit(60)) for _ in range(2))
        assert first.ask("connect") is second.ask("connect") is None
        kept = first.ask("keep", 20)  # more than the ring has
        assert len(kept) == 20 and sum(one.leases for one in store.clients()) >= 20
        second.tell("many", 50)
        first.process.kill()
        after = second.answer()
        assert len(after) == 50 and all(zlib.crc32(frame(number)) == checksum for number, checksum in after)
        eventually(lambda: sum(one.leases for one in store.clients()) == 0)
        assert len(second.ask("many", 5)) == 5
        eventually(lambda: store.status().retired == 0)


def test_a_camera_that_was_killed_is_missed_until_it_is_started_again(reader):
    with running("cam/front", "--fps", 200) as first:
        one = reader("cam/front", **MATCHING, warmup_s=limit(60))
        assert one.ask("connect") is None
        last = one.ask("many", 10)[-1][0]
        first.kill()
        first.wait()
    while (said := one.ask("async_read", 20))[0] != "TimeoutError":
        last = said[0]
    assert "no new frame came within 20 ms. " in said[1]
    assert f"Process {first.pid} published frame " in said[1] and " s ago, and has ended. " in said[1]
    assert said[1].endswith("Start the camera: python -m tensorlease.camera cam/front --device DEVICE")
    late, text = one.ask("read_latest", 1)
    assert late == "TimeoutError" and " ms old, of 1 at most. Process " in text
    with running("cam/front", "--fps", 200):
        again = one.ask("many", 10)
        assert all(zlib.crc32(frame(number)) == checksum for number, checksum in again)


def test_a_camera_that_hangs_is_told_from_one_that_has_ended(made):
    one = made("cam/front")
    one.connect(warmup=False)
    with running("cam/front", "--fps", 0.01) as camera:
        one.async_read(LONG_MS)
        with pytest.raises(TimeoutError, match=f"Process {camera.pid} published frame 0.* still runs: see whether its device"):
            one.async_read(1)


def test_who_is_not_there(made, store):
    with running("cam/other"):
        store.get("cam/other", timeout=limit(60)).release()
        with pytest.raises(ConnectionError, match="Nothing is published as 'cam/front', but 'cam/other'. Start the camera"):
            made("cam/front", warmup_s=0).connect()
    camera = made("cam/front")
    camera.connect(warmup=False)
    with pytest.raises(RuntimeError, match="Nothing is published as 'cam/front'. Start the camera: python -m"):
        camera.read_latest()
    with pytest.raises(TimeoutError, match="within 5 ms. Nothing is published as 'cam/front'. Start"):
        camera.async_read(timeout_ms=5)


def test_a_stale_frame_is_no_camera(made, store):
    with running("cam/front") as camera:
        store.get("cam/front", timeout=limit(60)).release()
        camera.kill()
    with pytest.raises(ConnectionError, match=f"Process {camera.pid} published frame .* has ended"):
        made("cam/front", warmup_s=0.01).connect()


def test_without_a_daemon_there_is_no_camera(made, tmp_path):
    with pytest.raises(ConnectionError, match="Start the camera: python -m tensorlease.camera 'my cam' --device") as raised:
        made("my cam", address=str(tmp_path / "socket")).connect()
    assert str(tmp_path / "socket") in str(raised.value)


def test_camera_and_reader_go_on_with_another_daemon(made, tmp_path):
    socket = str(tmp_path / "socket")
    first, second = daemon_at(socket), daemon_at(socket)
    with contextlib.ExitStack() as stack:
        with first:
            process = stack.enter_context(running("cam/front", "--fps", 200, "--address", socket))
            camera = made("cam/front", address=socket, warmup_s=limit(60))
            camera.connect()
            assert np.array_equal(camera.async_read(LONG_MS), frame(camera.frame_info.number))
        with pytest.raises(TimeoutError, match="The daemon does not answer: "):
            while True:
                camera.async_read(20)
        with second:
            assert np.array_equal(camera.async_read(LONG_MS), frame(camera.frame_info.number))
            assert camera.frame_info.pid == process.pid
            camera.disconnect()
            process.terminate()
            assert process.wait(limit(60)) == 0
    assert "is not published: " in process.warned and "is published again" in process.warned


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"width": 1280}, f"gives {WIDTH}x{HEIGHT} rgb at 200 fps, where the configuration has 1280x{HEIGHT} rgb at 200"),
        ({"fps": 30}, f"has {WIDTH}x{HEIGHT} rgb at 30 fps"),
        ({"color_mode": "bgr"}, f"has {WIDTH}x{HEIGHT} bgr at 200 fps"),
    ],
)
def test_frames_must_be_what_the_configuration_says(made, options, says):
    with running("cam/front", "--fps", 200):
        camera = made("cam/front", warmup_s=limit(60), **options)
        with pytest.raises(RuntimeError, match=says):
            camera.connect()
        assert not camera.is_connected


def test_what_is_no_frame(made, store):
    camera = made("cam/front")
    camera.connect(warmup=False)
    store.put("cam/front", np.zeros(3))
    with pytest.raises(RuntimeError, match="'cam/front' is no frame of a camera"):
        camera.async_read(LONG_MS)


@pytest.mark.parametrize(("options", "says"), [({"warmup_s": -1}, "warmup_s is -1"), ({"color_mode": "hsv"}, "hsv")])
def test_wrong_configurations(plugin, options, says):
    with pytest.raises(ValueError, match=says):
        plugin.TensorleaseCameraConfig(name="cam/front", **options)


def test_cameras_are_found(plugin, store, monkeypatch, tmp_path):
    with running("cam/front", "--fps", 200):
        store.get("cam/front", timeout=limit(60)).release()
        store.put("cam/other", np.zeros(3))
        (found,) = plugin.TensorleaseCamera.find_cameras()
        assert found["type"] == "tensorlease" and found["id"] == "cam/front"
        assert found["default_stream_profile"] == {"width": WIDTH, "height": HEIGHT, "fps": 200, "format": "rgb"}
    monkeypatch.setenv("TENSORLEASE_SOCKET", str(tmp_path / "socket"))
    assert plugin.TensorleaseCamera.find_cameras() == []


def test_the_wheel_has_the_name_that_lerobot_looks_for(tmp_path):
    assert check_wheel(PACKAGE, tmp_path, "lerobot_camera_tensorlease") == []
