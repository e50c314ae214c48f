/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's word in the catalog, its ledger, which we map read-only, and its notices.
 *
 * The ledger tells more than the socket does. A process that takes leases has it mapped writable,
 * and the kernel knows whether any process has, since F_SEAL_WRITE can only be added if none does.
 * The mapping ends with the process, whether that exits, is killed or calls exec, and it ends
 * before the process's descriptors do. A client that lies about this harms only itself:
 * extent_large() in tensor.c protects others when memory changes hands. Loop thread only.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "daemon/state/catalog.h"
#include "daemon/state/client.h"
#include "daemon/state/survive.h"
#include "daemon/store/helper.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/fault.h"
#include "util/fd.h"

/* The file system of memfds. Memfds of huge pages are on another one; using them could fault when
 * no page is free. */
#define TMPFS_MAGIC_NUMBER 0x01021994

void client_init(struct client *c, struct common *sh, const struct client_identity *who)
{
	*c = (struct client){ .id = ++sh->next_client_id,
			      .uid = who->uid,
			      .gid = who->gid,
			      .pid = who->pid,
			      .index = CATALOG_NONE };
	c->draft_head = CATALOG_NONE;
	c->ledger_fd = -1;
	c->small_next = SEGMENT_SMALL_FIRST;
	list_init(&c->ledger_link);
	list_init(&c->holdings);
	list_init(&c->parked);
	for (unsigned i = 0; i <= SMALL_EMPTY; i++)
		list_init(&c->small[i]);
	list_init(&c->large);
	list_init(&c->prefetched);
	list_init(&c->prefetching);
	list_init(&c->doubted);
	list_init(&c->account_link);
	list_init(&c->exports);
	list_init(&c->device_holds);
	list_init(&c->imports);
	list_init(&c->placed);
	list_init(&c->notices);
	list_init(&c->notified);
	list_init(&c->claimed);
	list_init(&c->watching);
	list_init(&c->bound);
	list_init(&c->handed);
	list_init(&c->rings);
	list_init(&c->memberships);
	memcpy(c->label, who->label, sizeof(c->label));
	c->label[sizeof(c->label) - 1] = '\0';
}

int client_join(struct client *c, struct state *st)
{
	struct account *account = account_ref(&st->accounts, c->uid);
	uint32_t index;
	int r;

	if (!account)
		return -ENOMEM;
	r = catalog_take(&st->catalog, &st->catalog.clients, &index);
	if (r) {
		account_unref(account);
		return r > 0 ? STATE_E_CLIENTS : r;
	}
	c->account = account;
	list_add_tail(&account->clients, &c->account_link);
	c->index = index;
	c->generation = (uint32_t)(st->catalog.client_words[index] >> 1) + 1;
	atomic_fetch_add(&st->catalog.header->clients, 1);
	return 0;
}

/* The ledger must be memory that the client cannot take away: a sealed memfd of small pages. */
static const char *ledger_check(int fd, uint64_t size, bool adopted)
{
	struct statfs fs;
	struct stat st;
	uint64_t blocks;
	int have;

	/* comes first, since a file system of the client's own may never answer other calls */
	have = fcntl(fd, F_GET_SEALS);
	if (have < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode))
		return "the ledger is not a memfd";
	if (fstatfs(fd, &fs) || (uint32_t)fs.f_type != TMPFS_MAGIC_NUMBER)
		return "the ledger is not a memfd of ordinary pages";
	if ((have & LEDGER_SEALS) != LEDGER_SEALS)
		return "the ledger is not sealed against shrinking, growing and new writers";
	/* A client may add this seal later, and the next daemon must still adopt the client. */
	if ((have & F_SEAL_SEAL && !adopted) || (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR)
		return "the ledger is sealed against sealing, or its descriptor is not for writing";
	if ((uint64_t)st.st_size != size)
		return "the ledger's size is not what it says";
	/* we may be the last to close the ledger, and freeing pages takes time */
	blocks = (uint64_t)st.st_blocks * 512;
	if (blocks > size && blocks - size >= (uint64_t)st.st_blksize)
		return "the ledger has pages beyond its end";
	return NULL;
}

