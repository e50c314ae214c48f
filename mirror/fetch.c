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
#include "util/clock.h"

#define PATIENCE_NS (10 * NS_PER_SEC) /* the longest pause between two pieces */
#define STARVED_NS (6 * NS_PER_SEC)   /* the same, for a host that relays and waits itself */
#define NOT_YET_NS (4 * NS_PER_MS)    /* until a host that waits for the piece is asked again */
#define FAILED_NS (NS_PER_SEC / 4)    /* until the origin is asked again after a failure */

enum { CONNECT_S = 3, STALL_S = 3, BUFFER = 512 << 10, URL_MAX = 256, MESSAGE_MAX = 64 << 20 };
enum { LANES = 2 }; /* connections: while one receives bytes the other asks */
enum { OK = 200, NOT_YET = 202, MOVED = 307, GONE = 410, UNAVAILABLE = 503 };

struct want {
	uint64_t piece;
	char *to; /* NULL: a message is wanted, not a piece */
	size_t size;
};

/* A connection, and the piece that it fetches. */
struct lane {
	struct fetch *fetch;
	CURL *curl;
	bool busy;	    /* it has a piece to fetch */
	bool asked;	    /* it has asked for the piece; otherwise it asks at `ask_ns` */
	bool hashed;	    /* `hash` has come */
	char from[URL_MAX]; /* as in struct fetch */
	int64_t ask_ns;
	struct want want;
	uint64_t hash;
	char *to; /* where the rest of the piece goes */
	size_t left;
	size_t message_size; /* of `message`, which came in place of the piece */
	char *message;
	char moved[URL_MAX]; /* the URL of a redirect */
	struct curl_slist *headers;
	char why[CURL_ERROR_SIZE];
};

struct fetch {
	const struct config *config;
	const char *url; /* this host's */
	const atomic_bool *stop;
	struct pace *pace;
	CURLM *multi;
	struct lane lanes[LANES];
	/* the transfer: */
	const struct source *source;
	size_t member;	    /* the member to which the next piece belongs */
	uint64_t first, at; /* that member's first piece; the offset of the next one */
	size_t left;	    /* pieces that have not come */
	bool begun;	 /* a piece comes; before, one lane asks: it may learn of a newer version */
	int64_t came_ns; /* when the last one came */
	char from[URL_MAX];	  /* the host that is asked; "": the origin */
	char lost[URL_MAX];	  /* the host that does not answer */
	const struct lane *newer; /* the lane with the message about a newer version */
	char why[CURL_ERROR_SIZE + 64];
};

/* ---- what curl calls ---- */

static bool add_message(struct lane *l, const char *bytes, size_t n)
{
	char *grown = n < MESSAGE_MAX - l->message_size ? realloc(l->message, l->message_size + n)
							: NULL;

	if (!grown)
		return false;
	l->message = grown;
	memcpy(grown + l->message_size, bytes, n);
	l->message_size += n;
	return true;
}

static size_t on_bytes(char *bytes, size_t one, size_t n, void *context)
{
	struct lane *l = context;
	long status = 0;

	(void)one;
	curl_easy_getinfo(l->curl, CURLINFO_RESPONSE_CODE, &status);
	if (status != OK || !l->want.to) { /* a message about a newer version, or an error text */
		return add_message(l, bytes, n) ? n : 0;
	}
	if (n > l->left)
		return 0; /* ends the request */
	memcpy(l->to, bytes, n);
	l->to += n;
	l->left -= n;
	return n;
}

/* Returns the value of a header line, without spaces, or NULL if the line is another header. */
static const char *value_of(const char *line, size_t n, const char *key, char value[URL_MAX])
{
	const size_t len = strlen(key);

	if (n <= len || n - len >= URL_MAX || strncasecmp(line, key, len) != 0)
		return NULL;
	memcpy(value, line + len, n - len);
	value[n - len] = '\0';
	value[strcspn(value, "\r\n")] = '\0';
	return value + strspn(value, " ");
}

static size_t on_header(char *line, size_t one, size_t n, void *context)
{
	struct lane *l = context;
	char text[URL_MAX];
	const char *value;

	(void)one;
	if ((value = value_of(line, n, "X-Xxh3:", text)))
		l->hashed = l->fetch->begun = sscanf(value, "%" SCNx64, &l->hash) == 1;
	else if ((value = value_of(line, n, "Location:", text)))
		strcpy(l->moved, value);
	return n;
}

/* Ends the request once `stop` is set. */
static int on_progress(void *context, curl_off_t all, curl_off_t now, curl_off_t out_all,
		       curl_off_t out)
{
	const struct fetch *f = context;

	(void)all;
	(void)now;
	(void)out_all;
	(void)out;
	return atomic_load(f->stop);
}

