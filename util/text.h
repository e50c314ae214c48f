/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes text of others safe to show. Escapes characters that control a terminal, that turn the
 * direction of a line or break it, or that are invisible. Escaping twice changes nothing more, so a
 * text may contain such an escape of its own.
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

/* True for controls, format characters, separators of lines, and other invisible characters. */
bool text_is_hidden(uint32_t code);

/* Returns the length of the character at @at. *@shown says whether it can be shown unchanged; if
 * not, one byte is to be escaped. */
size_t text_next(const char *at, size_t size, bool *shown);

/*
 * Writes @text of @length bytes to @out of @size > 0 bytes, with \xNN for each byte that is not
 * shown. If it does not fit it is cut off between two characters; 4 * @length + 1 bytes always
 * suffice. The two must not overlap.
 */
void text_escape(char *out, size_t size, const char *text, size_t length);
