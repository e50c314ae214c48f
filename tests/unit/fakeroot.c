/* SPDX-License-Identifier: Apache-2.0 */
/* Programs within fakeroot(1), where geteuid() says 0 although the kernel knows another user. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <tensorlease/tensorlease.h>

#include "tests/harness/harness.h"

static bool fakes;

/* The library's calls come here, as they come to fakeroot's. */
uid_t geteuid(void)
{
	return (uid_t)syscall(SYS_geteuid) + fakes;
}

PLAIN_TEST(fakeroot_changes_no_address_and_starts_no_daemon)
{
	char runtime[] = "/tmp/tl-fake-XXXXXX", expected[64];
	tl_connect_options o = { .size = sizeof(o) };
	const char *before = getenv("XDG_RUNTIME_DIR");
	tl_client *client;

	SKIP_UNLESS(access("/run/tensorlease/socket", F_OK), "a system daemon runs here");
	must(mkdtemp(runtime));
	snprintf(expected, sizeof(expected), "%s/tensorlease/socket", runtime);
	setenv("XDG_RUNTIME_DIR", runtime, 1);
	unsetenv("TENSORLEASE_SOCKET");
	fakes = true;
	must_be(tl_connect(&o, &client), -ENOENT);
	must(strstr(tl_last_error(), expected));
	o.flags = TL_CONNECT_AUTOSTART;
	must_be(tl_connect(&o, &client), -EPERM);
	must(strstr(tl_last_error(), "within fakeroot"));
	fakes = false;
	if (before)
		setenv("XDG_RUNTIME_DIR", before, 1);
	else
		unsetenv("XDG_RUNTIME_DIR");
	must_be(rmdir(runtime), 0); /* nothing was made in it */
}

int main(void)
{
	return suite_run();
}
