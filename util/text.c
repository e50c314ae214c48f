/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "util/text.h"

size_t text_character(const char *at, size_t size, uint32_t *code)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	const unsigned char *s = (const unsigned char *)at;
	uint32_t c = s[0];
	size_t n;

	*code = c;
	if (c < 0x80)
		return 1;
	n = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
	if (c < 0xc2 || c > 0xf4 || n > size)
		return 0;
	c &= 0x7fu >> n;
	for (size_t i = 1; i < n; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | (s[i] & 0x3fu);
	}
	*code = c;
	return c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000) ? 0 : n;
}

/* The ranges are from the Unicode Character Database: the categories Cc, Cf, Zl and Zp, and
 * Default_Ignorable_Code_Point, which also has the fillers and the variation selectors. */
bool text_is_hidden(uint32_t code)
{
	static const struct {
		uint32_t first, last;
	} ranges[] = {
		{ 0x0000, 0x001f },   { 0x007f, 0x009f },   { 0x00ad, 0x00ad },
		{ 0x034f, 0x034f },   { 0x0600, 0x0605 },   { 0x061c, 0x061c },
		{ 0x06dd, 0x06dd },   { 0x070f, 0x070f },   { 0x0890, 0x0891 },
		{ 0x08e2, 0x08e2 },   { 0x115f, 0x1160 },   { 0x17b4, 0x17b5 },
		{ 0x180b, 0x180f },   { 0x200b, 0x200f },   { 0x2028, 0x202e },
		{ 0x2060, 0x206f },   { 0x3164, 0x3164 },   { 0xfe00, 0xfe0f },
		{ 0xfeff, 0xfeff },   { 0xffa0, 0xffa0 },   { 0xfff0, 0xfffb },
		{ 0x110bd, 0x110bd }, { 0x110cd, 0x110cd }, { 0x13430, 0x1343f },
		{ 0x1bca0, 0x1bca3 }, { 0x1d173, 0x1d17a }, { 0xe0000, 0xe0fff },
	};

	for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++)
		if (code >= ranges[i].first && code <= ranges[i].last)
			return true;
	return false;
}

size_t text_next(const char *at, size_t size, bool *shown)
{
	uint32_t code;
	size_t n = text_character(at, size, &code);

	*shown = n && !text_is_hidden(code);
	return *shown ? n : 1;
}

void text_escape(char *out, size_t size, const char *text, size_t length)
{
	size_t used = 0, n;
	char piece[8];
	bool shown;

	for (; length; text += n, length -= n) {
		size_t taken = n = text_next(text, length, &shown);

		if (shown)
			memcpy(piece, text, n);
		else
			taken = (size_t)snprintf(piece, sizeof(piece), "\\x%02x",
						 (unsigned char)*text);
		if (used + taken >= size)
			break;
		memcpy(out + used, piece, taken);
		used += taken;
	}
	out[used] = '\0';
}
