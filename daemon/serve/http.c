/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The HTTP server for metrics: libmicrohttpd, which is asked in turns of our own account, so that
 * no scraper keeps users waiting for longer than another user does. It waits for nobody: who does
 * not read, or sends nothing, is disconnected after some seconds.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/serve/http.h"
#include "daemon/serve/loop.h"
#include "daemon/serve/metrics.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/log.h"

#define UNIX_PREFIX "unix:"

/* Reads 127.0.0.1:PORT or [::1]:PORT. */
static bool loopback_read(const char *text, struct sockaddr_storage *to, socklen_t *size)
{
	struct sockaddr_in *four = (void *)to;
	struct sockaddr_in6 *six = (void *)to;
	const char *port = strrchr(text, ':');
	char *end = NULL;
	unsigned long number = port ? strtoul(port + 1, &end, 10) : 0;

	*to = (struct sockaddr_storage){ 0 };
	if (!port || port[1] < '0' || port[1] > '9' || *end || number < 1 || number > UINT16_MAX)
		return false;
	if (!strncmp(text, "127.0.0.1:", 10) && text + 9 == port) {
		*four = (struct sockaddr_in){ .sin_family = AF_INET,
					      .sin_port = htons((uint16_t)number),
					      .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
		*size = sizeof(*four);
		return true;
	}
	*six = (struct sockaddr_in6){ .sin6_family = AF_INET6,
				      .sin6_port = htons((uint16_t)number),
				      .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	*size = sizeof(*six);
	return !strncmp(text, "[::1]:", 6) && text + 5 == port;
}

static bool unix_read(const char *text, struct sockaddr_storage *to, socklen_t *size)
{
	const char *path = text + strlen(UNIX_PREFIX);
	struct sockaddr_un *un = (void *)to;

	*to = (struct sockaddr_storage){ .ss_family = AF_UNIX };
	*size = sizeof(*un);
	if (strncmp(text, UNIX_PREFIX, strlen(UNIX_PREFIX)) != 0 || *path != '/' ||
	    strlen(path) >= sizeof(un->sun_path))
		return false;
	strcpy(un->sun_path, path);
	return true;
}

bool http_address_is_good(const char *text)
{
	struct sockaddr_storage address;
	socklen_t size;

	return unix_read(text, &address, &size) || loopback_read(text, &address, &size);
}

#ifndef HAVE_MICROHTTPD

bool http_is_there(void)
{
	return false;
}

int http_listen(const char *address)
{
	(void)address;
	return -ENOSYS;
}

int http_start(struct server *server, int fd_take)
{
	(void)server;
	fd_close(fd_take);
	return -ENOSYS;
}

void http_stop(struct http *http)
{
	(void)http;
}

void http_free(struct http *http)
{
	(void)http;
}

#else

#include <microhttpd.h>

/* With the listener and what libmicrohttpd needs for itself these are HTTP_DESCRIPTORS. */
enum { CONNECTIONS_MAX = 4, CONNECTION_BYTES = 16 << 10, CONNECTION_SECONDS = 10 };

/* A text serves all who ask within this time. */
#define TEXT_NS (250 * NS_PER_MS)

struct http {
	struct server *server;
	struct MHD_Daemon *mhd;
	uv_poll_t poll;
	uv_timer_t timer; /* runs while there are connections */
	struct turn turn;
	char *text; /* the last one */
	size_t size;
	int64_t made_ns;
	bool local; /* a socket with a path */
};

bool http_is_there(void)
{
	return true;
}

/* Removes a socket at which nobody listens any more. */
static bool remove_stale(const struct sockaddr_storage *address, socklen_t size)
{
	const char *path = ((const struct sockaddr_un *)address)->sun_path;
	cleanup_(fd_closep) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct stat st;

	return fd >= 0 && !lstat(path, &st) && S_ISSOCK(st.st_mode) &&
	       connect(fd, (const struct sockaddr *)address, size) && errno == ECONNREFUSED &&
	       !unlink(path);
}

int http_listen(const char *text)
{
	const bool local = !strncmp(text, UNIX_PREFIX, strlen(UNIX_PREFIX));
	cleanup_(fd_closep) int fd = -1;
	struct sockaddr_storage address;
	socklen_t size;
	int r;

	if (!(local ? unix_read : loopback_read)(text, &address, &size))
		return -EINVAL;
	fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	if (!local)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int));
	r = bind(fd, (const struct sockaddr *)&address, size);
	if (r && errno == EADDRINUSE && local && remove_stale(&address, size))
		r = bind(fd, (const struct sockaddr *)&address, size);
	if (r)
		return -errno;
	/* as the socket of clients: the daemon's user and group */
	if (local && chmod(((const struct sockaddr_un *)&address)->sun_path, 0660))
		return -errno;
	return listen(fd, CONNECTIONS_MAX) ? -errno : take_fd(&fd);
}

/* ---- answers -------------------------------------------------------------------------------- */

static enum MHD_Result respond(struct MHD_Connection *c, unsigned status, const char *type,
			       const char *text, size_t size)
{
	struct MHD_Response *response = MHD_create_response_from_buffer(
		size, (void *)(uintptr_t)text, MHD_RESPMEM_MUST_COPY);
	enum MHD_Result r = MHD_NO;

	if (!response)
		return MHD_NO;
	if (MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type) == MHD_YES)
		r = MHD_queue_response(c, status, response);
	MHD_destroy_response(response);
	return r;
}

