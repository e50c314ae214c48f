/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors on devices: limits. The client that asks is told at once, and the others continue. */
#include <fcntl.h>

#include "tests/daemon/device_common.h"

#define ARGUMENTS(...)                                                                             \
	(const char *const[])                                                                      \
	{                                                                                          \
		__VA_ARGS__, NULL                                                                  \
	}

static int export_on(struct raw *rc, uint16_t gpu, uint64_t size, struct wire_segment_ref *seg)
{
	struct wire_segment_ref mine;

	return rc_export(rc, SEGMENT_CUDA_IPC, gpu, size, size, 1, -1, seg ? seg : &mine);
}

static int export_fds(struct raw *rc, uint32_t parts, struct wire_segment_ref *seg)
{
	int fd = memory_new(MIB), r;

	r = rc_export(rc, SEGMENT_CUDA_VMM, GPU, parts * MIB, MIB, parts, fd, seg);
	close(fd);
	return r;
}

/* ---- bytes ---- */

TEST(a_device_has_its_capacity_each_by_itself)
{
	cleanup_td struct test_daemon d = td_start(.extra = ARGUMENTS("--gpu-capacity", "10M"));
	struct device_before before = device_look(&d);
	struct raw rc = rc_open(&d), reader = rc_open(&d);
	struct wire_segment_ref a, b;
	struct wire_device device;
	uint32_t serial;

	must_be(export_on(&rc, GPU, 10 * MIB + 1, NULL), WIRE_E_NO_SPACE);
	must_be(export_on(&rc, GPU, WIRE_DEVICE_BYTES_MAX, NULL), WIRE_E_NO_SPACE);
	must_be(export_on(&rc, GPU, 6 * MIB, &a), 0);
	must_be(export_on(&rc, GPU, 4 * MIB + 1, NULL), WIRE_E_NO_SPACE); /* it is told at once */
	must_be(export_on(&rc, GPU, WIRE_DEVICE_BYTES_MAX, NULL), WIRE_E_NO_SPACE);
	must_be(export_on(&rc, GPU, 4 * MIB, &b), 0);
	must_be(export_on(&rc, GPU, 1, NULL), WIRE_E_NO_SPACE);
	must_be(export_on(&reader, GPU, 1, NULL), WIRE_E_NO_SPACE);
	must_be(export_on(&rc, OTHER_GPU, 10 * MIB, NULL), 0);
	must(rc_device(&rc, 0, &device));
	must_be(device.used, 10 * MIB);
	must_be(device.capacity, 10 * MIB);

	must_be(rc_import(&reader, &a, 0, NULL, NULL), 0);
	serial = rc_unexport(&rc, &a);
	rc_notice(&reader, WIRE_UNMAP);
	must_be(export_on(&rc, GPU, 1, NULL), WIRE_E_NO_SPACE); /* it is there as long as it is open
								 */
	rc_unmapped(&reader, &a);
	must_be(rc_answer(&rc, serial, WIRE_DONE), 0);
	must_be(export_on(&rc, GPU, 6 * MIB, NULL), 0);
	rc_close(&rc);
	td_sync(&d);
	must_be(export_on(&reader, GPU, 10 * MIB, NULL), 0);
	rc_goodbye(&reader);
	must_be_as_before(&d, &before);
}

TEST(a_users_part_of_a_device_is_told_apart)
{
	cleanup_td struct test_daemon d = td_start(.extra = ARGUMENTS("--gpu-capacity", "10M",
								      "--gpu-uid-capacity", "6M"));
	struct raw a = rc_open(&d), b = rc_open(&d);

	must_be(export_on(&a, GPU, 6 * MIB + 1, NULL), WIRE_E_QUOTA);
	must_be(export_on(&a, GPU, 10 * MIB + 1, NULL), WIRE_E_NO_SPACE); /* its user's quota is not
									     to blame */
	must_be(export_on(&a, GPU, 4 * MIB, NULL), 0);
	must_be(export_on(&b, GPU, 2 * MIB + 1, NULL), WIRE_E_QUOTA); /* of the user, not the client
								       */
	must_be(export_on(&b, GPU, 2 * MIB, NULL), 0);
	must_be(export_on(&b, OTHER_GPU, 6 * MIB, NULL), 0); /* each device has its own account */
	rc_goodbye(&a);
	must_be(export_on(&b, GPU, 4 * MIB, NULL), 0);
	rc_goodbye(&b);
}

