/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <nats/nats.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "mirror/bus.h"
#include "util/clock.h"
#include "util/log.h"

enum { SUBSCRIPTIONS_MAX = 64, ASK_MS = 2000, RECONNECT_MS = 500 };

/* A server that leaves a ping unanswered for this long is away. That is noticed within 4 s, before
 * the hosts behind that server seem silent. */
enum { PING_MS = 2000 };

struct subscriber {
	bus_message *message;
	void *context;
	natsSubscription *subscription;
};

struct bus {
	natsConnection *connection;
	void (*on_connected)(void *context);
	void *context;
	struct subscriber subscribers[SUBSCRIPTIONS_MAX];
	size_t count;
	atomic_bool closing, up, closed;
	atomic_uint connections; /* how many there have been */
	atomic_llong warned_ns;
};

static void on_message(natsConnection *connection, natsSubscription *subscription, natsMsg *message,
		       void *closure)
{
	struct subscriber *s = closure;

	(void)connection;
	(void)subscription;
	s->message(s->context, natsMsg_GetSubject(message), natsMsg_GetReply(message),
		   natsMsg_GetData(message), (size_t)natsMsg_GetDataLength(message));
	natsMsg_Destroy(message);
}

static void on_up(natsConnection *connection, void *closure)
{
	struct bus *bus = closure;
	char id[64] = "";

	natsConnection_GetConnectedServerId(connection, id, sizeof(id));
	log_info("connected to NATS", "server=%s", log_str(id));
	atomic_fetch_add(&bus->connections, 1); /* first: see look_after(), import.c */
	atomic_store(&bus->up, true);
	bus->on_connected(bus->context);
}

/* Returns why the connection has ended, or NULL if bus_close() has ended it. */
static const char *down(struct bus *bus, natsConnection *connection)
{
	const char *why = NULL;

	atomic_store(&bus->up, false);
	natsConnection_GetLastError(connection, &why);
	if (atomic_load(&bus->closing))
		return NULL;
	return why && *why ? why : "it ended";
}

static void on_down(natsConnection *connection, void *closure)
{
	const char *why = down(closure, connection);

	if (why)
		log_warn("NATS is away; transfers go on", "why=%s", log_str(why));
}

/* The connection has ended for good, for example since the server refused our certificate twice. */
static void on_closed(natsConnection *connection, void *closure)
{
	struct bus *bus = closure;
	const char *why = down(bus, connection);

	if (!why)
		return;
	log_error("NATS has refused this host", "why=%s", log_str(why));
	atomic_store(&bus->closed, true);
	bus->on_connected(bus->context);
}

/* Logs errors, such as a subject that is not permitted, at most once a second. */
static void on_error(natsConnection *connection, natsSubscription *subscription, natsStatus status,
		     void *closure)
{
	struct bus *bus = closure;
	const char *why = NULL;

	(void)subscription;
	if (now_mono_ns() - atomic_load(&bus->warned_ns) < NS_PER_SEC)
		return;
	atomic_store(&bus->warned_ns, now_mono_ns());
	natsConnection_GetLastError(connection, &why);
	log_warn("NATS reports an error", "error=%s why=%s", log_str(natsStatus_GetText(status)),
		 log_str(why));
}

static natsStatus set_options(natsOptions *o, struct bus *bus, const struct config *config)
{
	natsStatus s = natsOptions_SetURL(o, config->nats);

	s = s ? s : natsOptions_SetName(o, config->host);
	s = s ? s : natsOptions_SetMaxReconnect(o, -1);
	s = s ? s : natsOptions_SetReconnectWait(o, RECONNECT_MS);
	s = s ? s : natsOptions_SetRetryOnFailedConnect(o, true, on_up, bus);
	s = s ? s : natsOptions_SetReconnectedCB(o, on_up, bus);
	s = s ? s : natsOptions_SetDisconnectedCB(o, on_down, bus);
	s = s ? s : natsOptions_SetErrorHandler(o, on_error, bus);
	s = s ? s : natsOptions_SetClosedCB(o, on_closed, bus);
	s = s ? s : natsOptions_SetNoEcho(o, true);
	s = s ? s : natsOptions_SetSendAsap(o, true);
	s = s ? s : natsOptions_SetPingInterval(o, PING_MS);
	s = s ? s : natsOptions_SetMaxPingsOut(o, 1);
	s = s ? s : natsOptions_SetWriteDeadline(o, ASK_MS);
	if (!config->tls)
		return s;
	s = s ? s : natsOptions_SetSecure(o, true);
	s = s ? s : natsOptions_LoadCATrustedCertificates(o, config->ca);
	return s ? s : natsOptions_LoadCertificatesChain(o, config->certificate, config->key);
}

/* Returns the URL without its user and password, for messages. */
static const char *without_user(const char *url)
{
	const char *at = strrchr(url, '@');

	return at ? at + 1 : url;
}

