/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "mirror/control.h"
#include "mirror/metrics.h"
#include "util/address.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/path.h"

#define LOOK_NS (NS_PER_SEC / 10) /* between checks whether the other mirror has ended */
#define TYPE_METRICS "application/openmetrics-text; version=1.0.0; charset=utf-8"
#define TYPE_JSON "application/json"

enum { CONNECTIONS_MAX = 16, SECONDS = 10 };

struct control {
	const struct mirror *mirror;
	char path[CONTROL_PATH_MAX]; /* "": there is none */
	int lock_fd;
	struct MHD_Daemon *local, *tcp; /* NULL: not listening there */
};

/* ---- the lock ---- */

/* Finds the socket that programs use if they give no address. */
static void default_socket(char *path, size_t size)
{
	const char *from_env = address_path(secure_getenv("TENSORLEASE_SOCKET"));
	char directory[CONTROL_PATH_MAX];

	if (from_env || path_may_exist(ADDRESS_SYSTEM_SOCKET)) {
		snprintf(path, size, "%s", from_env ? from_env : ADDRESS_SYSTEM_SOCKET);
		return;
	}
	address_user_directory(directory, sizeof(directory), secure_getenv("XDG_RUNTIME_DIR"));
	snprintf(path, size, "%s/socket", directory);
}

/* Each socket has its own path here, since several daemons may have sockets in one directory. */
bool control_path(const struct config *config, char path[CONTROL_PATH_MAX])
{
	const char *asked = address_path(config->socket), *name;
	char socket[PATH_MAX];

	if (config->control)
		return snprintf(path, CONTROL_PATH_MAX, "%s", config->control) < CONTROL_PATH_MAX;
	if (asked)
		snprintf(socket, sizeof(socket), "%s", asked);
	else
		default_socket(socket, sizeof(socket));
	name = strrchr(socket, '/') ? strrchr(socket, '/') + 1 : socket;
	if (strcmp(name, "socket") != 0)
		return snprintf(path, CONTROL_PATH_MAX, "%s.mirror", socket) < CONTROL_PATH_MAX;
	return snprintf(path, CONTROL_PATH_MAX, "%.*smirror.sock", (int)(name - socket), socket) <
	       CONTROL_PATH_MAX;
}

static int open_lock(const char *path)
{
	char lock[CONTROL_PATH_MAX + 8];
	int fd;

	snprintf(lock, sizeof(lock), "%s.lock", path);
	fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, 0600);
	return fd < 0 ? -errno : fd;
}

/* Runs without a control socket if its directory is missing, unless the user has set the path. */
static int no_control(struct control *c, const struct config *config, int r)
{
	if (config->control) {
		log_error("there can be no control socket", "control=%s why=%s",
			  log_str(config->control), log_str(strerror(-r)));
		return r;
	}
	log_warn("there is no control socket: nobody can ask for the status, and no other mirror "
		 "waits",
		 "path=%s why=%s advice=%s", log_str(c->path), log_str(strerror(-r)),
		 log_str("write control = PATH into [mirror]"));
	c->path[0] = '\0';
	return 0;
}

int control_wait(struct control **out, const struct config *config, const sigset_t *ends)
{
	const struct timespec pause = { .tv_nsec = LOOK_NS };
	struct control *c = calloc(1, sizeof(*c));
	bool told = false;

	if (!c)
		return -ENOMEM;
	*out = c;
	c->lock_fd = control_path(config, c->path) ? open_lock(c->path) : -ENAMETOOLONG;
	if (c->lock_fd < 0)
		return no_control(c, config, c->lock_fd);
	while (flock(c->lock_fd, LOCK_EX | LOCK_NB)) {
		if (errno != EWOULDBLOCK && errno != EINTR)
			return no_control(c, config, -errno);
		if (!told)
			log_info("another mirror runs; this one waits for its end", "control=%s",
				 log_str(c->path));
		told = true;
		if (sigtimedwait(ends, NULL, &pause) > 0)
			return 1;
	}
	if (told)
		log_info("the other mirror has ended; this one takes over");
	return 0;
}

/* ---- answers ---- */

/* Sends @text and frees it. NULL means out of memory. */
static enum MHD_Result respond(struct MHD_Connection *c, unsigned status, const char *type,
			       char *text, size_t size)
{
	struct MHD_Response *response = NULL;
	enum MHD_Result r = MHD_NO;

	if (text)
		response = MHD_create_response_from_buffer(size, text, MHD_RESPMEM_MUST_FREE);
	if (!response) {
		free(text);
		return MHD_NO;
	}
	if (MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type) == MHD_YES)
		r = MHD_queue_response(c, status, response);
	MHD_destroy_response(response);
	return r;
}

static enum MHD_Result refuse(struct MHD_Connection *c, unsigned status, const char *text)
{
	return respond(c, status, "text/plain; charset=utf-8", strdup(text), strlen(text));
}

/* Sends the object as JSON and frees it. */
static enum MHD_Result respond_json(struct MHD_Connection *c, cJSON *object)
{
	char *text = cJSON_PrintUnformatted(object);

	cJSON_Delete(object);
	return respond(c, MHD_HTTP_OK, TYPE_JSON, text, text ? strlen(text) : 0);
}

static enum MHD_Result respond_metrics(const struct control *control, struct MHD_Connection *c)
{
	cJSON *status = status_make(control->mirror);
	size_t size = 0;
	char *text = metrics_write(status, &size);

	cJSON_Delete(status);
	return respond(c, MHD_HTTP_OK, TYPE_METRICS, text, size);
}

