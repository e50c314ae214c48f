# SPDX-License-Identifier: Apache-2.0
# With tools/api.awk: a C program that prints what the public headers promise, a line for each. See tools/abi.

# A declaration's name: what is in (*...) if that is there, else the last word without [..].
function declared_name(s) {
	if (match(s, /\(\*[a-z_A-Z]+\)/))
		return substr(s, RSTART + 2, RLENGTH - 3)
	sub(/\[.*/, "", s)
	sub(/.*[ *]/, "", s)
	return s
}
function c_string(s) {
	gsub(/[ \t]+/, " ", s)
	gsub(/"/, "\\\"", s)
	return s
}
function says(words) {
	print "\tputs(\"" c_string(words) "\");"
}
function constant(s) {
	sub(/[ =(].*/, "", s)
	printf "\tprintf(\"constant %s %%lld\\n\", (long long)%s);\n", s, s
}
function laid_out(called, n,	i, field) {
	printf "\tprintf(\"struct %s: %%zu bytes, aligned to %%zu\\n\", sizeof(%s), _Alignof(%s));\n", called, called, called
	for (i = 1; i <= members[n]; i++) {
		field = declared_name(member[n, i])
		printf "\tprintf(\"member %s.%s: %%zu bytes at %%zu: %s\\n\", sizeof(((%s *)0)->%s), offsetof(%s, %s));\n",
			called, field, c_string(member[n, i]), called, field, called, field
	}
}
# A member that came into padding would not make the struct larger, and its size would not tell whether it is there.
function ends_in_no_padding(called, n,	field) {
	field = declared_name(member[n, members[n]])
	printf "_Static_assert(offsetof(%s, %s) + sizeof(((%s *)0)->%s) == sizeof(%s), \"%s ends in padding: give that a name\");\n",
		called, field, called, field, called, called
}
function finish(	n, i) {
	print "#include <stdio.h>\n"
	for (n = 1; n <= nheaders; n++)
		print "#include <" headers[n] ">"
	print ""
	for (n = 1; n <= items; n++)
		if (kind[n] == "struct" && code[n] ~ /^tl_/)
			ends_in_no_padding(code[n], n)
	print "\nint main(void)\n{"
	for (n = 1; n <= items; n++) {
		if (kind[n] == "function")
			says("function " code[n])
		if (kind[n] == "struct")
			laid_out(code[n], n)
		if (kind[n] == "enum" || kind[n] == "macros")
			for (i = 1; i <= members[n]; i++)
				if (member[n, i] !~ /^TL_VERSION_/)
					constant(member[n, i])
	}
	print "\treturn 0;\n}"
}