static enum MHD_Result refuse(struct MHD_Connection *c, unsigned status, const char *text)
{
	return respond(c, status, "text/plain; charset=utf-8", text, strlen(text));
}

/* A page of another site may have its name mean this machine, and read what is served here: then
 * Host is that name. */
static bool host_is_good(struct MHD_Connection *c)
{
	static const char *const good[] = { "127.0.0.1", "localhost", "[::1]" };
	const char *host = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST);

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		size_t len = strlen(good[i]);

		if (host && !strncmp(host, good[i], len) && (!host[len] || host[len] == ':'))
			return true;
	}
	return false;
}

static enum MHD_Result answer(void *context, struct MHD_Connection *c, const char *url,
			      const char *method, const char *version, const char *upload,
			      size_t *upload_size, void **seen)
{
	struct http *http = context;

	(void)version;
	(void)upload;
	if (!*seen || *upload_size) { /* its headers have come; or its body comes, in parts */
		*seen = http;
		*upload_size = 0;
		return MHD_YES;
	}
	if (!http->local && !host_is_good(c))
		return refuse(c, MHD_HTTP_FORBIDDEN,
			      "Host must be 127.0.0.1, localhost or [::1]\n");
	if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
		return refuse(c, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD are served\n");
	if (strcmp(url, "/metrics") != 0)
		return refuse(c, MHD_HTTP_NOT_FOUND, "the metrics are at /metrics\n");
	if (!http->text || now_mono_ns() - http->made_ns > TEXT_NS) {
		free(http->text);
		http->text = metrics_text(http->server, &http->size);
		http->made_ns = now_mono_ns();
	}
	if (!http->text)
		return refuse(c, MHD_HTTP_INTERNAL_SERVER_ERROR, "the daemon has no memory left\n");
	return respond(c, MHD_HTTP_OK, "application/openmetrics-text; version=1.0.0; charset=utf-8",
		       http->text, http->size);
}

/* ---- the loop ------------------------------------------------------------------------------- */

static void on_event(uv_poll_t *poll, int status, int events)
{
	struct http *http = container_of(poll, struct http, poll);

	(void)status;
	(void)events;
	uv_poll_stop(poll); /* until its turn */
	turn_queue(&http->turn);
}

static void on_timer(uv_timer_t *timer)
{
	turn_queue(&container_of(timer, struct http, timer)->turn);
}

static int poll_start(struct http *http)
{
	const union MHD_DaemonInfo *info = MHD_get_daemon_info(http->mhd, MHD_DAEMON_INFO_EPOLL_FD);

	return loop_poll(&http->poll, info->epoll_fd, UV_READABLE, on_event);
}

static bool on_turn(struct turn *turn)
{
	struct http *http = container_of(turn, struct http, turn);
	MHD_UNSIGNED_LONG_LONG ms;

	MHD_run(http->mhd);
	if (MHD_get_timeout(http->mhd, &ms) != MHD_YES)
		uv_timer_stop(&http->timer);
	else if (ms)
		uv_timer_start(&http->timer, on_timer, ms, 0);
	else
		return true; /* it can go on at once */
	if (poll_start(http))
		uv_timer_start(&http->timer, on_timer, 1000, 0); /* the kernel has no space */
	return false;
}

static bool is_local(int fd)
{
	struct sockaddr_storage address = { 0 };
	socklen_t size = sizeof(address);

	return !getsockname(fd, (struct sockaddr *)&address, &size) && address.ss_family == AF_UNIX;
}

int http_start(struct server *server, int fd_take)
{
	struct http *http = calloc(1, sizeof(*http));
	const union MHD_DaemonInfo *info;

	if (!http) {
		fd_close(fd_take);
		return -ENOMEM;
	}
	http->server = server;
	http->local = is_local(fd_take);
	http->mhd = MHD_start_daemon(
		MHD_USE_EPOLL, 0, NULL, NULL, answer, http, MHD_OPTION_LISTEN_SOCKET, fd_take,
		MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX,
		MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)CONNECTION_SECONDS,
		MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, MHD_OPTION_END);
	info = http->mhd ? MHD_get_daemon_info(http->mhd, MHD_DAEMON_INFO_EPOLL_FD) : NULL;
	if (!info || uv_poll_init(&server->loop, &http->poll, info->epoll_fd) || poll_start(http)) {
		if (!http->mhd)
			fd_close(fd_take);
		else
			MHD_stop_daemon(http->mhd); /* closes it */
		free(http);
		return -ENOMEM;
	}
	uv_timer_init(&server->loop, &http->timer);
	turn_init(&http->turn, &server->house, on_turn);
	server->http = http;
	return 0;
}

void http_stop(struct http *http)
{
	if (!http)
		return;
	turn_cancel(&http->turn);
	uv_close((uv_handle_t *)&http->poll, NULL);
	uv_close((uv_handle_t *)&http->timer, NULL);
	MHD_stop_daemon(http->mhd);
}

void http_free(struct http *http)
{
	if (!http)
		return;
	free(http->text);
	free(http);
}

#endif
