/* SPDX-License-Identifier: Apache-2.0 */
/* Taking over the last daemon's state; see server.h. Loop thread only. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/recover/snapshot.h"
#include "daemon/serve/server.h"
#include "daemon/state/claim.h"
#include "daemon/state/ring.h"
#include "daemon/state/survive.h"
#include "daemon/store/shm.h"
#include "util/cleanup.h"
#include "util/fd.h"
#include "util/log.h"

/* ---- namespaces ----------------------------------------------------------------------------- */

/* Facts that the keeper kept. */
struct found {
	uint64_t instance;
	int fd;
	char name[TENSOR_NAMESPACE_MAX + 1];
	uint32_t gid;
	bool made; /* by the template */
	bool damaged;
};

struct search {
	struct found *list;
	unsigned count;
	uint64_t instance; /* the first of NAMESPACES_MAX */
};

/* Notes facts of one of our instances. There may be others: a daemon that started afresh may have
 * died before it let go of another instance's facts. */
static void found_note(const struct kept *kept, void *context)
{
	struct search *search = context;
	struct found *f = &search->list[search->count];
	uint64_t instance;

	if (sscanf(kept->tag, KEEPER_TAG_PREFIX "facts-%16" SCNx64, &instance) == 1 &&
	    instance - search->instance < NAMESPACES_MAX) {
		*f = (struct found){ .instance = instance, .fd = -1 };
		search->count++;
	}
}

static void found_read(struct found *f)
{
	struct facts_header header;

	if (pread(f->fd, &header, sizeof(header), 0) != sizeof(header) || !header.sum)
		return;
	f->damaged = header.sum != facts_header_sum(&header);
	memcpy(f->name, header.name, sizeof(f->name));
	f->name[sizeof(f->name) - 1] = '\0';
	f->gid = header.gid;
	f->made = header.made;
}

static int search_init(struct search *search, struct keeper_link *k, uint64_t instance)
{
	char tag[KEEPER_TAG_SIZE];

	*search = (struct search){ .list = calloc(k->list.count + 1, sizeof(*search->list)),
				   .instance = instance };
	if (!search->list)
		return -ENOMEM;
	kept_each(&k->list, found_note, search);
	for (unsigned i = 0; i < search->count; i++) {
		survive_tag(tag, SURVIVOR_FACTS, search->list[i].instance, 0, 0);
		search->list[i].fd = keeper_link_take(k, tag);
		found_read(&search->list[i]);
	}
	return 0;
}

static void search_deinit(struct search *search)
{
	for (unsigned i = 0; i < search->count; i++)
		fd_close(search->list[i].fd);
	free(search->list);
}

/* Sets a catalog aside that no daemon trusts any more, so that its damage can be examined. */
static void set_aside(const struct server *server, const struct found *f, int facts_fd_peek)
{
	char path[OBJECT_PATH_MAX];

	if (server->keeper->must_adopt)
		return; /* the former program may trust it */
	if (shm_object_set_aside(f->instance, facts_fd_peek, path))
		log_warn("what the last daemon left is set aside", "path=%s", log_str(path));
}

/* Reads the header of the catalog, and checks it alone. */
static int header_read(const struct found *f, struct catalog_header *h)
{
	const struct object object = shm_object_of_catalog(f->instance);
	struct catalog_array *arrays[FACTS_ARRAYS];
	cleanup_(fd_closep) int fd = -1;
	uint64_t facts_size;
	struct catalog cat;
	const char *why;
	int r;

	*h = (struct catalog_header){ 0 };
	r = shm_object_open(&object, O_RDONLY, &fd);
	return r ? r : snapshot_shape(&cat, fd, h, arrays, &facts_size, &why);
}

/* True if the catalog does not fit only because it is another program's, or was made with other
 * limits. */
static bool is_of_others(const struct found *f, const struct state_limits *limits)
{
	struct catalog_header h;

	if (header_read(f, &h))
		return h.magic == CATALOG_MAGIC && h.layout != CATALOG_LAYOUT;
	return h.max_tensors != limits->max_tensors || h.max_clients != limits->max_clients;
}

static int namespace_map_found(struct server *server, const struct namespace_config *config,
			       struct found *f, bool made, char why[ADOPT_WHY_MAX])
{
	const char *reason = "";
	struct namespace *ns;
	int fd = f->fd, r;

	f->fd = -1;
	r = namespace_map(&server->namespaces, config, f->instance, fd, &reason, &ns);
	snprintf(why, ADOPT_WHY_MAX, "%s", reason);
	if (r)
		return r;
	ns->made = made;
	return adopt_catalog(&ns->state, why);
}

