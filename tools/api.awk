# SPDX-License-Identifier: Apache-2.0
# Reads the public headers for tools/man3 and tools/abi, which define finish(). It relies on the form that `make format`
# gives them, and on that of their comments, which tools/man3 describes. What it leaves:
#
#	items		how many there are, in the order of the headers; of item n:
#	kind[n]		"section", "function", "struct", "enum", "macros"
#	name[n]		the function's, the struct's, the first word of the comment
#	header[n]	the path below include/ of the header that a program includes
#	at[n]		file:line of the comment
#	comment[n]	lines of the comment, without the asterisks
#	code[n]		the function's prototype in one line; the struct's typedef name
#	members[n]	how many members, enumerators or macros; of member i:
#	member[n, i]	its declaration
#	meaning[n, i]	what the comment says of it, in one line
#	top[header]	lines of the comment at the top

function trim(s) {
	gsub(/^[ \t]+|[ \t]+$/, "", s)
	return s
}
# A comment's line without what makes it one; a tab that begins it stays.
function bare(s) {
	sub(/^[ \t]*\/\*+ ?/, "", s)
	sub(/[ \t]*\*\/.*$/, "", s)
	sub(/^[ \t]*\* ?/, "", s)
	sub(/[ \t]+$/, "", s)
	return s
}
function joined(s, more) {
	more = trim(more)
	return s == "" ? more : more == "" ? s : s " " more
}
function item(what, called) {
	items++
	kind[items] = what
	name[items] = called
	header[items] = path
	at[items] = FILENAME ":" (text_at ? text_at : FNR)
	sub(/^\n+/, "", text)
	comment[items] = text
	members[items] = 0
	text = ""
	text_at = 0
	return items
}
# The word that a comment is about: what stands before " - " in its first line.
function subject(	first) {
	first = text
	sub(/^\n+/, "", first)
	sub(/\n.*/, "", first)
	return first ~ / - / ? substr(first, 1, index(first, " - ") - 1) : ""
}
function member_of(n, declaration, words) {
	members[n]++
	member[n, members[n]] = trim(declaration)
	meaning[n, members[n]] = words
}
function begin_comment() {
	text = bare($0)
	text_at = FNR
	in_comment = $0 !~ /\*\//
}
# A line of a struct or an enum.
function in_braces(line,	rest, separator) {
	if (member_comment) {
		pending = joined(pending, bare(line))
		member_comment = line !~ /\*\//
		if (!member_comment && after) {
			meaning[open, members[open]] = pending
			pending = ""
		}
		return
	}
	if (line ~ /^[ \t]*\/\*/) { # of the member that follows
		after = 0
		pending = bare(line)
		member_comment = line !~ /\*\//
		return
	}
	separator = kind[open] == "enum" ? "," : ";"
	rest = index(line, "/*") ? substr(line, index(line, "/*")) : ""
	sub(/[ \t]*\/\*.*$/, "", line)
	declared = joined(declared, line)
	if (line !~ separator "$")
		return
	member_of(open, substr(declared, 1, length(declared) - 1), pending)
	declared = ""
	pending = ""
	if (rest != "") {
		after = 1
		pending = bare(rest)
		member_comment = rest !~ /\*\//
		if (!member_comment) {
			meaning[open, members[open]] = pending
			pending = ""
		}
	}
}

BEGIN {
	n = split("tensorlease base client publish group get names cuda admin watch stream", public, " ")
	for (i = 1; i <= n; i++)
		ARGV[ARGC++] = "include/tensorlease/" public[i] ".h"
}
FNR == 1 {
	path = FILENAME
	sub(/^.*include\//, "", path)
	text = ""
	text_at = in_comment = in_prototype = open = 0
}
in_comment {
	if ($0 ~ /^ \*[^ \t\/]/) { # clang-format does that to lines that it makes shorter
		print FILENAME ":" FNR ": no space after the asterisk" >"/dev/stderr"
		bad = 1
	}
	text = text "\n" bare($0)
	in_comment = $0 !~ /\*\//
	next
}
in_prototype {
	code[items] = code[items] " " trim($0)
	in_prototype = $0 !~ /;$/
	next
}
open && /^}/ {
	code[open] = trim(substr($0, 2))
	sub(/;$/, "", code[open])
	open = 0
	next
}
open {
	in_braces($0)
	next
}
/^\/\* ---- / {
	section = $0
	gsub(/^\/\* -+ | -+ \*\/$/, "", section)
	text = ""
	item("section", section)
	next
}
/^\/\*/ {
	begin_comment()
	next
}
/^#ifndef/ && !(path in top) {
	top[path] = text
	if (match(text, /A part of <[a-z\/]+\.h>/))
		path = substr(text, RSTART + 11, RLENGTH - 12)
	else
		headers[++nheaders] = path
	text = ""
	next
}
/^#define TL_[A-Z_]+ / && (text != "" || (in_macros && FNR == in_macros + 1)) {
	if (text != "") {
		called = subject()
		macros = item("macros", called)
	}
	in_macros = FNR
	words = index($0, "/*") ? bare(substr($0, index($0, "/*"))) : ""
	value = $0
	sub(/[ \t]*\/\*.*$/, "", value)
	sub(/^#define /, "", value)
	member_of(macros, value, words)
	next
}
/^TL_API/ {
	called = subject()
	n = item("function", called)
	code[n] = $0
	in_prototype = $0 !~ /;$/
	next
}
/^(typedef struct|enum)( [A-Za-z_]+)? {$/ {
	called = subject()
	open = item($1 == "enum" ? "enum" : "struct", called)
	pending = declared = ""
	member_comment = 0
	next
}
# Anything else that follows a comment is not described.
/./ {
	text = ""
	text_at = 0
}
END {
	for (n = 1; n <= items; n++)
		if (kind[n] == "function") {
			sub(/^TL_API /, "", code[n])
			gsub(/[ \t]+/, " ", code[n])
			called = code[n]
			sub(/\(.*/, "", called)
			sub(/.*[ *]/, "", called)
			symbol[n] = called
		}
	finish()
	exit bad
}
