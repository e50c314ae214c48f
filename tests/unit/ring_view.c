/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of rings as a client maps them. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/memory/catalog.h"
#include "tests/harness/harness.h"

enum { INDEX = 5 };

enum { SLOT = 100 };

/* A page that says that the first tensor, in a slot that depends on the version, has it. */
static int page_new(uint64_t version)
{
	struct ring_page page = { .word = ring_word(1, 0),
				  .entries[0] = { .version = version,
						  .slot = SLOT + (uint32_t)version } };
	int fd = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	must(fd >= 0);
	must_be(ftruncate(fd, RING_PAGE_SIZE), 0);
	must_be(pwrite(fd, &page, sizeof(page), 0), sizeof(page));
	must_be(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
	return fd;
}

static void install(ring_views_at *views, uint32_t generation, uint64_t version)
{
	int fd = page_new(version);

	must_be(ring_view_install(views, ring_ref_make(generation, INDEX), 1, 2, fd), 0);
	close(fd);
}

static uint64_t version_of(const struct catalog_view *c, uint32_t generation)
{
	const struct catalog_row row = {
		.flags = ROW_RING, .ring = ring_slot_make(ring_ref_make(generation, INDEX), 0)
	};
	struct ring_entry entry;
	uint64_t version;

	return row_entry(c, &row, &version, &entry) ? version : 0;
}

TEST(the_page_of_a_later_ring_replaces_that_of_the_last_one)
{
	struct catalog_view c = { 0 };

	must_be(version_of(&c, 1), 0);
	install(&c.rings, 1, 11);
	must_be(version_of(&c, 1), 11);
	install(&c.rings, 2, 22);
	must_be(version_of(&c, 1), 0);
	must_be(version_of(&c, 2), 22);
	ring_views_free(&c.rings);
}

/* The tensor of the former ring's word and the later ring's slot is one that nobody published. */
TEST(a_word_and_a_slot_of_different_rings_mean_no_tensor)
{
	struct catalog_view c = { 0 };
	uint64_t former = ring_ref_make(1, INDEX), later = ring_ref_make(2, INDEX), word;
	const struct ring_page *page;

	install(&c.rings, 1, 11);
	page = ring_view(&c.rings, former);
	word = ring_page_word(page);
	must_be(ring_view_ref(&c.rings, former, page, word), ref_make(1, SLOT + 11));
	install(&c.rings, 2, 22);
	must_be(ring_view_ref(&c.rings, former, page, word), 0);
	must_be(ring_view_ref(&c.rings, later, page, word), ref_make(1, SLOT + 22));
	ring_views_free(&c.rings);
}

/* A row that is made anew while it is read may name it, and so may a daemon that lies. */
TEST(a_ring_of_generation_0_is_none)
{
	struct catalog_view c = { 0 };
	uint64_t none = ring_ref_make(0, INDEX + 1);
	const struct ring_page *page;
	int fd = page_new(11);

	install(&c.rings, 1, 11);
	must_be(ring_view_install(&c.rings, none, 1, 2, fd), -EPROTO);
	page = ring_view(&c.rings, none);
	must_be(ring_view_ref(&c.rings, none, page, ring_page_word(page)), 0);
	must_be(version_of(&c, 0), 0);
	close(fd);
	ring_views_free(&c.rings);
}

/* Another thread may hold a tensor of the later ring, and asks for its version. */
TEST(an_answer_that_comes_late_replaces_no_later_page)
{
	struct catalog_view c = { 0 };

	install(&c.rings, 2, 22);
	install(&c.rings, 1, 11);
	must_be(version_of(&c, 2), 22);
	must_be(version_of(&c, 1), 0);
	ring_views_free(&c.rings);
}

/* One that can be truncated might raise SIGBUS one day, in its producer too. */
TEST(what_is_no_page_is_refused)
{
	int seals[] = { 0, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SHRINK | F_SEAL_GROW };

	for (size_t i = 0; i < sizeof(seals) / sizeof(*seals); i++) {
		struct catalog_view c = { 0 };
		int fd = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);

		must(fd >= 0);
		must_be(ftruncate(fd, i == 3 ? 100 : RING_PAGE_SIZE), 0);
		must_be(fcntl(fd, F_ADD_SEALS, seals[i]), 0);
		must(ring_view_own(fd) == MAP_FAILED);
		must_be(ring_view_install(&c.rings, ring_ref_make(1, INDEX), 1, 2, fd), -EPROTO);
		ring_views_free(&c.rings);
		close(fd);
	}
}

static struct catalog_row row = { .flags = ROW_RING };

static void *read_versions(void *catalog)
{
	struct ring_entry entry;
	uint64_t version;

	while (row_entry(catalog, &row, &version, &entry))
		must_be(version, 11);
	must_be(version, 33);
	return NULL;
}

/* The daemon gives the row its version before the page goes. */
TEST(a_row_has_a_version_when_its_page_is_another_rings)
{
	row.ring = ring_slot_make(ring_ref_make(1, INDEX), 0);
	for (int i = 0; i < 300; i++) {
		struct catalog_view c = { 0 };
		pthread_t reader;

		row.version = 0;
		install(&c.rings, 1, 11);
		must_be(pthread_create(&reader, NULL, read_versions, &c), 0);
		for (int n = 0; n < i * 100; n++) /* let it come to another place each time */
			atomic_signal_fence(memory_order_seq_cst);
		__atomic_store_n(&row.version, 33, __ATOMIC_RELEASE);
		install(&c.rings, 2, 22);
		pthread_join(reader, NULL);
		ring_views_free(&c.rings);
	}
}

int main(void)
{
	return suite_run();
}
