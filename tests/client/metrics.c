/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics: what they count, who may have them, and the HTTP server that gives them. */
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <tensorlease/admin.h>

#include "tests/client/streams.h"
#include "tests/harness/own_user.h"

enum { ANSWER = 64 << 10, STRANGER = 60777 };

static char *metrics(tl_client *client)
{
	char *text;

	must_be(tl_get_metrics(client, &text), 0);
	must(strlen(text) > 6 && !strcmp(text + strlen(text) - 6, "# EOF\n"));
	return text;
}

/* The number in the line that begins with @name and a space. */
static double value_in(const char *text, const char *name)
{
	const size_t len = strlen(name);

	for (const char *at = text; (at = strstr(at, name)) != NULL; at += len) {
		if ((at == text || at[-1] == '\n') && at[len] == ' ')
			return strtod(at + len, NULL);
	}
	print_error("no line '%s' in: %s\n", name, text);
	must(!"it is there");
	return 0;
}

static double value(tl_client *client, const char *name)
{
	char *text = metrics(client);
	double number = value_in(text, name);

	free(text);
	return number;
}

#define OF_DEFAULT(metric) "tensorlease_" metric "{namespace=\"default\"}"

TEST(they_count_tensors_and_bytes)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	DLManagedTensorVersioned *t;

	must_be(value(client, OF_DEFAULT("published_total")), 0);
	put_alone(client, "a", 1, 1000);
	put_alone(client, "b", 1, 500);
	t = get(client, "a");
	put_alone(client, "a", 2, 1000);
	must_be(value(client, OF_DEFAULT("published_total")), 3);
	must_be(value(client, OF_DEFAULT("published_bytes_total")), 2500);
	must_be(value(client, "tensorlease_tensors{namespace=\"default\",state=\"live\"}"), 2);
	must_be(value(client, "tensorlease_tensors{namespace=\"default\",state=\"retired\"}"), 1);
	must(value(client, "tensorlease_memory_bytes{namespace=\"default\",state=\"in_use\"}") >
	     2000);
	must_be(value(client, "tensorlease_capacity_bytes"), 64 << 20);
	must_be(value(client, OF_DEFAULT("clients")), 1);
	must_be(value(client, "tensorlease_build_info{version=\"" TENSORLEASE_VERSION "\"}"), 1);
	must(value(client, "tensorlease_turn_seconds_count") > 0);
	drop(t);
	tl_close(client);
}

TEST(they_count_what_goes_through_rings)
{
	const tl_put_options ring = { .size = sizeof(ring), .ring = 4 };
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *looker = td_connect(&d);

	for (int i = 0; i < 200; i++)
		put_as(client, "r", i, 1000, &ring);
	tl_close(client); /* its ring ends, and all are counted but the last */
	td_sync(&d);
	must(value(looker, OF_DEFAULT("ring_published_total")) > 100);
	must(value(looker, OF_DEFAULT("published_bytes_total")) > 100 * 1000);
	tl_close(looker);
}

TEST(they_count_gets_that_miss)
{
	const tl_get_options brief = { .size = sizeof(brief), .timeout_ns = MS };
	cleanup_td struct test_daemon d = td_start();
	tl_client *looker = td_connect(&d), *other = td_connect(&d);
	DLManagedTensorVersioned *t;

	must_be(tl_get(other, "nothing", NULL, &t), -ENOENT);
	must_be(tl_get(other, "nothing", &brief, &t), -ETIMEDOUT);
	must_be(value(looker, OF_DEFAULT("missed_gets_total")), 2);
	must_be(tl_get(looker, "nothing", NULL, &t), -ENOENT);
	must_be(value(looker, OF_DEFAULT("missed_gets_total")), 3);
	tl_close(other); /* what it counted stays */
	td_sync(&d);
	must_be(value(looker, OF_DEFAULT("missed_gets_total")), 3);
	tl_close(looker);
}

static int put_of(tl_client *client, const char *name, size_t n, const tl_put_options *options)
{
	unsigned char *data = calloc(1, n);
	int64_t shape[1] = { (int64_t)n };
	const DLTensor t = bytes_tensor(data, shape);
	int r = tl_put(client, name, &t, options, NULL);

	free(data);
	return r;
}