/* ---- start and end ---- */

bool fetch_is_url(const struct config *config, const char *url)
{
	const char *scheme = config->tls ? "https://" : "http://";
	const size_t len = strlen(scheme);

	return !strncmp(url, scheme, len) && url[len] && strlen(url) < URL_MAX / 2 &&
	       !url[len + strspn(url + len, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
					    "0123456789-.:[]")];
}

static int lane_open(struct lane *l, struct fetch *f)
{
	CURL *c = curl_easy_init();

	if (!c)
		return -ENOMEM;
	l->fetch = f;
	l->curl = c;
	curl_easy_setopt(c, CURLOPT_ERRORBUFFER, l->why);
	curl_easy_setopt(c, CURLOPT_PRIVATE, l);
	curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
	curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
	curl_easy_setopt(c, CURLOPT_XFERINFODATA, f);
	curl_easy_setopt(c, CURLOPT_NOPROXY, "*");
	curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, f->config->tls ? "https" : "http");
	curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
	curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
	curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)STALL_S);
	curl_easy_setopt(c, CURLOPT_BUFFERSIZE, (long)BUFFER);
	curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_bytes);
	curl_easy_setopt(c, CURLOPT_WRITEDATA, l);
	curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
	curl_easy_setopt(c, CURLOPT_HEADERDATA, l);
	if (f->config->tls) {
		curl_easy_setopt(c, CURLOPT_CAINFO, f->config->ca);
		curl_easy_setopt(c, CURLOPT_SSLCERT, f->config->certificate);
		curl_easy_setopt(c, CURLOPT_SSLKEY, f->config->key);
	}
	return 0;
}

struct fetch *fetch_open(const struct config *config, const char *url, const atomic_bool *stop,
			 struct pace *pace)
{
	struct fetch *f = calloc(1, sizeof(*f));
	int r = 0;

	if (!f)
		return NULL;
	f->config = config;
	f->url = url;
	f->stop = stop;
	f->pace = pace;
	f->multi = curl_multi_init();
	if (!f->multi)
		r = -ENOMEM;
	for (unsigned n = 0; !r && n < LANES; n++)
		r = lane_open(&f->lanes[n], f);
	if (!r)
		return f;
	fetch_close(f);
	return NULL;
}

void fetch_close(struct fetch *f)
{
	if (!f)
		return;
	for (unsigned n = 0; n < LANES; n++) {
		curl_easy_cleanup(f->lanes[n].curl);
		curl_slist_free_all(f->lanes[n].headers);
		free(f->lanes[n].message);
	}
	curl_multi_cleanup(f->multi);
	free(f);
}

const char *fetch_why(const struct fetch *f)
{
	return f->why;
}

const char *fetch_newer(const struct fetch *f, size_t *size)
{
	*size = f->newer ? f->newer->message_size : 0;
	return f->newer ? f->newer->message : "";
}

/* ---- a transfer ---- */

/* Adds the header NAME: VALUE. Returns 0 or -ENOMEM. */
static int add_header(struct lane *l, const char *name, const char *value)
{
	char text[URL_MAX + 16];
	struct curl_slist *more;

	snprintf(text, sizeof(text), "%s: %s", name, value);
	more = curl_slist_append(l->headers, text);
	if (more)
		l->headers = more;
	return more ? 0 : -ENOMEM;
}

static int set_headers(const struct fetch *f, struct lane *l)
{
	char want[24];

	curl_slist_free_all(l->headers);
	l->headers = NULL;
	if (add_header(l, "X-Host", f->config->host) ||
	    (f->url && add_header(l, "X-Url", f->url)) ||
	    (*f->lost && add_header(l, "X-Lost", f->lost)))
		return -ENOMEM;
	snprintf(want, sizeof(want), "%zu", f->left);
	if (!f->begun && l->want.to && add_header(l, "X-Want", want))
		return -ENOMEM;
	curl_easy_setopt(l->curl, CURLOPT_HTTPHEADER, l->headers);
	return 0;
}

static int ask(struct fetch *f, struct lane *l)
{
	char url[URL_MAX], id[2 * TICKET_SIZE + 1];

	strcpy(l->from, f->from);
	l->asked = true;
	l->to = l->want.to;
	l->left = l->want.size;
	l->message_size = 0;
	l->hashed = false;
	l->moved[0] = l->why[0] = '\0';
	ticket_write(f->source->ticket, id);
	snprintf(url, sizeof(url), "%s/v1/%s/%" PRIu64, *l->from ? l->from : f->source->url, id,
		 l->want.piece);
	curl_easy_setopt(l->curl, CURLOPT_URL, url);
	return set_headers(f, l) || curl_multi_add_handle(f->multi, l->curl) ? -ENOMEM : 0;
}

