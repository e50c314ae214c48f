/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon stops between any two of its stores to the catalog, and another one adopts what it finds.
 * Nothing tells it what the last one was about: it concludes that from the order of the
 * stores. The version of a name is stored when its tensor can be found, so a LIVE row with a higher one is on its
 * way in, and any other LIVE row that its name does not mean is on its way out.
 *
 * A name that was never published has version 0, and begins above the versions of all names that were removed. With
 * -DSTATED its producer may state any version, which the daemon compares with the last one.
 *
 * An adopting daemon may stop, too. S() is one store, before which the daemon may stop; what is between two of them is
 * private to the daemon, or a read of what only the daemon writes. The ledgers outlive it.
 *
 * Sizes: two texts, which have two entries for names; three slots; clients that get GETS times.
 */
#include "common.inc"

#ifndef NC
#define NC 1
#endif
#ifndef GETS
#define GETS 2
#endif
#ifndef OPS
#define OPS 3
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#define NE 2
#define NT 2
#ifndef NS
#define NS 3
#endif
#define NONE 7

/* The catalog. */
byte word[NS], name[NS], ver[NS];		/* rows: word, name, version */
byte current[NE], version[NE], text[NE];	/* version 0: none was published */
byte link[NT] = NONE;
byte highest;				/* names.floor: above every version of a name that was removed */
byte former_of[NS], gid[NS];		/* of a member of a group: what its name meant, and `groups` then */
byte groups;				/* odd while names are pointed at members of a group */
byte held[NC * NS];			/* the ledgers */

/* ---- For the assertions ---- */

byte uses[NS];				/* correct leases */
byte id[NS];				/* which tensor that is */
byte ids;
byte published[NT * 8];			/* the tensor that a version of a text was got as */
byte seen_version[NC * NT];
bit seen_none[NC * NT];			/* and that there was none any more after it */
byte committed[NT];			/* the version that its producer was told, 0: it may have been deleted */
byte group_id, group_version;		/* the first text's tensor of the group, and the other's version */
bit seen_group[NC];
byte deaths, ops, running = NC;
bit over;

#ifdef NO_DEATHS
#define S(...) atomic { __VA_ARGS__ }
#else
#define S(...) if :: atomic { __VA_ARGS__ } :: atomic { deaths < DEATHS -> deaths++; goto adopt } fi
#endif

#define IS(slot, state) (STATE(word[slot]) == (state))
#define REF_OF(slot) REF(GEN(word[slot]), slot)
#define MEANS(e, slot) (current[e] == REF_OF(slot))

/* What was committed is there, when nothing is under way. */
inline check_committed()
{
	d_step {
		t = 0;
		do
		:: t < NT && committed[t] ->
			assert(link[t] != NONE && current[link[t]]);
			assert(IS(SLOT(current[link[t]]), LIVE));
			assert(ver[SLOT(current[link[t]])] >= committed[t]);
			t++
		:: t < NT && !committed[t] -> t++
		:: else -> break
		od;
		t = 0
	}
}

#define LAST (current[e] -> ver[SLOT(current[e])] : version[e])

/* The version that the next tensor of the name e gets, in v; 0: it is refused. */
inline choose_version()
{
	if
	:: d_step { v = LAST; v = 1 + (v -> v : highest) }
#ifdef STATED
	:: v = 1; refuse_version()
	:: v = 2; refuse_version()
	:: v = 3; refuse_version()
#endif
	fi
}

inline refuse_version()
{
#ifndef NO_STATED_COMPARED
	if
	:: d_step { v <= LAST -> v = 0; SEEN(refused) }
	:: d_step { else -> SEEN(stated) }
	fi
#else
	skip
#endif
}

/* A draft in a free slot, for the name e. */
inline draft(s)
{
	S(word[s] = WORD(GEN(word[s]) + 1, DRAFT); ids++; id[s] = ids);
	S(name[s] = e);
	S(ver[s] = v)
}

/* Finds the entry for text t, or makes one. */
inline name_take()
{
	d_step {
		e = link[t];
		i = 0;
		do
		:: e == NONE && i < NE ->
			if
			:: link[0] != i && link[1] != i -> e = i
			:: else
			fi;
			i++
		:: else -> break
		od;
		i = 0
	}
	if
	:: e != NONE && link[t] == NONE ->
		S(current[e] = 0);
		S(version[e] = 0);
		S(text[e] = t);
		S(link[t] = e)
	:: else
	fi
}

