/* SPDX-License-Identifier: Apache-2.0 */
/* Describes a tensor as text and as JSON: its properties, and its values. */
#pragma once

#include "cli/cli.h"
#include "cli/out.h"

/*
 * Returns "cpu", "cuda:0", or the UUID of a GPU that this process has not used. The caller frees
 * it.
 */
char *describe_device(const tl_info *info);

/* Print or add name, version, type, shape, size, device, age, owner and metadata. */
void describe_info(const struct cli *cli, const tl_info *info);
void describe_info_json(cJSON *to, const tl_info *info);

/* Print or add the smallest and largest value, the mean and the first values. @info describes
 * @tensor. */
void describe_values(const struct cli *cli, const tl_info *info, const DLTensor *tensor);
void describe_values_json(cJSON *to, const tl_info *info, const DLTensor *tensor);