static void ask_again(struct lane *l, int64_t after_ns)
{
	l->asked = false;
	l->ask_ns = now_mono_ns() + after_ns;
}

/* Handles a failure of the host that was asked. Returns 0 to try again, or a negative errno. */
static int failed(struct fetch *f, struct lane *l, int r)
{
	if (!*l->from && r == -EBADMSG)
		return r;
	ask_again(l, *l->from ? 0 : FAILED_NS);
	if (*l->from && !strcmp(l->from, f->from)) { /* tell the origin, which names another host */
		strcpy(f->lost, f->from);
		if (f->source->lost)
			atomic_fetch_add(f->source->lost, 1);
		f->from[0] = '\0';
		f->begun = false;
	}
	return 0;
}

/* Handles a redirect: the origin has named a host that has the version. */
static int moved(struct fetch *f, struct lane *l)
{
	char *end = strstr(l->moved, "/v1/");

	if (end)
		*end = '\0';
	if (*l->from || !end || !fetch_is_url(f->config, l->moved)) {
		snprintf(f->why, sizeof(f->why),
			 "it names another host, and none that can be asked");
		return failed(f, l, -EBADMSG);
	}
	if (!*f->from)
		strcpy(f->from, l->moved);
	if (!strcmp(f->from, f->lost)) { /* the origin does not know yet that it is lost */
		f->from[0] = '\0';
		ask_again(l, FAILED_NS);
		return 0;
	}
	ask_again(l, 0);
	return 0;
}

static int not_yet(struct fetch *f, struct lane *l)
{
	if (*l->from && now_mono_ns() - f->came_ns > STARVED_NS) {
		snprintf(f->why, sizeof(f->why), "a host that relays gets no bytes");
		return failed(f, l, -EHOSTUNREACH);
	}
	ask_again(l, NOT_YET_NS);
	return 0;
}

/* Handles the end of a request. Returns 0; 1: its piece has come; or a negative errno. */
static int take(struct fetch *f, struct lane *l, CURLcode c)
{
	long status = 0, error = 0;

	curl_easy_getinfo(l->curl, CURLINFO_RESPONSE_CODE, &status);
	curl_multi_remove_handle(f->multi, l->curl);
	if (c) {
		snprintf(f->why, sizeof(f->why), "%s", *l->why ? l->why : curl_easy_strerror(c));
		curl_easy_getinfo(l->curl, CURLINFO_OS_ERRNO, &error);
		if (c == CURLE_COULDNT_CONNECT && error == ECONNREFUSED && !*l->from)
			return -EHOSTUNREACH; /* the origin has ended, and its tickets with it */
		return failed(f, l, c == CURLE_WRITE_ERROR ? -EBADMSG : -EHOSTUNREACH);
	}
	if (status == NOT_YET)
		return not_yet(f, l);
	if (status == MOVED)
		return moved(f, l);
	if (status == GONE && !*l->from) {
		f->newer = l;
		return -ENODATA;
	}
	if (status != OK) {
		snprintf(f->why, sizeof(f->why), "the status of its answer is %ld", status);
		return failed(f, l, status == UNAVAILABLE ? -EHOSTUNREACH : -EBADMSG);
	}
	if (!l->left && l->hashed && XXH3_64bits(l->want.to, l->want.size) == l->hash)
		return 1;
	snprintf(f->why, sizeof(f->why), "a piece is %s", l->left ? "too short" : "damaged");
	return failed(f, l, -EBADMSG);
}

/* Returns how long to wait before a piece of @size bytes may be requested. */
static int64_t pace_wait(struct pace *pace, size_t size)
{
	const int64_t now = now_mono_ns();
	int64_t next = atomic_load(&pace->next_ns), at;

	if (!pace->rate)
		return 0;
	do
		at = next > now ? next : now;
	while (!atomic_compare_exchange_weak(&pace->next_ns, &next,
					     at + (int64_t)size * NS_PER_SEC /
							     ((int64_t)pace->rate << 20)));
	return at - now;
}

/* Finds the next piece to fetch. Returns false if there is none left. */
static bool next_want(struct fetch *f, struct want *want)
{
	for (; f->member < f->source->count; f->member++) {
		const struct member *m = &f->source->members[f->member];

		if (m->to && f->at < m->nbytes) {
			const uint64_t left = m->nbytes - f->at;

			*want = (struct want){ f->first + f->at / PIECE_SIZE, (char *)m->to + f->at,
					       left < PIECE_SIZE ? (size_t)left : PIECE_SIZE };
			f->at += PIECE_SIZE;
			return true;
		}
		f->first += pieces_of(m->nbytes);
		f->at = 0;
	}
	return false;
}

