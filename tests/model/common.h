/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the models share. A row's word is generation * 4 + state; a ref is generation * 4 + slot.
 *
 * SEEN(what) marks a step that some configuration has to take: run prints an error for a mark that
 * no configuration of its model passed. It stands inside d_step or atomic, so that it is no step of its own.
 */
#define FREE	0
#define DRAFT	1
#define LIVE	2
#define RETIRED 3
#define WORD(gen, state) ((gen) * 4 + (state))
#define REF(gen, slot)	 ((gen) * 4 + (slot))
#define STATE(word)	 ((word) & 3)
#define GEN(word)	 ((word) >> 2)
#define SLOT(ref)	 ((ref) & 3)

#define SEEN(what) c_code { seen(#what); }

c_decl {
	static const char *seen_list[64];
	static void seen(const char *what)
	{
		int i;

		for (i = 0; i < 63 && seen_list[i]; i++)
			if (seen_list[i] == what)
				return;
		seen_list[i] = what;
		printf("seen: %s\n", what);
	}
}