/*
 * Returns NULL with errno if the ledger cannot be mapped; see is_refused(). Before Linux 6.7 any
 * mapping of a writable descriptor counts as one that may write. ledger_is_mapped() would find
 * ours, so we map a read-only descriptor. The client may have a lease on the file (F_SETLEASE), for
 * which open() would wait.
 */
static const struct ledger *ledger_map(int fd, uint64_t size)
{
	char path[32];
	void *map;
	int own, error;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	own = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (own < 0)
		return NULL;
	map = helper_mmap(own, size, PROT_READ);
	error = errno;
	close(own);
	errno = error;
	return map;
}

/* True if the client keeps us from opening its ledger: by its mode, or by a lease on it. */
static bool is_refused(int error)
{
	return error == EACCES || error == EWOULDBLOCK;
}

/* The inode of a ledger that was checked. It identifies the ledger, since all memfds of ordinary
 * pages are on one file system. 0: it cannot be examined. */
static uint64_t ledger_inode(int fd)
{
	struct stat st;

	return fstat(fd, &st) ? 0 : st.st_ino;
}

/* True if a connection, of any namespace, has handed in the same memfd. The ledger would stay
 * mapped as long as either client lives. */
static bool ledger_is_taken(struct common *sh, uint64_t inode)
{
	const struct client *c;

	list_for_each_entry(c, &sh->ledgers, ledger_link) {
		if (c->ledger_inode == inode)
			return true;
	}
	return false;
}

static void client_survives(const struct client *c, struct state *st)
{
	struct client_fact fact = { .id = c->id,
				    .uid = c->uid,
				    .gid = c->gid,
				    .pid = c->pid,
				    .generation = c->generation };

	memcpy(fact.label, c->label, sizeof(fact.label));
	survive_client(st->common, &st->catalog, c->index, &fact, c->ledger_fd);
}

/* ORDER: catalog_identity() of the library reads the generation before and after the rest. */
static void identity_store(const struct client *c, struct state *st)
{
	struct catalog_identity *to = &st->catalog.identities[c->index];
	uint64_t label[4];

	static_assert(sizeof(label) == sizeof(c->label) && sizeof(label) == sizeof(to->label),
		      "labels fit");
	memcpy(label, c->label, sizeof(label));
	atomic_store(&to->generation, 0);
	atomic_store(&to->uid, c->uid);
	atomic_store(&to->pid, c->pid);
	atomic_store(&to->id, c->id);
	atomic_store(&to->since_ns, (uint64_t)now_real_ns());
	for (unsigned i = 0; i < 4; i++)
		atomic_store(&to->label[i], label[i]);
	atomic_store(&to->generation, c->generation);
}

int client_serve(struct client *c, struct state *st, int *fd, uint64_t size, const char **why)
{
	uint32_t slots = st->catalog.header->max_tensors;
	const struct ledger *ledger;
	uint64_t inode = 0, *pages;

	*why = size == ledger_size(slots)
		       ? ledger_check(*fd, size, false)
		       : "the ledger does not have ledger_size(max_tensors) bytes";
	if (!*why)
		inode = ledger_inode(*fd);
	if (!*why && ledger_is_taken(st->common, inode))
		*why = "the ledger is another connection's already";
	if (*why)
		return STATE_E_INVALID;
	pages = calloc(size / LEDGER_PAGE / 64 + 1, sizeof(*pages));
	ledger = pages ? ledger_map(*fd, size) : NULL;
	if (!ledger) {
		int r = -errno;

		free(pages);
		if (!is_refused(-r))
			return r;
		*why = "the ledger's mode, or a file lease, does not let the daemon open it for reading";
		return STATE_E_INVALID;
	}
	if (ledger->magic != LEDGER_MAGIC || ledger->layout != LEDGER_LAYOUT ||
	    ledger->slots != slots) {
		munmap((void *)ledger, size);
		free(pages);
		*why = "the ledger's magic, layout or number of slots is wrong";
		return STATE_E_INVALID;
	}
	c->ledger = ledger;
	c->ledger_size = size;
	c->pages = pages;
	c->ledger_slots = slots;
	c->ledger_inode = inode;
	c->ledger_fd = take_fd(fd);
	list_add_tail(&st->common->ledgers, &c->ledger_link);
	st->served[c->index] = c;
	client_survives(c, st);
	identity_store(c, st);
	atomic_store(&st->catalog.client_words[c->index], live_word(c->generation));
	return 0;
}