static int namespace_take_over(struct server *server, const struct namespace_config *config,
			       struct found *f, bool made, char why[ADOPT_WHY_MAX])
{
	cleanup_(fd_closep) int facts_fd = fcntl(f->fd, F_DUPFD_CLOEXEC, 3);
	int r = namespace_map_found(server, config, f, made, why);

	if (r == CATALOG_E_STRANGE && !is_of_others(f, &config->limits))
		set_aside(server, f, facts_fd);
	return r;
}

static struct found *search_find(const struct search *search, const char *name)
{
	for (unsigned i = 0; i < search->count; i++) {
		if (search->list[i].fd >= 0 && !search->list[i].damaged &&
		    !strcmp(search->list[i].name, name))
			return &search->list[i];
	}
	return NULL;
}

/* True if the namespace was never used, so that it may go when it is not configured any more. */
static bool is_unused(const struct found *f)
{
	struct catalog_header h;

	return !header_read(f, &h) && catalog_is_unused(&h);
}

/* Ends an unused namespace. No version is lost with it, since it never gave one out. Its number is
 * not used again as long as we live, since the keeper forgets later what it has of it. */
static void end_unused(struct server *server, const struct found *f)
{
	uint64_t number = f->instance - server->namespaces.instance;
	char tag[KEEPER_TAG_SIZE];

	log_info("ending an unused namespace that is not configured any more", "namespace=%s",
		 log_str(f->name));
	server->namespaces.used[number / 64] |= (uint64_t)1 << number % 64;
	survive_tag(tag, SURVIVOR_FACTS, f->instance, 0, 0);
	keeper_link_forget(server->keeper, tag);
	keeper_link_flush(server->keeper); /* first, since facts without a catalog are damage */
	shm_object_destroy_instance(f->instance);
}

/* The group of a user's own namespace. A section of that name may have named another group, which
 * must not get in now. A user whom the system does not know is in no group. */
static uint32_t own_group(const struct found *f, uint32_t uid)
{
	const struct passwd *user;

	if (f->made)
		return f->gid;
	user = getpwuid(uid);
	return user ? user->pw_gid : UINT32_MAX;
}

/* Handles a namespace that is not configured: takes it over if the template makes it, and ends it
 * if it was never used, or was still being made when the daemon died. */
static int rest_take_over(struct server *server, struct found *f, char why[ADOPT_WHY_MAX])
{
	struct namespace_config config = server->namespaces.users;

	if (f->damaged) {
		snprintf(why, ADOPT_WHY_MAX, "the facts have changed since they were made");
		set_aside(server, f, f->fd);
		return CATALOG_E_STRANGE;
	}
	if (!*f->name) {
		shm_object_destroy_instance(f->instance);
		return 0;
	}
	/* every user sees this text in the status, but not every namespace */
	snprintf(why, ADOPT_WHY_MAX, "a namespace is not configured any more: the log names it");
	/* a section of that name may have had another owner */
	if (!config.mode || !namespace_is_of_user(f->name, &config.uid)) {
		if (!is_unused(f)) {
			log_error("a namespace that was used is not configured any more",
				  "namespace=%s", log_str(f->name));
			return CATALOG_E_STRANGE;
		}
		end_unused(server, f);
		return 0;
	}
	memcpy(config.name, f->name, sizeof(config.name));
	config.gid = own_group(f, config.uid);
	return namespace_take_over(server, &config, f, true, why);
}

/* To be called when the numbers of the namespaces that exist are taken. A namespace that cannot be
 * made does not cost what is there. */
static int namespace_add_new(struct server *server, const struct namespace_config *config)
{
	struct namespace *ns;
	int r = namespace_new(&server->namespaces, config, &ns);

	if (!r || list_empty(&server->namespaces.list))
		return r;
	log_error("a new namespace is left out; the next reload tries again", "namespace=%s why=%s",
		  log_str(config->name), log_str(r < 0 ? strerror(-r) : "there are 4096"));
	return 0;
}

int takeover_namespaces(struct server *server, const struct namespace_config *configs,
			unsigned count, char why[ADOPT_WHY_MAX])
{
	struct search search;
	struct found *f;
	int r = search_init(&search, server->keeper, server->namespaces.instance);

	for (unsigned i = 0; !r && i < count; i++) {
		f = search_find(&search, configs[i].name);
		if (f)
			r = namespace_take_over(server, &configs[i], f, false, why);
	}
	for (unsigned i = 0; !r && i < search.count; i++) {
		if (search.list[i].fd >= 0)
			r = rest_take_over(server, &search.list[i], why);
	}
	search_deinit(&search);
	for (unsigned i = 0; !r && i < count; i++) {
		if (!namespace_named(&server->namespaces, configs[i].name))
			r = namespace_add_new(server, &configs[i]);
	}
	return r;
}

