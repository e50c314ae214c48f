# SPDX-License-Identifier: Apache-2.0
"""Builds libtensorlease and tensorleased with the project's Makefile, and the extension against them.

They go into the package as lib/libtensorlease.so.MAJOR.MINOR and bin/tensorleased: the library looks for the daemon beside
itself, so autostart works without anything installed. An sdist carries their sources in core/.
The extension has the project's code for files in it, which needs cJSON and zlib: linked in where there is an archive
that can be; else libcjson goes into lib/, too, and zlib is the machine's, which every Linux has.
"""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
CORE = HERE / "core" if (HERE / "core" / "Makefile").exists() else HERE.parent
CORE_PARTS = ["Makefile", "LICENSE", "include", "util", "tensor", "proto", "client", "daemon", "files", "cli"]
# What is linked in or carried wants its notice beside it: there, where Debian's packages leave it.
NOTICES = {
    f"licenses/{package}.txt": Path("/usr/share/doc", package, "copyright")
    for package in ("libuv1-dev", "libinih-dev", "libcjson-dev", "zlib1g-dev", "libxxhash-dev")
}
HIDE = ["-Wl,--exclude-libs,ALL"]  # what an archive exports is not exported again
EVERYWHERE = ["z"]  # and one process should have it once only: Python's own modules use it
# What the extension uses of the project beside the library: files, and the copying of arrays.
USED_SOURCES = ["files/*.c", "util/*.c", "cli/transfer.c", "tensor/*.c"]


def library_version():
    """The header has it; the package's is the same."""
    text = (CORE / "include/tensorlease/tensorlease.h").read_text()
    return [re.search(rf"TL_VERSION_{part} (\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH")]


VERSION = library_version()
LIBRARY = f"libtensorlease.so.{VERSION[0]}.{VERSION[1]}"


def find_library(cc, file):
    """Where the linker finds it, or None."""
    found = subprocess.run([cc, f"-print-file-name={file}"], capture_output=True, text=True, check=True).stdout.strip()
    return Path(found).resolve() if os.path.isabs(found) else None


def static_archive(cc, name):
    """The linker's word for lib<name>.a if there is one, so that the daemon in a wheel needs libc only."""
    return f"-l:lib{name}.a" if find_library(cc, f"lib{name}.a") else None


def links_into_a_shared_object(cc, archive):
    """Some systems' archives are not position-independent enough."""
    with tempfile.TemporaryDirectory() as folder:
        command = [cc, "-shared", "-o", f"{folder}/probe.so", *HIDE, "-Wl,--whole-archive", archive]
        return subprocess.run([*command, "-Wl,--no-whole-archive"], capture_output=True).returncode == 0


def soname(library):
    text = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    return re.search(r"SONAME.*\[(.+)\]", text)[1]


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
        cc = os.environ.get("CC", "gcc").split()[0]
        objects = [
            f"{tree}/obj/{source.relative_to(CORE).with_suffix('.o')}"
            for pattern in USED_SOURCES
            for source in sorted(CORE.glob(pattern))
        ]
        self.carried = {f"lib/{LIBRARY}": tree / "lib" / LIBRARY}
        self.carried["bin/tensorleased"] = tree / "bin/tensorleased"
        self.carried.update({place: notice for place, notice in NOTICES.items() if notice.exists()})
        self.make(tree, cc, objects)
        for extension in self.extensions:
            extension.include_dirs += [str(CORE / "include"), str(CORE)]
            extension.library_dirs.append(str(tree / "lib"))
            extension.extra_objects += objects
            extension.extra_link_args += [self.link(cc, name) for name in ("cjson", "z")]
        super().run()
        self.carry(Path(self.build_lib) / "tensorlease")
        if self.inplace:
            self.carry(HERE / "src" / "tensorlease")

    def link(self, cc, name):
        """What the extension is linked with for lib<name>."""
        archive = static_archive(cc, name)
        if archive and links_into_a_shared_object(cc, archive):
            return archive
        library = find_library(cc, f"lib{name}.so")
        if library and name not in EVERYWHERE:
            self.carried[f"lib/{soname(library)}"] = library
        return f"-l{name}"

    def make(self, tree, cc, objects):
        libraries = daemon_libraries(cc)
        command = [
            os.environ.get("MAKE", "make"),
            "-C",
            str(CORE),
            f"O={tree}",
            f"CC={cc}",
            "CFLAGS=-O2",
            "HAVE_SYSTEMD=",
            f"{tree}/lib/{LIBRARY}",
            f"{tree}/lib/libtensorlease.so",
            f"{tree}/bin/tensorleased",
            *objects,
        ]
        if libraries:
            command.append(f"DAEMON_LIBS={libraries}")
        environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "O", "SAN")}
        subprocess.run(command, check=True, env=environment)

    def carry(self, package):
        for place, source in self.carried.items():
            target = package / place
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            shutil.copyfile(source, target)
            target.chmod(0o644 if place in NOTICES else 0o755)

    def get_outputs(self):
        package = Path(self.build_lib) / "tensorlease"
        return [*super().get_outputs(), *(str(package / place) for place in self.carried)]


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
    version=".".join(VERSION),
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
            extra_link_args=["-Wl,-rpath,$ORIGIN/lib", "-Wl,-z,relro,-z,now", *HIDE],
            py_limited_api=True,
        )
    ],
    cmdclass={"build_ext": BuildExtension, "sdist": SourceDistribution},
)
