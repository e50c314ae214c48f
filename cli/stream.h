/* SPDX-License-Identifier: Apache-2.0 */
/* What the verbs of `stream` share. Each gets the NAME, and what comes after it, in cli->args. */
#pragma once

#include <tensorlease/stream.h>

#include "cli/cli.h"

/* Reports an error about the stream cli->args[0]; says what is for tensors if that is one. */
int stream_fail(struct cli *cli, int error);
/* Connects, and opens the stream cli->args[0], which must be there. Returns an exit code. */
int stream_open(struct cli *cli, tl_stream **stream);

/* stream_items.c */
int stream_put(struct cli *cli);
int stream_tail(struct cli *cli);
