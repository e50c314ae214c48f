/* SPDX-License-Identifier: Apache-2.0 */
/* The two kinds of failure of a call, for the files of this folder. */
#pragma once

#include <errno.h>
#include <stdio.h>

#include "transfer/transfer.h"

/* For a refusal of the library, which has the text: leaves @why empty. */
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
