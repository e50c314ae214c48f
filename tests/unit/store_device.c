/* SPDX-License-Identifier: Apache-2.0 */
/* Memory on devices: its accounts and its descriptors, and which descriptors are accepted. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>

#include "daemon/store/closer.h"
#include "daemon/store/segment.h"
#include "tests/harness/harness.h"
#include "tests/harness/slow_fd.h"
#include "util/fault.h"

static struct device_table devices;
static struct closer closer;
static struct accounts accounts;
static struct pool descriptors;
static struct share_rule everybody;

static int memory_of(struct device_memory **m, uint8_t id, uint32_t uid, uint64_t size,
		     uint32_t fds)
{
	uint8_t uuid[DEVICE_ID] = { id };

	struct account *account = account_ref(&accounts, uid);
	int r = device_memory_new(m, &devices, uuid, account, size, fds ? fds : 1, fds);

	account_unref(account);
	return r;
}

static void assert_no_devices(void)
{
	for (int i = 0; i < DEVICES_MAX; i++) {
		assert_int_equal(devices.list[i].pool.used, 0);
		assert_int_equal(devices.list[i].segments, 0);
	}
	assert_int_equal(descriptors.used, 0);
	assert_int_equal(accounts.count, 0);
	accounts_deinit(&accounts);
}

/* How many bytes and descriptors there are in all, and for each user. */
static void start(uint64_t capacity, uint64_t each, unsigned fds)
{
	everybody = (struct share_rule){ .whose = RULE_ANY };
	for (unsigned i = 0; i < SHARE_KINDS; i++)
		everybody.max[i] = SHARE_UNSET;
	everybody.max[SHARE_DEVICE] = each;
	accounts_init(&accounts, 0, &everybody, 1);
	descriptors = pool_make(&accounts, SHARE_DESCRIPTORS, fds);
	device_table_init(&devices, &accounts, &descriptors, &closer, capacity);
}

static int full(enum share share)
{
	return CHARGE_E_FULL | (int)share;
}

static int mine(enum share share)
{
	return CHARGE_E_USER | (int)share;
}

TEST(devices_are_accounted_each_by_itself)
{
	struct device_memory *a = NULL, *b = NULL, *c = NULL, *no = NULL;

	start(100, 70, 5);
	assert_int_equal(memory_of(&a, 1, 7, 60, 0), 0);
	assert_int_equal(memory_of(&no, 1, 7, 11, 0), mine(SHARE_DEVICE));
	assert_int_equal(memory_of(&no, 1, 7, 41, 0), full(SHARE_DEVICE)); /* the user's quota is
									 not to blame */
	assert_int_equal(memory_of(&no, 1, 7, UINT64_MAX, 0), full(SHARE_DEVICE));
	assert_int_equal(memory_of(&b, 1, 8, 40, 0), 0);
	assert_int_equal(memory_of(&no, 1, 9, 1, 0), full(SHARE_DEVICE));
	assert_int_equal(memory_of(&c, 2, 7, 70, 3), 0);
	assert_int_equal(memory_of(&no, 2, 7, 0, 1), mine(SHARE_DESCRIPTORS));
	assert_int_equal(memory_of(&no, 2, 8, 31, 1), full(SHARE_DEVICE + 1));
	assert_null(no);
	assert_ptr_equal(device_find(&devices, a->device->id), &devices.list[0]);
	assert_int_equal(devices.list[0].segments, 2);
	assert_int_equal(devices.list[1].pool.used, 70);
	assert_int_equal(descriptors.used, 3);
	a = device_memory_free(a);
	device_memory_discharge(b);
	device_memory_discharge(b); /* twice is harmless */
	assert_int_equal(devices.list[0].segments, 0);
	assert_int_equal(memory_of(&a, 3, 7, 1, 0), 0); /* another device takes its place */
	assert_int_equal(devices.list[0].id[0], 3);
	device_memory_free(b);
	assert_int_equal(devices.list[0].segments, 1);
	device_memory_free(a);
	device_memory_free(c);
	assert_null(device_memory_free(NULL));
	assert_no_devices();
}

