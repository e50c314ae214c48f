/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <gnutls/gnutls.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <netdb.h>
#include <pthread.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "mirror/serve.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/log.h"

#define HOLD_NS (10 * NS_PER_SEC)
#define PATH_START "/v1/"

enum { CONNECTIONS_MAX = 256, OF_ONE_MAX = 64, THREADS = 2, SECONDS = 30, URL_MAX = 128 };

struct ticket {
	unsigned char id[TICKET_SIZE]; /* first: the tree's key */
	struct ticket *next, **link;   /* among the kept ones */
	tl_client *client;
	char *name;
	uint64_t version, committed_ns;
	DLManagedTensorVersioned *tensor; /* NULL: not held */
	uint64_t nbytes;
	int64_t used_ns;
	unsigned uses; /* answers that are being made or sent */
	bool kept;     /* in the list: it holds a tensor, or is withdrawn */
	bool withdrawn;
	bool sent; /* the last piece was */
};

struct serve {
	struct MHD_Daemon *mhd;
	pthread_mutex_t lock;
	void *tickets;	     /* a tree */
	struct ticket *kept; /* serve_tidy() looks at them */
	bool tls;
	char *ca, *certificate, *key; /* their contents */
	char url[URL_MAX];
};

/* ---- tickets ---- */

static int compare_tickets(const void *a, const void *b)
{
	return memcmp(a, b, TICKET_SIZE);
}

static void keep(struct serve *s, struct ticket *t)
{
	t->used_ns = now_mono_ns();
	if (t->kept)
		return;
	t->kept = true;
	t->next = s->kept;
	t->link = &s->kept;
	s->kept = t;
	if (t->next)
		t->next->link = &t->next;
}

struct ticket *serve_offer(struct serve *s, tl_client *client, const char *name, uint64_t version,
			   uint64_t committed_ns)
{
	struct ticket *t = calloc(1, sizeof(*t));
	void *at = NULL;

	if (!t)
		return NULL;
	*t = (struct ticket){ .client = client,
			      .name = strdup(name),
			      .version = version,
			      .committed_ns = committed_ns };
	if (t->name && getrandom(t->id, TICKET_SIZE, 0) == TICKET_SIZE) {
		pthread_mutex_lock(&s->lock);
		at = tsearch(t, &s->tickets, compare_tickets);
		pthread_mutex_unlock(&s->lock);
	}
	if (at)
		return t;
	free(t->name);
	free(t);
	return NULL;
}

const unsigned char *ticket_id(const struct ticket *t)
{
	return t->id;
}

static void drop_tensor(struct ticket *t)
{
	if (t->tensor)
		t->tensor->deleter(t->tensor);
	t->tensor = NULL;
}

/* A version that is not the newest any more, and was sent whole, is not held for others. */
static void drop_if_sent(struct ticket *t)
{
	if (!t->uses && t->withdrawn && t->sent)
		drop_tensor(t);
}

/* Who asks for it later is told what is newer. */
void serve_withdraw(struct serve *s, struct ticket *t)
{
	if (!t)
		return;
	pthread_mutex_lock(&s->lock);
	t->withdrawn = true;
	keep(s, t);
	drop_if_sent(t);
	pthread_mutex_unlock(&s->lock);
}

static void free_ticket(void *node)
{
	struct ticket *t = node;

	drop_tensor(t);
	free(t->name);
	free(t);
}

void serve_tidy(struct serve *s)
{
	const int64_t now = now_mono_ns();
	struct ticket *next;

	pthread_mutex_lock(&s->lock);
	for (struct ticket *t = s->kept; t; t = next) {
		next = t->next;
		if (t->uses || now - t->used_ns < HOLD_NS)
			continue;
		drop_tensor(t);
		*t->link = t->next;
		if (t->next)
			t->next->link = t->link;
		t->kept = false;
		if (t->withdrawn) {
			tdelete(t, &s->tickets, compare_tickets);
			free_ticket(t);
		}
	}
	pthread_mutex_unlock(&s->lock);
}

static void end_use(struct serve *s, struct ticket *t, bool sent)
{
	pthread_mutex_lock(&s->lock);
	t->uses--;
	t->sent |= sent;
	t->used_ns = now_mono_ns();
	drop_if_sent(t);
	pthread_mutex_unlock(&s->lock);
}

static int get_held(tl_client *client, const char *name, DLManagedTensorVersioned **tensor,
		    tl_info *info)
{
	const tl_get_options options = { .size = sizeof(options), .stream = TL_STREAM_NONE };
	int r = tl_get(client, name, &options, tensor);

	*info = (tl_info){ .size = sizeof(*info) };
	if (r)
		return r;
	r = tl_tensor_info(*tensor, info);
	if (!r && (*tensor)->dl_tensor.device.device_type != kDLCPU)
		r = -ENOENT;
	if (r)
		(*tensor)->deleter(*tensor);
	return r;
}