static int use_all_of_mine(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d);
	struct wire_segment_ref seg;

	must_be(export_on(&rc, GPU, 6 * MIB, &seg), 0);
	must_be(export_on(&rc, GPU, 1, NULL), WIRE_E_QUOTA);
	must_be(rc_place(&rc, &seg, NULL, .name = "alice", .nbytes = 1), 0);
	pause_at(1);
	rc_goodbye(&rc);
	(void)arg;
	return 0;
}

static int use_the_rest(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d);
	struct wire_segment_ref seg, hers = { .segment = 0, .segment_generation = 1 };

	(void)arg;
	must_be(export_on(&rc, GPU, 4 * MIB, &seg), 0);
	must_be(export_on(&rc, GPU, 1, NULL), WIRE_E_NO_SPACE);
	must_be(rc_place(&rc, &seg, NULL, .name = "alice", .nbytes = 1), WIRE_E_DENIED);
	must_be(rc_place(&rc, &seg, NULL, .name = "bob", .nbytes = 1), 0);
	must_be(rc_place(&rc, &hers, NULL, .name = "bob", .nbytes = 1), WIRE_E_NOT_FOUND);
	must_be(rc_import(&rc, &hers, 0, NULL, NULL), 0); /* every client may read every tensor */
	must_be(rc_answer(&rc, rc_unexport(&rc, &hers), WIRE_DONE), WIRE_E_NOT_FOUND);
	rc_goodbye(&rc);
	return 0;
}

TEST(users_share_a_device)
{
	struct test_child alice, bob;

	SKIP_UNLESS(geteuid() == 0, "needs root, to be other users");
	cleanup_td struct test_daemon d = td_start(.for_others = true,
						   .extra = ARGUMENTS("--gpu-capacity", "10M",
								      "--gpu-uid-capacity", "6M"));
	alice = child_start_as(1111, &d, use_all_of_mine, NULL);
	child_await(&alice);
	bob = child_start_as(2222, &d, use_the_rest, NULL);
	child_must_succeed(&bob);
	child_finish(&alice);
	must_be(td_status(&d).segments, 0);
}

TEST(the_65th_device_is_refused)
{
	cleanup_td struct test_daemon d = td_start();
	struct device_before before = device_look(&d);
	struct wire_segment_ref segs[64], seg;
	struct raw rc = rc_open(&d);
	struct wire_device device;
	uint32_t n = 0;

	for (int round = 0; round < 3; round++) { /* each round uses other devices */
		for (uint16_t i = 0; i < 64; i++)
			must_be(export_on(&rc, (uint16_t)(1000 * round + i + 1), 5, &segs[i]), 0);
		must_be(export_on(&rc, 999, 5, &seg), WIRE_E_LIMIT);
		must_be(export_on(&rc, (uint16_t)(1000 * round + 7), 5, &seg), 0);
		must_be(rc_answer(&rc, rc_unexport(&rc, &seg), WIRE_DONE), 0);
		for (n = 0; rc_device(&rc, n, &device); n = device.number + 1)
			must_be(device.used, 5);
		must_be(n, 64);
		must_be(rc_answer(&rc, rc_unexport(&rc, &segs[20]), WIRE_DONE), 0);
		must_be(export_on(&rc, 999, 5, &segs[20]), 0);
		for (int i = 0; i < 64; i++)
			must_be(rc_answer(&rc, rc_unexport(&rc, &segs[i]), WIRE_DONE), 0);
		must(!rc_device(&rc, 0, &device));
	}
	rc_goodbye(&rc);
	must_be_as_before(&d, &before);
}

/* ---- descriptors ---- */

static int use_half_of_the_descriptors(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d), other = rc_open(d);
	struct wire_segment_ref seg;

	(void)arg;
	must_be(export_fds(&rc, 33, &seg), WIRE_E_QUOTA);
	must_be(export_fds(&rc, 20, &seg), 0);
	must_be(export_fds(&other, 13, &seg), WIRE_E_QUOTA);
	must_be(export_fds(&other, 12, &seg), 0);
	rc_goodbye(&rc);
	rc_goodbye(&other);
	return 0;
}