/* T1 and T2; what somebody holds is looked at again in the end. */
inline reclaim(s)
{
	i = 0;
	do
	:: i < NC && !held[i * NS + s] -> i++
	:: i < NC && held[i * NS + s] -> break
	:: i == NC -> S(assert(!uses[s]); word[s] = WORD(GEN(word[s]), FREE)); break
	od;
	i = 0
}

inline free_slot(s)
{
	d_step {
		s = 0;
		do
		:: s < NS && !IS(s, FREE) -> s++
		:: else -> break
		od
	}
}

inline commit()
{
	free_slot(a);
	name_take();
	v = 0;
	if
	:: e != NONE -> choose_version()
	:: else
	fi;
	if
	:: a < NS && e != NONE && v && v < 8 ->
		draft(a);
		former = current[e];
		S(word[a] = WORD(GEN(word[a]), LIVE));
		S(current[e] = REF_OF(a));
		S(version[e] = ver[a]);
		committed[t] = ver[a];
		if
		:: former ->
			S(word[SLOT(former)] = WORD(GEN(former), RETIRED));
			reclaim(SLOT(former))
		:: else
		fi
	:: else
	fi
}

inline delete()
{
	if
	:: d_step { link[t] != NONE && current[link[t]] -> e = link[t]; committed[t] = 0 }
		former = current[e];
		S(current[e] = 0);
		S(word[SLOT(former)] = WORD(GEN(former), RETIRED));
		reclaim(SLOT(former))
	:: else
	fi
}

/* Given up unless it is held. */
inline evict()
{
	if
	:: d_step { link[t] != NONE && current[link[t]] -> e = link[t]; former = current[e] }
		S(word[SLOT(former)] = WORD(GEN(former), RETIRED));
		i = 0;
		do
		:: i < NC && !held[i * NS + SLOT(former)] -> i++
		:: i < NC && held[i * NS + SLOT(former)] -> break
		:: i == NC -> break
		od;
		if
		:: i < NC -> i = 0; S(word[SLOT(former)] = WORD(GEN(former), LIVE))
		:: else ->
			d_step { i = 0; committed[t] = 0 }
			S(current[e] = 0);
			S(assert(!uses[SLOT(former)]); word[SLOT(former)] = WORD(GEN(former), FREE))
		fi
	:: else
	fi
}

/* The entry of a name without a tensor may be another name's then. */
inline name_remove()
{
	if
	:: d_step { link[t] != NONE && !current[link[t]] && !(!IS(0, FREE) && name[0] == link[t]) &&
		    !(!IS(1, FREE) && name[1] == link[t]) && !(!IS(2, FREE) && name[2] == link[t]) -> e = link[t] }
#ifdef HIGHEST_LATE
		S(link[t] = NONE);
		S(highest = (version[e] + 1 > highest -> version[e] + 1 : highest));
#else
		S(highest = (version[e] + 1 > highest -> version[e] + 1 : highest));
		S(link[t] = NONE);
#endif
		S(skip)				/* names_unlinked, changes */
	:: else
	fi
}

#ifdef GROUP
/* The name of the draft is pointed at it: pending until `groups` is raised. */
inline point(s)
{
	S(former_of[s] = current[name[s]]);
	S(gid[s] = groups);
	S(current[name[s]] = REF_OF(s))
}

inline take_back(s)
{
	S(current[name[s]] = former_of[s]);
	S(word[s] = WORD(GEN(word[s]), FREE))
}

inline finish(s)
{
	S(word[s] = WORD(GEN(word[s]), LIVE));
	S(version[name[s]] = ver[s]);
	former = former_of[s];
	if
	:: former -> S(word[SLOT(former)] = WORD(GEN(former), RETIRED)); reclaim(SLOT(former))
	:: else
	fi
}