static bool is_get(const char *method)
{
	return !strcmp(method, MHD_HTTP_METHOD_GET) || !strcmp(method, MHD_HTTP_METHOD_HEAD);
}

static enum MHD_Result answer_local(void *context, struct MHD_Connection *c, const char *url,
				    const char *method, const char *version, const char *upload,
				    size_t *upload_size, void **seen)
{
	const struct control *control = context;
	const char *name;

	(void)version;
	(void)upload;
	if (!*seen || *upload_size) { /* only the headers have come, or a part of a body */
		*seen = context;
		*upload_size = 0;
		return MHD_YES;
	}
	if (!is_get(method))
		return refuse(c, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD are served\n");
	name = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "name");
	if (!strcmp(url, "/status"))
		return respond_json(c, status_make(control->mirror));
	if (!strcmp(url, "/tree") && name)
		return respond_json(c, status_tree(control->mirror, name));
	if (!strcmp(url, "/metrics"))
		return respond_metrics(control, c);
	return refuse(c, MHD_HTTP_NOT_FOUND, "there are /status, /metrics and /tree?name=NAME\n");
}

/* Prevents DNS rebinding: a web page whose site's name resolves to this machine could read the
 * metrics, but its requests have that name as their Host. */
static bool host_is_good(struct MHD_Connection *c)
{
	static const char *const good[] = { "127.0.0.1", "localhost", "[::1]" };
	const char *host = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST);

	for (size_t n = 0; host && n < sizeof(good) / sizeof(*good); n++) {
		const size_t len = strlen(good[n]);

		if (!strncmp(host, good[n], len) && (!host[len] || host[len] == ':'))
			return true;
	}
	return false;
}

static enum MHD_Result answer_tcp(void *context, struct MHD_Connection *c, const char *url,
				  const char *method, const char *version, const char *upload,
				  size_t *upload_size, void **seen)
{
	(void)version;
	(void)upload;
	if (!*seen || *upload_size) {
		*seen = context;
		*upload_size = 0;
		return MHD_YES;
	}
	if (!host_is_good(c))
		return refuse(c, MHD_HTTP_FORBIDDEN,
			      "Host must be 127.0.0.1, localhost or [::1]\n");
	if (!is_get(method))
		return refuse(c, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD are served\n");
	if (strcmp(url, "/metrics") != 0)
		return refuse(c, MHD_HTTP_NOT_FOUND, "the metrics are at /metrics\n");
	return respond_metrics(context, c);
}

/* ---- start and end ---- */

/* Serves on @fd_take, which it takes over. */
static int start(struct control *c, struct MHD_Daemon **to, int fd_take,
		 MHD_AccessHandlerCallback answer)
{
	*to = MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD, 0, NULL, NULL, answer, c,
			       MHD_OPTION_LISTEN_SOCKET, fd_take, MHD_OPTION_CONNECTION_LIMIT,
			       (unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT,
			       (unsigned)SECONDS, MHD_OPTION_END);
	if (!*to)
		fd_close(fd_take);
	return *to ? 0 : -ENOMEM;
}

/* Removes the socket of a mirror that was killed, since bind() would fail. */
static bool remove_stale(const char *path)
{
	struct stat st;

	return !lstat(path, &st) && S_ISSOCK(st.st_mode) && !unlink(path);
}

static int listen_local(const char *path)
{
	cleanup_(fd_closep) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	if (fd < 0)
		return -errno;
	strcpy(address.sun_path, path);
	remove_stale(path);
	/* bind() gives the file the mode of the socket. */
	if (fchmod(fd, 0600) || bind(fd, (struct sockaddr *)&address, sizeof(address)) ||
	    listen(fd, CONNECTIONS_MAX))
		return -errno;
	return take_fd(&fd);
}

/* Logs the address, with the port that was chosen. */
static void tell_metrics(int fd)
{
	struct sockaddr_storage address = { 0 };
	socklen_t size = sizeof(address);
	char host[64] = "", port[8] = "";

	getsockname(fd, (struct sockaddr *)&address, &size);
	getnameinfo((struct sockaddr *)&address, size, host, sizeof(host), port, sizeof(port),
		    NI_NUMERICHOST | NI_NUMERICSERV);
	log_info("serving metrics", "address=%s port=%s", host, port);
}

int control_start(struct control *c, const struct mirror *mirror)
{
	const char *where = mirror->config.metrics;
	int fd, r = 0;

	c->mirror = mirror;
	if (*c->path) {
		fd = listen_local(c->path);
		r = fd < 0 ? fd : start(c, &c->local, fd, answer_local);
	}
	if (r)
		r = no_control(c, &mirror->config, r);
	if (r || !where)
		return r;
	fd = serve_listen(where);
	if (fd >= 0)
		tell_metrics(fd);
	r = fd < 0 ? fd : start(c, &c->tcp, fd, answer_tcp);
	if (r)
		log_error("metrics cannot be served", "metrics=%s why=%s", log_str(where),
			  log_str(strerror(-r)));
	return r;
}

void control_stop(struct control *c)
{
	if (!c)
		return;
	if (c->local)
		MHD_stop_daemon(c->local);
	if (c->tcp)
		MHD_stop_daemon(c->tcp);
	if (c->local)
		unlink(c->path);
	c->local = c->tcp = NULL;
}

void control_close(struct control *c)
{
	if (!c)
		return;
	if (c->lock_fd >= 0)
		fd_close(c->lock_fd);
	free(c);
}