TEST(descriptors_are_a_bounded_share_and_counted_for_each_user)
{
	/* 288 - 32 for itself - 32 on their way - 3 for each of 32 clients: 128, of which 64 are
	 * for memory on devices. Of these the daemon's own user may have all and every other user
	 * half. */
	cleanup_td struct test_daemon d = td_start(.storage = "shm", .nofile = 288,
						   .max_clients = 32, .for_others = geteuid() == 0,
						   .extra = ARGUMENTS("--warm-time", "0"));
	struct device_before before = device_look(&d);
	struct raw rc = rc_open(&d), other = rc_open(&d);
	struct wire_segment_ref segs[64], seg;
	struct test_child stranger;

	must_be(export_fds(&rc, 65, &seg), WIRE_E_NO_RESOURCES); /* all its parts, from the start */
	must_be(export_fds(&rc, 40, &segs[0]), 0);
	must_be(export_fds(&rc, 25, &seg), WIRE_E_NO_RESOURCES);
	must_be(rc_answer(&rc, rc_unexport(&rc, &segs[0]), WIRE_DONE), 0);
	for (int i = 0; i < 64; i++)
		must_be(export_fds(i % 2 ? &rc : &other, 1, &segs[i]), 0);
	must_be(export_fds(&rc, 1, &seg), WIRE_E_NO_RESOURCES);
	must_be(export_fds(&other, 1, &seg), WIRE_E_NO_RESOURCES); /* connections do not multiply it
								    */
	must_be(export_on(&rc, GPU, 1, NULL), 0); /* a handle needs no descriptor */
	must_be(count_fds(d.pid), before.fds + 4 + 64);
	must_be(rc_put(&other, "cpu", MIB, 1, NULL), 0);
	must_be(rc_delete(&other, "cpu"), 0);
	must_be(rc_answer(&rc, rc_unexport(&rc, &segs[1]), WIRE_DONE), 0);
	must_be(export_fds(&other, 1, &seg), 0);
	rc_goodbye(&rc);
	rc_goodbye(&other);
	if (geteuid() == 0) {
		stranger = child_start_as(1111, &d, use_half_of_the_descriptors, NULL);
		child_must_succeed(&stranger);
	}
	must_be_as_before(&d, &before);
}

/* It is refused as the first part, as a later one, and as a pool, and the daemon keeps nothing of
 * it. */
static void must_not_be_kept(const struct test_daemon *d, struct raw *rc, int fd_take)
{
	struct wire_segment_ref seg;
	int good = memory_new(4096);
	unsigned fds;

	must(fd_take >= 0);
	must_be(rc_export(rc, SEGMENT_CUDA_VMM, GPU, 8192, 4096, 2, good, &seg), 0);
	fds = count_fds(d->pid);
	must_be(rc_answer(rc, rc_part(rc, &seg, 1, 4096, fd_take), 0), WIRE_E_INVALID);
	rc_sync(rc);
	must_be(count_fds(d->pid), fds);
	must_be(rc_answer(rc, rc_unexport(rc, &seg), WIRE_DONE), 0);
	must_be(rc_export(rc, SEGMENT_CUDA_VMM, GPU, 4096, 4096, 1, fd_take, &seg), WIRE_E_INVALID);
	rc_sync(rc);
	must_be(count_fds(d->pid), fds - 1);
	must_be(used_on(rc, GPU), 0);
	close(good);
	close(fd_take);
}

static void must_be_no_pool(struct raw *rc, int fd_take)
{
	struct wire_segment_ref seg;

	must_be(rc_export(rc, SEGMENT_CUDA_POOL, GPU, 4096, 4096, 1, fd_take, &seg),
		WIRE_E_INVALID);
	close(fd_take);
}

/* A memfd of the right size can still have more pages than that. */
static int memory_beyond_its_end(void)
{
	int fd = memory_sealed(4096, 0);

	must_be(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 8 * (off_t)MIB), 0);
	must_be(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
	return fd;
}