/*
 * Finds a ticket, and holds its version. Its use is to be ended in each case in which *@found is
 * set. Returns 0, or a negative errno: -ENOENT if there is none, -ESTALE if its name means
 * something else.
 */
static int use(struct serve *s, const unsigned char id[TICKET_SIZE], struct ticket **found)
{
	DLManagedTensorVersioned *tensor = NULL;
	struct ticket *const *node, *t;
	tl_info info;
	bool held;
	int r;

	pthread_mutex_lock(&s->lock);
	node = tfind(id, &s->tickets, compare_tickets);
	t = node ? *node : NULL;
	held = t && t->tensor;
	if (t) {
		t->uses++;
		keep(s, t);
	}
	pthread_mutex_unlock(&s->lock);
	*found = t;
	if (!t || held)
		return t ? 0 : -ENOENT;
	r = get_held(t->client, t->name, &tensor, &info);
	if (r)
		return r;
	pthread_mutex_lock(&s->lock);
	if (info.version != t->version || info.committed_ns != t->committed_ns) {
		r = t->tensor ? 0 : -ESTALE;
	} else if (!t->tensor) { /* else another thread was faster */
		t->tensor = tensor;
		t->nbytes = info.nbytes;
		tensor = NULL;
	}
	pthread_mutex_unlock(&s->lock);
	if (tensor)
		tensor->deleter(tensor);
	return r;
}

/* ---- answers ---- */

struct answer {
	struct serve *serve;
	struct ticket *ticket;
	bool last; /* piece */
};

static void on_sent(void *context)
{
	struct answer *a = context;

	end_use(a->serve, a->ticket, a->last);
	free(a);
}

static enum MHD_Result refuse(struct MHD_Connection *c, unsigned status, const char *text)
{
	struct MHD_Response *response = MHD_create_response_from_buffer(
		strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_PERSISTENT);
	enum MHD_Result r = response ? MHD_queue_response(c, status, response) : MHD_NO;

	if (response)
		MHD_destroy_response(response);
	return r;
}

/* libmicrohttpd lets clients in that have no certificate, or one of another authority. */
static bool is_trusted(struct MHD_Connection *c)
{
	const union MHD_ConnectionInfo *info = MHD_get_connection_info(
		c, MHD_CONNECTION_INFO_GNUTLS_SESSION);
	unsigned status = 1;

	return info && !gnutls_certificate_verify_peers2(info->tls_session, &status) && !status;
}

/* Reads TICKET/PIECE. */
static bool read_path(const char *path, unsigned char id[TICKET_SIZE], uint64_t *piece)
{
	const size_t len = strcspn(path, "/");
	char *end;

	if (!ticket_read(path, len, id) || path[len] != '/' || path[len + 1] < '0' ||
	    path[len + 1] > '9')
		return false;
	*piece = strtoull(path + len + 1, &end, 10);
	return !*end;
}

static enum MHD_Result send_piece(struct serve *s, struct MHD_Connection *c, struct ticket *t,
				  uint64_t piece)
{
	const DLTensor *tensor = &t->tensor->dl_tensor;
	const char *from = (const char *)tensor->data + tensor->byte_offset + piece * PIECE_SIZE;
	const uint64_t rest = t->nbytes - piece * PIECE_SIZE;
	const size_t size = rest < PIECE_SIZE ? (size_t)rest : PIECE_SIZE;
	struct answer *a = malloc(sizeof(*a));
	struct MHD_Response *response = NULL;
	enum MHD_Result r = MHD_NO;
	char hash[24];

	if (a) {
		*a = (struct answer){ s, t, rest <= PIECE_SIZE };
		response = MHD_create_response_from_buffer_with_free_callback_cls(
			size, (void *)from, on_sent, a);
	}
	if (!response) {
		free(a);
		end_use(s, t, false);
		return MHD_NO;
	}
	snprintf(hash, sizeof(hash), "%016" PRIx64, (uint64_t)XXH3_64bits(from, size));
	if (MHD_add_response_header(response, "X-Xxh3", hash) == MHD_YES)
		r = MHD_queue_response(c, MHD_HTTP_OK, response);
	MHD_destroy_response(response);
	return r;
}

