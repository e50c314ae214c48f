/* SPDX-License-Identifier: Apache-2.0 */
/* Large memfds of which the daemon has the last descriptor: another process closes them. */
#include <linux/sockios.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

#include "tests/harness/harness.h"

enum { LARGE = 4 * MIB, WATCHES = 4 };

static bool is_closer(int pid)
{
	char path[64], name[16] = "";
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	f = fopen(path, "re");
	if (f && fscanf(f, "%15s", name) != 1)
		name[0] = '\0';
	if (f)
		fclose(f);
	return !strcmp(name, "tl-closer");
}

static bool has_closer(const struct test_daemon *d)
{
	bool found = false;
	char path[64];
	int pid;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)d->pid, (int)d->pid);
	f = fopen(path, "re");
	must(f);
	while (!found && fscanf(f, "%d", &pid) == 1)
		found = is_closer(pid);
	fclose(f);
	return found;
}

/* The daemon has read all that the client sent. */
static bool is_read(const struct raw *rc)
{
	int bytes;

	must_be(ioctl(rc->fd, SIOCOUTQ, &bytes), 0);
	return bytes == 0;
}

TEST(a_queued_descriptor_that_is_the_last_of_its_tensor)
{
	cleanup_td struct test_daemon d = td_start(.storage = "memfd");
	struct raw producer = rc_open(&d), reader = rc_open(&d);
	struct wire_draft draft;
	struct wire_map map = { .name = CATALOG_NONE };

	must_be(rc_put(&producer, "large", LARGE, 1, &draft), 0);
	must(rc_hold(&reader, draft.ref));
	map.ref = draft.ref;
	for (int i = 0; i < WIRE_FDS_UNREAD_MAX + 1; i++)
		must_be(rc_send(&reader, WIRE_MAP, &map, sizeof(map), -1), 0);
	eventually(is_read(&reader));
	td_sync(&d);
	must(!has_closer(&d));
	rc_close(&reader);
	eventually(has_closer(&d));
	rc_goodbye(&producer);
}

/* Its segment is refused, since there are too few watches. */
TEST(a_memfd_whose_end_cannot_be_watched)
{
	int r = 0;

	SKIP_UNLESS(test_can_limit_watches(), "needs user namespaces, to have few watches");
	cleanup_td struct test_daemon d = td_start(.storage = "memfd", .watches = WATCHES);
	struct raw rc = rc_open(&d);
	char name[8];

	for (int i = 0; !r && i <= WATCHES; i++) {
		must(!has_closer(&d));
		snprintf(name, sizeof(name), "%d", i);
		r = rc_put(&rc, name, LARGE, 1, NULL);
	}
	must(r);
	eventually(has_closer(&d));
	rc_goodbye(&rc);
}

int main(void)
{
	return suite_run();
}
