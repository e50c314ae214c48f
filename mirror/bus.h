/* SPDX-License-Identifier: Apache-2.0 */
/* The connection to NATS, by which mirrors hear of each other. It is made anew for ever. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "mirror/config.h"

struct bus;

/* Calls come from threads of the bus, those of one subscription one after the other. @reply: where
 * an answer goes, NULL: none is wanted. */
typedef void bus_message(void *context, const char *subject, const char *reply, const void *data,
			 size_t size);

/* @on_connected is called when there is a connection, at first and again, and when there will be
 * none any more, by a thread of the bus.
 * Returns 0 or a negative errno after an error message: the server need not be there yet. */
int bus_open(struct bus **out, const struct config *config, void (*on_connected)(void *context),
	     void *context);
/* Returns 0 or a negative errno. */
int bus_subscribe(struct bus *bus, const char *subject, bus_message *message, void *context);
/* Returns how many messages of that subscription have come and wait for their call. */
unsigned bus_waiting(struct bus *bus, bus_message *message, const void *context);
/* Sends, or keeps it while there is no connection, as far as it has space. */
void bus_publish(struct bus *bus, const char *subject, const void *data, size_t size);
/* Returns whether that is the answer that was waited for. */
typedef bool bus_answer(void *context, const char *subject, const void *data, size_t size);
/* Asks, and calls @answer in this thread with each answer until it returns true, for 2 s at most.
 * Returns 0 or a negative errno. */
int bus_ask(struct bus *bus, const char *subject, const void *data, size_t size, bus_answer *answer,
	    void *context);
bool bus_is_up(struct bus *bus);
/* How often a connection has followed a former one. */
unsigned bus_reconnects(struct bus *bus);
/* The server has refused this host: there will be no connection. */
bool bus_is_closed(struct bus *bus);
/* No message comes once it has returned. @bus may be NULL. */
void bus_close(struct bus *bus);