/* Both texts get a tensor in one step, once, or it fails. */
inline group()
{
	free_slot(a);
	t = 0;
	name_take();
	v = 0;
	if
	:: e != NONE -> choose_version()
	:: else
	fi;
	if
	:: a < NS && e != NONE && v && v < 8 && !group_id ->
		draft(a);
		t = 1;
		name_take();
		free_slot(b);
		v = 0;
		if
		:: e != NONE -> choose_version()
		:: else
		fi;
		if
		:: b < NS && e != NONE && v && v < 8 ->
			draft(b);
			S(groups++);
			point(a);
			point(b);
			if
			:: skip ->
				S(groups++; group_id = id[a]; group_version = ver[b]);
				finish(a);
				finish(b);
				d_step { committed[0] = ver[a]; committed[1] = ver[b] }
			:: skip ->
				take_back(a);
				take_back(b);
				S(groups++; SEEN(group_failed))
			fi
		:: else -> S(word[a] = WORD(GEN(word[a]), FREE))
		fi
	:: else
	fi
}
#else
inline group()
{
	skip
}
#endif

/* ---- adoption ---- */

/* a: the LIVE row of name e with the highest version, or NS. */
inline best_of()
{
	d_step {
		a = NS;
		b = 0;
		do
		:: b < NS ->
			if
			:: IS(b, LIVE) && name[b] == e && (a == NS || ver[b] > ver[a]) -> a = b
			:: else
			fi;
			b++
		:: else -> break
		od;
		b = 0
	}
}

/* A name that means a DRAFT means a member of a group, which is published unless `groups` is what it was
 * when the name was pointed at it. */
inline adopt_group()
{
#ifdef GROUPS_RAISED_FIRST
	if
	:: groups & 1 -> S(groups++)
	:: else
	fi;
#endif
	e = 0;
	do
	:: e < NE && current[e] && word[SLOT(current[e])] == WORD(GEN(current[e]), DRAFT) ->
		a = SLOT(current[e]);
		if
#ifdef GROUP_ALWAYS_BACK
		:: true ->
#else
		:: gid[a] == groups ->
#endif
			S(current[e] = former_of[a]; SEEN(group_back))
#ifndef GROUP_ALWAYS_BACK
		:: gid[a] != groups -> S(word[a] = WORD(GEN(word[a]), LIVE); SEEN(group_forward))
#endif
		fi;
		e++
	:: e < NE && !(current[e] && word[SLOT(current[e])] == WORD(GEN(current[e]), DRAFT)) -> e++
	:: e == NE -> break
	od;
#ifndef MEMBERS_STAY
	a = 0;				/* who has seen a member must not find a DRAFT when groups is raised */
	do
	:: a < NS && groups & 1 && gid[a] == groups && IS(a, DRAFT) -> S(word[a] = WORD(GEN(word[a]), FREE)); a++
	:: a < NS && !(groups & 1 && gid[a] == groups && IS(a, DRAFT)) -> a++
	:: a == NS -> break
	od;
#endif
	if
	:: groups & 1 -> S(groups++)
	:: else
	fi
}

/* What is on its way in gets there. */
inline adopt_names()
{
	e = 0;
	do
	:: e < NE ->
		best_of();
		if
#ifdef NO_VERSION_COMPARED
		:: a < NS && !MEANS(e, a) ->
#else
		:: a < NS && ver[a] > version[e] ->
#endif
			S(current[e] = REF_OF(a); SEEN(came_in));
			S(version[e] = ver[a])
		:: else
		fi;
		if
		:: current[e] && word[SLOT(current[e])] == WORD(GEN(current[e]), RETIRED) ->
#ifdef NOT_PUT_BACK
			skip
#else
			S(word[SLOT(current[e])] = WORD(GEN(current[e]), LIVE); SEEN(not_given_up))
#endif
		:: else
		fi;
		e++
	:: else -> break
	od
}

/* What is on its way out goes. Drafts are given back, since whoever wrote them is gone here. */
inline adopt_rows()
{
	a = 0;
	do
	:: a < NS ->
#ifndef NOTHING_RETIRED
		if
		:: IS(a, LIVE) && !MEANS(name[a], a) -> S(word[a] = WORD(GEN(word[a]), RETIRED); SEEN(went_out))
		:: else
		fi;
#endif
		if
		:: IS(a, DRAFT) -> S(word[a] = WORD(GEN(word[a]), FREE))
		:: else
		fi;
		if
#ifdef NO_T2
		:: IS(a, RETIRED) -> S(assert(!uses[a]); word[a] = WORD(GEN(word[a]), FREE))
#else
		:: IS(a, RETIRED) -> reclaim(a)
#endif
		:: else
		fi;
		a++
	:: else -> break
	od
}

