/* SPDX-License-Identifier: Apache-2.0 */
/* All names and streams at one moment: who publishes them, how fast, and who reads them. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <tensorlease/admin.h>
#include <tensorlease/tensorlease.h>

#include "cli/out.h"

/* A name, or a stream. */
struct overview_row {
	char *name;
	char *type, *shape, *device; /* of a stream: its mode; its length and depth; "stream" */
	bool stream;
	uint64_t version; /* a stream's: the number of its next item */
	uint64_t nbytes;  /* of the tensor, or of the items of a stream */
	uint64_t committed_ns;
	uint32_t ring; /* slots */
	uint32_t uid;
	tl_identity publisher;	 /* a stream has none */
	double rate, bytes_rate; /* versions and bytes a second */
	uint32_t readers;	 /* clients that hold a tensor of it; subscribers of a stream */
	uint64_t last_reader;
};

struct overview {
	struct overview_row *rows; /* sorted by name */
	size_t count;
	int64_t taken_ns; /* CLOCK_MONOTONIC */
};

/* Looks at what lies at and below @path. Returns 0 or a negative errno. overview_deinit() in either
 * case. */
int overview_take(tl_client *client, const char *path, struct overview *o);
/* Fills the rates of @now, from what was there @before. */
void overview_rates(struct overview *now, const struct overview *before);
/* Takes one now and one a second later, with rates. */
int overview_measure(tl_client *client, const char *path, struct overview *o);
struct overview_row *overview_find(const struct overview *o, const char *name);
void overview_deinit(struct overview *o);

/* The place of the client with that id among @clients, as tl_list_clients() tells them, by id;
 * @count: it is not there. */
size_t overview_client(const tl_client_info *clients, size_t count, uint64_t id);

/* Returns "camera.py", or what is known, such as "-"; the caller frees it. */
char *overview_publisher(const tl_identity *who);
/* Returns a rate as "29.9" or "0.52"; the caller frees it. */
char *overview_rate(double rate);
void overview_identity_json(cJSON *to, const char *key, const tl_identity *who);