int client_adopt(struct client *c, struct state *st, uint32_t index, const struct client_fact *fact,
		 int *ledger_fd, bool served)
{
	uint32_t slots = st->catalog.header->max_tensors;

	if (ledger_check(*ledger_fd, ledger_size(slots), true))
		return STATE_E_INVALID;
	c->pages = calloc(ledger_size(slots) / LEDGER_PAGE / 64 + 1, sizeof(*c->pages));
	c->ledger = c->pages ? ledger_map(*ledger_fd, ledger_size(slots)) : NULL;
	c->liar = c->pages && !c->ledger && is_refused(errno);
	c->account = account_ref(&st->accounts, c->uid);
	if ((!c->ledger && !c->liar) || !c->account)
		return -ENOMEM;
	list_add_tail(&c->account->clients, &c->account_link);
	c->ledger_size = ledger_size(slots);
	c->ledger_slots = slots;
	c->ledger_inode = ledger_inode(*ledger_fd);
	c->ledger_fd = take_fd(ledger_fd);
	c->index = index;
	c->generation = fact->generation;
	c->published = true; /* not known, so assume the worst */
	list_add_tail(&st->common->ledgers, &c->ledger_link);
	st->served[index] = c;
	if (!served)
		client_end_leases(c, st); /* before its ledger is read */
	return 0;
}

/* ---- the ledger ------------------------------------------------------------------------------ */

uint64_t client_missed(const struct client *c)
{
	return c->ledger ? atomic_load_explicit(&c->ledger->missed, memory_order_relaxed) : 0;
}

void client_end_leases(struct client *c, struct state *st)
{
	if (c->ended)
		return;
	c->ended = true;
	st->meters.missed += client_missed(c);
	if (c->ledger_fd >= 0) /* D1 */
		atomic_store(&st->catalog.client_words[c->index], (uint64_t)c->generation << 1);
}

void client_unmap_ledger(struct client *c)
{
	if (c->ledger)
		munmap((void *)c->ledger, c->ledger_size);
	c->ledger = NULL;
}

/* If the mapping fails, the client counts as holding everything: client_leases_on(). */
void client_map_ledger(struct client *c)
{
	c->ledger = ledger_map(c->ledger_fd, c->ledger_size);
}

/* An error other than EBUSY means that the client sealed the ledger against sealing: that counts as
 * not mapped. */
bool ledger_is_mapped(int fd_peek)
{
	return fcntl(fd_peek, F_ADD_SEALS, F_SEAL_WRITE) && errno == EBUSY;
}

void client_drop_ledger(struct client *c, struct state *st)
{
	st->served[c->index] = NULL;
	list_del(&c->ledger_link);
	survive_client_ended(st->common, &st->catalog, c->index);
	client_unmap_ledger(c);
	free(c->pages);
	c->pages = NULL;
	/* freeing its pages takes time, and ours may be the last descriptor */
	closer_take(&st->common->closer, take_fd(&c->ledger_fd),
		    c->account ? account_top(c->account) : NULL);
}

