/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <gnutls/gnutls.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mirror/serve.h"
#include "util/cleanup.h"
#include "util/log.h"

#define PATH_START "/v1/"

enum { CONNECTIONS_MAX = 4096, OF_ONE_MAX = 64, THREADS = 2, SECONDS = 30, URL_MAX = 128 };
enum { BLOCK = 256 << 10 };

/* Values in place of a piece's number, for requests of messages. */
#define NOTES UINT64_MAX
#define ITEMS (UINT64_MAX - 1)

/* Why a request gets no bytes. */
static const struct {
	unsigned status;
	const char *why;
} refusals[] = {
	{ MHD_HTTP_FORBIDDEN, "certificate" },
	{ MHD_HTTP_NOT_FOUND, "path" },
	{ MHD_HTTP_METHOD_NOT_ALLOWED, "method" },
	{ MHD_HTTP_RANGE_NOT_SATISFIABLE, "piece" },
	{ MHD_HTTP_SERVICE_UNAVAILABLE, "unavailable" },
	{ MHD_HTTP_GONE, "gone" },
};

enum { REFUSALS = sizeof(refusals) / sizeof(refusals[0]) };

struct serve {
	struct MHD_Daemon *mhd;
	struct tickets *tickets;
	struct feeds *feeds;
	bool tls;
	char *ca, *certificate, *key; /* their contents */
	char url[URL_MAX];
	atomic_ullong refused[REFUSALS];
};

/* ---- answers ---- */

struct answer {
	struct tickets *tickets;
	struct use use;
};

static void on_sent(void *context)
{
	struct answer *a = context;

	use_end(a->tickets, &a->use);
	free(a);
}

/* Copies a part of a piece, whose bytes may move between two calls. */
static ssize_t on_read(void *context, uint64_t from, char *to, size_t size)
{
	const struct answer *a = context;
	const size_t left = a->use.size - (size_t)from, n = left < size ? left : size;

	return use_read(a->tickets, &a->use, (size_t)from, to, n)
		       ? (ssize_t)n
		       : MHD_CONTENT_READER_END_WITH_ERROR;
}

static enum MHD_Result refuse(struct serve *s, struct MHD_Connection *c, unsigned status,
			      const char *text)
{
	struct MHD_Response *response = MHD_create_response_from_buffer(
		strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_PERSISTENT);
	enum MHD_Result r = response ? MHD_queue_response(c, status, response) : MHD_NO;

	for (unsigned n = 0; n < REFUSALS; n++) {
		if (refusals[n].status == status)
			atomic_fetch_add(&s->refused[n], 1);
	}
	if (response)
		MHD_destroy_response(response);
	return r;
}

/* Verifies the client's certificate: libmicrohttpd accepts clients with none or a wrong one. */
static bool is_trusted(struct MHD_Connection *c)
{
	const union MHD_ConnectionInfo *info = MHD_get_connection_info(
		c, MHD_CONNECTION_INFO_GNUTLS_SESSION);
	unsigned status = 1;

	return info && !gnutls_certificate_verify_peers2(info->tls_session, &status) && !status;
}

/* Reads TICKET/PIECE, TICKET/notes or TICKET/items. */
static bool read_path(const char *path, unsigned char id[TICKET_SIZE], uint64_t *piece)
{
	const size_t len = strcspn(path, "/");
	const char *what = path + len + 1;
	char *end;

	if (!ticket_read(path, len, id) || path[len] != '/')
		return false;
	*piece = !strcmp(what, "items") ? ITEMS : NOTES;
	if (!strcmp(what, "items") || !strcmp(what, "notes"))
		return true;
	if (*what < '0' || *what > '9')
		return false;
	*piece = strtoull(what, &end, 10);
	return !*end && *piece < ITEMS;
}

static enum MHD_Result send_piece(struct serve *s, struct MHD_Connection *c, const struct use *use)
{
	struct answer *a = malloc(sizeof(*a));
	struct MHD_Response *response = NULL;
	enum MHD_Result r = MHD_NO;
	char hash[24];