/* ---- clients -------------------------------------------------------------------------------- */

struct heir {
	uint64_t id;
	struct namespace *ns;
	uint32_t index;
};

static int by_id(const void *x, const void *y)
{
	const struct heir *a = x, *b = y;

	return (a->id > b->id) - (a->id < b->id);
}

static int heir_take_over(struct server *server, const struct heir *h, char why[ADOPT_WHY_MAX])
{
	const struct catalog *cat = &h->ns->state.catalog;
	const struct client_fact *fact = catalog_client_fact(cat, h->index);
	char tag[KEEPER_TAG_SIZE];
	int fd, socket_fd, r;

	survive_tag(tag, SURVIVOR_SOCKET, cat->instance, h->index, fact->generation);
	socket_fd = keeper_link_take(server->keeper, tag);
	survive_tag(tag, SURVIVOR_LEDGER, cat->instance, h->index, fact->generation);
	fd = keeper_link_take(server->keeper, tag);
	snprintf(why, ADOPT_WHY_MAX, "the ledger of client %" PRIu64 " %s", fact->id,
		 fd < 0 ? "was not kept" : "is no ledger");
	r = peer_adopt(&server->peers, h->ns, h->index, fact, &fd, socket_fd);
	fd_close(fd);
	return r;
}

/* Finds all clients whose ledgers count, oldest first. */
static int heirs_find(struct server *server, struct heir **out, unsigned *count)
{
	struct namespace *ns;
	struct heir *list;
	unsigned most = 0, n = 0;

	list_for_each_entry(ns, &server->namespaces.list, link)
		most += ns->state.catalog.clients.high;
	list = calloc(most + 1, sizeof(*list));
	if (!list)
		return -ENOMEM;
	list_for_each_entry(ns, &server->namespaces.list, link) {
		for (uint32_t i = 0; i < ns->state.catalog.clients.high; i++) {
			const struct client_fact *fact = catalog_client_fact(&ns->state.catalog, i);

			if (fact->sum)
				list[n++] = (struct heir){ fact->id, ns, i };
		}
	}
	qsort(list, n, sizeof(*list), by_id);
	*out = list;
	*count = n;
	return 0;
}

static int by_object(const void *x, const void *y)
{
	const struct object_id *a = x, *b = y;

	if (a->instance != b->instance)
		return a->instance < b->instance ? -1 : 1;
	return (a->key > b->key) - (a->key < b->key);
}

static bool has_object(const struct object_ids *ids, uint64_t instance, uint64_t key)
{
	const struct object_id id = { .instance = instance, .key = key };

	return ids->count && bsearch(&id, ids->list, ids->count, sizeof(id), by_object);
}

/* Lists the objects of segments, and each catalog's own object, which has the key 0. */
static int known_init(struct object_ids *known, struct server *server)
{
	struct namespace *ns;
	size_t most = 1;

	list_for_each_entry(ns, &server->namespaces.list, link)
		most += ns->state.catalog.segments.high + 1;
	*known = (struct object_ids){ .list = calloc(most, sizeof(*known->list)) };
	if (!known->list)
		return -ENOMEM;
	list_for_each_entry(ns, &server->namespaces.list, link) {
		known->list[known->count++].instance = ns->state.instance;
		for (uint32_t i = 0; i < ns->state.catalog.segments.high; i++) {
			const struct segment *seg = ns->state.segments.segments[i];

			if (seg)
				known->list[known->count++] = (struct object_id){
					.instance = ns->state.instance, .key = seg->object.key
				};
		}
	}
	qsort(known->list, known->count, sizeof(*known->list), by_object);
	return 0;
}

struct unknown {
	struct object_ids known, *out;
};

/* Notes objects of segments that were being made or destroyed. False: the object is to go at once.
 * So do catalogs, since new namespaces may get their names, and clients cannot write to them. */
static bool unknown_note(void *context, uint64_t instance, uint64_t key)
{
	struct unknown *u = context;
	struct object_id *list;

	if (has_object(&u->known, instance, key))
		return true;
	list = key ? realloc(u->out->list, (u->out->count + 1) * sizeof(*list)) : NULL;
	if (!list)
		return false;
	u->out->list = list;
	list[u->out->count++] = (struct object_id){ .instance = instance, .key = key };
	return true;
}

