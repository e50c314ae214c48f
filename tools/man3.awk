# SPDX-License-Identifier: Apache-2.0
# The pages of section 3, with tools/api.awk: see tools/man3.

function complain(n, words) {
	printf "%s: %s: %s\n", at[n], kind[n] == "function" ? symbol[n] : name[n], words >"/dev/stderr"
	bad = 1
}

# ---- Skeleton ----

# Takes the comment of a function apart: summary, body, part["Returns"], errors.
function take_apart(n,	lines, i, count, line, label) {
	summary = body = since = ""
	nerrors = nlabels = 0
	split("", part)
	count = split(comment[n], lines, "\n")
	summary = lines[1]
	sub(/^[^ ]* - /, "", summary)
	label = ""
	for (i = 2; i <= count; i++) {
		line = lines[i]
		if (match(line, /^[A-Z][a-z]+: /) && substr(line, 1, RLENGTH - 2) in place) {
			label = substr(line, 1, RLENGTH - 2)
			labels[++nlabels] = label
			part[label] = substr(line, RLENGTH + 1)
		} else if (label == "") {
			body = body line "\n"
		} else if (label == "Returns" && line ~ /^\t-E/) {
			line = trim(line)
			match(line, /^-E[A-Z0-9]+/)
			error[++nerrors] = substr(line, 1, RLENGTH)
			reason[nerrors] = trim(substr(line, RLENGTH + 1))
		} else if (label == "Returns" && nerrors && line ~ /^\t/) {
			reason[nerrors] = joined(reason[nerrors], line)
		} else {
			part[label] = joined(part[label], line)
		}
	}
	gsub(/^\n+|\n+$/, "", body)
}
function check_function(n,	i, first) {
	first = comment[n]
	sub(/\n.*/, "", first)
	if (index(first, symbol[n] " - ") != 1 || first ~ /\.$/)
		complain(n, "the comment's first line is not \"" symbol[n] " - what it does\"")
	if (body == "")
		complain(n, "the comment does not say what it does")
	for (i = 1; i <= NPLACES; i++) {
		if (labels[i] != places[i] || i > nlabels) {
			complain(n, "the comment has no \"" places[i] ":\", or not in its place")
			break
		}
		if (part[places[i]] == "")
			complain(n, "nothing is said after \"" places[i] ":\"")
	}
	if (code[n] ~ /^int / && part["Returns"] !~ /^(0[, ]|as tl_)/)
		complain(n, "\"Returns:\" does not begin with 0")
	for (i = 1; i <= nerrors; i++)
		if (reason[i] == "")
			complain(n, error[i] " has no reason")
	if (part["Since"] !~ /^[0-9]+\.[0-9]+/)
		complain(n, "\"Since:\" is not followed by a version")
}
function check_members(n,	i) {
	if (name[n] == "")
		complain(n, "the comment's first line is not \"name - what it is\"")
	for (i = 1; i <= members[n]; i++)
		if (meaning[n, i] == "")
			complain(n, "'" member[n, i] "' is not described")
}

# ---- roff ----

