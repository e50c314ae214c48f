/* SPDX-License-Identifier: Apache-2.0 */
/* The connection to NATS, by which mirrors hear of each other. It reconnects for ever. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "mirror/config.h"

struct bus;

/* A callback for messages, called by threads of the bus, for each subscription by one at a time.
 * @reply: the subject for an answer; NULL: none is wanted. */
typedef void bus_message(void *context, const char *subject, const char *reply, const void *data,
			 size_t size);

/* A thread of the bus calls @on_connected whenever a connection is made, and when the server has
 * refused this host for good. The server need not run yet. 0, or a negative errno after a
 * message. */
int bus_open(struct bus **out, const struct config *config, void (*on_connected)(void *context),
	     void *context);
/* Returns 0 or a negative errno. */
int bus_subscribe(struct bus *bus, const char *subject, bus_message *message, void *context);
/* Returns how many messages of that subscription wait for their callback. */
unsigned bus_waiting(struct bus *bus, bus_message *message, const void *context);
/* Sends a message. Without a connection keeps it for later, as far as there is space. */
void bus_publish(struct bus *bus, const char *subject, const void *data, size_t size);
/* Returns whether this is the answer for which the caller waits. */
typedef bool bus_answer(void *context, const char *subject, const void *data, size_t size);
/* Asks, and calls @answer in this thread for each answer until it returns true, for 2 s at most.
 * Returns 0 or a negative errno. */
int bus_ask(struct bus *bus, const char *subject, const void *data, size_t size, bus_answer *answer,
	    void *context);
bool bus_is_up(struct bus *bus);
/* How often the connection was made again. */
unsigned bus_reconnects(struct bus *bus);
/* True if the server has refused this host for good: there will be no connection. */
bool bus_is_closed(struct bus *bus);
/* Closes the connection. After it has returned no callback runs. @bus may be NULL. */
void bus_close(struct bus *bus);