/*
 * False: all words of the page of @word are zeros. A page that was never written is not read
 * through the mapping, whatever `touched` says, since that would allocate it for us. Pages cannot
 * go again: LEDGER_SEALS. SEEK_DATA could look for the page, but waits for the locks of the file
 * position and of the inode, which the client can hold for as long as it likes.
 *
 * ORDER: pread() comes after T1 with a full barrier, as a load of the word would.
 */
static bool page_is_there(const struct client *c, const void *word)
{
	size_t page = (size_t)((const char *)word - (const char *)c->ledger) / LEDGER_PAGE;
	uint64_t words[LEDGER_PAGE / sizeof(uint64_t)];
	unsigned i = 0;

	if (c->pages[page / 64] & (uint64_t)1 << page % 64)
		return true;
	atomic_thread_fence(memory_order_seq_cst);
	if (pread(c->ledger_fd, words, sizeof(words), (off_t)(page * LEDGER_PAGE)) !=
	    (ssize_t)sizeof(words))
		return false;
	while (i < LEDGER_PAGE / sizeof(uint64_t) && !words[i])
		i++;
	if (i == LEDGER_PAGE / sizeof(uint64_t))
		return false;
	c->pages[page / 64] |= (uint64_t)1 << page % 64;
	return true;
}

static bool has_counters(const struct client *c, uint32_t slot)
{
	struct ledger *l = (struct ledger *)c->ledger;

	return atomic_load(&l->touched[slot / LEDGER_PAGE_SLOTS]) &&
	       page_is_there(c, &ledger_held(l, c->ledger_slots)[slot]);
}

/* ORDER: the page's byte is read before the counter, both seq_cst: the client sets it before G2. */
uint32_t client_leases_on(const struct client *c, uint32_t slot)
{
	struct ledger *l = (struct ledger *)c->ledger;

	if (!l)
		return c->ledger_fd >= 0; /* an orphan's ledger that could not be mapped again holds
					     everything */
	if (!has_counters(c, slot))
		return 0;
	return atomic_load(&ledger_held(l, c->ledger_slots)[slot]);
}

bool client_has_uses(const struct client *c, uint32_t slot)
{
	struct ledger *l = (struct ledger *)c->ledger;

	return l && atomic_load(&l->touched[slot / LEDGER_PAGE_SLOTS]) & LEDGER_USED &&
	       page_is_there(c, &ledger_used(l, c->ledger_slots)[slot]);
}

/* The ledger has the lower 32 bits of the time. A time in the future counts as now. */
uint64_t client_last_use(const struct client *c, uint32_t slot, uint64_t now)
{
	struct ledger *l = (struct ledger *)c->ledger;
	uint32_t used;

	if (!client_has_uses(c, slot))
		return 0;
	used = atomic_load(&ledger_used(l, c->ledger_slots)[slot]);
	if (used == 0)
		return 0;
	return (int32_t)((uint32_t)now - used) < 0 ? now : now - ((uint32_t)now - used);
}

/* Skips the slots of a page that exists but shows no leases. At adoption, which reads the ledgers
 * of all clients, most pages of a large ledger are like that. ORDER: as in client_leases_on(). */
static void unleased_pass(const struct client *c, uint32_t high, uint32_t *slot, unsigned *budget)
{
	const _Atomic uint32_t *held = ledger_held(c->ledger, c->ledger_slots);
	uint32_t at = *slot, end = (at / LEDGER_PAGE_SLOTS + 1) * LEDGER_PAGE_SLOTS;

	end = end < high ? end : high;
	end = end - at < *budget ? end : at + *budget;
	while (at < end && !atomic_load(&held[at]))
		at++;
	*budget -= at - *slot;
	*slot = at;
}

