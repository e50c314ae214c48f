# SPDX-License-Identifier: Apache-2.0
"""Builds libtensorlease and tensorleased with the project's Makefile, and the extension against them.

The package contains them as lib/libtensorlease.so.MAJOR.MINOR and bin/tensorleased. The library looks for the daemon beside
itself, so autostart works without an installation. An sdist has the C sources in core/.
The extension also contains transfer/, the layer that the package shares with the command line. That layer needs cJSON
and zlib, which are linked in if the machine has static archives that can go into a shared object. Otherwise libcjson is
copied to lib/, and zlib is the one of the system, which every Linux has.
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
CORE_PARTS = ["Makefile", "LICENSE", "include", "util", "tensor", "proto", "client", "daemon", "files", "transfer"]
# The licence texts of the libraries that are linked in or copied, where Debian's packages put them.
NOTICES = {
    f"licenses/{package}.txt": Path("/usr/share/doc", package, "copyright")
    for package in ("libuv1-dev", "libinih-dev", "libcjson-dev", "zlib1g-dev", "libxxhash-dev")
}
HIDE = ["-Wl,--exclude-libs,ALL"]  # do not export the symbols of static archives
EVERYWHERE = ["z"]  # every system has it, and Python's own modules use that copy


def library_version():
    """The version in the header, which the package shares."""
    text = (CORE / "include/tensorlease/tensorlease.h").read_text()
    return [re.search(rf"TL_VERSION_{part} (\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH")]


VERSION = library_version()
LIBRARY = f"libtensorlease.so.{VERSION[0]}.{VERSION[1]}"


def find_library(cc, file):
    """Return the path at which the linker finds the file, or None."""
    found = subprocess.run([cc, f"-print-file-name={file}"], capture_output=True, text=True, check=True).stdout.strip()
    return Path(found).resolve() if os.path.isabs(found) else None


def static_archive(cc, name):
    """Return the linker argument for lib<name>.a, or None if there is no such archive."""
    return f"-l:lib{name}.a" if find_library(cc, f"lib{name}.a") else None


def links_into_a_shared_object(cc, archive):
    """Try it: the archives of some systems are not position-independent."""
    with tempfile.TemporaryDirectory() as folder:
        command = [cc, "-shared", "-o", f"{folder}/probe.so", *HIDE, "-Wl,--whole-archive", archive]
        return subprocess.run([*command, "-Wl,--no-whole-archive"], capture_output=True).returncode == 0


def soname(library):
    text = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    return re.search(r"SONAME.*\[(.+)\]", text)[1]


def daemon_libraries(cc):
    """Return static archives, so that the daemon in a wheel needs libc only, or None to let pkg-config decide."""
    uv = static_archive(cc, "uv_a") or static_archive(cc, "uv")
    inih = static_archive(cc, "inih")
    if uv and inih:
        return f"{uv} {inih} -lpthread -ldl -lrt"
    return None


class BuildExtension(build_ext):
    """Builds the library, the daemon and transfer/ before the extension."""

    def run(self):
        tree = Path(self.build_temp).resolve() / "core"
        cc = os.environ.get("CC", "gcc").split()[0]
        self.carried = {f"lib/{LIBRARY}": tree / "lib" / LIBRARY}
        self.carried["bin/tensorleased"] = tree / "bin/tensorleased"
        self.carried.update({place: notice for place, notice in NOTICES.items() if notice.exists()})
        self.make(tree, cc)
        for extension in self.extensions:
            extension.include_dirs += [str(CORE / "include"), str(CORE)]
            extension.library_dirs.append(str(tree / "lib"))
            extension.extra_objects.append(f"{tree}/obj/transfer.a")
            extension.extra_link_args += [self.link(cc, name) for name in ("cjson", "z")]
        super().run()
        self.carry(Path(self.build_lib) / "tensorlease")
        if self.inplace:
            self.carry(HERE / "src" / "tensorlease")

    def link(self, cc, name):
        """Return the linker argument for lib<name>, and note the shared library that has to be copied, if any."""
        archive = static_archive(cc, name)
        if archive and links_into_a_shared_object(cc, archive):
            return archive
        library = find_library(cc, f"lib{name}.so")
        if library and name not in EVERYWHERE:
            self.carried[f"lib/{soname(library)}"] = library
        return f"-l{name}"

    def make(self, tree, cc):
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
            f"{tree}/obj/transfer.a",
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
    """Adds the C sources of the project, in core/."""

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
