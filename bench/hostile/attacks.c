/* SPDX-License-Identifier: Apache-2.0 */
/* The table of attacks. */
#include "bench/hostile/hostile.h"

static void start_nothing(struct attacker *a)
{
	(void)a;
}

static void step_nothing(struct attacker *a)
{
	(void)a;
}

static void step_sleep(struct attacker *a)
{
	(void)a;
	usleep(100000);
}

#define DOES(verb) .start = start_##verb, .step = step_##verb

const struct attack attacks[] = {
	{ "none", "nobody else", .start = start_nothing, .step = step_sleep },
	{ "spin", "a process that spins", .start = start_nothing, .step = step_nothing },
	{ "churn", "create and abort 4 KiB, all the time", DOES(churn) },
	{ "silent", "connect and say nothing", DOES(silent), .connections = 1100 },
	{ "waits", "64 creates on each connection that wait for space", DOES(waits) },
	{ "rescan", "100,000 retired tensors, and RELEASED with rescan", DOES(rescan) },
	{ "retired", "50,000 retired tensors, and connections that end", DOES(retired) },
	{ "lists", "CLIENTS and HOLDINGS with 130,000 tensors", DOES(lists), .connections = 8 },
	{ "tensors", "empty tensors until the table is full", DOES(tensors) },
	{ "exports", "exports until the table is full", DOES(exports) },
	{ "descriptors", "answers with descriptors that are not read", DOES(descriptors) },
	{ "unread", "questions whose answers are not read", DOES(unread) },
	{ "syncs", "SYNC, all the time", DOES(syncs) },
	{ "sleepers", "2,000 threads sleep on the victim's wake word", DOES(sleepers) },
	{ "holes", "punch holes into ledgers", DOES(holes) },
	{ "groups", "groups of 65,536 members", DOES(groups), .connections = 1 },
	{ "pins", "ledgers with pages in pipes, and connections that end", DOES(pins) },
	{ "stalled-log", "malformed messages, and nobody reads the log", DOES(malformed),
	  .log_is_stalled = true },
	{ "malformed", "malformed messages", DOES(malformed) },
	{ "floods", "messages with 32 descriptors that they must not have", DOES(floods) },
	{ "large", "create and abort 16 to 31 MiB", DOES(large), .victim_bytes = 512 * KIB },
	{ "unfit", "creates that cannot fit", DOES(unfit), .victim_bytes = 512 * KIB },
	{ "bucket", "64 names in the bucket of the victim's next name", DOES(bucket),
	  .connections = 1 },
	{ "truncate", "change the size of segments", DOES(truncate) },
	{ "linger", "descriptors that are slow to close", DOES(linger) },
	{ "orphans", "connections that end, and keep their ledgers", DOES(orphans) },
	{ "hoard", "two ledgers that hold every tensor", DOES(hoard), .victim_bytes = 512 * KIB },
	{ "members", "groups of 60,000 members, and connections that end", DOES(members),
	  .connections = 1 },
	{ "placed", "60,000 tensors on a device, and connections that end", DOES(placed),
	  .connections = 1 },
	{ "watches", "watches of every length that come and go", DOES(watches) },
	{ "storm", "connect and leave, all the time", DOES(storm) },
	{ "kills", "processes with 8 connections that are killed", DOES(kills) },
	{ 0 },
};
