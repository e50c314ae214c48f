/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "tensor/limits.h"
#include "tensor/name.h"
#include "util/text.h"

/* Returns the error in a component as a text, or NULL. */
static const char *component_fault(const char *text, size_t len)
{
	if (len == 0)
		return "a component of the name is empty";
	if (len == 1 && text[0] == '.')
		return "a component of the name is \".\"";
	if (len == 2 && text[0] == '.' && text[1] == '.')
		return "a component of the name is \"..\"";
	return NULL;
}

/* Returns the error in a name as a text, or NULL. */
static const char *name_fault(const char *name, size_t len)
{
	const char *fault;
	uint32_t code;
	size_t start = 0, n;

	static_assert(TENSOR_NAME_MAX == 255, "the text says so");
	if (len > TENSOR_NAME_MAX)
		return "the name is longer than 255 bytes";
	for (size_t i = 0; i < len; i += n) {
		n = text_character(name + i, len - i, &code);
		if (n == 0)
			return "the name is not valid UTF-8";
		if (code < 0x20 || (code >= 0x7f && code < 0xa0))
			return "the name has a control character in it";
		if (code != '/')
			continue;
		fault = component_fault(name + start, i - start);
		if (fault)
			return fault;
		start = i + 1;
	}
	return component_fault(name + start, len - start);
}

int tensor_name_check(const char *name, size_t len, const char **why)
{
	const char *fault = len ? name_fault(name, len) : "the name is empty";

	if (!fault)
		return 0;
	*why = fault;
	return -EINVAL;
}

int tensor_prefix(char start[TENSOR_NAME_MAX + 1], const char *prefix, size_t len, const char **why)
{
	*start = '\0';
	if (len == 0)
		return 0;
	if (prefix[len - 1] == '/')
		len--;
	if (tensor_name_check(prefix, len, why))
		return -EINVAL;
	if (len == TENSOR_NAME_MAX) {
		*why = "names have at most 255 bytes";
		return -EINVAL;
	}
	memcpy(start, prefix, len);
	strcpy(start + len, "/");
	return 0;
}

static bool is_alphanumeric(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

int tensor_namespace_check(const char *name, size_t len, const char **why)
{
	static_assert(TENSOR_NAMESPACE_MAX == 63, "the text says so");
	*why = NULL;
	if (len == 0)
		*why = "the namespace has no name";
	else if (len > TENSOR_NAMESPACE_MAX)
		*why = "the namespace's name is longer than 63 bytes";
	else if (!is_alphanumeric(name[0]))
		*why = "the namespace's name does not start with a letter or a digit";
	for (size_t i = 0; i < len && !*why; i++)
		if (!is_alphanumeric(name[i]) && name[i] != '.' && name[i] != '_' && name[i] != '-')
			*why = "the namespace's name has characters other than letters, digits, "
			       "'.', '_' and '-'";
	return *why ? -EINVAL : 0;
}
