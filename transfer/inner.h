/* SPDX-License-Identifier: Apache-2.0 */
/* The two ways in which a call fails, for the files of this folder. */
#pragma once

#include <errno.h>
#include <stdio.h>

#include "transfer/transfer.h"

/* The library refused and has the text, so that @why stays empty. */
static inline int library(int r, char *why)
{
	*why = '\0';
	return r;
}

static inline int no_memory(char *why)
{
	snprintf(why, FILE_ERROR_TEXT, "there is no memory for the names");
	return -ENOMEM;
}