static int unknown_find(struct server *server)
{
	struct unknown u = { .out = &server->sweep.unknown };
	int r = known_init(&u.known, server);

	if (r)
		return r;
	server->sweep.instance = server->namespaces.instance;
	shm_object_destroy_unknown(server->sweep.instance, NAMESPACES_MAX, unknown_note, &u);
	if (u.out->count)
		qsort(u.out->list, u.out->count, sizeof(*u.out->list), by_object);
	free(u.known.list);
	return 0;
}

/* True: the object stays. Objects that were made since then are not listed. */
static bool is_not_listed(void *context, uint64_t instance, uint64_t key)
{
	return !has_object(context, instance, key);
}

void takeover_unknown_remove(struct sweep *sweep)
{
	if (sweep->unknown.count)
		shm_object_destroy_unknown(sweep->instance, NAMESPACES_MAX, is_not_listed,
					   &sweep->unknown);
}

/* Drops clients whose ledgers lie, or cannot be read any more. */
static void liars_drop(struct peers *peers)
{
	struct peer *peer, *after;
	const char *why;

	list_for_each_entry_safe(peer, after, &peers->list, link) {
		if (!peer->client.liar)
			continue;
		why = peer->client.ledger ? "the ledger says that more segments are mapped than "
					    "the user may have"
					  : "the ledger's mode, or a file lease, does not let the "
					    "daemon open it for reading";
		log_warn_limited(peer->turn.account->log, "client dropped: bad ledger",
				 "pid=%u uid=%u why=%s", peer->client.pid, peer->client.uid,
				 log_str(why));
		peer_hurry(peer);
		peer_error(peer, 0, WIRE_E_PROTOCOL, "%s", why);
		peer_drop(peer);
	}
}

/* Ends the rings and claims of clients from which the configuration has taken the right to publish,
 * and drops those from which it has taken the right to get. */
static void denied_end(struct peers *peers)
{
	struct peer *peer, *after;
	const char *name;
	unsigned budget;

	list_for_each_entry_safe(peer, after, &peers->list, link) {
		budget = UINT_MAX;
		if (!peer->may_publish) {
			rings_leave(peer->state, &peer->client, &budget);
			claims_leave(peer->state, &peer->client);
		}
		if (peer->origin != PEER_DENIED || peer_is_dropped(peer))
			continue;
		name = peer->name_space->config.name;
		log_warn_limited(peer->turn.account->log,
				 "client dropped: it may not get from its namespace any more",
				 "pid=%u uid=%u namespace=%s", peer->client.pid, peer->client.uid,
				 log_str(name));
		peer_hurry(peer);
		peer_error(peer, 0, WIRE_E_DENIED,
			   "user %u may not get from the namespace '%s' any more", peer->client.uid,
			   name);
		peer_drop(peer);
	}
}

/* Closing some of these descriptors may take long: sockets with messages in them, memory, devices.
 * So the keeper must not be the last to have them. */
int takeover_rest_forget(struct server *server)
{
	const struct kept *kept;
	char tag[KEEPER_TAG_SIZE];
	int r = 0;

	while (!r && (kept = kept_any(&server->keeper->list))) {
		memcpy(tag, kept->tag, sizeof(tag));
		r = peers_forget_kept(&server->peers, tag, keeper_link_take(server->keeper, tag));
	}
	return r;
}

int takeover_clients(struct server *server, char why[ADOPT_WHY_MAX])
{
	struct heir *heirs = NULL;
	struct namespace *ns;
	unsigned count = 0;
	int r = heirs_find(server, &heirs, &count);

	for (unsigned i = 0; !r && i < count; i++)
		r = heir_take_over(server, &heirs[i], why);
	free(heirs);
	if (r)
		return r;
	snprintf(why, ADOPT_WHY_MAX, "a client holds more than it may have mapped");
	list_for_each_entry(ns, &server->namespaces.list, link) {
		r = adopt_finish(&ns->state);
		if (r)
			return r;
	}
	liars_drop(&server->peers);
	denied_end(&server->peers);
	r = unknown_find(server);
	if (r)
		return r;
	r = takeover_rest_forget(server);
	if (r)
		return r;
	list_for_each_entry(ns, &server->namespaces.list, link)
		log_info("took over what the last daemon left",
			 "namespace=%s tensors=%u clients=%u", log_str(ns->config.name),
			 ns->state.catalog.header->tensors, ns->state.catalog.header->clients);
	return 0;
}
