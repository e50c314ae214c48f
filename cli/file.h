/* SPDX-License-Identifier: Apache-2.0 */
/* What load and save share. */
#pragma once

#include "cli/cli.h"
#include "cli/out.h"
#include "files/file.h"

/* The format that --format or the suffix of @path says; FILE_FORMAT_UNKNOWN after saying why not.
 */
enum file_format cli_file_format(struct cli *cli, const char *path);

/* Appends a tensor to an array. */
void json_tensor(cJSON *tensors, const char *name, DLDataType dtype, int ndim, const int64_t *shape,
		 uint64_t nbytes);