active proctype Daemon()
{
	byte t, e, a, b, i, former, v;

	goto serve;
adopt:
	skip;
	d_step {
		t = 0; e = 0; a = 0; b = 0; i = 0; former = 0; v = 0;
#ifdef HIGHEST_PRIVATE
		highest = 0
#endif
	}
	adopt_group();
	adopt_names();
	adopt_rows();
serve:
	do
	:: true ->
		d_step { t = 0; e = 0; a = 0; b = 0; i = 0; former = 0; v = 0 }
		check_committed();
		if
		:: ops < OPS && t == 0 -> t = 0
		:: ops < OPS && t == 0 -> t = 1
		:: ops == OPS && !running -> break
		:: ops == OPS && running -> running == 0
		fi;
		if
		:: ops < OPS -> ops++;
			if
			:: skip -> commit()
			:: skip -> delete()
#ifdef EVICTS
			:: skip -> evict()
#endif
#ifdef REMOVES
			:: skip -> name_remove()
#endif
#ifdef GROUP
			:: skip -> group()
#endif
			fi
		:: else
		fi
	od;
	/* RELEASED of all */
	a = 0;
	do
	:: a < NS && IS(a, RETIRED) -> reclaim(a); a++
	:: a < NS && !IS(a, RETIRED) -> a++
	:: a == NS -> break
	od;
	skip;
	d_step {
		a = 0;
		do		/* nothing is left over */
		:: a < NS && IS(a, FREE) -> a++
		:: a < NS && !IS(a, FREE) -> assert(IS(a, LIVE) && MEANS(name[a], a)); a++
		:: a == NS -> break
		od;
		over = 1
	}
}

proctype Client(byte c)
{
	byte n, t, e, r, f;
	bit member;

	do
	:: d_step { n < GETS -> n++; t = 0 }
		if
		:: t = 0
		:: t = 1
		fi;
		e = link[t];
		if
		:: atomic { e != NONE -> r = current[e]; seen_none[c * NT + t] = (!r && text[e] == t) }
		:: else -> r = 0
		fi;
#ifdef GROUP
		if
		:: d_step { r && word[SLOT(r)] == WORD(GEN(r), DRAFT) && groups == gid[SLOT(r)] -> f = former_of[SLOT(r)] }
			if			/* the former is meant if the member has not gone away */
			:: d_step { word[SLOT(r)] == WORD(GEN(r), DRAFT) -> r = f; SEEN(former) }
			:: else -> r = 0
			fi;
			f = 0
		:: d_step { r && word[SLOT(r)] == WORD(GEN(r), DRAFT) && groups != gid[SLOT(r)] -> member = 1; SEEN(member) }
		:: else
		fi;
#endif
		if
		:: r ->					/* G1 is left out, which G3 covers */
			held[c * NS + SLOT(r)]++;	/* G2 */
			if
			:: d_step { (word[SLOT(r)] == WORD(GEN(r), LIVE) ||
				     (member && word[SLOT(r)] == WORD(GEN(r), DRAFT))) && name[SLOT(r)] == e && text[e] == t ->
				    uses[SLOT(r)]++ }
				d_step {
					assert(ver[SLOT(r)] >= seen_version[c * NT + t]);
					assert(ver[SLOT(r)] > seen_version[c * NT + t] || !seen_none[c * NT + t]);
					seen_version[c * NT + t] = ver[SLOT(r)];
					seen_none[c * NT + t] = 0;
					assert(!published[t * 8 + ver[SLOT(r)]] ||
					       published[t * 8 + ver[SLOT(r)]] == id[SLOT(r)]);
					published[t * 8 + ver[SLOT(r)]] = id[SLOT(r)];
					/* who saw one of a group finds the other */
					assert(t == 0 || !seen_group[c] || ver[SLOT(r)] >= group_version);
					seen_group[c] = (seen_group[c] || id[SLOT(r)] == group_id);
					SEEN(got)
				}
				d_step { uses[SLOT(r)]-- ; skip }
			:: else
			fi;
			held[c * NS + SLOT(r)]--
		:: else
		fi;
		e = 0;
		member = 0;
		r = 0
	:: break
	od;
	running--
}

init {
	atomic {
		run Client(0);
#if NC > 1
		run Client(1);
#endif
	}
	timeout -> assert(over)
}