int bus_open(struct bus **out, const struct config *config, void (*on_connected)(void *context),
	     void *context)
{
	struct bus *bus = calloc(1, sizeof(*bus));
	natsOptions *options = NULL;
	natsStatus s = bus ? natsOptions_Create(&options) : NATS_NO_MEMORY;

	if (!s) {
		bus->on_connected = on_connected;
		bus->context = context;
		s = set_options(options, bus, config);
	}
	if (!s)
		s = natsConnection_Connect(&bus->connection, options);
	natsOptions_Destroy(options);
	if (s && s != NATS_NOT_YET_CONNECTED) {
		log_error("no connection to NATS can be made", "url=%s why=%s",
			  log_str(without_user(config->nats)), log_str(natsStatus_GetText(s)));
		free(bus);
		return -EIO;
	}
	*out = bus;
	if (!s)
		on_up(bus->connection, bus);
	else
		log_warn("NATS is not there yet, or refuses this host; its log may say why",
			 "url=%s why=%s", log_str(without_user(config->nats)),
			 log_str(nats_GetLastError(&s)));
	return 0;
}

int bus_subscribe(struct bus *bus, const char *subject, bus_message *message, void *context)
{
	struct subscriber *s = &bus->subscribers[bus->count];
	natsStatus status;

	if (bus->count == SUBSCRIPTIONS_MAX)
		return -ENOSPC;
	*s = (struct subscriber){ message, context, NULL };
	status = natsConnection_Subscribe(&s->subscription, bus->connection, subject, on_message,
					  s);
	if (status) {
		log_error("a subject cannot be heard", "subject=%s why=%s", log_str(subject),
			  log_str(natsStatus_GetText(status)));
		return status == NATS_NO_MEMORY ? -ENOMEM : -EIO;
	}
	natsSubscription_SetPendingLimits(s->subscription, -1, 256 << 20);
	bus->count++;
	return 0;
}

unsigned bus_waiting(struct bus *bus, bus_message *message, const void *context)
{
	int count = 0, bytes;

	for (size_t n = 0; n < bus->count; n++) {
		struct subscriber *s = &bus->subscribers[n];

		if (s->message == message && s->context == context &&
		    natsSubscription_GetPending(s->subscription, &count, &bytes))
			count = 0;
	}
	return (unsigned)count;
}

void bus_publish(struct bus *bus, const char *subject, const void *data, size_t size)
{
	natsStatus s = natsConnection_Publish(bus->connection, subject, data, (int)size);

	if (s) /* other hosts compare with the whole list, and recover */
		log_debug("a message was lost", "subject=%s why=%s", log_str(subject),
			  log_str(natsStatus_GetText(s)));
}

/* Waits for an answer that @answer accepts. Returns 0 or a negative errno. */
static int await_answer(natsSubscription *inbox, const char *subject, bus_answer *answer,
			void *context)
{
	const int64_t end = now_mono_ns() + ASK_MS * NS_PER_MS;
	int r = -EAGAIN;

	while (r == -EAGAIN) {
		const int64_t left_ms = (end - now_mono_ns()) / NS_PER_MS;
		natsMsg *message = NULL;
		natsStatus s = NATS_TIMEOUT;

		if (left_ms > 0)
			s = natsSubscription_NextMsg(&message, inbox, left_ms);
		if (s == NATS_NO_RESPONDERS || (!s && natsMsg_IsNoResponders(message)))
			r = -ENOENT;
		else if (s)
			r = -ETIMEDOUT;
		else if (answer(context, subject, natsMsg_GetData(message),
				(size_t)natsMsg_GetDataLength(message)))
			r = 0;
		natsMsg_Destroy(message);
	}
	return r;
}

int bus_ask(struct bus *bus, const char *subject, const void *data, size_t size, bus_answer *answer,
	    void *context)
{
	natsSubscription *inbox = NULL;
	natsInbox *name = NULL;
	natsStatus s = natsInbox_Create(&name);
	int r = -ETIMEDOUT;

	s = s ? s : natsConnection_SubscribeSync(&inbox, bus->connection, name);
	s = s ? s : natsConnection_PublishRequest(bus->connection, subject, name, data, (int)size);
	if (!s)
		r = await_answer(inbox, subject, answer, context);
	natsSubscription_Destroy(inbox);
	natsInbox_Destroy(name);
	return r;
}

bool bus_is_up(struct bus *bus)
{
	return atomic_load(&bus->up);
}

unsigned bus_reconnects(struct bus *bus)
{
	const unsigned n = atomic_load(&bus->connections);

	return n ? n - 1 : 0;
}

bool bus_is_closed(struct bus *bus)
{
	return atomic_load(&bus->closed);
}

void bus_close(struct bus *bus)
{
	if (!bus)
		return;
	atomic_store(&bus->closing, true);
	natsConnection_Close(bus->connection);
	for (size_t i = 0; i < bus->count; i++)
		natsSubscription_Destroy(bus->subscribers[i].subscription);
	natsConnection_Destroy(bus->connection);
	nats_CloseAndWait(0); /* waits for running callbacks */
	free(bus);
}
