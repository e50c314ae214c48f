# SPDX-License-Identifier: Apache-2.0
"""tensorlease.camera: one process owns a device and publishes its frames, whoever reads and whoever is killed."""

import os
import select
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from cameras import HEIGHT, WIDTH, frame, running
from conftest import daemon_at, end_child, eventually, start_child
from limits import limit

import tensorlease
from tensorlease.camera import FrameInfo, frame_info, is_live


@pytest.fixture(autouse=True)
def nothing_left(client):
    yield
    client.delete(prefix="", everything=True, missing_ok=True)
    eventually(lambda: len(client.clients()) == 1)
    eventually(lambda: (client.status().tensors, client.status().retired, client.status().drafts) == (0, 0, 0))


def refused(*arguments, status):
    command = [sys.executable, "-m", "tensorlease.camera", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit(60))
    assert done.returncode == status, done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("color", ["rgb", "bgr"])
def test_frames_come_with_what_the_camera_says_about_them(client, color):
    with running("cam/a", "--fps", 200, "--color", color) as camera:
        numbers = []
        for tensor in client.watch("cam/a", timeout=limit(60)):
            with tensor:
                info = frame_info(tensor)
                assert info == FrameInfo(info.number, info.captured_ns, 200.0, color, camera.pid)
                assert 0 <= time.monotonic_ns() - info.captured_ns < limit(60) * 10**9
                assert (tensor.dtype, tensor.shape) == ("uint8", (HEIGHT, WIDTH, 3))
                assert np.array_equal(tensor.numpy(), frame(info.number, color))
            numbers.append(info.number)
            if len(numbers) == 50:
                break
        assert numbers == sorted(set(numbers))
        assert client.stat("cam/a").ring == 8
        assert frame_info(client.stat("cam/a")).pid == camera.pid and is_live(client, "cam/a")
    assert "cam/a" not in client, "a camera that ends deletes its name"
    assert camera.said.startswith(f"cam/a: {WIDTH}x{HEIGHT} {color} at 200 fps from device synthetic") and not camera.warned


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it(client, number):
    with running("cam/a", "--fps", 0.01) as camera:  # it sleeps for 100 s
        client.get("cam/a", timeout=limit(60)).release()
        camera.send_signal(number)
        assert camera.wait(limit(60)) == 0
    assert "ended by a signal" in camera.said and not camera.warned and "cam/a" not in client


def test_signals_as_it_ends_do_not_change_its_status(client):
    with running("cam/a", "--fps", 600, "--frames", 2) as camera:
        while camera.poll() is None:
            camera.send_signal(signal.SIGTERM)
        assert camera.returncode == 0


def test_it_ends_after_so_many_frames(client):
    with running("cam/a", "--fps", 600, "--frames", 7) as camera:
        assert camera.wait(limit(60)) == 0
    assert "after 7 frames" in camera.said


def test_the_frames_of_a_killed_camera_stay_until_the_next_one_begins(client):
    with running("cam/a", "--fps", 200) as first:
        client.get("cam/a", timeout=limit(60)).release()
        first.kill()
        first.wait()
    eventually(lambda: not is_live(client, "cam/a"))
    with client.get("cam/a") as last:
        assert frame_info(last).pid == first.pid
        with running("cam/a", "--fps", 200) as second, client.get("cam/a", newer_than=last.version, timeout=limit(60)) as new:
            assert frame_info(new).pid == second.pid


def test_a_name_has_one_camera(client):
    with running("cam/a"):
        client.get("cam/a", timeout=limit(60)).release()
        said = refused("cam/a", "--device", "synthetic", status=1)
        assert "'cam/a' is published by a process that still runs" in said
        assert is_live(client, "cam/a")


def test_a_killed_reader_costs_the_others_nothing(client, address):
    with running("cam/a", "--fps", 200):
        ready, done = os.pipe()

        def hold():
            held = []
            for tensor in tensorlease.connect().watch("cam/a"):
                held.append(tensor)
                if len(held) == 20:  # more than the ring has
                    os.write(done, b"1")
                    signal.pause()

        pid = start_child(hold)
        os.read(ready, 1)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        seen = []
        for tensor in client.watch("cam/a", timeout=limit(60)):
            with tensor:
                seen.append(frame_info(tensor).number)
            if len(seen) == 20:
                break
        os.close(ready)
        os.close(done)


def test_a_stream_has_each_frame(client):
    stream = client.stream("recording", "broadcast", depth=64, drop_oldest=True, ttl=60)
    with stream, stream.subscribe() as frames:
        with running("cam/a", "--fps", 600, "--frames", 40, "--stream", "recording"):
            for number in range(40):
                with frames.get(timeout=limit(60)) as item:
                    assert frame_info(item).number == number
                    assert np.array_equal(item.tensor.numpy(), frame(number))
            assert frames.get(timeout=limit(60)) is None, "the camera says that it ends"