TEST(the_hosts_memory_is_not_kept_as_a_devices)
{
	cleanup_td struct test_daemon d = td_start();
	struct device_before before = device_look(&d);
	struct raw rc = rc_open(&d);
	struct wire_segment_ref seg;
	int fd;

	must_not_be_kept(&d, &rc, memory_new(1536 * MIB)); /* the message says 4,096 bytes */
	must_not_be_kept(&d, &rc, memory_new(4095));
	must_not_be_kept(&d, &rc, memory_sealed(4096, 0)); /* it may grow later */
	must_not_be_kept(&d, &rc, memory_sealed(4096, F_SEAL_SHRINK | F_SEAL_SEAL));
	must_not_be_kept(&d, &rc, memory_sealed(4096, F_SEAL_GROW));
	must_not_be_kept(&d, &rc, memory_beyond_its_end());
	must_be_no_pool(&rc, memory_new(4095));
	must_be_no_pool(&rc, memory_sealed(4096, F_SEAL_SHRINK));
	must_be_no_pool(&rc, memory_beyond_its_end());
	fd = memory_new(4096);
	must_be((int)write(fd, "written", 7), 7);
	must_be(rc_export(&rc, SEGMENT_CUDA_VMM, GPU, 4096, 4096, 1, fd, &seg), 0);
	close(fd);
	fd = memory_new(16 * MIB); /* a pool has more than what is allocated in it */
	must_be(rc_export(&rc, SEGMENT_CUDA_POOL, GPU, 4096, 4096, 1, fd, &seg), 0);
	close(fd);
	rc_goodbye(&rc);
	must_be_as_before(&d, &before);
}

/* It is an error that says why, and the daemon keeps nothing. */
static void must_be_refused_as_host_memory(struct raw *rc, struct wire_header *m, size_t size,
					   int fd_take)
{
	struct wire_error_reply e;
	struct conn_message answer;

	must_be(rc_send(rc, (enum wire_type)m->type, m, size, fd_take), 0);
	must_be(rc_receive(rc, &answer), 0);
	rc_must_fail(&answer, WIRE_E_INVALID);
	memcpy(&e, answer.bytes, sizeof(e));
	must(memmem(answer.bytes + sizeof(e), e.text_len, "host's memory", 13));
	must(memmem(answer.bytes + sizeof(e), e.text_len, "TENSORLEASE_FAKE_GPU=1", 22));
	close(fd_take);
}

static void host_memory_is_refused(const char *fake)
{
	struct test_daemon d;

	if (fake)
		setenv("TENSORLEASE_FAKE_GPU", fake, 1);
	else
		unsetenv("TENSORLEASE_FAKE_GPU");
	d = td_start();
	setenv("TENSORLEASE_FAKE_GPU", "1", 1);
	for (int pool = 0; pool < 2; pool++) {
		struct raw rc = rc_open(&d);
		struct device_before before = device_look(&d);
		struct wire_export export = { .size = MIB,
					      .part_size = MIB,
					      .parts = 1,
					      .kind = pool ? SEGMENT_CUDA_POOL : SEGMENT_CUDA_VMM,
					      .device = { GPU } };
		struct wire_keep keep = { .device = { GPU } };
		int fd = memory_new(MIB);

		export.header.type = WIRE_EXPORT;
		keep.header.type = WIRE_KEEP;
		must_be(posix_fallocate(fd, 0, MIB), 0);
		must_be_refused_as_host_memory(&rc, &export.header, sizeof(export), fd);
		must_be_refused_as_host_memory(&rc, &keep.header, sizeof(keep), memory_new(0));
		must_be_as_before(&d, &before);
		must_be(used_on(&rc, GPU), 0);
		export_ipc(&rc, MIB); /* the connection lives, and a handle needs no descriptor */
		must_be(rc_put(&rc, "cpu", MIB, 1, NULL), 0);
		must_be(rc_delete(&rc, "cpu"), 0);
		rc_goodbye(&rc);
	}
	td_stop(&d);
}

TEST(the_hosts_memory_is_a_devices_only_for_tests)
{
	host_memory_is_refused(NULL);
	host_memory_is_refused("");
	host_memory_is_refused("0");
}

TEST(character_devices_that_are_no_gpus_are_not_kept)
{
	static const char *const paths[] = { "/dev/null", "/dev/zero", "/dev/full", "/dev/urandom",
					     "/dev/ptmx", "/dev/tty",  "/dev/mem",  "/dev/kmsg",
					     "/dev/fuse", "/dev/kvm",  "/dev/cuse" };
	cleanup_td struct test_daemon d = td_start();
	struct device_before before = device_look(&d);
	struct raw rc = rc_open(&d);
	int tried = 0;

	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		int fd = open(paths[i], O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);

		if (fd < 0)
			continue; /* it does not exist here, or we may not open it */
		must_not_be_kept(&d, &rc, fd);
		tried++;
	}
	must(tried >= 3);
	must_not_be_kept(&d, &rc, open("/dev/null", O_PATH | O_CLOEXEC));
	rc_goodbye(&rc);
	must_be_as_before(&d, &before);
}

