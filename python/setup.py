# SPDX-License-Identifier: Apache-2.0
"""Builds libtensorlease and tensorleased with the project's Makefile, and the extension against them.

They go into the package as lib/libtensorlease.so.0 and bin/tensorleased: the library looks for the daemon beside
itself, so autostart works without anything installed. An sdist carries their sources in core/.
"""

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
CORE = HERE / "core" if (HERE / "core" / "Makefile").exists() else HERE.parent
CORE_PARTS = ["Makefile", "LICENSE", "include", "util", "proto", "client", "daemon"]


def static_archive(cc, name):
    """The linker's word for lib<name>.a if there is one, so that the daemon in a wheel needs libc only."""
    found = subprocess.run([cc, f"-print-file-name=lib{name}.a"], capture_output=True, text=True, check=True)
    return f"-l:lib{name}.a" if os.path.isabs(found.stdout.strip()) else None


def daemon_libraries(cc):
    """None: leave it to pkg-config."""
    uv = static_archive(cc, "uv_a") or static_archive(cc, "uv")
    inih = static_archive(cc, "inih")
    if uv and inih:
        return f"{uv} {inih} -lpthread -ldl -lrt"
    return None


class BuildExtension(build_ext):
    """build_ext, after the library and the daemon."""

    def run(self):
        tree = Path(self.build_temp).resolve() / "core"
        self.make(tree)
        for extension in self.extensions:
            extension.include_dirs.append(str(CORE / "include"))
            extension.library_dirs.append(str(tree / "lib"))
        super().run()
        self.carry(tree, Path(self.build_lib) / "tensorlease")
        if self.inplace:
            self.carry(tree, HERE / "src" / "tensorlease")

    def make(self, tree):
        cc = os.environ.get("CC", "gcc").split()[0]
        libraries = daemon_libraries(cc)
        command = [
            os.environ.get("MAKE", "make"),
            "-C",
            str(CORE),
            f"O={tree}",
            f"CC={cc}",
            "CFLAGS=-O2",
            "HAVE_SYSTEMD=",
            f"{tree}/lib/libtensorlease.so.0",
            f"{tree}/lib/libtensorlease.so",
            f"{tree}/bin/tensorleased",
        ]
        if libraries:
            command.append(f"DAEMON_LIBS={libraries}")
        environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "O", "SAN")}
        subprocess.run(command, check=True, env=environment)

    def carry(self, tree, package):
        for source, place in (("lib/libtensorlease.so.0", "lib"), ("bin/tensorleased", "bin")):
            target = package / place / os.path.basename(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            shutil.copyfile(tree / source, target)
            target.chmod(0o755)

    def get_outputs(self):
        package = Path(self.build_lib) / "tensorlease"
        return [*super().get_outputs(), str(package / "lib/libtensorlease.so.0"), str(package / "bin/tensorleased")]


class SourceDistribution(sdist):
    """sdist, with the C sources of the project in core/."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        for part in CORE_PARTS:
            source, target = CORE / part, Path(base_dir) / "core" / part
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.o", "*.so*", "__pycache__"))
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)


setup(
    ext_modules=[
        Extension(
            "tensorlease._core",
            sources=sorted(str(p.relative_to(HERE)) for p in (HERE / "src" / "_core").glob("*.c")),
            depends=sorted(str(p.relative_to(HERE)) for p in (HERE / "src" / "_core").glob("*.h")),
            libraries=["tensorlease"],
            extra_compile_args=[
                "-std=gnu11",
                "-fvisibility=hidden",
                "-Wall",
                "-Wextra",
                "-Wno-missing-field-initializers",
            ],
            extra_link_args=["-Wl,-rpath,$ORIGIN/lib", "-Wl,-z,relro,-z,now"],
            py_limited_api=True,
        )
    ],
    cmdclass={"build_ext": BuildExtension, "sdist": SourceDistribution},
)
