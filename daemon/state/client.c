/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients: identity, and the ledger that we map read-only. The ledger tells more than the socket
 * does: whoever takes leases has it mapped writable, and the kernel knows whether anybody does,
 * since F_SEAL_WRITE can only be added if nobody does. The mapping goes with the process, whether
 * that exits, is killed or calls exec, and it goes before the process's descriptors do. A client
 * that lies about this harms itself: others are protected by what is looked at when memory changes
 * hands (segment_take_warm()). Loop thread only.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "daemon/state/client.h"
#include "daemon/state/outcome.h"
#include "util/cleanup.h"
#include "util/fd.h"

/* The file system of memfds. One on huge pages has another, and could fault for want of a page. */
#define TMPFS_MAGIC_NUMBER 0x01021994

int client_init(struct client *c, struct state *st, const struct client_identity *who)
{
	uint32_t index;
	int r;

	*c = (struct client){
		.uid = who->uid, .gid = who->gid, .pid = who->pid, .index = CATALOG_NONE
	};
	c->draft_head = CATALOG_NONE;
	c->ledger_fd = -1;
	c->small_next = SEGMENT_SMALL_FIRST;
	list_init(&c->small);
	list_init(&c->large);
	list_init(&c->exports);
	list_init(&c->imports);
	list_init(&c->placed);
	list_init(&c->notices);
	list_init(&c->notified);
	memcpy(c->label, who->label, sizeof(c->label));
	c->label[sizeof(c->label) - 1] = '\0';
	c->user = quota_user_ref(&st->memory.store.quota, c->uid);
	if (!c->user)
		return -ENOMEM;
	r = catalog_take(&st->catalog, &st->catalog.clients, &index);
	if (r) {
		c->user = quota_user_unref(c->user);
		return r < 0 ? r : STATE_E_CLIENTS;
	}
	c->index = index;
	c->generation = (uint32_t)(st->catalog.client_words[index] >> 1) + 1;
	c->id = ++st->next_client_id;
	atomic_fetch_add(&st->catalog.header->clients, 1);
	return 0;
}

/* We only read memory that the client cannot take away: a sealed memfd of small pages. */
static const char *ledger_check(int fd, uint64_t size)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
	struct statfs fs;
	struct stat st;
	int have;

	if (fstat(fd, &st) || !S_ISREG(st.st_mode))
		return "the ledger is not a memfd";
	if (fstatfs(fd, &fs) || (uint32_t)fs.f_type != TMPFS_MAGIC_NUMBER)
		return "the ledger is not a memfd of ordinary pages";
	have = fcntl(fd, F_GET_SEALS);
	if (have < 0 || (have & seals) != seals)
		return "the ledger is not sealed against shrinking and growing";
	if (have & F_SEAL_SEAL || (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR)
		return "the ledger is sealed against sealing, or its descriptor is not for writing";
	if ((uint64_t)st.st_size != size)
		return "the ledger's size is not what it says";
	return NULL;
}

int client_serve(struct client *c, struct state *st, int fd_take, uint64_t size, const char **why)
{
	cleanup_(fd_closep) int fd = fd_take;
	uint32_t slots = st->catalog.header->max_tensors;
	const struct ledger *ledger;

	*why = size == ledger_size(slots)
		       ? ledger_check(fd, size)
		       : "the ledger does not have ledger_size(max_tensors) bytes";
	if (*why)
		return STATE_E_INVALID;
	ledger = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	if (ledger == MAP_FAILED)
		return -errno;
	if (ledger->magic != LEDGER_MAGIC || ledger->layout != LEDGER_LAYOUT ||
	    ledger->slots != slots) {
		munmap((void *)ledger, size);
		*why = "the ledger's magic, layout or number of slots is wrong";
		return STATE_E_INVALID;
	}
	c->ledger = ledger;
	c->ledger_size = size;
	c->ledger_slots = slots;
	c->ledger_fd = take_fd(&fd);
	st->served[c->index] = c;
	atomic_store(&st->catalog.client_words[c->index], live_word(c->generation));
	return 0;
}

/* ---- the ledger ------------------------------------------------------------------------------ */

void client_end_leases(struct client *c, struct state *st)
{
	if (c->ended)
		return;
	c->ended = true;
	if (c->ledger_fd >= 0) /* D1 */
		atomic_store(&st->catalog.client_words[c->index], (uint64_t)c->generation << 1);
}

/*
 * Our own mapping counts, since it was made with a descriptor for writing. An error other than
 * EBUSY means that the client sealed it against sealing: it is taken at its word.
 */
bool client_ledger_is_mapped(struct client *c)
{
	void *map;
	bool mapped;

	if (c->ledger)
		munmap((void *)c->ledger, c->ledger_size);
	c->ledger = NULL;
	mapped = fcntl(c->ledger_fd, F_ADD_SEALS, F_SEAL_WRITE) && errno == EBUSY;
	if (!mapped)
		return false;
	map = mmap(NULL, c->ledger_size, PROT_READ, MAP_SHARED, c->ledger_fd, 0);
	c->ledger = map == MAP_FAILED ? NULL : map; /* NULL counts as holding everything:
						       client_leases_on() */
	return true;
}

void client_drop_ledger(struct client *c, struct state *st)
{
	st->served[c->index] = NULL;
	if (c->ledger)
		munmap((void *)c->ledger, c->ledger_size);
	c->ledger = NULL;
	c->ledger_fd = fd_close(c->ledger_fd);
}

/*
 * ORDER: the page's byte is read before the counter, both seq_cst: the client sets it before G2. A
 * page that was never written is not read, since that would allocate it.
 */
uint32_t client_leases_on(const struct client *c, uint32_t slot)
{
	struct ledger *l = (struct ledger *)c->ledger;

	if (!l)
		return c->ledger_fd >= 0; /* an orphan's that could not be mapped again holds all */
	if (!atomic_load(&l->touched[slot / LEDGER_PAGE_SLOTS]))
		return 0;
	return atomic_load(&ledger_held(l, c->ledger_slots)[slot]);
}

static uint32_t next_leased(const struct client *c, const struct state *st, uint32_t slot,
			    uint32_t *leases)
{
	struct ledger *l = (struct ledger *)c->ledger;

	while (slot < st->catalog.rows.high) {
		if (l && !atomic_load(&l->touched[slot / LEDGER_PAGE_SLOTS])) {
			slot = (slot / LEDGER_PAGE_SLOTS + 1) * LEDGER_PAGE_SLOTS;
			continue;
		}
		*leases = client_leases_on(c, slot);
		if (*leases)
			return slot;
		slot++;
	}
	return CATALOG_NONE;
}

uint32_t client_next_held(const struct client *c, const struct state *st, uint32_t slot,
			  uint32_t *leases)
{
	enum row_state row;

	while ((slot = next_leased(c, st, slot, leases)) != CATALOG_NONE) {
		row = row_word_state(catalog_row(&st->catalog, slot)->word);
		if (row == ROW_LIVE || row == ROW_RETIRED)
			return slot;
		slot++;
	}
	return CATALOG_NONE;
}

struct client_sums client_sum(const struct client *c, const struct state *st)
{
	struct client_sums sums = { 0 };
	uint32_t slot = 0, leases;

	while ((slot = client_next_held(c, st, slot, &leases)) != CATALOG_NONE) {
		sums.leases += leases;
		sums.tensors++;
		sums.bytes += catalog_row(&st->catalog, slot)->nbytes;
		slot++;
	}
	return sums;
}
