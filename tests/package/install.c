/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `make install` gives a user all that he needs: tests/package/project is built by CMake and by
 * pkg-config against an installation in a root of its own, and runs with it.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/package/package.h"

/*
 * With the variables of the `make` that runs the tests, so that nothing is built anew, but without
 * its job server.
 */
#define MAKE                                                                                       \
	"MAKEFLAGS=$(echo \"$MAKEFLAGS\" | sed 's/--jobserver-[^ ]*//; s/ -j[0-9]*//') "           \
	"make -s O=\"$BUILD\" DESTDIR=\"$ROOT\" LIBDIR=/opt/tl/lib INCLUDEDIR=/opt/tl/include "    \
	"MANDIR=/opt/tl/share/man "

static char dir[256];

/* Runs a line of shell in the sources; its exit status. What it says is shown if it fails. */
__attribute__((format(printf, 1, 2))) static int shell(const char *format, ...)
{
	char line[2048], command[4096];
	va_list args;
	int status;

	va_start(args, format);
	must(vsnprintf(line, sizeof(line), format, args) < (int)sizeof(line));
	va_end(args);
	must(snprintf(command, sizeof(command), "exec 2>'%s/log' >&2 </dev/null; %s", dir, line) <
	     (int)sizeof(command));
	status = system(command);
	if (!WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 77)) {
		char path[sizeof(dir) + 8], *text;

		snprintf(path, sizeof(path), "%s/log", dir);
		text = package_read(path);
		fprintf(stderr, "%s\n%s\n", line, text ? text : "");
		free(text);
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool there_is(const char *program)
{
	return shell("command -v %s || exit 77", program) == 0;
}

static int install(void **state)
{
	const char *tmp = getenv("TMPDIR"), *build = package_build();
	char here[PACKAGE_PATH], root[sizeof(dir) + 8];
	mode_t before;

	must_be(test_setup(state), 0);
	test_timeout(240);
	must(getcwd(here, sizeof(here)));
	if (!strncmp(build, here, strlen(here)) && build[strlen(here)] == '/')
		build += strlen(here) + 1; /* its dependencies name it so */
	snprintf(dir, sizeof(dir), "%.200s/install-XXXXXX", tmp && *tmp ? tmp : "/tmp");
	must(mkdtemp(dir));
	snprintf(root, sizeof(root), "%s/root", dir);
	setenv("BUILD", build, 1);
	setenv("DIR", dir, 1);
	setenv("ROOT", root, 1);
	before = umask(077); /* as careful administrators have it */
	must_be(shell(MAKE "install"), 0);
	umask(before);
	return 0;
}

static int clean(void **state)
{
	must_be(system("rm -rf \"$DIR\""), 0);
	return test_teardown(state);
}

#define INSTALL_TEST(name) TEST_WITH(name, install, clean)

/* The program, in the environment of an installation that is not where it will be. */
#define RUN "LD_LIBRARY_PATH=\"$ROOT/opt/tl/lib:$LD_LIBRARY_PATH\" "

static void must_say_version(const char *program)
{
	must_be(shell(RUN "\"$DIR/%s\" | grep -x 'with %s'", program, tl_version()), 0);
}

static const char *sanitizer(void)
{
	const char *san = getenv("SAN");

	return san && *san ? san : NULL;
}

INSTALL_TEST(cmake_finds_the_shared_and_the_static_library)
{
	SKIP_UNLESS(there_is("cmake"), "no cmake here");
	SKIP_UNLESS(!sanitizer(),
		    "a program that links a library with sanitizers needs their flags");
	must_be(shell("cmake -S tests/package/project -B \"$DIR/cmake\" "
		      "-DCMAKE_PREFIX_PATH=\"$ROOT/opt/tl\""),
		0);
	must_be(shell("cmake --build \"$DIR/cmake\""), 0);
	must_say_version("cmake/shared");
	must_say_version("cmake/static");
	must_be(shell("readelf -d \"$DIR/cmake/shared\" | grep -q 'NEEDED.*libtensorlease.so.'"),
		0);
	must_be(shell("! readelf -d \"$DIR/cmake/static\" | grep -q 'NEEDED.*libtensorlease'"), 0);
}

static bool compatible(int major, int minor, int patch)
{
	char asked[64];

	snprintf(asked, sizeof(asked), patch < 0 ? "%d.%d" : "%d.%d.%d", major, minor, patch);
	return shell("cmake -DASKED=%s "
		     "-DFILE=\"$ROOT/opt/tl/lib/cmake/tensorlease/tensorleaseConfigVersion.cmake\" "
		     "-P tests/package/project/asks.cmake || exit 77",
		     asked) == 0;
}

INSTALL_TEST(cmake_takes_no_library_that_is_too_old_or_may_differ)
{
	int major = TL_VERSION_MAJOR, minor = TL_VERSION_MINOR, patch = TL_VERSION_PATCH;

	SKIP_UNLESS(there_is("cmake"), "no cmake here");
	must(compatible(major, minor, -1));
	must(compatible(major, minor, patch));
	must(!compatible(major, minor, patch + 1));
	must(!compatible(major, minor + 1, -1));
	must(!compatible(major + 1, 0, -1));
	must(major || !compatible(major, minor - 1, -1));
}

INSTALL_TEST(pkg_config_finds_the_shared_and_the_static_library)
{
	SKIP_UNLESS(there_is("pkg-config"), "no pkg-config here");
	SKIP_UNLESS(!sanitizer(),
		    "a program that links a library with sanitizers needs their flags");
	setenv("PKG_CONFIG_PATH", "", 1);
	must_be(shell("export PKG_CONFIG_LIBDIR=\"$ROOT/opt/tl/lib/pkgconfig\" "
		      "PKG_CONFIG_SYSROOT_DIR=\"$ROOT\"; "
		      "test \"$(pkg-config --modversion tensorlease)\" = %s && "
		      "cc tests/package/project/main.c -o \"$DIR/shared\" "
		      "$(pkg-config --cflags --libs tensorlease) && "
		      "cc tests/package/project/main.c -o \"$DIR/static\" "
		      "$(pkg-config --cflags tensorlease) \"$ROOT/opt/tl/lib/libtensorlease.a\" "
		      "$(pkg-config --static --libs-only-other tensorlease)",
		      tl_version()),
		0);
	must_say_version("shared");
	must_say_version("static");
}

INSTALL_TEST(everybody_can_read_what_is_installed)
{
	must_be(shell("find \"$ROOT\" ! -type l ! -perm -444 | tee /dev/stderr | "
		      "wc -l | grep -qx 0"),
		0);
	must_be(shell("find \"$ROOT\" -type d ! -perm -555 | tee /dev/stderr | "
		      "wc -l | grep -qx 0"),
		0);
}

INSTALL_TEST(the_pages_of_section_3_are_there_and_nothing_stays)
{
	must_be(shell("cd \"$ROOT/opt/tl/share/man/man3\" && test -s tl_get.3 && "
		      "test -s tensorlease.3 && test -s tensorlease_cuda.3 && "
		      "test -s tensorlease_admin.3"),
		0);
	must_be(shell(MAKE "uninstall"), 0);
	must_be(shell("find \"$ROOT\" ! -type d | tee /dev/stderr | wc -l | grep -qx 0"), 0);
}

int main(void)
{
	return suite_run();
}