TEST(memory_owns_the_descriptors_of_its_parts)
{
	unsigned before = count_fds(0);
	struct device_memory *m = NULL;

	start(UINT64_MAX, SHARE_UNSET, 8);
	assert_int_equal(memory_of(&m, 1, 7, INT64_MAX, 3), 0);
	assert_int_equal(descriptors.used, 3); /* they are charged before they
									arrive */
	for (int i = 0; i < 3; i++) {
		assert_false(device_memory_complete(m));
		device_memory_add(m, 10, memfd_create("part", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	}
	assert_true(device_memory_complete(m));
	assert_int_equal(m->size_arrived, 30);
	assert_int_equal(count_fds(0), before + 3);
	device_memory_close(m);
	assert_int_equal(count_fds(0), before);
	assert_int_equal(descriptors.used, 0);
	assert_int_equal(devices.list[0].pool.used, INT64_MAX); /* bytes do not depend on
								    descriptors */
	device_memory_free(m);
	assert_int_equal(memory_of(&m, 1, 7, 10, 2), 0);
	device_memory_add(m, 10, memfd_create("part", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	device_memory_free(m); /* only half of it had arrived */
	assert_int_equal(count_fds(0), before);
	assert_no_devices();
}

/* A client may have put any number of pages into it, and freeing them takes long. */
TEST(large_memfds_are_closed_by_another_process)
{
	struct device_memory *m;
	int fd = memfd_create("large", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_int_equal(posix_fallocate(fd, 0, 4 << 20), 0);
	start(100, 100, 10);
	assert_int_equal(memory_of(&m, 1, 7, 10, 1), 0);
	device_memory_add(m, 10, fd);
	device_memory_free(m);
	assert_true(closer.pid);
	eventually((closer_look(&closer), !closer_waits(&closer)));
	assert_int_equal(fcntl(fd, F_GETFD), -1);
	assert_no_devices();
	closer_deinit(&closer);
}

TEST(device_memory_unwinds_at_every_step)
{
	uint8_t id[DEVICE_ID] = { 1 };
	struct segment_store s;
	unsigned n;

	segment_store_init(&s, &accounts, 0, 0);
	for (n = 1;; n++) {
		struct device_memory *m = NULL;
		struct segment *seg = NULL;
		struct account *account;
		int r;

		start(100, 100, 8);
		account = account_ref(&accounts, 7);
		fault_arm(n);
		r = device_memory_new(&m, &devices, id, account, 10, 2, true);
		if (!r) {
			device_memory_add(m, 5,
					  memfd_create("part", MFD_CLOEXEC | MFD_ALLOW_SEALING));
			r = segment_new_on_device(&seg, &s, m, 10);
		}
		fault_disarm();
		assert_int_equal(r, fault_fired() ? -ENOMEM : 0);
		segment_free(seg);
		account_unref(account);
		assert_no_devices();
		if (!fault_fired())
			break;
	}
	assert_int_equal(n, 3);
	segment_store_deinit(&s);
}

static const char *check_and_close(int fd, uint64_t size, bool pool)
{
	const char *why = device_descriptor_check(fd, size, pool);

	close(fd);
	return why;
}

static int memfd_of(off_t size, int seals)
{
	int fd = memfd_create("memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, size), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

TEST(only_memory_is_kept_as_a_descriptor)
{
	const int sealed = F_SEAL_SHRINK | F_SEAL_GROW;
	int pipes[2];

	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	assert_non_null(check_and_close(pipes[0], 1, false));
	close(pipes[1]);
	assert_non_null(device_descriptor_check(-1, 1, false));
	assert_non_null(check_and_close(open("/", O_RDONLY | O_CLOEXEC), 1, false));
	assert_non_null(check_and_close(open("/proc/self/exe", O_RDONLY | O_CLOEXEC), 1, false));
	assert_non_null(check_and_close(open("/dev/null", O_RDWR | O_CLOEXEC), 1, false));
	assert_null(check_and_close(memfd_of(100, sealed), 100, false));
	assert_non_null(check_and_close(memfd_of(100, sealed), 99, false));
	assert_non_null(check_and_close(memfd_of(100, sealed), 101, false));
	assert_non_null(check_and_close(memfd_of(100, F_SEAL_GROW), 100, false));
	assert_non_null(check_and_close(memfd_of(100, F_SEAL_SHRINK), 100, false));
	assert_null(check_and_close(memfd_of(100, sealed), 99, true));
	assert_non_null(check_and_close(memfd_of(100, sealed), 101, true));
	assert_non_null(check_and_close(memfd_of(100, F_SEAL_GROW), 99, true));
}

TEST(no_memfd_is_kept_where_gpus_are_real)
{
	const int sealed = F_SEAL_SHRINK | F_SEAL_GROW;

	unsetenv("TENSORLEASE_FAKE_GPU");
	assert_non_null(check_and_close(memfd_of(100, sealed), 100, false));
	assert_non_null(check_and_close(memfd_of(100, sealed), 100, true));
	assert_non_null(check_and_close(memfd_of(0, sealed), 0, false));
	setenv("TENSORLEASE_FAKE_GPU", "1", 1);
	assert_null(check_and_close(memfd_of(100, sealed), 100, false));
}

TEST(a_gpus_number_is_nvidias_or_one_that_nobody_owns)
{
	static const unsigned fits[][2] = { { 195, 0 },	 { 195, 255 }, { 234, 0 },
					    { 254, 1 },	 { 384, 0 },   { 511, 7 },
					    { 10, 127 }, { 10, 58 },   { 10, 257 } };
	static const unsigned not [][2] = { { 1, 3 },	 { 1, 1 },   { 1, 5 },	   { 4, 64 },
					    { 5, 0 },	 { 5, 2 },   { 10, 229 },  { 10, 232 },
					    { 10, 200 }, { 136, 0 }, { 226, 128 }, { 194, 0 },
					    { 196, 0 },	 { 233, 0 }, { 255, 0 },   { 383, 0 },
					    { 512, 0 } };

	for (size_t i = 0; i < sizeof(fits) / sizeof(fits[0]); i++)
		assert_true(device_number_fits(makedev(fits[i][0], fits[i][1])));
	for (size_t i = 0; i < sizeof(not ) / sizeof(not [0]); i++)
		assert_false(device_number_fits(makedev(not [i][0], not [i][1])));
}

/* The last one that closes a GPU's device file waits until the driver has shut the GPU down. */
TEST(a_device_that_is_slow_to_close_keeps_nobody_waiting)
{
	const uint8_t uuid[DEVICE_ID] = { 1 };
	struct slow_fd slow = slow_fd_make(3600);
	struct device_hold *hold;
	struct account *account;

	start(100, 70, 5);
	account = account_ref(&accounts, 7);
	assert_int_equal(device_hold_new(&hold, &devices, uuid, account, slow.fd), 0);
	account_unref(account);
	assert_int_equal(descriptors.used, 1);
	device_hold_unref(hold, 0);
	assert_int_equal(descriptors.used, 0);
	assert_true(closer_waits(&closer));
	eventually((closer_look(&closer), !closer_waits(&closer)));
	close(slow.peer);
	closer_deinit(&closer);
	assert_no_devices();
}

int main(void)
{
	return suite_run();
}