def test_frames_without_space_are_counted(tmp_path):
    """A reader that keeps all frames takes the daemon's memory; then the camera goes on."""
    with daemon_at(str(tmp_path / "socket"), capacity="4M"), tensorlease.connect(tmp_path / "socket") as client:
        with running("cam/a", "--fps", 600, "--address", tmp_path / "socket") as camera:
            with client.watch("cam/a", timeout=limit(60)) as watch:
                held = []
                while camera.stderr not in select.select([camera.stderr, watch], [], [], limit(60))[0]:
                    held += [tensor for tensor in [watch.poll()] if tensor is not None]
            assert "is not published: " in camera.stderr.readline()
            before, version = frame_info(held[-1]).number, held[-1].version
            held.clear()
            with client.get("cam/a", newer_than=version, timeout=limit(60)) as tensor:
                assert frame_info(tensor).number > before
            while "is published again" not in camera.stderr.readline():
                pass


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["cam/a"], 2, "--device"),
        (["cam/a", "--device", "synthetic", "--fps", "0"], 2, "--fps: 0 is not from 0.01 to 655"),
        (["cam/a", "--device", "synthetic", "--width", "70000"], 2, "--width: 70000 is not from 1 to 16384"),
        (["cam/a", "--device", "synthetic", "--color", "grey"], 2, "--color: invalid choice: 'grey'"),
        (["cam/a", "--device", "0", "--fourcc", "MJPEG"], 2, "'MJPEG' does not have 4 letters"),
        (["cam//a", "--device", "synthetic"], 1, "cam//a"),
        (["cam/a", "--device", "synthetic", "--address", "/nowhere/socket"], 1, "/nowhere/socket"),
    ],
)
def test_bad_options(client, arguments, status, says):
    assert says in refused(*arguments, status=status)


def test_a_device_needs_opencv(client, monkeypatch, tmp_path):
    (tmp_path / "cv2.py").write_text("raise ImportError('no such thing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = refused("cam/a", "--device", "/dev/video9", status=1)
    assert "'/dev/video9' needs OpenCV (no such thing): pip install opencv-python-headless" in said


def test_what_no_camera_has_published(client):
    client.put("other", np.zeros(3))
    with pytest.raises(ValueError, match="'other' is no frame of a camera"):
        frame_info(client.get("other"))
    client.put("other", np.zeros((2, 2, 3), "uint8"), metadata=bytes(24))
    with pytest.raises(ValueError, match="'other' is no frame of a camera"):
        frame_info(client.stat("other"))
    assert is_live(client, "other") and not is_live(client, "nothing")


# ---- OpenCV ----


@pytest.fixture
def film(tmp_path):
    """A video of ten grey frames, brighter from frame to frame, with a red corner."""
    cv2 = pytest.importorskip("cv2", reason="OpenCV is not installed")
    path = str(tmp_path / "film.avi")
    writer = cv2.VideoWriter(path, cv2.VideoWriter_fourcc(*"MJPG"), 25, (WIDTH, HEIGHT))
    for number in range(10):
        picture = np.full((HEIGHT, WIDTH, 3), 20 * number, "uint8")
        picture[:16, :16] = (0, 0, 255)  # BGR
        writer.write(picture)
    writer.release()
    return path


@pytest.mark.parametrize("color", ["rgb", "bgr"])
def test_a_video_is_published_as_it_is(client, film, color):
    name = f"film {color}"  # that of the other color has ended
    stream = client.stream(name, "broadcast", depth=64, drop_oldest=True, ttl=60)
    with stream, stream.subscribe() as frames:
        with running("cam/a", "--stream", name, "--fps", 100, "--color", color, device=film) as camera:
            for number in range(10):
                with frames.get(timeout=limit(60)) as item:
                    picture = item.tensor.numpy().astype(int)
                    assert abs(picture[32:, 32:] - 20 * number).max() <= 3
                    red = picture[4:12, 4:12].mean((0, 1))
                    assert red[0 if color == "rgb" else 2] > 200 and red[1] < 60
            assert camera.wait(limit(60)) == 0
        assert "after 10 frames" in camera.said


def test_a_video_has_a_rate_and_a_size_of_its_own(client, film):
    with running("cam/a", device=film) as camera:
        with client.get("cam/a", timeout=limit(60)) as tensor:
            assert tensor.shape == (HEIGHT, WIDTH, 3) and frame_info(tensor).fps == 25
    assert "at 25 fps" in camera.said
    said = refused("cam/a", "--device", film, "--width", "1280", status=1)
    assert f"has width {WIDTH} where 1280 was asked for" in said


@pytest.mark.parametrize("device", ["77", "/dev/nothing", __file__])
def test_a_device_that_is_not_there(client, device):
    pytest.importorskip("cv2", reason="OpenCV is not installed")
    assert f"device {device!r} cannot be opened" in refused("cam/a", "--device", device, status=1)
