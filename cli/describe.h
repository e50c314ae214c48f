/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor in words and in JSON: what is known of it, and what its values are. */
#pragma once

#include "cli/cli.h"
#include "cli/out.h"

/* "cpu", "cuda:0", or "cuda:UUID" where this process has not used the GPU. The caller's to free. */
char *describe_device(const tl_info *info);

/* Name, version, type, shape, size, device, age, owner, metadata. */
void describe_info(const struct cli *cli, const tl_info *info);
void describe_info_json(cJSON *to, const tl_info *info);

/* Smallest, largest, mean and first values. @tensor is what @info tells about. */
void describe_values(const struct cli *cli, const tl_info *info, const DLTensor *tensor);
void describe_values_json(cJSON *to, const tl_info *info, const DLTensor *tensor);