TEST(a_segment_of_2048_parts)
{
	cleanup_td struct test_daemon d = td_start();
	struct device_before before = device_look(&d);
	struct raw rc = rc_open(&d), reader = rc_open(&d);
	struct wire_segment_ref seg;
	int fd = memory_new(MIB);

	must_be(rc_export(&rc, SEGMENT_CUDA_VMM, GPU, 2048 * MIB, MIB, 2048, fd, &seg), 0);
	for (uint32_t i = 1; i < 2048; i++)
		rc_part(&rc, &seg, i, MIB, fd);
	close(fd);
	must_be(rc_place(&rc, &seg, NULL, .name = "a", .nbytes = 2048 * MIB), 0);
	for (uint32_t i = 0; i < 2048; i++)
		must_be(rc_import(&reader, &seg, i, NULL, NULL), 0);
	rc_goodbye(&rc);
	must_be(count_fds(d.pid), before.fds + 2 + 2048); /* the memory outlives its producer */
	must_be(rc_delete(&reader, "a"), 0);
	rc_notice(&reader, WIRE_UNMAP);
	rc_goodbye(&reader);
	must_be_as_before(&d, &before);
}

TEST(who_takes_its_descriptors_late_gets_them_all)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d), bad = rc_open(&d), good = rc_open(&d);
	struct device_before before;
	struct wire_segment_ref seg;
	unsigned got = 0;

	must_be(export_fds(&rc, 1, &seg), 0);
	rc_goodbye(&good);
	before = device_look(&d);
	before.status.clients--;
	before.fds -= 2;
	for (int i = 0; i < 40; i++) {
		struct wire_import import = { .segment = seg.segment,
					      .segment_generation = seg.segment_generation };

		must_be(rc_send(&bad, WIRE_IMPORT, &import, sizeof(import), -1), 0);
	}
	rc_sync(&rc); /* those that it may leave unread were handled before the first is received */
	for (struct conn_message m; got < 40; got++) {
		must_be(rc_receive(&bad, &m), 0);
		must(m.fd >= 0);
		close(m.fd);
	}
	rc_close(&bad);
	must_be_as_before(&d, &before);
	must_be(rc_answer(&rc, rc_unexport(&rc, &seg), WIRE_DONE), 0); /* nobody has it open */
	rc_goodbye(&rc);
}

/* ---- slots, imports, notices ---- */

TEST(slots_and_segments_are_those_of_all_tensors)
{
	cleanup_td struct test_daemon d = td_start(.max_tensors = 100);
	struct device_before before = device_look(&d);
	struct raw rc = rc_open(&d);
	struct wire_segment_ref segs[100], seg;
	char name[16];

	must_be(export_on(&rc, GPU, 100, &segs[0]), 0);
	for (int i = 0; i < 100; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		must_be(rc_place(&rc, &segs[0], NULL, .name = name, .nbytes = 1), 0);
	}
	must_be(rc_place(&rc, &segs[0], NULL, .name = "more", .nbytes = 1), WIRE_E_LIMIT);
	must_be(rc_place(&rc, &segs[0], NULL, .name = "n1", .nbytes = 1), WIRE_E_LIMIT);
	must_be(td_status(&d).drafts, 0);
	must_be(rc_delete(&rc, "n50"), 0);
	must_be(rc_place(&rc, &segs[0], NULL, .name = "more", .nbytes = 1), 0);
	for (int i = 1; i < 100; i++)
		must_be(export_on(&rc, GPU, 1, &segs[i]), 0);
	must_be(export_on(&rc, GPU, 1, &seg), WIRE_E_LIMIT);
	must_be(rc_answer(&rc, rc_unexport(&rc, &segs[42]), WIRE_DONE), 0);
	must_be(export_on(&rc, GPU, 1, &seg), 0);
	rc_goodbye(&rc);
	must_be(td_status(&d).tensors, 100); /* they are lost */
	must_be(td_status(&d).segments, 0);
	rc = rc_open(&d);
	for (int i = 0; i < 100; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		must_be(rc_delete(&rc, i == 50 ? "more" : name), 0);
	}
	rc_goodbye(&rc);
	must_be_as_before(&d, &before);
}

