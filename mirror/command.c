/* SPDX-License-Identifier: Apache-2.0 */
#include <cjson/cJSON.h>
#include <curl/curl.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tensorlease/tensorlease.h>

#include "mirror/command.h"
#include "mirror/control.h"
#include "util/clock.h"

#define FETCH_NS (60 * NS_PER_SEC) /* how long the name is requested */
#define TOLD_NS (2 * NS_PER_SEC)   /* after this, tell the user that it takes long */

enum { FAILURE = 1, ANSWER_S = 10 };

struct answer {
	char *text; /* NUL-terminated */
	size_t size;
};

static size_t on_bytes(char *bytes, size_t one, size_t n, void *context)
{
	struct answer *a = context;
	char *grown = realloc(a->text, a->size + n + 1);

	(void)one;
	if (!grown)
		return 0;
	a->text = grown;
	memcpy(grown + a->size, bytes, n);
	a->size += n;
	grown[a->size] = '\0';
	return n;
}

static int fail(const char *path, const char *why)
{
	fprintf(stderr, "tensorlease-mirror: no mirror answers at %s: %s\n", path, why);
	return FAILURE;
}

/* Asks the mirror of this configuration. Returns its answer, which the caller frees, or NULL after
 * an error message. */
static char *ask(const struct config *config, const char *url)
{
	char path[CONTROL_PATH_MAX], why[CURL_ERROR_SIZE] = "";
	struct answer a = { 0 };
	CURL *c = curl_easy_init();
	long status = 0;
	CURLcode r;

	if (!c || !control_path(config, path)) {
		curl_easy_cleanup(c);
		fputs("tensorlease-mirror: the path of the control socket is too long: write "
		      "control = PATH into [mirror]\n",
		      stderr);
		return NULL;
	}
	curl_easy_setopt(c, CURLOPT_UNIX_SOCKET_PATH, path);
	curl_easy_setopt(c, CURLOPT_URL, url);
	curl_easy_setopt(c, CURLOPT_NOPROXY, "*");
	curl_easy_setopt(c, CURLOPT_TIMEOUT, (long)ANSWER_S);
	curl_easy_setopt(c, CURLOPT_ERRORBUFFER, why);
	curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_bytes);
	curl_easy_setopt(c, CURLOPT_WRITEDATA, &a);
	r = curl_easy_perform(c);
	curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
	curl_easy_cleanup(c);
	if (!r && status == 200 && a.text)
		return a.text;
	if (r == CURLE_COULDNT_CONNECT && access(path, R_OK | W_OK))
		fail(path, errno == EACCES ? "the socket is for the mirror's user and root"
					   : strerror(errno));
	else
		fail(path, r ? *why ? why : curl_easy_strerror(r) : "it answers something else");
	free(a.text);
	return NULL;
}

static double number_of(const cJSON *object, const char *field)
{
	const cJSON *item = cJSON_GetObjectItem(object, field);

	return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

static bool is(const cJSON *object, const char *field)
{
	return cJSON_IsTrue(cJSON_GetObjectItem(object, field));
}

static const char *text_of(const cJSON *object, const char *field)
{
	const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(object, field));

	return text ? text : "";
}

/* Formats into a buffer that lives until the end of the block. */
#define BYTES(n) bytes((char[32]){ 0 }, n)

static const char *bytes(char to[32], double n)
{
	static const char *const units[] = { "bytes", "KiB", "MiB", "GiB", "TiB", "PiB" };
	unsigned u = 0;

	for (; n >= 1024 && u < 5; u++)
		n /= 1024;
	snprintf(to, 32, u ? "%.1f %s" : "%.0f %s", n, units[u]);
	return to;
}

/* Formats "1 host" or "2 hosts" into such a buffer. */
#define COUNT(n, word) count((char[48]){ 0 }, n, word)

static const char *count(char to[48], double n, const char *word)
{
	snprintf(to, 48, "%.0f %s%s", n, word, n == 1 ? "" : "s");
	return to;
}

/* ---- status ---- */

