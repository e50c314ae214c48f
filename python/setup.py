# SPDX-License-Identifier: Apache-2.0
"""Builds libtensorlease, tensorleased and the command line with the project's Makefile, and the extension against them.

The package contains them as lib/libtensorlease.so.MAJOR.MINOR, bin/tensorleased and bin/tensorlease. The library looks
for the daemon beside itself, so autostart works without an installation. Manual pages and completions for shells go to
share/ of the environment. An sdist has the C sources in core/.
The extension also contains transfer/, the layer that the package shares with the command line. That layer needs cJSON
and zlib, which are linked in if the machine has static archives that can go into a shared object. Otherwise libcjson is
copied to lib/, and zlib is the one of the system, which every Linux has.

If $TENSORLEASE_BUILD names a build tree of the Makefile, which has lib/ and obj/transfer.a, the extension is linked with
that library and the shared libcjson, libpng and libz. The package then contains nothing but Python and the extension: this is
for distributions, which have packages of their own for the rest.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

if not sys.platform.startswith("linux"):
    sys.exit(f"tensorlease shares memory by means of Linux and cannot be built for {sys.platform}: use it on Linux, or in WSL 2.")

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
CORE = HERE / "core" if (HERE / "core" / "Makefile").exists() else HERE.parent
CORE_PARTS = ["Makefile", "LICENSE", "include", "util", "tensor", "proto", "client", "daemon", "files", "transfer", "cli"]
CORE_PARTS += ["docs/man", "packaging/completions"]
# What goes below share/ of an environment, as `make install` has it below PREFIX/share, and its sources.
SHARED = {
    "man/man1/tensorlease.1": "docs/man/tensorlease.1",
    "man/man8/tensorleased.8": "docs/man/tensorleased.8",
    "tensorlease/complete": "packaging/completions/complete",
    "bash-completion/completions/tensorlease": "packaging/completions/tensorlease.bash.in",
    "zsh/site-functions/_tensorlease": "packaging/completions/tensorlease.zsh.in",
    "fish/vendor_completions.d/tensorlease.fish": "packaging/completions/tensorlease.fish.in",
}
# Nobody knows at build time where the environment will be, so the completions find it by the program on the PATH. The three
# shells read these words alike, and sh has none of the user's aliases.
COMPLETE = """sh -c 'exec sh "$(dirname "$(realpath "$(command -v tensorlease)")")/../share/tensorlease/complete" "$@"' complete"""
# The licence texts of the libraries that are linked in or copied, where Debian's packages put them.
NOTICES = {
    f"licenses/{package}.txt": Path("/usr/share/doc", package, "copyright")
    for package in ("libuv1-dev", "libinih-dev", "libcjson-dev", "zlib1g-dev", "libxxhash-dev")
}
# What the C sources include, and the packages of Debian and Fedora that have it.
HEADERS = {
    "uv.h": ("libuv1-dev", "libuv-devel"),
    "ini.h": ("libinih-dev", "inih-devel"),
    "cjson/cJSON.h": ("libcjson-dev", "cjson-devel"),
    "zlib.h": ("zlib1g-dev", "zlib-devel"),
    "xxhash.h": ("libxxhash-dev", "xxhash-devel"),
    "Python.h": ("python3-dev", "python3-devel"),
}
# Free-threaded interpreters have no stable ABI: each has a wheel of its own.
STABLE_ABI = not sysconfig.get_config_var("Py_GIL_DISABLED")
HIDE = ["-Wl,--exclude-libs,ALL"]  # do not export the symbols of static archives
BUILT = os.environ.get("TENSORLEASE_BUILD")
EVERYWHERE = ["z"]  # every system has it, and Python's own modules use that copy


def library_version():
    """The version in the headers, which the package shares."""
    text = (CORE / "include/tensorlease/base.h").read_text()
    return [re.search(rf"TL_VERSION_{part} (\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH")]


VERSION = library_version()
LIBRARY = f"libtensorlease.so.{VERSION[0]}.{VERSION[1]}"


def check_machine(cc):
    """Ends with one sentence that says what to install, if something is missing."""
    programs = [name for name in (cc[0], os.environ.get("MAKE", "make"), "pkg-config") if not shutil.which(name)]
    if programs:
        sys.exit(
            f"tensorlease is built from C sources, for which this machine lacks {', '.join(programs)}: "
            "apt-get install build-essential pkg-config, or dnf install gcc make pkgconf."
        )

    def has(header):
        command = [*cc, "-E", f"-I{sysconfig.get_paths()['include']}", "-x", "c", "-"]
        return subprocess.run(command, input=f"#include <{header}>\n", text=True, capture_output=True).returncode == 0

    missing = [header for header in HEADERS if not has(header)]
    if missing:
        debian, fedora = (" ".join(HEADERS[header][n] for header in missing) for n in range(2))
        sys.exit(
            f"tensorlease is built from C sources, for which this machine lacks {', '.join(missing)}: "
            f"apt-get install {debian}, or dnf install {fedora}."
        )


def find_library(cc, file):
    """Return the path at which the linker finds the file, or None."""
    found = subprocess.run([*cc, f"-print-file-name={file}"], capture_output=True, text=True, check=True).stdout.strip()
    return Path(found).resolve() if os.path.isabs(found) else None


def static_archive(cc, name):
    """Return the linker argument for lib<name>.a, or None if there is no such archive."""
    return f"-l:lib{name}.a" if find_library(cc, f"lib{name}.a") else None


def links_into_a_shared_object(cc, archive):
    """Try it: the archives of some systems are not position-independent."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*cc, "-shared", "-o", f"{folder}/probe.so", *HIDE, "-Wl,--whole-archive", archive]
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