	if (a) {
		*a = (struct answer){ s->tickets, *use };
		response = use->bytes ? MHD_create_response_from_buffer_with_free_callback_cls(
						use->size, (void *)use->bytes, on_sent, a)
				      : MHD_create_response_from_callback(use->size, BLOCK, on_read,
									  a, on_sent);
	}
	if (!response) {
		free(a);
		use_end(s->tickets, use);
		return MHD_NO;
	}
	snprintf(hash, sizeof(hash), "%016" PRIx64, use->hash);
	if (MHD_add_response_header(response, "X-Xxh3", hash) == MHD_YES)
		r = MHD_queue_response(c, MHD_HTTP_OK, response);
	MHD_destroy_response(response);
	return r;
}

/* Redirects the request to another host that has the version. */
static enum MHD_Result redirect(struct MHD_Connection *c, const char *url, const char *path)
{
	struct MHD_Response *response = MHD_create_response_from_buffer(0, NULL,
									MHD_RESPMEM_PERSISTENT);
	char whole[2 * URL_MAX];
	enum MHD_Result r = MHD_NO;

	if (!response)
		return r;
	snprintf(whole, sizeof(whole), "%s%s", url, path);
	if (MHD_add_response_header(response, MHD_HTTP_HEADER_LOCATION, whole) == MHD_YES)
		r = MHD_queue_response(c, MHD_HTTP_TEMPORARY_REDIRECT, response);
	MHD_destroy_response(response);
	return r;
}

/* Sends @message and frees it. NULL: there is none. */
static enum MHD_Result tell(struct serve *s, struct MHD_Connection *c, unsigned status,
			    char *message, size_t size)
{
	struct MHD_Response *response = NULL;
	enum MHD_Result r;

	if (message)
		response = MHD_create_response_from_buffer(size, message, MHD_RESPMEM_MUST_FREE);
	if (!response) {
		free(message);
		return refuse(s, c, MHD_HTTP_GONE, "");
	}
	r = MHD_queue_response(c, status, response);
	MHD_destroy_response(response);
	return r;
}

static const char *header(struct MHD_Connection *c, const char *name, size_t most)
{
	const char *value = MHD_lookup_connection_value(c, MHD_HEADER_KIND, name);

	return value && strlen(value) < most ? value : NULL;
}

static uint64_t number_in(struct MHD_Connection *c, const char *name)
{
	const char *text = header(c, name, 24);

	return text ? strtoull(text, NULL, 10) : 0;
}

static void suspend(void *c)
{
	MHD_suspend_connection(c);
}

static void resume(void *c)
{
	MHD_resume_connection(c);
}

static const struct waits WAITS = { suspend, resume };

/* Sends items of a stream, or suspends the connection until there are some. *@seen is @s unless the
 * connection was suspended before. */
static enum MHD_Result give_items(struct serve *s, struct MHD_Connection *c,
				  const unsigned char id[TICKET_SIZE], const char *host,
				  void **seen)
{
	const struct feed_asker asker = { .host = host,
					  .lossy = number_in(c, "X-Lossy"),
					  .full = number_in(c, "X-Full"),
					  .idle = number_in(c, "X-Idle"),
					  .ended = number_in(c, "X-Ended"),
					  .feed = number_in(c, "X-Feed"),
					  .done = number_in(c, "X-Done") };
	size_t size = 0;
	int r;
	char *text = feed_ask(s->feeds, id, &asker, *seen == s ? c : NULL, &size, &r);

	if (text)
		return tell(s, c, MHD_HTTP_OK, text, size);
	if (r == -EINPROGRESS) {
		*seen = s->feeds;
		return MHD_YES;
	}
	return r == -ENOENT ? refuse(s, c, MHD_HTTP_GONE, "")
			    : refuse(s, c, MHD_HTTP_ACCEPTED, "there is no item yet\n");
}