/* Gives each idle lane a piece, and sends requests. Returns how long to wait, in ms; -1: all pieces
 * have come; or a negative errno. */
static int ask_all(struct fetch *f)
{
	int64_t wait = NS_PER_SEC / 5, left;
	bool busy = false;

	for (unsigned n = 0; n < LANES; n++)
		busy |= f->lanes[n].busy;
	for (unsigned n = 0; n < LANES; n++) {
		struct lane *l = &f->lanes[n];

		if (!l->busy && (f->begun || !busy) && next_want(f, &l->want)) {
			l->busy = true;
			ask_again(l, pace_wait(f->pace, l->want.size));
			if (l->ask_ns > f->came_ns)
				f->came_ns = l->ask_ns; /* PATIENCE_NS counts from then */
		}
		busy |= l->busy;
		if (!l->busy || l->asked)
			continue;
		left = l->ask_ns - now_mono_ns();
		if (left > 0 && left < wait)
			wait = left;
		if (left <= 0 && ask(f, l))
			return -ENOMEM;
	}
	return busy ? (int)((wait + NS_PER_MS - 1) / NS_PER_MS) : -1;
}

/* Returns whether a request has ended, or a negative errno. */
static int take_all(struct fetch *f,
		    void (*came)(void *context, uint64_t piece, size_t size, uint64_t hash),
		    void *context)
{
	struct CURLMsg *message;
	int left, r = 0, taken = 0;

	while (r >= 0 && (message = curl_multi_info_read(f->multi, &left))) {
		struct lane *l;

		if (message->msg != CURLMSG_DONE)
			continue;
		curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &l);
		r = take(f, l, message->data.result);
		taken = 1;
		if (r <= 0)
			continue;
		l->busy = l->asked = false;
		f->came_ns = now_mono_ns();
		f->left--;
		came(context, l->want.piece, l->want.size, l->hash);
	}
	return r < 0 ? r : taken;
}

int fetch_bytes(struct fetch *f, const struct source *source,
		void (*came)(void *context, uint64_t piece, size_t size, uint64_t hash),
		void *context)
{
	int running, wait = 0, r = 0;

	f->source = source;
	f->member = 0;
	f->first = f->at = 0;
	f->left = 0;
	for (size_t n = 0; n < source->count; n++)
		f->left += source->members[n].to ? pieces_of(source->members[n].nbytes) : 0;
	f->came_ns = now_mono_ns();
	f->from[0] = f->lost[0] = f->why[0] = '\0';
	f->newer = NULL;
	f->begun = false;
	for (;;) {
		wait = ask_all(f);
		if (wait < 0)
			break;
		curl_multi_perform(f->multi, &running);
		r = take_all(f, came, context);
		if (r >= 0 && (atomic_load(f->stop) || now_mono_ns() - f->came_ns > PATIENCE_NS))
			r = -EHOSTUNREACH;
		if (r < 0)
			break;
		if (!r)
			curl_multi_poll(f->multi, NULL, 0, wait, NULL);
	}
	for (unsigned n = 0; n < LANES; n++) {
		if (f->lanes[n].asked)
			curl_multi_remove_handle(f->multi, f->lanes[n].curl);
		f->lanes[n].busy = f->lanes[n].asked = false;
	}
	return wait < -1 ? wait : r < 0 ? r : 0;
}

int fetch_message(struct fetch *f, const char *url, const unsigned char ticket[TICKET_SIZE],
		  const char *what, const struct fetch_header *headers)
{
	struct lane *l = &f->lanes[0];
	char whole[URL_MAX], id[2 * TICKET_SIZE + 1], value[24];
	long status = 0;
	CURLcode c;

	ticket_write(ticket, id);
	snprintf(whole, sizeof(whole), "%s/v1/%s/%s", url, id, what);
	f->lost[0] = '\0';
	f->newer = l;
	l->want = (struct want){ 0 };
	l->message_size = 0;
	if (set_headers(f, l))
		return -ENOMEM;
	for (; headers && headers->name; headers++) {
		snprintf(value, sizeof(value), "%" PRIu64, headers->value);
		if (add_header(l, headers->name, value))
			return -ENOMEM;
	}
	curl_easy_setopt(l->curl, CURLOPT_HTTPHEADER, l->headers);
	curl_easy_setopt(l->curl, CURLOPT_URL, whole);
	c = curl_easy_perform(l->curl);
	curl_easy_getinfo(l->curl, CURLINFO_RESPONSE_CODE, &status);
	if (!c && status == OK)
		return 0;
	snprintf(f->why, sizeof(f->why), "%s",
		 c ? curl_easy_strerror(c) : "there is no such message");
	return c ? -EHOSTUNREACH : status == NOT_YET ? -EAGAIN : -ENODATA;
}