TEST(they_count_refusals_waits_and_evictions)
{
	const tl_put_options brief = { .size = sizeof(brief),
				       .timeout_ns = 20 * MS,
				       .ring = TL_RING_NONE };
	const tl_put_options evictable = { .size = sizeof(evictable),
					   .lifetime = TL_LIFETIME_EVICTABLE,
					   .ring = TL_RING_NONE };
	cleanup_td struct test_daemon d = td_start(.capacity = 8 << 20);
	tl_client *client = td_connect(&d);

	must_be(put_of(client, "a", 4 << 20, &evictable), 0);
	must_be(put_of(client, "b", 4 << 20, &brief), 0);
	must_be(value(client, OF_DEFAULT("evictions_total")), 0);
	must_be(put_of(client, "c", 4 << 20, &brief), 0); /* in the place of a */
	must_be(value(client, OF_DEFAULT("evictions_total")), 1);
	must_be(value(client, OF_DEFAULT("evicted_bytes_total")), 4 << 20);
	must_be(put_of(client, "d", 4 << 20, &brief), -ENOSPC);
	must_be(value(client, "tensorlease_errors_total{error=\"NO_SPACE\",share=\"bytes\"}"), 1);
	must(value(client, "tensorlease_space_wait_seconds_count") >= 1);
	must(value(client, "tensorlease_space_wait_seconds_sum") >= 0.02);
	must(value(client, "tensorlease_space_wait_seconds_bucket{le=\"+Inf\"}") >
	     value(client, "tensorlease_space_wait_seconds_bucket{le=\"0.01\"}"));
	must_be(value(client, "tensorlease_creates_waiting"), 0);
	tl_close(client);
}

/* A label's quotes and backslashes are escaped. */
TEST(they_tell_of_streams_by_name)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_stream *s = open_queue(client, "odd\"\\name", 4);

#define OF_STREAM(metric)                                                                          \
	"tensorlease_stream_" metric "{namespace=\"default\",stream=\"odd\\\"\\\\name\"}"
	for (int i = 0; i < 3; i++)
		put_item(s, i, 1);
	must_be(value(client, OF_STREAM("length")), 3);
	must_be(value(client, OF_STREAM("depth")), 4);
	must_be(value(client, OF_STREAM("items_total")), 3);
	must_be(value(client, OF_STREAM("producers")), 1);
	must(value(client, OF_STREAM("bytes")) > 0);
	tl_stream_close(s);
	tl_close(client);
}

static int a_stranger_asks(const struct test_daemon *d, void *arg)
{
	tl_client *client;
	char *text;

	(void)arg;
	must_be(setresgid(STRANGER, STRANGER, STRANGER), 0);
	must_be(setresuid(STRANGER, STRANGER, STRANGER), 0);
	client = td_connect(d);
	must_be(tl_get_metrics(client, &text), -EACCES);
	must(strstr(tl_last_error(), "user 60777 may not see the metrics"));
	tl_close(client);
	return 0;
}

TEST(they_are_for_root_and_the_daemons_user)
{
	SKIP_UNLESS(geteuid() == 0, "needs root, to be somebody else");
	cleanup_td struct test_daemon d = td_start(.for_others = true);

	must_be(chmod(d.socket, 0666), 0);
	must_be(td_run_client(&d, a_stranger_asks, NULL), 0);
}

TEST(wrong_arguments_of_metrics_are_errors)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	char *text;

	must_be(tl_get_metrics(NULL, &text), -EINVAL);
	must_be(tl_get_metrics(client, NULL), -EINVAL);
	tl_close(client);
}

/* ---- HTTP ---- */

/* Builds without libmicrohttpd have none. */
static bool has_http(void)
{
	char line[256] = "";
	FILE *out = popen("build/bin/tensorleased --version", "re");

	must(out);
	while (fgets(line, sizeof(line), out) && strncmp(line, "features:", 9) != 0) {}
	pclose(out);
	return strstr(line, " http");
}

#define NEEDS_HTTP SKIP_UNLESS(has_http(), "the daemon was built without libmicrohttpd")

struct http {
	struct test_daemon d;
	char path[108], option[120];
};

static void http_start(struct http *h)
{
	const char *extra[] = { "--metrics", h->option, NULL };
	char dir[] = "/tmp/tl-http-XXXXXX";

	must(mkdtemp(dir));
	snprintf(h->path, sizeof(h->path), "%s/metrics", dir);
	snprintf(h->option, sizeof(h->option), "unix:%s", h->path);
	h->d = td_start(.extra = extra);
}

static void http_end(struct http *h)
{
	td_stop(&h->d);
	unlink(h->path);
	*strrchr(h->path, '/') = '\0';
	must_be(rmdir(h->path), 0);
}

static int scraper(const struct http *h)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	must(fd >= 0);
	strcpy(address.sun_path, h->path);
	must_be(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	return fd;
}

/* Sends the request and reads until the other end closes. */
static char *ask(int fd_take, const char *request)
{
	char *answer = malloc(ANSWER);
	size_t used = 0;
	ssize_t n;

	must(answer);
	must_be(send(fd_take, request, strlen(request), MSG_NOSIGNAL), (ssize_t)strlen(request));
	while ((n = recv(fd_take, answer + used, ANSWER - 1 - used, 0)) > 0)
		used += (size_t)n;
	answer[used] = '\0';
	close(fd_take);
	return answer;
}

#define GET "GET /metrics HTTP/1.0\r\n\r\n"