void serve_describe(struct note *note, const tl_info *info)
{
	*note = (struct note){
		.name = info->name,
		.version = info->version,
		.committed_ns = info->committed_ns,
		.dtype = info->dtype,
		.ndim = info->ndim,
		.nbytes = info->nbytes,
		.dlpack_flags = info->dlpack_flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED,
		.lifetime = info->lifetime & TL_LIFETIME_EVICTABLE,
		.ttl_ns = info->ttl_ns,
		.metadata = info->metadata,
		.metadata_size = info->metadata_size,
	};
	memcpy(note->shape, info->shape, sizeof(*note->shape) * (size_t)info->ndim);
}

/* Returns a message about what a name means now, whose version is held for who asks, or NULL. */
static char *newest(struct serve *s, const struct ticket *old, size_t *size)
{
	DLManagedTensorVersioned *tensor;
	struct notes notes = { 0 };
	struct ticket *t = NULL;
	struct note note;
	char *text = NULL;
	tl_info info;

	if (get_held(old->client, old->name, &tensor, &info))
		return NULL;
	serve_describe(&note, &info);
	if (!notes_init(&notes, 0, s->url))
		t = serve_offer(s, old->client, old->name, info.version, info.committed_ns);
	if (t) {
		memcpy(note.ticket, t->id, TICKET_SIZE);
		pthread_mutex_lock(&s->lock);
		t->tensor = tensor;
		t->nbytes = info.nbytes;
		t->withdrawn = true; /* nobody else has it */
		keep(s, t);
		pthread_mutex_unlock(&s->lock);
		if (!notes_add(&notes, &note))
			text = notes_write(&notes, size);
	} else {
		tensor->deleter(tensor);
	}
	notes_deinit(&notes);
	return text;
}

static enum MHD_Result tell_newest(struct serve *s, struct MHD_Connection *c,
				   const struct ticket *old)
{
	struct MHD_Response *response = NULL;
	enum MHD_Result r;
	size_t size;
	char *text = newest(s, old, &size);

	if (text)
		response = MHD_create_response_from_buffer(size, text, MHD_RESPMEM_MUST_FREE);
	if (!response) {
		free(text);
		return refuse(c, MHD_HTTP_GONE, "");
	}
	r = MHD_queue_response(c, MHD_HTTP_GONE, response);
	MHD_destroy_response(response);
	return r;
}

static enum MHD_Result give(struct serve *s, struct MHD_Connection *c, const char *path)
{
	unsigned char id[TICKET_SIZE];
	enum MHD_Result result;
	struct ticket *t = NULL;
	uint64_t piece;
	int r;

	if (strncmp(path, PATH_START, strlen(PATH_START)) != 0 ||
	    !read_path(path + strlen(PATH_START), id, &piece))
		return refuse(c, MHD_HTTP_NOT_FOUND, "there is /v1/TICKET/PIECE\n");
	r = use(s, id, &t);
	if (!r && (!piece || piece < (t->nbytes + PIECE_SIZE - 1) / PIECE_SIZE))
		return send_piece(s, c, t, piece);
	if (!r)
		result = refuse(c, MHD_HTTP_RANGE_NOT_SATISFIABLE, "it has no such piece\n");
	else if (r == -ESTALE)
		result = tell_newest(s, c, t);
	else if (r == -ENOENT)
		result = refuse(c, MHD_HTTP_GONE, "");
	else
		result = refuse(c, MHD_HTTP_SERVICE_UNAVAILABLE, "the tensor cannot be had\n");
	if (t)
		end_use(s, t, false);
	return result;
}

/* It is asked when the headers are there, and when the request is whole. */
static enum MHD_Result answer(void *context, struct MHD_Connection *c, const char *url,
			      const char *method, const char *version, const char *upload,
			      size_t *upload_size, void **seen)
{
	struct serve *s = context;

	(void)version;
	(void)upload;
	if (!*seen && s->tls && !is_trusted(c))
		return refuse(c, MHD_HTTP_FORBIDDEN, "no certificate of the mirrors' authority\n");
	if (!*seen && strcmp(method, MHD_HTTP_METHOD_GET) != 0)
		return refuse(c, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET is served\n");
	if (!*seen || *upload_size) {
		*seen = s;
		*upload_size = 0;
		return MHD_YES;
	}
	return give(s, c, url);
}

/* ---- start and end ---- */

static char *read_file(const char *path)
{
	FILE *file = fopen(path, "re");
	char *text = file ? calloc(1, 1 << 20) : NULL;

	if (!text || !fread(text, 1, (1 << 20) - 1, file)) {
		log_error("a file cannot be read", "path=%s why=%s", log_str(path),
			  log_str(strerror(errno)));
		free(text);
		text = NULL;
	}
	if (file)
		fclose(file);
	return text;
}

/* Listens at ADDRESS:PORT or [ADDRESS]:PORT. Returns a descriptor, or a negative errno. */
static int listen_at(const char *text)
{
	const struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
					.ai_flags = AI_PASSIVE | AI_NUMERICHOST };
	const char *colon = strrchr(text, ':');
	cleanup_(fd_closep) int fd = -1;
	struct addrinfo *info = NULL;
	char host[64];
	int len = colon ? (int)(colon - text) : 0, r;

	if (len > 1 && *text == '[' && colon[-1] == ']') {
		text++;
		len -= 2;
	}
	snprintf(host, sizeof(host), "%.*s", len, text);
	if (!len || getaddrinfo(host, colon + 1, &hints, &info))
		return -EINVAL;
	fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int));
	r = fd < 0 || bind(fd, info->ai_addr, info->ai_addrlen) || listen(fd, SOMAXCONN) ? -errno
											 : 0;
	freeaddrinfo(info);
	return r ? r : take_fd(&fd);
}

