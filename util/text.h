/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes text that others wrote safe to show. A character that a terminal obeys, that turns the
 * direction of a line or breaks it, or that cannot be seen is escaped, so that no two names look
 * alike. Escaping twice changes nothing more.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Reads the well-formed UTF-8 character at @at, where there are @size > 0 bytes. Returns its length
 * and sets *@code, or returns 0 if there is none.
 */
size_t text_character(const char *at, size_t size, uint32_t *code);

/*
 * True for controls, format characters, separators of lines, and whatever else of Unicode is not
 * seen.
 */
bool text_is_hidden(uint32_t code);

/*
 * Returns the length of the character at @at. *@shown says whether it can be shown as it is; if
 * not, what is to be escaped is one byte.
 */
size_t text_next(const char *at, size_t size, bool *shown);

/*
 * Writes @text of @length bytes to @out of @size > 0 bytes, with \xNN for each byte that is not
 * shown. If there is no room for all it is cut off between two characters; 4 * @length + 1 bytes
 * always suffice. The two must not overlap.
 */
void text_escape(char *out, size_t size, const char *text, size_t length);