static enum MHD_Result give(struct serve *s, struct MHD_Connection *c, const char *path,
			    void **seen)
{
	const struct asker asker = { .host = header(c, "X-Host", CONFIG_HOST_MAX + 1),
				     .url = header(c, "X-Url", URL_MAX),
				     .lost = header(c, "X-Lost", URL_MAX),
				     .want = number_in(c, "X-Want") };
	unsigned char id[TICKET_SIZE];
	enum MHD_Result result;
	struct use use;
	uint64_t piece;
	size_t size = 0;
	char *text;

	if (!asker.host || strncmp(path, PATH_START, strlen(PATH_START)) != 0 ||
	    !read_path(path + strlen(PATH_START), id, &piece))
		return refuse(s, c, MHD_HTTP_NOT_FOUND, "there is /v1/TICKET/PIECE, with X-Host\n");
	if (piece == ITEMS)
		return give_items(s, c, id, asker.host, seen);
	if (piece == NOTES) {
		text = ticket_message(s->tickets, id, &size);
		return tell(s, c, MHD_HTTP_OK, text, size);
	}
	switch (ticket_use(s->tickets, id, piece, &asker, &use)) {
	case 0:
		return send_piece(s, c, &use);
	case -EXDEV:
		result = redirect(c, use.elsewhere, path);
		free(use.elsewhere);
		return result;
	case -EAGAIN:
		return refuse(s, c, MHD_HTTP_ACCEPTED, "it has not come yet\n");
	case -ERANGE:
		return refuse(s, c, MHD_HTTP_RANGE_NOT_SATISFIABLE, "it has no such piece\n");
	case -ESTALE:
		text = ticket_newest(s->tickets, id, &asker, s->url, &size);
		return tell(s, c, MHD_HTTP_GONE, text, size);
	case -ENOENT:
		return refuse(s, c, MHD_HTTP_GONE, "");
	default:
		return refuse(s, c, MHD_HTTP_SERVICE_UNAVAILABLE, "the tensor cannot be had\n");
	}
}

/* libmicrohttpd calls this when the headers have come, and again when the request is complete. */
static enum MHD_Result answer(void *context, struct MHD_Connection *c, const char *url,
			      const char *method, const char *version, const char *upload,
			      size_t *upload_size, void **seen)
{
	struct serve *s = context;

	(void)version;
	(void)upload;
	if (!*seen && s->tls && !is_trusted(c))
		return refuse(s, c, MHD_HTTP_FORBIDDEN,
			      "no certificate of the mirrors' authority\n");
	if (!*seen && strcmp(method, MHD_HTTP_METHOD_GET) != 0)
		return refuse(s, c, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET is served\n");
	if (!*seen || *upload_size) {
		*seen = s;
		*upload_size = 0;
		return MHD_YES;
	}
	return give(s, c, url, seen);
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

int serve_listen(const char *text)
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

/* Sets the URL to the configured one, or else to the listening address. Returns 0, or -EDESTADDRREQ
 * if it listens at all addresses. */
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

/* The limit of connections. All hosts ask their origin at once for what it announces, and keep
 * their connections. Those that find no room wait until others have been idle for SECONDS. */
static unsigned connections_max(void)
{
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) || files.rlim_cur / 2 > CONNECTIONS_MAX)
		return CONNECTIONS_MAX;
	return (unsigned)files.rlim_cur / 2; /* the other half is for everything else */
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

	s->mhd = MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME |
					  (s->tls ? MHD_USE_TLS : 0),
				  0, NULL, NULL, answer, s, MHD_OPTION_LISTEN_SOCKET, fd,
				  MHD_OPTION_THREAD_POOL_SIZE, (unsigned)THREADS,
				  MHD_OPTION_CONNECTION_LIMIT, connections_max(),
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
	s->tickets = tickets_new();
	s->tls = config->tls;
	if (s->tls) {
		s->ca = read_file(config->ca);
		s->certificate = read_file(config->certificate);
		s->key = read_file(config->key);
		r = s->ca && s->certificate && s->key ? 0 : -EINVAL;
	}
	s->feeds = s->tickets ? feeds_new(s->tickets, config, s->url, &WAITS) : NULL;
	if (!s->feeds)
		r = -ENOMEM;
	if (!r) {
		fd = serve_listen(config->listen);
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

struct tickets *serve_tickets(const struct serve *s)
{
	return s->tickets;
}

struct feeds *serve_feeds(const struct serve *s)
{
	return s->feeds;
}

const char *serve_url(const struct serve *s)
{
	return s->url;
}

const char *serve_refused(const struct serve *s, unsigned n, uint64_t *count)
{
	*count = n < REFUSALS ? atomic_load(&s->refused[n]) : 0;
	return n < REFUSALS ? refusals[n].why : NULL;
}

void serve_close(struct serve *s)
{
	if (!s)
		return;
	if (s->feeds)
		feeds_stop(s->feeds);
	if (s->mhd)
		MHD_stop_daemon(s->mhd);
	feeds_free(s->feeds);
	tickets_free(s->tickets);
	free(s->ca);
	free(s->certificate);
	free(s->key);
	free(s);
}