def plain(path):
    """Return whether make takes the path as it is: at a space, for example, it splits it."""
    return not re.search(r"[^\w./+-]", str(path))


class BuildExtension(build_ext):
    """Builds the library, the daemon and transfer/ before the extension."""

    def run(self):
        if BUILT:
            self.carried = {}
            png = subprocess.run(["pkg-config", "--exists", "libpng"]).returncode == 0  # as the Makefile asks
            self.build_with(Path(BUILT).resolve(), ["-lcjson", *(["-lpng"] if png else []), "-lz"])
            return
        tree = Path(self.build_temp).resolve() / "core"
        if plain(tree):
            return self.build_in(tree)
        with tempfile.TemporaryDirectory(prefix="tl-build-") as folder:
            tree = Path(folder).resolve() / "core"
            if not plain(tree):
                sys.exit(f"tensorlease cannot be built in {tree}: set TMPDIR to a folder without spaces and special characters.")
            self.build_in(tree)

    def build_in(self, tree):
        cc = os.environ.get("CC", "gcc").split()  # several words, as in "ccache gcc"
        check_machine(cc)
        self.carried = {f"lib/{LIBRARY}": tree / "lib" / LIBRARY}
        for program in ("tensorleased", "tensorlease"):
            self.carried[f"bin/{program}"] = tree / "bin" / program
        self.carried.update({path: notice for path, notice in NOTICES.items() if notice.exists()})
        self.make(tree, cc)
        self.build_with(tree, [self.link(cc, name) for name in ("cjson", "z")])
        self.share(Path(self.build_temp).resolve() / "share")
        self.carry(Path(self.build_lib) / "tensorlease")
        if self.inplace:
            self.carry(HERE / "src" / "tensorlease")

    def build_with(self, tree, libraries):
        """Build the extension with the library and transfer/ of a build tree."""
        for extension in self.extensions:
            extension.include_dirs += [str(CORE / "include"), str(CORE)]
            extension.library_dirs.append(str(tree / "lib"))
            extension.extra_objects.append(f"{tree}/obj/transfer.a")
            extension.extra_link_args += libraries
        super().run()

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
            f"CC={' '.join(cc)}",
            "CFLAGS=-O2",
            "HAVE_SYSTEMD=",
            "HAVE_MICROHTTPD=",
            "HAVE_PNG=",  # a wheel reads no PNG: Python has other means
            f"{tree}/lib/{LIBRARY}",
            f"{tree}/lib/libtensorlease.so",
            f"{tree}/bin/tensorleased",
            f"{tree}/bin/tensorlease",
            f"{tree}/obj/transfer.a",
            f"CLI_LIBS={' '.join(self.link(cc, name) for name in ('cjson', 'z'))} -lm",
        ]
        if libraries:
            command.append(f"DAEMON_LIBS={libraries}")
        environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "O", "SAN")}
        subprocess.run(command, check=True, env=environment)

    def carry(self, package):
        for path, source in self.carried.items():
            target = package / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            shutil.copyfile(source, target)
            target.chmod(0o644 if path in NOTICES else 0o755)

    def share(self, folder):
        """Write what goes below share/, and leave it to the installation, which comes after the build."""
        self.distribution.data_files = []
        for path, source in SHARED.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text((CORE / source).read_text().replace("@DATADIR@/complete", COMPLETE))
            self.distribution.data_files.append((f"share/{Path(path).parent}", [str(target)]))

    def get_outputs(self):
        package = Path(self.build_lib) / "tensorlease"
        return [*super().get_outputs(), *(str(package / path) for path in self.carried)]


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
                "-Werror=implicit-function-declaration",
            ],
            extra_link_args=[*([] if BUILT else ["-Wl,-rpath,$ORIGIN/lib"]), "-Wl,-z,relro,-z,now", *HIDE],
            py_limited_api=STABLE_ABI,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if STABLE_ABI else {},
    cmdclass={"build_ext": BuildExtension, "sdist": SourceDistribution},
)