static void print_given(const cJSON *rule)
{
	printf(", sent %s to %s, holds %s of %s\n", BYTES(number_of(rule, "sent_bytes")),
	       COUNT(cJSON_GetArraySize(cJSON_GetObjectItem(rule, "importers")), "host"),
	       COUNT(number_of(rule, "held"), "version"), BYTES(number_of(rule, "held_bytes")));
}

static void print_export_streams(const cJSON *rule)
{
	const cJSON *all = cJSON_GetObjectItem(rule, "streams");

	if (!all)
		return;
	printf("streams of export %s: %.0f with %s, gave %s of %s", text_of(rule, "name"),
	       number_of(all, "count"), COUNT(number_of(all, "subscribers"), "subscriber"),
	       COUNT(number_of(all, "items"), "item"), BYTES(number_of(all, "bytes")));
	if (number_of(all, "held") > 0)
		printf(", holds %.0f", number_of(all, "held"));
	if (number_of(all, "skipped") > 0)
		printf(", %.0f skipped", number_of(all, "skipped"));
	putchar('\n');
}

static void print_export(const cJSON *rule)
{
	printf("export %s: ", text_of(rule, "name"));
	if (!is(rule, "daemon"))
		printf("the daemon is away");
	else
		printf("%s of %s%s", COUNT(number_of(rule, "names"), "name"),
		       BYTES(number_of(rule, "bytes")), is(rule, "set") ? " in a set" : "");
	if (number_of(rule, "names_on_gpus") > 0)
		printf(", %.0f on GPUs left out", number_of(rule, "names_on_gpus"));
	print_given(rule);
	print_export_streams(rule);
}

static double failures_of(const cJSON *host)
{
	const cJSON *reason;
	double n = 0;

	cJSON_ArrayForEach(reason, cJSON_GetObjectItem(host, "failures")) n += reason->valuedouble;
	return n;
}

/* Prints the sums over all hosts, if there are or were any streams. */
static void print_import_streams(const cJSON *rule)
{
	const cJSON *host;
	double streams = 0, ended = 0, items = 0, came = 0, waiting = 0;

	cJSON_ArrayForEach(host, cJSON_GetObjectItem(rule, "hosts"))
	{
		const cJSON *all = cJSON_GetObjectItem(host, "streams");

		streams += number_of(all, "count");
		ended += number_of(all, "ended");
		items += number_of(all, "items");
		came += number_of(all, "bytes");
		waiting += number_of(all, "waiting");
	}
	if (streams + items == 0)
		return;
	printf("streams of import %s: %.0f, received %s of %s", text_of(rule, "name"), streams,
	       COUNT(items, "item"), BYTES(came));
	if (waiting > 0)
		printf(", %.0f waiting", waiting);
	if (ended > 0)
		printf(", %.0f ended", ended);
	putchar('\n');
}

static void print_requests(const cJSON *rule)
{
	const cJSON *requests = cJSON_GetObjectItem(rule, "requests");

	if (requests)
		printf("requests of import %s: %s, %.0f here\n", text_of(rule, "name"),
		       COUNT(number_of(requests, "names"), "name"), number_of(requests, "here"));
}

static void print_import(const cJSON *rule)
{
	const cJSON *host, *hosts = cJSON_GetObjectItem(rule, "hosts");
	double names = 0, waiting = 0, lag = 0, came = 0, failed = 0;
	int up = 0;

	cJSON_ArrayForEach(host, hosts)
	{
		up += is(host, "up");
		names += number_of(host, "names");
		waiting += number_of(host, "waiting");
		came += number_of(host, "received_bytes");
		failed += failures_of(host);
		if (number_of(host, "lag_seconds") > lag)
			lag = number_of(host, "lag_seconds");
	}
	printf("import %s: %d of %s up, %s, received %s", text_of(rule, "name"), up,
	       COUNT(cJSON_GetArraySize(hosts), "host"), COUNT(names, "name"), BYTES(came));
	if (waiting > 0)
		printf(", %.0f waiting for up to %.1f s", waiting, lag);
	if (failed > 0)
		printf(", %s", COUNT(failed, "failure"));
	print_given(rule);
	print_import_streams(rule);
	print_requests(rule);
}