static bool next_leased(const struct client *c, const struct state *st, uint32_t *slot,
			unsigned *budget, uint32_t *leases)
{
	while (*budget && *slot < st->catalog.rows.high) {
		if (c->ledger && has_counters(c, *slot)) {
			unleased_pass(c, st->catalog.rows.high, slot, budget);
			if (!*budget || *slot >= st->catalog.rows.high)
				return false;
		}
		--*budget;
		if (c->ledger && !has_counters(c, *slot)) {
			*slot = (*slot / LEDGER_PAGE_SLOTS + 1) * LEDGER_PAGE_SLOTS;
			continue;
		}
		*leases = client_leases_on(c, *slot);
		if (*leases)
			return true;
		++*slot;
	}
	return false;
}

/* Moves *@segment to the next segment that the client says it has mapped. False: there is none. */
bool client_next_mapped(const struct client *c, uint32_t segments, uint32_t *segment,
			uint32_t *generation)
{
	struct ledger *l = (struct ledger *)c->ledger;
	_Atomic uint32_t *mapped;

	if (!l)
		return false;
	mapped = ledger_mapped(l, c->ledger_slots);
	while (*segment < segments) {
		if (*segment % LEDGER_PAGE_SLOTS == 0 &&
		    !(atomic_load(&l->touched[*segment / LEDGER_PAGE_SLOTS]) & LEDGER_MAPPED &&
		      page_is_there(c, &mapped[*segment]))) {
			*segment += LEDGER_PAGE_SLOTS;
			continue;
		}
		*generation = atomic_load(&mapped[*segment]);
		if (*generation)
			return true;
		++*segment;
	}
	return false;
}

bool client_next_held(const struct client *c, const struct state *st, uint32_t *slot,
		      unsigned *budget, uint32_t *leases)
{
	enum row_state row;

	while (next_leased(c, st, slot, budget, leases)) {
		row = row_word_state(catalog_row(&st->catalog, *slot)->word);
		if (row == ROW_LIVE || row == ROW_RETIRED)
			return true;
		++*slot;
	}
	return false;
}

bool client_sum(const struct client *c, const struct state *st, struct client_sums *sums,
		unsigned budget)
{
	uint32_t leases;

	while (client_next_held(c, st, &sums->slot, &budget, &leases)) {
		sums->leases += leases;
		sums->tensors++;
		sums->bytes += catalog_row(&st->catalog, sums->slot)->nbytes;
		sums->slot++;
	}
	return !budget;
}

/* ---- notices; see client.h ------------------------------------------------------------------- */

int notice_new(struct notice **np, struct client *c)
{
	struct notice *n;

	if (c->notice_count >= CLIENT_NOTICES_MAX ||
	    account_top(c->account)->notices >= CLIENT_NOTICES_MAX)
		return STATE_E_NOTICES;
	n = fault("notice_new") ? NULL : calloc(1, sizeof(*n));
	if (!n)
		return -ENOMEM;
	list_init(&n->link);
	n->client = c;
	c->notice_count++;
	*np = n;
	return 0;
}

/* Counts the due notices of a user: all clients of a user together may have as many as one client
 * may have. */
static void count_due(struct notice *n, bool due)
{
	account_top(n->client->account)->notices += (unsigned)due - (unsigned)n->due;
	n->due = due;
}

void notice_withdraw(struct notice *n)
{
	count_due(n, false);
	list_del(&n->link);
}

struct notice *notice_free(struct notice *n)
{
	if (!n)
		return NULL;
	notice_withdraw(n);
	n->client->notice_count--;
	free(n);
	return NULL;
}

void notice_due(struct common *common, struct notice *n)
{
	count_due(n, true);
	list_del(&n->link);
	list_add_tail(&n->client->notices, &n->link);
	if (list_empty(&n->client->notified))
		list_add_tail(&common->notified, &n->client->notified);
}

struct notice *notice_next(struct client *c)
{
	return list_empty(&c->notices) ? NULL : list_first_entry(&c->notices, struct notice, link);
}

void notice_sent(struct notice *n)
{
	if (n->message.header.type != WIRE_UNMAP) {
		notice_free(n);
		return;
	}
	notice_withdraw(n); /* it is part of the import */
}
