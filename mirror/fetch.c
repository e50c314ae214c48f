/* SPDX-License-Identifier: Apache-2.0 */
#include <curl/curl.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "mirror/fetch.h"

enum { CONNECT_S = 3, STALL_S = 3, BUFFER = 512 << 10, URL_MAX = 256, MESSAGE_MAX = 64 << 10 };
enum { OK = 200, GONE = 410, UNAVAILABLE = 503 };

struct fetch {
	CURL *curl;
	const atomic_bool *stop;
	char *to; /* where the rest of the piece goes */
	size_t left;
	size_t newer; /* bytes of @message */
	char message[MESSAGE_MAX];
	uint64_t hash; /* that the other end said */
	bool hashed;
	char why[CURL_ERROR_SIZE + 64];
};

static size_t on_bytes(char *bytes, size_t one, size_t n, void *context)
{
	struct fetch *f = context;

	long status = 0;

	(void)one;
	curl_easy_getinfo(f->curl, CURLINFO_RESPONSE_CODE, &status);
	if (status != OK) { /* it says what is newer, or why not */
		if (status == GONE && n <= MESSAGE_MAX - f->newer) {
			memcpy(f->message + f->newer, bytes, n);
			f->newer += n;
		}
		return n;
	}
	if (n > f->left)
		return 0; /* ends the transfer */
	memcpy(f->to, bytes, n);
	f->to += n;
	f->left -= n;
	return n;
}

static size_t on_header(char *line, size_t one, size_t n, void *context)
{
	static const char key[] = "X-Xxh3:";
	struct fetch *f = context;
	char text[64];

	(void)one;
	if (n > sizeof(key) && n < sizeof(text) && !strncasecmp(line, key, sizeof(key) - 1)) {
		memcpy(text, line, n);
		text[n] = '\0';
		f->hashed = sscanf(text + sizeof(key) - 1, " %" SCNx64, &f->hash) == 1;
	}
	return n;
}

static int on_progress(void *context, curl_off_t all, curl_off_t now, curl_off_t out_all,
		       curl_off_t out)
{
	struct fetch *f = context;

	(void)all;
	(void)now;
	(void)out_all;
	(void)out;
	return atomic_load(f->stop);
}

bool fetch_is_url(const struct config *config, const char *url)
{
	const char *scheme = config->tls ? "https://" : "http://";
	const size_t len = strlen(scheme);

	return !strncmp(url, scheme, len) && url[len] && strlen(url) < URL_MAX / 2 &&
	       !url[len + strspn(url + len, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
					    "0123456789-.:[]")];
}

struct fetch *fetch_open(const struct config *config, const atomic_bool *stop)
{
	struct fetch *f = calloc(1, sizeof(*f));
	CURL *c = f ? curl_easy_init() : NULL;

	if (!c) {
		free(f);
		return NULL;
	}
	f->curl = c;
	f->stop = stop;
	curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
	curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
	curl_easy_setopt(c, CURLOPT_XFERINFODATA, f);
	curl_easy_setopt(c, CURLOPT_ERRORBUFFER, f->why);
	curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(c, CURLOPT_NOPROXY, "*");
	curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, config->tls ? "https" : "http");
	curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
	curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
	curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)STALL_S);
	curl_easy_setopt(c, CURLOPT_BUFFERSIZE, (long)BUFFER);
	curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_bytes);
	curl_easy_setopt(c, CURLOPT_WRITEDATA, f);
	curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
	curl_easy_setopt(c, CURLOPT_HEADERDATA, f);
	if (config->tls) {
		curl_easy_setopt(c, CURLOPT_CAINFO, config->ca);
		curl_easy_setopt(c, CURLOPT_SSLCERT, config->certificate);
		curl_easy_setopt(c, CURLOPT_SSLKEY, config->key);
	}
	return f;
}

static int fetch_piece(struct fetch *f, const char *url, char *to, size_t size)
{
	long status = 0;
	CURLcode c;

	f->to = to;
	f->left = size;
	f->newer = 0;
	f->hashed = false;
	f->why[0] = '\0';
	curl_easy_setopt(f->curl, CURLOPT_URL, url);
	c = curl_easy_perform(f->curl);
	curl_easy_getinfo(f->curl, CURLINFO_RESPONSE_CODE, &status);
	if (status == GONE && !c)
		return -ENODATA;
	if (status && status != OK && status != GONE) {
		snprintf(f->why, sizeof(f->why), "the status of its answer is %ld", status);
		return status == UNAVAILABLE ? -EHOSTUNREACH : -EBADMSG;
	}
	if (c) {
		if (!*f->why)
			snprintf(f->why, sizeof(f->why), "%s", curl_easy_strerror(c));
		return c == CURLE_WRITE_ERROR ? -EBADMSG : -EHOSTUNREACH;
	}
	if (!f->left && f->hashed && XXH3_64bits(to, size) == f->hash)
		return 0;
	snprintf(f->why, sizeof(f->why), "a piece is %s", f->left ? "too short" : "damaged");
	return -EBADMSG;
}

int fetch_bytes(struct fetch *f, const char *url, const unsigned char ticket[TICKET_SIZE], void *to,
		uint64_t size)
{
	char whole[URL_MAX], id[2 * TICKET_SIZE + 1];
	int r = 0;

	ticket_write(ticket, id);
	for (uint64_t at = 0; !r && at < size; at += PIECE_SIZE) {
		size_t n = size - at < PIECE_SIZE ? (size_t)(size - at) : PIECE_SIZE;

		snprintf(whole, sizeof(whole), "%s/v1/%s/%" PRIu64, url, id, at / PIECE_SIZE);
		r = fetch_piece(f, whole, (char *)to + at, n);
	}
	return r;
}

const char *fetch_why(const struct fetch *f)
{
	return f->why;
}

const char *fetch_newer(const struct fetch *f, size_t *size)
{
	*size = f->newer;
	return f->message;
}

void fetch_close(struct fetch *f)
{
	if (!f)
		return;
	curl_easy_cleanup(f->curl);
	free(f);
}