static void print_status(const cJSON *status)
{
	const cJSON *nats = cJSON_GetObjectItem(status, "nats"), *rule;

	printf("host %s: NATS is %s, %s\n", text_of(status, "host"),
	       is(nats, "up") ? "connected" : "away",
	       COUNT(number_of(nats, "reconnects"), "reconnect"));
	cJSON_ArrayForEach(rule, cJSON_GetObjectItem(status, "exports")) print_export(rule);
	cJSON_ArrayForEach(rule, cJSON_GetObjectItem(status, "imports")) print_import(rule);
}

/* ---- peers ---- */

static void print_importers(const cJSON *rule, const char *kind)
{
	const cJSON *one;

	cJSON_ArrayForEach(one, cJSON_GetObjectItem(rule, "importers"))
		printf("%s gets %s %s: asked %.1f s ago, sent %s\n", text_of(one, "host"), kind,
		       text_of(rule, "name"), number_of(one, "asked_seconds_ago"),
		       BYTES(number_of(one, "sent_bytes")));
}

static void print_origin(const cJSON *rule, const cJSON *host)
{
	const cJSON *reason;

	printf("%s has %s: %s, heard %.1f s ago, %s, received %s", text_of(host, "host"),
	       text_of(rule, "name"), is(host, "up") ? "up" : "gone",
	       number_of(host, "heard_seconds_ago"), COUNT(number_of(host, "names"), "name"),
	       BYTES(number_of(host, "received_bytes")));
	if (number_of(host, "waiting") > 0)
		printf(", %.0f waiting (up to %s, %.1f s), %s", number_of(host, "waiting"),
		       COUNT(number_of(host, "lag_versions"), "version"),
		       number_of(host, "lag_seconds"),
		       COUNT(number_of(host, "transfers"), "transfer"));
	cJSON_ArrayForEach(reason, cJSON_GetObjectItem(host, "failures"))
	{
		if (reason->valuedouble > 0)
			printf(", %s %.0f", reason->string, reason->valuedouble);
	}
	if (number_of(host, "parents_lost") > 0)
		printf(", parents lost %.0f", number_of(host, "parents_lost"));
	if (*text_of(host, "failure"))
		printf("; the last failure: %s", text_of(host, "failure"));
	putchar('\n');
}

static void print_peers(const cJSON *status)
{
	const cJSON *rule, *host;

	cJSON_ArrayForEach(rule, cJSON_GetObjectItem(status, "imports"))
	{
		cJSON_ArrayForEach(host, cJSON_GetObjectItem(rule, "hosts"))
			print_origin(rule, host);
		print_importers(rule, "from import");
	}
	cJSON_ArrayForEach(rule, cJSON_GetObjectItem(status, "exports"))
		print_importers(rule, "export");
}

/* ---- all ---- */

static int finish(char *text, bool json, void (*print)(const cJSON *answer))
{
	cJSON *answer = text ? cJSON_Parse(text) : NULL;
	const bool good = answer != NULL;

	if (good && json)
		puts(text);
	else if (good)
		print(answer);
	cJSON_Delete(answer);
	free(text);
	return good && !fflush(stdout) ? 0 : FAILURE;
}

int command_status(const struct config *config, bool json)
{
	return finish(ask(config, "http://localhost/status"), json, print_status);
}

int command_peers(const struct config *config, bool json)
{
	return finish(ask(config, "http://localhost/status"), json, print_peers);
}

static void print_tree(const cJSON *answer)
{
	const cJSON *tree, *host;

	cJSON_ArrayForEach(tree, cJSON_GetObjectItem(answer, "trees"))
	{
		printf("export %s: %s%s of %s\n", text_of(tree, "export"),
		       is(tree, "set") ? "a moment of the set" : "version ",
		       is(tree, "set") ? "" : text_of(tree, "version"),
		       BYTES(number_of(tree, "bytes")));
		cJSON_ArrayForEach(host, cJSON_GetObjectItem(tree, "hosts"))
			printf("%*s%s has it from %s%s\n", 2 * (int)number_of(host, "depth"), "",
			       text_of(host, "host"),
			       *text_of(host, "parent") ? text_of(host, "parent") : "here",
			       is(host, "lost") ? ", and was lost" : "");
	}
	if (!cJSON_GetArraySize(cJSON_GetObjectItem(answer, "trees")))
		puts("no host has asked this one for its bytes: it is not exported here, or nobody "
		     "imports it, or has at most 32 KiB and comes with its announcement");
}