TEST(what_one_client_may_have_open_is_bounded)
{
	enum { IMPORTS = 16384 };
	cleanup_td struct test_daemon d = td_start(.max_tensors = IMPORTS + 16);
	struct raw rc = rc_open(&d), reader = rc_open(&d);
	struct device_before before = device_look(&d);
	struct wire_segment_ref seg = { 0 }, first = { 0 };

	for (int i = 0; i <= IMPORTS; i++) {
		must_be(export_on(&rc, GPU, 1, &seg), 0);
		if (i == 0)
			first = seg;
		must_be(rc_import(&reader, &seg, 0, NULL, NULL), i < IMPORTS ? 0 : WIRE_E_LIMIT);
	}
	must_be(rc_import(&reader, &first, 0, NULL, NULL), 0); /* this one is open already */
	rc_unmapped(&reader, &first);
	must_be(rc_import(&reader, &seg, 0, NULL, NULL), 0);
	rc_close(&rc);
	td_sync(&d);
	must_be(td_status(&d).segments, IMPORTS);
	rc_close(&reader);
	before.status.clients = 0;
	before.fds -= 4;
	must_be_as_before(&d, &before);
}

static void note_freed(const struct conn_message *m, bool *seen, unsigned *freed)
{
	struct wire_freed f;

	must_be(m->header.type, WIRE_FREED);
	memcpy(&f, m->bytes, sizeof(f));
	must(!seen[f.cookie]);
	seen[f.cookie] = true;
	++*freed;
}

/* All that it is to be told waits, and it is not disconnected for that, since it owes no answer. */
TEST(who_does_not_read_is_told_later)
{
	enum { PLACED = 65536 - 2 }; /* the exports count as well */
	static bool seen[PLACED];
	cleanup_td struct test_daemon d = td_start(.max_tensors = PLACED + 100);
	struct raw rc = rc_open(&d), other = rc_open(&d);
	struct wire_segment_ref seg = export_ipc(&rc, 100), empty = export_ipc(&rc, 100);
	unsigned freed = 0;
	struct conn_message m;
	char name[16];

	for (unsigned i = 0; i < PLACED; i++) {
		snprintf(name, sizeof(name), "n%u", i);
		must_be(rc_place(&rc, &seg, NULL, .name = name, .nbytes = 1, .cookie = i), 0);
	}
	must_be(rc_place(&rc, &seg, NULL, .name = "more", .nbytes = 1), WIRE_E_LIMIT);
	/* An export can end nevertheless: its producer frees the memory only then. */
	must_be(rc_answer(&rc, rc_unexport(&rc, &empty), WIRE_DONE), 0);
	for (unsigned i = 0; i < PLACED; i++) {
		snprintf(name, sizeof(name), "n%u", i);
		must_be(rc_delete(&other, name), 0);
	}
	must_be(td_status(&d).tensors, 0);
	must_be(td_status(&d).clients, 2);
	for (; freed < 1000; note_freed(&m, seen, &freed))
		must_be(rc_receive(&rc, &m), 0);
	rc_sync(&other); /* only as much as its socket takes has been sent since */
	must_be(td_status(&d).clients, 2);
	for (; freed < PLACED; note_freed(&m, seen, &freed))
		must_be(rc_receive(&rc, &m), 0);
	must(rc_told_nothing(&rc));
	must_be(rc_place(&rc, &seg, NULL, .name = "more", .nbytes = 1), 0);
	rc_goodbye(&rc);
	rc_goodbye(&other);
}

/* ---- options ---- */

TEST(options_are_bytes_without_percent)
{
	static const char *const bad[] = { "10%", "x", "-5", "", "1X", "12" };

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct test_daemon d = td_start(.expect_exit = true,
						.extra = ARGUMENTS(i % 2 ? "--gpu-capacity"
									 : "--gpu-uid-capacity",
								   bad[i]));

		must_be(WEXITSTATUS(td_exit_status(&d)), 2);
	}
}

int main(void)
{
	return suite_run();
}
