/* SPDX-License-Identifier: Apache-2.0 */
/* File arguments of load and save. */
#pragma once

#include "cli/cli.h"
#include "cli/out.h"
#include "files/file.h"

/* Returns the format that --format or the suffix of @path names, or FILE_FORMAT_UNKNOWN after
 * reporting the error. */
enum file_format cli_file_format(struct cli *cli, const char *path);

/* Appends a description of a tensor to the JSON array @tensors. */
void json_tensor(cJSON *tensors, const char *name, DLDataType dtype, int ndim, const int64_t *shape,
		 uint64_t nbytes);