int command_tree(const struct config *config, bool json, const char *name)
{
	char *escaped = curl_easy_escape(NULL, name, 0), *url = NULL, *text = NULL;

	if (escaped && asprintf(&url, "http://localhost/tree?name=%s", escaped) >= 0)
		text = ask(config, url);
	free(url);
	curl_free(escaped);
	return finish(text, json, print_tree);
}

/* ---- fetch ---- */

static const struct rule *rule_with_requests(const struct config *config)
{
	for (size_t n = 0; n < config->count; n++) {
		if (config->rules[n].requests)
			return &config->rules[n];
	}
	return NULL;
}

/* Returns a client, or NULL after an error message. */
static tl_client *connect_to(const struct config *config, const char *name_space)
{
	const tl_connect_options options = { .size = sizeof(options),
					     .address = config->socket,
					     .namespace_name = name_space,
					     .label = "tensorlease-mirror" };
	tl_client *client = NULL;

	if (!tl_connect(&options, &client))
		return client;
	fprintf(stderr, "tensorlease-mirror: %s\n", tl_last_error());
	return NULL;
}

/* Requests @name, by publishing the name that stands for the request. */
static int request(tl_client *client, const struct rule *rule, const char *name)
{
	const tl_put_options options = { .size = sizeof(options), .ttl_ns = FETCH_NS };
	int64_t shape = 0;
	const DLTensor none = {
		.device = { kDLCPU, 0 }, .ndim = 1, .dtype = { kDLUInt, 8, 1 }, .shape = &shape
	};
	char *text = NULL;
	int r = asprintf(&text, "%s%s", rule->requests, name) < 0 ? -ENOMEM : 0;

	if (!r)
		r = tl_put(client, text, &none, &options, NULL);
	if (r)
		fprintf(stderr, "tensorlease-mirror: it cannot be asked for: %s\n",
			tl_last_error());
	free(text);
	return r;
}

static int wait_for(tl_client *client, const struct rule *rule, const char *name)
{
	tl_get_options options = { .size = sizeof(options),
				   .timeout_ns = TOLD_NS,
				   .stream = TL_STREAM_NONE };
	tl_info info = { .size = sizeof(info) };
	DLManagedTensorVersioned *tensor = NULL;
	char *text = NULL;
	int r = asprintf(&text, "%s%s", rule->prefix, name) < 0 ? -ENOMEM : 0;

	if (!r)
		r = tl_get(client, text, &options, &tensor);
	if (r == -ETIMEDOUT) {
		fprintf(stderr, "tensorlease-mirror: no host has given it yet; it is waited for\n");
		options.timeout_ns = FETCH_NS - TOLD_NS;
		r = tl_get(client, text, &options, &tensor);
	}
	if (!r)
		r = tl_tensor_info(tensor, &info);
	if (!r)
		printf("%s has version %" PRIu64 " and %s\n", text, info.version,
		       BYTES((double)info.nbytes));
	else
		fprintf(stderr, "tensorlease-mirror: it did not come: %s\n", tl_last_error());
	if (tensor)
		tensor->deleter(tensor);
	free(text);
	return r;
}

int command_fetch(const struct config *config, const char *name)
{
	const struct rule *rule = rule_with_requests(config);
	tl_client *here, *there;
	bool good;

	if (!rule) {
		fputs("tensorlease-mirror: all names come without being asked for: write "
		      "requests = want/ into [import NAME] if they are too many\n",
		      stderr);
		return FAILURE;
	}
	here = connect_to(config, "");
	there = here ? connect_to(config, rule->name_space) : NULL;
	good = there && !request(here, rule, name) && !wait_for(there, rule, name);
	if (there)
		tl_close(there);
	if (here)
		tl_close(here);
	return good && !fflush(stdout) ? 0 : FAILURE;
}