function escaped(s) {
	gsub(/\\/, "\\e", s)
	return s
}
# In an example: as it stands.
function verbatim(s) {
	s = escaped(s)
	gsub(/-/, "\\-", s)
	sub(/^[.']/, "\\\\\\&&", s)
	return s
}
function known_function(s) {
	return s in number_of
}
# A word with its dress: what is code is bold, arguments are italic, functions name their page.
function dressed(word,	head, tail) {
	if (word ~ /^["(]/)
		return substr(word, 1, 1) dressed(substr(word, 2))
	if (match(word, /^tl_[a-z_]+\(\)/)) {
		head = substr(word, 1, RLENGTH - 2)
		tail = substr(word, RLENGTH + 1)
		if (!known_function(head))
			complain(current, "there is no " head "()")
		refers[head] = 1
		return (current && head == symbol[current] ? "\\fB" head "\\fP()" : "\\fB" head "\\fP(3)") tail
	}
	if (match(word, /^@[a-z_]+(\[\])?/))
		return "\\fI" substr(word, 2, RLENGTH - 1) "\\fP" substr(word, RLENGTH + 1)
	if (match(word, /^[a-z_]+->[a-z_]+/) || match(word, /^\*[a-z_]+(->[a-z_]+)?/))
		return "\\fI" substr(word, 1, RLENGTH) "\\fP" substr(word, RLENGTH + 1)
	if (match(word, /^-E[A-Z0-9]+/))
		return "\\fB\\-" substr(word, 2, RLENGTH - 1) "\\fP" substr(word, RLENGTH + 1)
	if (match(word, /^(TL|DLPACK|FUTEX|SIG|CLOCK)_?[A-Z_0-9]+\*?/) || match(word, /^kDL[A-Z]+/) ||
	    match(word, /^tl_[a-z_]+/) || match(word, /^<[a-z\/]+\.h>/) || match(word, /^\$[A-Z_]+/))
		return "\\fB" substr(word, 1, RLENGTH) "\\fP" substr(word, RLENGTH + 1)
	return word
}
function prose(s,	words, count, i, out, quoted, piece) {
	s = escaped(s)
	# `code` may have spaces in it
	while (match(s, /`[^`]*`/)) {
		piece = substr(s, RSTART + 1, RLENGTH - 2)
		gsub(/-/, "\\-", piece)
		gsub(/ /, "\001", piece)
		s = substr(s, 1, RSTART - 1) "\002" piece "\003" substr(s, RSTART + RLENGTH)
	}
	count = split(s, words, " ")
	out = ""
	for (i = 1; i <= count; i++)
		out = out (i > 1 ? " " : "") dressed(words[i])
	gsub(/\001/, " ", out)
	gsub(/\002/, "\\fB", out)
	gsub(/\003/, "\\fP", out)
	sub(/^[.']/, "\\\\\\&&", out)
	return out
}
function line(s) {
	print s >out_file
}
# Paragraphs, examples and lists of errors, as the comment has them. Headings if @top.
function running(s, is_top,	lines, count, i, para, in_list) {
	count = split(s, lines, "\n")
	para = ""
	in_list = 0
	for (i = 1; i <= count + 1; i++) {
		if (i <= count && para != "" && lines[i] != "" && lines[i] !~ /^\t/) {
			para = para " " lines[i]
			continue
		}
		if (para != "") {
			line(prose(para))
			para = ""
		}
		if (i > count)
			break
		if (is_top && lines[i] ~ /^[A-Z][A-Z ]+$/) {
			line(".SH \"" (lines[i] == "OVERVIEW" ? "DESCRIPTION" : lines[i]) "\"")
			fresh = 1
		} else if (lines[i] ~ /^\t-E/) {
			listed(trim(lines[i]))
		} else if (lines[i] ~ /^\t/) {
			line(".PP\n.RS 4\n.nf")
			for (; i <= count && (lines[i] ~ /^\t/ || (lines[i] == "" && lines[i + 1] ~ /^\t/)); i++)
				line(verbatim(substr(lines[i], 2)))
			line(".fi\n.RE")
			i--
		} else if (lines[i] != "") {
			if (!fresh)
				line(".PP")
			fresh = 0
			para = lines[i]
		}
	}
}
function listed(s) {
	match(s, /^-E[A-Z0-9]+/)
	line(".TP\n\\fB\\-" substr(s, 2, RLENGTH - 1) "\\fP\n" prose(capital(trim(substr(s, RLENGTH + 1))) "."))
}
function capital(s) {
	return s ~ /^[a-z]+([ ,:;.]|$)/ ? toupper(substr(s, 1, 1)) substr(s, 2) : s
}
function sentence(s) {
	return capital(s) (s ~ /[.:]$/ ? "" : ".")
}
# The prototype, broken after commas so that it fits a page.
function synopsis(s,	head, rest, pieces, count, i, depth, c, now, indent) {
	head = substr(s, 1, index(s, "("))
	rest = substr(s, length(head) + 1)
	count = depth = 0
	now = ""
	for (i = 1; i <= length(rest); i++) {
		c = substr(rest, i, 1)
		depth += (c == "(") - (c == ")")
		now = now c
		if (c == "," && !depth) {
			pieces[++count] = trim(now)
			now = ""
		}
	}
	pieces[++count] = trim(now)
	indent = sprintf("%" length(head) "s", "")
	now = head
	for (i = 1; i <= count; i++) {
		if (now != head && length(now) + length(pieces[i]) + 1 > 72) {
			line("\\fB" verbatim(now) "\\fP")
			now = indent pieces[i]
		} else {
			now = now (now == head ? "" : " ") pieces[i]
		}
	}
	line("\\fB" verbatim(now) "\\fP")
}
function page(what, title) {
	out_file = DIR "/" what ".3"
	print what ".3" >LIST
	line(".\\\" Made from include/" current_header " by tools/man3: edit that.")
	line(".TH " toupper(what) " 3 \"\" \"tensorlease " VERSION "\" \"Library Functions Manual\"")
	line(".nh\n.ad l\n.SH NAME\n" what " \\- " title)
	split("", refers)
}
function see_also(	i, s) {
	s = ""
	for (i = 1; i <= items; i++)
		if (kind[i] == "function" && (symbol[i] in refers) && i != current)
			s = s ".BR " symbol[i] " (3),\n"
	line(".SH \"SEE ALSO\"")
	if (s != "")
		line(substr(s, 1, length(s) - 1))
}
function described(n,	i, text, what) {
	text = comment[n]
	what = text
	sub(/\n.*/, "", what)
	sub(/^.* - /, "", what)
	line(".SS " (kind[n] == "struct" ? "\"struct " name[n] "\"" : "\"" name[n] "\""))
	line(prose(capital(what)) ":")
	for (i = 1; i <= members[n]; i++) {
		line(".TP\n\\fB" verbatim(member[n, i]) "\\fP\n" prose(sentence(meaning[n, i])))
		mentioned = mentioned " " meaning[n, i] " " member[n, i]
	}
	if (index(text, "\n")) {
		sub(/^[^\n]*\n+/, "", text)
		fresh = 0
		running(text, 0)
	}
}
# Describes the types that the prototype names, and those that their members name.
function types_of(n,	i, any, shown) {
	mentioned = code[n]
	any = 0
	split("", shown)
	for (i = 1; i <= items; i++)
		if (kind[i] == "struct" && match(mentioned, "(^|[^a-z_])" name[i] "[^a-z_]")) {
			if (!any++)
				line(".SH TYPES")
			described(i)
		}
	for (i = 1; i <= items; i++)
		if ((kind[i] == "enum" || kind[i] == "macros") && name[i] != "" && index(mentioned, name[i])) {
			if (!any++)
				line(".SH TYPES")
			described(i)
		}
}
function function_page(n) {
	current = n
	current_header = header[n]
	take_apart(n)
	check_function(n)
	page(symbol[n], summary)
	line(".SH LIBRARY\ntensorlease (\\fB\\-ltensorlease\\fP)")
	line(".SH SYNOPSIS\n.nf\n\\fB#include <" header[n] ">\\fP\n")
	synopsis(code[n])
	line(".fi\n.SH DESCRIPTION")
	fresh = 1
	running(body, 0)
	line(".SH OWNERSHIP\n" prose(sentence(part["Ownership"])))
	line(".SH \"BLOCKING AND THREADS\"\n.TP\nBlocks\n" prose(sentence(part["Blocking"])))
	line(".TP\nThreads\n" prose(sentence(part["Threads"])))
	returns()
	types_of(n)
	line(".SH HISTORY\nSince version " part["Since"] ".")
	see_also()
	line(".BR " overview_of(header[n]) " (3),\n.BR tensorleased (8)")
	close(out_file)
}
function returns(	text, i) {
	text = part["Returns"]
	if (nerrors) {
		sub(/, or$/, ", or one of the errors below", text)
		sub(/:$/, "", text)
	}
	line(".SH \"RETURN VALUE\"\n" prose(sentence(text)))
	if (code[current] ~ /^int /)
		line("\n.BR tl_last_error (3)\nsays in words what went wrong.")
	if (text ~ /common error/)
		line("The common errors are listed in\n.BR tensorlease (3).")
	if (nerrors)
		line(".SH ERRORS")
	for (i = 1; i <= nerrors; i++)
		line(".TP\n\\fB\\-" substr(error[i], 2) "\\fP\n" prose(sentence(reason[i])))
}
# The page of a header.
function overview_of(path) {
	sub(/.*\//, "", path)
	sub(/\.h$/, "", path)
	return path == "tensorlease" ? path : "tensorlease_" path
}
function overview_page(path,	title, text, i) {
	current = 0
	current_header = path
	text = top[path]
	sub(/^\n+/, "", text)
	title = text
	sub(/\n.*/, "", title)
	sub(/^[^\n]*\n+/, "", text)
	if (index(title, overview_of(path) " - ") != 1) {
		print path ": the first line is not \"" overview_of(path) " - what it is\"" >"/dev/stderr"
		bad = 1
		return
	}
	page(substr(title, 1, index(title, " - ") - 1), substr(title, index(title, " - ") + 3))
	line(".SH LIBRARY\ntensorlease (\\fB\\-ltensorlease\\fP)")
	line(".SH SYNOPSIS\n.nf\n\\fB#include <" path ">\\fP\n.fi")
	running(text, 1)
	line(".SH FUNCTIONS")
	for (i = 1; i <= items; i++) {
		if (header[i] != path)
			continue
		if (kind[i] == "section")
			line(".SS \"" name[i] "\"")
		if (kind[i] != "function")
			continue
		take_apart(i)
		line(".TP\n.BR " symbol[i] " (3)\n" prose(sentence(summary)))
	}
	constants(path)
	line(".SH \"SEE ALSO\"")
	for (i = 1; i <= nheaders; i++)
		if (headers[i] != path)
			line(".BR " overview_of(headers[i]) " (3),")
	line(".BR tensorlease (1),\n.BR tensorleased (8)")
	close(out_file)
}
function constants(path,	i, k, any) {
	for (i = 1; i <= items; i++) {
		if (header[i] != path || kind[i] != "macros" || name[i] != "")
			continue
		if (!any++)
			line(".SH CONSTANTS")
		fresh = any == 1
		running(comment[i], 0)
		for (k = 1; k <= members[i]; k++)
			if (meaning[i, k] != "")
				line(".TP\n\\fB" verbatim(member[i, k]) "\\fP\n" prose(sentence(meaning[i, k])))
			else
				line((k == 1 ? ".PP" : ".br") "\n\\fB" verbatim(member[i, k]) "\\fP")
	}
}

# ---- All of it ----

BEGIN {
	NPLACES = split("Ownership Blocking Threads Returns Since", places, " ")
	for (i = 1; i <= NPLACES; i++)
		place[places[i]] = i
}
# Every exported function is described, and every one described is exported.
function check_exports(	line_, exported, n) {
	while ((getline line_ <MAP) > 0)
		if (match(line_, /^\t+tl_[a-z_]+;/)) {
			gsub(/[\t;]/, "", line_)
			exported[line_] = 1
			if (!known_function(line_)) {
				print MAP ": " line_ " is exported and in no header" >"/dev/stderr"
				bad = 1
			}
		}
	for (n = 1; n <= items; n++)
		if (kind[n] == "function" && !(symbol[n] in exported))
			complain(n, "is not exported by " MAP)
}
function finish(	n) {
	for (n = 1; n <= items; n++)
		if (kind[n] == "function")
			number_of[symbol[n]] = n
	check_exports()
	for (n = 1; n <= items; n++)
		if (kind[n] == "struct" || kind[n] == "enum")
			check_members(n)
	for (n = 1; n <= items; n++)
		if (kind[n] == "function")
			function_page(n)
	for (n = 1; n <= nheaders; n++)
		if (headers[n] !~ /dlpack/)
			overview_page(headers[n])
}
