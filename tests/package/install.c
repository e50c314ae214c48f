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

#include "tests/harness/program.h"
#include "tests/package/package.h"

/*
 * With the variables of the `make` that runs the tests, so that nothing is built anew, but without
 * its job server.
 */
#define MAKE                                                                                       \
	"MAKEFLAGS=$(echo \"$MAKEFLAGS\" | sed 's/--jobserver-[^ ]*//; s/ -j[0-9]*//') "           \
	"make -s O=\"$BUILD\" DESTDIR=\"$ROOT\" LIBDIR=/opt/tl/lib INCLUDEDIR=/opt/tl/include "    \
	"MANDIR=/opt/tl/share/man "

static char dir[PROGRAM_DIR];

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
	const char *build = package_build();
	char here[PACKAGE_PATH], root[sizeof(dir) + 8];
	mode_t before;

	must_be(test_setup(state), 0);
	test_timeout(240);
	must(getcwd(here, sizeof(here)));
	if (!strncmp(build, here, strlen(here)) && build[strlen(here)] == '/')
		build += strlen(here) + 1; /* its dependencies name it so */
	program_directory(dir);
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

static bool in_range(const char *from, const char *to)
{
	return shell("cmake '-DASKED=%s...%s' "
		     "-DFILE=\"$ROOT/opt/tl/lib/cmake/tensorlease/tensorleaseConfigVersion.cmake\" "
		     "-P tests/package/project/asks.cmake || exit 77",
		     from, to) == 0;
}

INSTALL_TEST(cmake_takes_a_library_within_a_range_of_versions)
{
	char next[32], exclusive[32];

	SKIP_UNLESS(there_is("cmake"), "no cmake here");
	snprintf(next, sizeof(next), "%d.%d.9", TL_VERSION_MAJOR, TL_VERSION_MINOR + 1);
	must(in_range("0.0.1", next));
	must(in_range("0.0.1", tl_version()));
	snprintf(exclusive, sizeof(exclusive), "<%s", tl_version());
	must(!in_range("0.0.1", exclusive));
	must(!in_range(next, "99"));
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
		      "test -s tensorlease_admin.3 && test -s tensorlease_stream.3 && "
		      "test -s tensorlease_watch.3"),
		0);
	must_be(shell(MAKE "uninstall"), 0);
	must_be(shell("find \"$ROOT\" ! -type d | tee /dev/stderr | wc -l | grep -qx 0"), 0);
}

/* The root's programs find the root's library, which is not in ../lib. */
INSTALL_TEST(the_installed_program_finds_its_library_in_another_directory)
{
	must_be(shell("cd / && env -u LD_LIBRARY_PATH \"$ROOT/usr/local/bin/tensorlease\" "
		      "--version | grep -F %s",
		      tl_version()),
		0);
}

INSTALL_TEST(the_unit_names_the_installed_program)
{
	must_be(shell(MAKE "-o all install HAVE_SYSTEMD=1 PREFIX=/opt/tl DESTDIR=\"$DIR/other\""),
		0);
	must_be(shell("cd \"$DIR/other\" && "
		      "grep -F 'ExecStart=/opt/tl/bin/tensorleased --foreground --config -/etc/' "
		      "opt/tl/lib/systemd/system/tensorleased.service && "
		      "test -s opt/tl/share/doc/tensorlease/examples/tensorleased.conf && "
		      "! grep -r '@BINDIR@' opt"),
		0);
}

#define COMPLETE                                                                                   \
	"PATH=\"$ROOT/usr/local/bin:$PATH\" TENSORLEASE_SOCKET=\"$DIR/none\" "                     \
	"\"$ROOT/usr/local/share/tensorlease/complete\" "

INSTALL_TEST(shells_complete_what_the_help_has)
{
	must_be(shell(COMPLETE "st | grep -x status"), 0);
	must_be(shell(COMPLETE "'' help | grep -x stream"), 0);
	must_be(shell(COMPLETE "'' -j stream | grep -x tail"), 0);
	must_be(shell(COMPLETE "'' mirror | grep -x peers"), 0);
	must_be(shell(COMPLETE "-- put | grep -x -e --owner-bound"), 0);
	must_be(shell("! " COMPLETE "-- ls | grep -x -e --owner-bound"), 0);
	must_be(shell(COMPLETE "n save a -f | grep -x npz"), 0);
	must_be(shell(COMPLETE "'' put a; test $? = 3"), 0);
	must_be(shell(COMPLETE "'' get a --output; test $? = 3"), 0);
	must_be(shell("bash -c 'compopt() { :; }; "
		      ". \"$ROOT/usr/local/share/bash-completion/completions/tensorlease\"'"),
		0);
}

/* As distributions want it. */
INSTALL_TEST(programs_have_no_run_path_if_none_is_wanted)
{
	must_be(shell(MAKE "-o all install RPATH= LIBDIR=/opt/tl/lib/some "
			   "DESTDIR=\"$DIR/other\""),
		0);
	must_be(shell("test -x \"$DIR/other/usr/local/bin/tensorlease\" && "
		      "! readelf -d \"$DIR/other/usr/local/bin/tensorlease\" | grep PATH"),
		0);
}

/* A daemon without libsystemd would never be ready for systemd. */
INSTALL_TEST(there_are_no_units_without_libsystemd)
{
	must_be(shell(MAKE "-o all install HAVE_SYSTEMD= DESTDIR=\"$DIR/other\" >\"$DIR/said\""),
		0);
	must_be(shell("cat \"$DIR/said\" >&2; grep -c libsystemd \"$DIR/said\" | grep -qx 1 && "
		      "test -z \"$(find \"$DIR/other\" -name 'tensorleased.s*')\""),
		0);
	must_be(shell(MAKE "-o all install HAVE_SYSTEMD=1 DESTDIR=\"$DIR/other\" && "
			   "find \"$DIR/other\" -name 'tensorleased.s*' | wc -l | grep -qx 2"),
		0);
}

#define MAKE_FLAGS MAKE "O=\"$DIR/flags\" \"$DIR/flags/obj/flags\" "

static void must_cause_another_build(const char *before, const char *after)
{
	must_be(shell(MAKE_FLAGS "%s && cp \"$DIR/flags/obj/flags\" \"$DIR/before\"", before), 0);
	must_be(shell(MAKE_FLAGS "%s && ! cmp \"$DIR/flags/obj/flags\" \"$DIR/before\"", after), 0);
}

INSTALL_TEST(a_package_that_comes_or_goes_causes_another_build)
{
	must_cause_another_build("HAVE_SYSTEMD=", "HAVE_SYSTEMD=1");
	must_cause_another_build("", "PKG_CFLAGS=-Dother");
	must_cause_another_build("", "DAEMON_LIBS=-lother");
	must_cause_another_build("", "CLI_LIBS=-lother");
}

int main(void)
{
	return suite_run();
}