/* By its own address, which is what others reach if the configuration says no other. Returns 0 or
 * -EDESTADDRREQ: it is all addresses. */
static int set_url(struct serve *s, int fd, const struct config *config)
{
	struct sockaddr_storage address = { 0 };
	socklen_t size = sizeof(address);
	char host[64] = "", port[8] = "";

	getsockname(fd, (struct sockaddr *)&address, &size);
	getnameinfo((struct sockaddr *)&address, size, host, sizeof(host), port, sizeof(port),
		    NI_NUMERICHOST | NI_NUMERICSERV);
	if (config->url)
		snprintf(s->url, sizeof(s->url), "%s", config->url);
	else
		snprintf(s->url, sizeof(s->url), strchr(host, ':') ? "%s://[%s]:%s" : "%s://%s:%s",
			 config->tls ? "https" : "http", host, port);
	return config->url || (strcmp(host, "0.0.0.0") != 0 && strcmp(host, "::") != 0)
		       ? 0
		       : -EDESTADDRREQ;
}

static int start(struct serve *s, int fd)
{
	const struct MHD_OptionItem tls[] = {
		{ MHD_OPTION_HTTPS_MEM_TRUST, 0, s->ca },
		{ MHD_OPTION_HTTPS_MEM_CERT, 0, s->certificate },
		{ MHD_OPTION_HTTPS_MEM_KEY, 0, s->key },
		{ MHD_OPTION_END, 0, NULL },
	};
	const struct MHD_OptionItem none[] = { { MHD_OPTION_END, 0, NULL } };

	s->mhd = MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | (s->tls ? MHD_USE_TLS : 0), 0,
				  NULL, NULL, answer, s, MHD_OPTION_LISTEN_SOCKET, fd,
				  MHD_OPTION_THREAD_POOL_SIZE, (unsigned)THREADS,
				  MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX,
				  MHD_OPTION_PER_IP_CONNECTION_LIMIT, (unsigned)OF_ONE_MAX,
				  MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)SECONDS,
				  MHD_OPTION_ARRAY, s->tls ? tls : none, MHD_OPTION_END);
	return s->mhd ? 0 : -EINVAL;
}

int serve_open(struct serve **out, const struct config *config)
{
	struct serve *s = calloc(1, sizeof(*s));
	int fd = -1, r = 0;

	if (!s)
		return -ENOMEM;
	pthread_mutex_init(&s->lock, NULL);
	s->tls = config->tls;
	if (s->tls) {
		s->ca = read_file(config->ca);
		s->certificate = read_file(config->certificate);
		s->key = read_file(config->key);
		r = s->ca && s->certificate && s->key ? 0 : -EINVAL;
	}
	if (!r) {
		fd = listen_at(config->listen);
		r = fd < 0 ? fd : set_url(s, fd, config);
	}
	if (!r)
		r = start(s, fd);
	if (!r) {
		*out = s;
		return 0;
	}
	log_error("no bytes can be served", "listen=%s why=%s", log_str(config->listen),
		  log_str(r == -EDESTADDRREQ
				  ? "these are all addresses: say which one others reach, by "
				    "url = http://ADDRESS:PORT"
				  : strerror(-r)));
	fd_close(fd);
	serve_close(s);
	return r;
}

const char *serve_url(const struct serve *s)
{
	return s->url;
}

void serve_close(struct serve *s)
{
	if (!s)
		return;
	if (s->mhd)
		MHD_stop_daemon(s->mhd);
	tdestroy(s->tickets, free_ticket);
	free(s->ca);
	free(s->certificate);
	free(s->key);
	pthread_mutex_destroy(&s->lock);
	free(s);
}
