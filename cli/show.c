/* SPDX-License-Identifier: Apache-2.0 */
/* show: draws a tensor as a picture, or prints numbers and a histogram of it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/describe.h"
#include "cli/element.h"
#include "cli/format.h"
#include "cli/histogram.h"
#include "cli/out.h"
#include "cli/picture.h"
#include "cli/progress.h"
#include "files/png.h"

enum { COLUMNS = 80, LINES = 40, PROMPT = 3, CELLS_MAX = 1000, PICTURE_LEAST = 8 };

/* ---- the space on the terminal ---- */

static unsigned environment(const char *name, unsigned otherwise)
{
	const char *text = getenv(name);
	long n = text ? strtol(text, NULL, 10) : 0;

	return n > 0 && n <= CELLS_MAX ? (unsigned)n : otherwise;
}

static void find_size(const struct cli *cli, unsigned *columns, unsigned *lines)
{
	struct winsize size;

	*columns = COLUMNS;
	*lines = LINES;
	if (cli->terminal && !ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) && size.ws_col) {
		*columns = size.ws_col;
		if (size.ws_row > 2 * PROMPT)
			*lines = size.ws_row - PROMPT;
	}
	*columns = environment("COLUMNS", *columns);
	*lines = environment("LINES", *lines);
}

static bool use_colour(const struct cli *cli)
{
	const char *no = getenv("NO_COLOR"), *term = getenv("TERM");

	return cli->terminal && !(no && *no) && !(term && !strcmp(term, "dumb"));
}

/* ---- output ---- */

static void print_title(const tl_info *info)
{
	char *dtype = format_dtype(info->dtype), *shape = format_shape(info->shape, info->ndim);

	cli_print("%s version %" PRIu64 ": %s %s\n", info->name, info->version, dtype, shape);
	free(dtype);
	free(shape);
}

static void number(const char *key, double value)
{
	char text[FORMAT_NUMBER];

	format_double(value, text);
	printf("%s %s", key, text);
}

static void print_values(const struct cli *cli, const struct elements *e)
{
	struct histogram h = histogram_of(e);
	unsigned columns, lines;

	find_size(cli, &columns, &lines);
	histogram_print(&h, columns);
	printf("count %" PRIu64, h.values);
	if (h.bins) {
		number(", min", h.low);
		number(", max", h.high);
		number(", mean", h.mean);
	}
	if (h.nans)
		printf(", %" PRIu64 " NaN", h.nans);
	if (h.infinities)
		printf(", %" PRIu64 " infinite", h.infinities);
	putchar('\n');
}

static void print_json(const struct cli *cli, const tl_info *info, const DLTensor *tensor,
		       const struct elements *e, const struct picture *p)
{
	struct histogram h = histogram_of(e);
	cJSON *object = json_object(), *image;

	describe_info_json(object, info);
	describe_values_json(object, info, tensor);
	json_u64(object, "count", h.values);
	histogram_json(object, &h);
	if (p) {
		image = json_object();
		json_u64(image, "width", p->width);
		json_u64(image, "height", p->height);
		json_i64(image, "channels", p->channels);
		json_add(object, "image", image);
	}
	if (cli->output)
		json_text(object, "file", cli->output);
	json_print(object);
}

/* ---- drawing ---- */

static int write_png(struct cli *cli, const tl_info *info, const struct picture *p)
{
	const struct png png = { p->width, p->height, p->channels, p->pixels };
	char why[FILE_ERROR_TEXT];
	struct progress progress;
	int r;

	progress_start_file(&progress, "writing", cli->output);
	r = png_write(cli->output, &png, progress_step, progress_interrupted, &progress, why,
		      sizeof(why));
	progress_end(&progress);
	if (r)
		return cli_fail(cli, CLI_FAILURE, "%s", why);
	if (cli->terminal && !cli->json && strcmp(cli->output, "-") != 0)
		cli_print("%s version %" PRIu64 ", %" PRIu32 " x %" PRIu32 " pixels, drawn to %s\n",
			  info->name, info->version, p->width, p->height, cli->output);
	return CLI_OK;
}

static int refuse(struct cli *cli, const tl_info *info)
{
	char *dtype = format_dtype(info->dtype), *shape = format_shape(info->shape, info->ndim);
	int r;

	r = cli_fail(
		cli, CLI_FAILURE,
		"%s is no picture, but %s %s: that takes HxW, HxWx3, HxWx4, or CxHxW with 1, 3 "
		"or 4 channels, of at most 2^30 numbers",
		info->name, dtype, shape);
	free(dtype);
	free(shape);
	return r;
}

/* Other types are more likely to be numbers than a picture, and so is a small matrix. */
static bool looks_like_one(const struct picture *p, const struct elements *e)
{
	if (e->kind != VALUE_BOOL && !(e->kind == VALUE_UINT && e->bits == 8))
		return false;
	return p->channels > 1 || (p->width >= PICTURE_LEAST && p->height >= PICTURE_LEAST);
}

static int show(struct cli *cli, const tl_info *info, const DLTensor *tensor,
		const struct elements *e)
{
	unsigned columns, lines;
	struct picture p;
	bool asked = cli->output || cli->given & OPTION_PICTURE;
	bool is_picture = picture_init(&p, info, e) && (asked || looks_like_one(&p, e));
	int r = CLI_OK;

	if (asked && !is_picture)
		return refuse(cli, info);
	if (is_picture && (cli->output || !cli->json))
		picture_draw(&p, e);
	if (cli->output)
		r = write_png(cli, info, &p);
	if (!r && cli->json && !(cli->output && !strcmp(cli->output, "-"))) {
		print_json(cli, info, tensor, e, is_picture ? &p : NULL);
	} else if (!r && !cli->output && is_picture) {
		find_size(cli, &columns, &lines);
		print_title(info);
		picture_print(stdout, &p, columns, lines, use_colour(cli));
	} else if (!r && !cli->output) {
		print_title(info);
		print_values(cli, e);
	}
	picture_deinit(&p);
	return r;
}

int command_show(struct cli *cli)
{
	DLManagedTensorVersioned *tensor;
	const DLTensor *t;
	struct elements e;
	tl_info info = { .size = sizeof(info) };
	int r;

	r = cli->output ? cli_check_output(cli, cli->output, "png") : CLI_OK;
	if (r)
		return r;
	tensor = cli_get(cli, 0, &info, &r);
	if (!tensor)
		return r;
	t = &tensor->dl_tensor;
	if (t->device.device_type == kDLCPU && t->data)
		elements_init(&e, &info, (const char *)t->data + t->byte_offset);
	else
		elements_init(&e, &info, NULL);
	if (t->device.device_type != kDLCPU)
		r = cli_fail(cli, CLI_FAILURE, "'%s' is on a GPU: its values cannot be shown",
			     info.name);
	else if (e.kind == VALUE_NONE)
		r = cli_fail(cli, CLI_FAILURE, "'%s' has values that cannot be shown", info.name);
	else
		r = show(cli, &info, t, &e);
	elements_deinit(&e);
	tensor->deleter(tensor);
	return r;
}
