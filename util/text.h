/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text that others wrote, made safe to show. What a terminal obeys, what turns the direction of a
 * line, breaks it, or cannot be seen is escaped: a name then looks like itself and like no other.
 * Escaping twice changes nothing more.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the well-formed UTF-8 character at @at, of which there are @size > 0, and its number; 0:
 * there is none. */
size_t text_character(const char *at, size_t size, uint32_t *code);

/* Controls, format characters, separators of lines, and whatever else Unicode has that is not seen.
 */
bool text_is_hidden(uint32_t code);

/* Bytes of what begins at @at; *@shown says whether it is a character that can be shown as it is.
 * If not, it is one byte. */
size_t text_next(const char *at, size_t size, bool *shown);

/*
 * @text of @length bytes, with \xNN for each byte of what is not shown, into @out of @size > 0
 * bytes; cut off between two characters where that does not do (4 * @length + 1 always does). @text
 * is not in @out.
 */
void text_escape(char *out, size_t size, const char *text, size_t length);
