// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * What tasks below a cgroup with a quota use of it, background work aside, in windows of some 10 ms; and word of each window in which
 * that is out of the range that user space takes for usual.
 *
 * The kernel accounts a running task at each tick and whenever its queue changes, and tells so (sched_stat_runtime, whose first two
 * arguments are the same in all versions). Whichever task that happens to next ends a window that is over: the background's, too.
 */
#include "sched.h"

#define WINDOW_NS 10000000ull
/* The window after one with little use: whether that goes on is to be known soon. Longer than a tick of 250 a second. */
#define SECOND_LOOK_NS 5000000ull
#define WINDOWS 128 /* a power of two */
#define MAX_LEVELS 16

/* Values of `groups`, and of `known`. */
#define NOT_COUNTED 1
#define COUNTED 2

/* Read by user space as they are (src/quota_use.rs). */
struct window {
	u32 took_us;
	u32 used_us;
};

struct account {
	u64 began;
	u64 used_ns;
	u64 ended; /* windows so far; the last of them are in `windows`, each at its number modulo their count */
	u64 was_low; /* the last one */
	struct window windows[WINDOWS];
};

/* Milliseconds of CPU in a second. */
struct range {
	u32 least;
	u32 most;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct account);
} account SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct range);
} range SEC(".maps");

/* Cgroups that user space named: COUNTED, with all below but what is NOT_COUNTED. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, u64);
	__type(value, u32);
} groups SEC(".maps");

/* What was found of cgroups of tasks, so that not each time all above are looked at. Cgroups do not move. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, u64);
	__type(value, u32);
} known SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} words SEC(".maps");

static long (*bpf_ringbuf_output)(void *map, void *data, u64 size, u64 flags) = (void *)130;

/* A function of its own: the verifier looks at the loop once. */
__attribute__((noinline)) u32 look_up(u64 group)
{
	for (int level = 0; level < MAX_LEVELS && group; level++) {
		u64 id = id_of(group);
		u32 *found = bpf_map_lookup_elem(&groups, &id);
		if (found)
			return *found;
		group = (u64)read_field(((struct task_group *)group)->parent);
	}
	return NOT_COUNTED;
}

static always_inline bool counts(struct task_struct *task)
{
	u64 group = (u64)read_field(((struct task_struct___why *)task)->sched_task_group);
	if (!group)
		return false;
	u64 id = id_of(group);
	u32 *found = bpf_map_lookup_elem(&known, &id);
	if (found)
		return *found == COUNTED;
	u32 is = look_up(group);
	bpf_map_update_elem(&known, &id, &is, BPF_ANY);
	return is == COUNTED;
}

/* Whoever changes the beginning ends the window. */
static always_inline void end_window(struct account *account, u64 now)
{
	u64 began = account->began, took = now - began;
	u32 zero = 0;
	if (took < (account->was_low ? SECOND_LOOK_NS : WINDOW_NS) || __sync_val_compare_and_swap(&account->began, began, now) != began)
		return;
	u64 used = __sync_lock_test_and_set(&account->used_ns, 0);
	if (!began)
		return;
	struct window *window = &account->windows[account->ended & (WINDOWS - 1)];
	window->took_us = took / 1000;
	window->used_us = used / 1000;
	__sync_fetch_and_add(&account->ended, 1);
	u64 rate = used * 1000 / took;
	struct range *usual = bpf_map_lookup_elem(&range, &zero);
	/* Not a third one: what goes on is known by then. */
	account->was_low = usual && rate < usual->least && !account->was_low;
	if (usual && (rate < usual->least || rate > usual->most))
		bpf_ringbuf_output(&words, &rate, sizeof(rate), 0);
}

SEC("tp_btf/sched_stat_runtime")
int on_runtime(u64 *ctx)
{
	u32 zero = 0;
	struct account *sums = bpf_map_lookup_elem(&account, &zero);
	if (!sums)
		return 0;
	/* It was used before now. */
	if (counts((void *)ctx[0]))
		__sync_fetch_and_add(&sums->used_ns, ctx[1]);
	end_window(sums, bpf_ktime_get_ns());
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
