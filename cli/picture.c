/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/out.h"
#include "cli/picture.h"

/* ---- the kind of picture ---- */

static bool is_channels(int64_t n)
{
	return n == 1 || n == 3 || n == 4;
}

bool picture_init(struct picture *p, const tl_info *info, const struct elements *e)
{
	int64_t shape[TL_NDIM_MAX + 1];
	int ndim = info->ndim;

	*p = (struct picture){ .channels = 1 };
	if (e->kind == VALUE_NONE || e->kind == VALUE_COMPLEX || !e->count ||
	    e->count > PICTURE_VALUES_MAX)
		return false;
	memcpy(shape, info->shape, sizeof(*shape) * (size_t)ndim);
	if (info->dtype.lanes > 1)
		shape[ndim++] = info->dtype.lanes;
	if (ndim == 3 && (shape[2] == 3 || shape[2] == 4)) {
		p->channels = (int)shape[2];
	} else if (ndim == 3 && is_channels(shape[0])) {
		p->channels = (int)shape[0];
		p->planes = true;
		shape[0] = shape[1];
		shape[1] = shape[2];
	} else if (ndim != 2 && !(ndim == 3 && shape[2] == 1)) {
		return false;
	}
	p->height = (uint32_t)shape[0]; /* at most PICTURE_VALUES_MAX, and none is 0 */
	p->width = (uint32_t)shape[1];
	return true;
}

void picture_deinit(struct picture *p)
{
	free(p->pixels);
	p->pixels = NULL;
}

/* ---- values to pixels ---- */

struct scale {
	double low, factor; /* both for half a colour, since the whole range may overflow */
	double alpha_factor;
};

static int channel_of(const struct picture *p, uint64_t value)
{
	if (p->planes)
		return (int)(value / ((uint64_t)p->width * p->height));
	return (int)(value % (uint64_t)p->channels);
}

static struct scale scale_of(const struct picture *p, const struct elements *e)
{
	double low = INFINITY, high = -INFINITY, values[VALUE_BLOCK];
	struct scale s = { .factor = 2, .alpha_factor = 1 };
	size_t n;

	if (e->kind == VALUE_BOOL)
		return (struct scale){ .factor = 2 * 255, .alpha_factor = 255 };
	if (e->kind == VALUE_UINT && e->bits == 8)
		return s;
	s.alpha_factor = 255;
	if (e->kind != VALUE_FLOAT)
		s.alpha_factor /= exp2(e->bits - (e->kind == VALUE_INT)) - 1;
	for (uint64_t at = 0; (n = elements_doubles(e, at, values)) > 0; at += n) {
		for (size_t i = 0; i < n; i++) {
			if (!isfinite(values[i]) || channel_of(p, at + i) == 3)
				continue;
			low = fmin(low, values[i]);
			high = fmax(high, values[i]);
		}
	}
	if (low <= high)
		s.low = low / 2;
	s.factor = high > low ? 255 / (high / 2 - low / 2) : 0;
	return s;
}

static unsigned char to_byte(double v)
{
	if (!(v > 0)) /* also true for NaN */
		return 0;
	return v < 255 ? (unsigned char)lround(v) : 255;
}

void picture_draw(struct picture *p, const struct elements *e)
{
	struct scale s = scale_of(p, e);
	uint64_t area = (uint64_t)p->width * p->height;
	double values[VALUE_BLOCK];
	size_t n;

	p->pixels = cli_need(malloc(e->count));
	for (uint64_t at = 0; (n = elements_doubles(e, at, values)) > 0; at += n) {
		for (size_t i = 0; i < n; i++) {
			int channel = channel_of(p, at + i);
			uint64_t to = at + i;

			if (p->planes)
				to = (to % area) * (uint64_t)p->channels + (uint64_t)channel;
			p->pixels[to] = to_byte(channel == 3 ? values[i] * s.alpha_factor
							     : (values[i] / 2 - s.low) * s.factor);
		}
	}
}

/* ---- on a terminal ---- */

/* Averages a box of pixels on black. */
static void box(const struct picture *p, const uint32_t x[2], const uint32_t y[2],
		unsigned char rgb[3])
{
	double sum[3] = { 0 }, area = (double)(x[1] - x[0]) * (y[1] - y[0]);
	int c = p->channels;

	for (uint32_t row = y[0]; row < y[1]; row++) {
		const unsigned char *at = p->pixels + ((size_t)row * p->width + x[0]) * (size_t)c;

		for (uint32_t column = x[0]; column < x[1]; column++, at += c) {
			double alpha = c == 4 ? at[3] / 255.0 : 1;

			for (int i = 0; i < 3; i++)
				sum[i] += alpha * at[c == 1 ? 0 : i];
		}
	}
	for (int i = 0; i < 3; i++)
		rgb[i] = to_byte(sum[i] / area);
}

static unsigned char *shrink(const struct picture *p, uint32_t width, uint32_t height)
{
	unsigned char *small = cli_need(malloc(3UL * width * height));

	for (uint32_t y = 0; y < height; y++) {
		const uint32_t rows[2] = { (uint32_t)((uint64_t)y * p->height / height),
					   (uint32_t)((y + 1ULL) * p->height / height) };

		for (uint32_t x = 0; x < width; x++) {
			const uint32_t columns[2] = { (uint32_t)((uint64_t)x * p->width / width),
						      (uint32_t)((x + 1ULL) * p->width / width) };

			box(p, columns, rows, small + 3 * ((size_t)y * width + x));
		}
	}
	return small;
}

/* The foreground colour of a cell is its upper half, the background colour its lower half. */
static void print_colour(FILE *out, const unsigned char *top, const unsigned char *bottom,
			 uint32_t width)
{
	for (uint32_t x = 0; x < width; x++, top += 3) {
		if (!x || memcmp(top, top - 3, 3) != 0)
			fprintf(out, "\033[38;2;%u;%u;%um", top[0], top[1], top[2]);
		if (bottom && (!x || memcmp(bottom, bottom - 3, 3) != 0))
			fprintf(out, "\033[48;2;%u;%u;%um", bottom[0], bottom[1], bottom[2]);
		fputs("\u2580", out);
		if (bottom)
			bottom += 3;
	}
	fputs("\033[0m\n", out);
}

static void print_letters(FILE *out, const unsigned char *top, const unsigned char *bottom,
			  uint32_t width)
{
	static const char shades[] = " .:-=+*#%@";

	for (uint32_t x = 0; x < width; x++, top += 3) {
		double light = 0.299 * top[0] + 0.587 * top[1] + 0.114 * top[2];

		if (bottom) {
			light += 0.299 * bottom[0] + 0.587 * bottom[1] + 0.114 * bottom[2];
			light /= 2;
			bottom += 3;
		}
		putc(shades[lround(light * 9 / 255)], out);
	}
	putc('\n', out);
}

void picture_print(FILE *out, const struct picture *p, unsigned columns, unsigned lines,
		   bool colour)
{
	double by_width = (double)columns / p->width, by_height = 2.0 * lines / p->height;
	double scale = fmin(1, fmin(by_width, by_height));
	uint32_t width = (uint32_t)fmax(1, p->width * scale + 1e-6);
	uint32_t height = (uint32_t)fmax(1, p->height * scale + 1e-6);
	unsigned char *small = shrink(p, width, height);

	for (uint32_t y = 0; y < height; y += 2) {
		const unsigned char *top = small + 3UL * width * y;
		const unsigned char *bottom = y + 1 < height ? top + 3UL * width : NULL;

		if (colour)
			print_colour(out, top, bottom, width);
		else
			print_letters(out, top, bottom, width);
	}
	free(small);
}
