/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers in files: little-endian, at any address. */
#pragma once

#include <stdint.h>

static inline uint16_t get16(const unsigned char *p)
{
	return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t get32(const unsigned char *p)
{
	return get16(p) | (uint32_t)get16(p + 2) << 16;
}

static inline uint64_t get64(const unsigned char *p)
{
	return get32(p) | (uint64_t)get32(p + 4) << 32;
}

/* Writes the lowest @size bytes of a number and returns the address after them. */
static inline unsigned char *put_number(unsigned char *p, uint64_t value, int bytes)
{
	for (int i = 0; i < bytes; i++)
		*p++ = (unsigned char)(value >> 8 * i);
	return p;
}

static inline unsigned char *put_big32(unsigned char *p, uint32_t value)
{
	for (int i = 3; i >= 0; i--)
		*p++ = (unsigned char)(value >> 8 * i);
	return p;
}