static void must_answer(const struct http *h, const char *request, const char *status)
{
	char *answer = ask(scraper(h), request);

	if (strncmp(answer, status, strlen(status)) != 0)
		print_error("not %s: %s\n", status, answer);
	must(!strncmp(answer, status, strlen(status)));
	free(answer);
}

TEST(http_gives_the_same_text)
{
	struct http h;
	tl_client *client;
	char *answer;

	NEEDS_HTTP;
	http_start(&h);
	client = td_connect(&h.d);
	put_alone(client, "a", 1, 1000);
	answer = ask(scraper(&h), GET);
	must(strstr(answer, "Content-Type: application/openmetrics-text; version=1.0.0; "
			    "charset=utf-8\r\n"));
	must_be(value_in(strstr(answer, "\r\n\r\n") + 4, OF_DEFAULT("published_total")), 1);
	free(answer);
	must_answer(&h, "GET / HTTP/1.0\r\n\r\n", "HTTP/1.1 404");
	must_answer(&h, "POST /metrics HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 405");
	must_answer(&h, "HEAD /metrics HTTP/1.0\r\n\r\n", "HTTP/1.1 200");
	tl_close(client);
	http_end(&h);
}

/* They connect and send half a request, or read nothing. */
TEST(a_scraper_that_stalls_blocks_nobody)
{
	struct http h;
	tl_client *client;
	int stalled[2];

	NEEDS_HTTP;
	http_start(&h);
	client = td_connect(&h.d);
	stalled[0] = scraper(&h);
	stalled[1] = scraper(&h);
	must_be(send(stalled[0], "GET /met", 8, 0), 8);
	must_be(send(stalled[1], GET, strlen(GET), 0), (ssize_t)strlen(GET));
	for (int i = 0; i < 100; i++)
		put_alone(client, "a", i, 1000);
	must_answer(&h, GET, "HTTP/1.1 200");
	must_be(value(client, OF_DEFAULT("published_total")), 100);
	close(stalled[0]);
	close(stalled[1]);
	must_answer(&h, GET, "HTTP/1.1 200");
	tl_close(client);
	http_end(&h);
}

TEST(http_goes_on_with_the_next_daemon)
{
	struct http h;
	tl_client *client;

	NEEDS_HTTP;
	http_start(&h);
	client = td_connect(&h.d);
	put_alone(client, "a", 1, 1000);
	daemon_kill(client);
	must_answer(&h, GET, "HTTP/1.1 200");
	must_be(value(client, "tensorlease_restarts_total"), 1);
	tl_close(client);
	http_end(&h);
}

TEST(an_address_that_is_taken_or_not_of_this_machine_is_refused)
{
	static const char *const bad[] = { "0.0.0.0:80",      "127.0.0.1:0",  "127.0.0.1",
					   "127.0.0.1:65536", "[::]:80",      "unix:relative",
					   "unix:",	      "localhost:80", "127.0.0.1:80x" };
	const char *extra[] = { "--metrics", NULL, NULL };
	struct test_daemon d;
	struct http h;

	NEEDS_HTTP;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		extra[1] = bad[i];
		d = td_start(.extra = extra, .expect_exit = true);
		must_be(WEXITSTATUS(td_exit_status(&d)), 2);
	}
	http_start(&h);
	extra[1] = h.option;
	d = td_start(.extra = extra, .expect_exit = true);
	must_be(WEXITSTATUS(td_exit_status(&d)), 1);
	must_answer(&h, GET, "HTTP/1.1 200");
	http_end(&h);
}

/* On a port, a page of another site may not read them by giving its own name this address. */
TEST(a_port_answers_only_to_its_own_host)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof(address);
	const char *extra[] = { "--metrics", NULL, NULL };
	char option[32], *answer;
	struct test_daemon d;

	NEEDS_HTTP;
	for (;;) { /* another program may take the port between the two */
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

		address.sin_port = 0;
		must_be(bind(fd, (struct sockaddr *)&address, size), 0);
		must_be(getsockname(fd, (struct sockaddr *)&address, &size), 0);
		close(fd);
		snprintf(option, sizeof(option), "127.0.0.1:%u", ntohs(address.sin_port));
		extra[1] = option;
		d = td_start(.extra = extra);
		fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (!connect(fd, (struct sockaddr *)&address, size)) {
			answer = ask(fd, "GET /metrics HTTP/1.0\r\nHost: example.org\r\n\r\n");
			must(!strncmp(answer, "HTTP/1.1 403", 12));
			free(answer);
			break;
		}
		close(fd);
		td_stop(&d);
	}
	for (int i = 0; i < 2; i++) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

		must_be(connect(fd, (struct sockaddr *)&address, size), 0);
		answer = ask(fd, i ? "GET /metrics HTTP/1.0\r\nHost: localhost:80\r\n\r\n"
				   : "GET /metrics HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n");
		must(!strncmp(answer, "HTTP/1.1 200", 12));
		free(answer);
	}
	td_stop(&d);
}

int main(void)
{
	return suite_run();
}
