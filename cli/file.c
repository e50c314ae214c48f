/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "cli/file.h"
#include "cli/format.h"

enum file_format cli_file_format(struct cli *cli, const char *path)
{
	enum file_format format;

	if (cli->format) {
		format = file_format_by_name(cli->format);
		if (format == FILE_FORMAT_UNKNOWN)
			cli_fail(cli, CLI_USAGE,
				 "--format must be npy, npz, safetensors, pb or png, not '%s'",
				 cli->format);
		return format;
	}
	format = file_format_of(path);
	if (format == FILE_FORMAT_UNKNOWN)
		cli_fail(
			cli, CLI_USAGE,
			"'%s' does not end in .npy, .npz, .safetensors, .pb or .png: name its format with --format",
			path);
	return format;
}

void json_tensor(cJSON *tensors, const char *name, DLDataType dtype, int ndim, const int64_t *shape,
		 uint64_t nbytes)
{
	cJSON *object = json_object(), *sizes = json_array();
	char *text = format_dtype(dtype);

	json_text(object, "name", name);
	json_text(object, "dtype", text);
	for (int i = 0; i < ndim; i++)
		json_i64(sizes, NULL, shape[i]);
	json_add(object, "shape", sizes);
	json_u64(object, "bytes", nbytes);
	json_add(tensors, NULL, object);
	free(text);
}
