// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Where a target's time goes, and who ran on the CPU while it was runnable there.
 *
 * Every thread of the target has a record: running, waiting or asleep, since when, on which CPU. Each piece of time that
 * ends is added to a *spot*: one for each of the target's cgroups and CPU. Nothing is sent to user space until the end.
 *
 * Blame. A spot knows how many of its threads wait now (n) and can tell the time waited so far, summed over threads,
 * without looking at any of them: I(t) = n t - S, where a wait that begins at b adds b to S and one that ends at e takes e
 * away. Whenever the CPU changes hands, the growth of I since the last change is owed to who had it until now. n and S
 * share one word (n in the low 16 bits, S above it, modulo 2^48 ns), so that another CPU may add a waiter with a plain
 * atomic add, and no reader ever sees one without the other.
 *
 * Throttling. The run queues of groups count the levels, their own included, that have run out of quota on a CPU. The
 * count is looked at whenever a CPU changes hands or a thread begins to wait, and after timers and function calls from
 * other CPUs, which is where the kernel gives out new quota: so its changes are seen within microseconds. While a spot is
 * throttled nobody is to blame for its waits but the quota. (Attaching to the functions that change the count would be
 * simpler but needs trampolines, which arm64 has had since 6.4 only and hardened kernels refuse.)
 *
 * Locks: the run queue's lock is held in sched_switch and in sched_wakeup (of the CPU woken on), and interrupts are off in
 * both, so a spot has one writer at a time except for its word of waiters.
 */
#include "sched.h"

enum mode { MODE_ALL, MODE_PROCESSES, MODE_GROUPS };
enum state { STATE_NEW, STATE_RUN, STATE_WAIT, STATE_SLEEP, STATE_DISK, STATE_STOPPED };

#define MAX_CELLS 512
#define MAX_LEVELS 24
#define BLOCKS (MAX_CELLS / 64) /* of eight words of eight cells */
#define NO_CELL 0xffffffff
#define BUCKETS 160 /* four to an octave of nanoseconds */
#define IRQ_DEPTH 4
#define S_MASK ((1ull << 48) - 1)

/*
 * A function that the verifier walks through once, whoever calls it with what: numbers and pointers to maps' values in, a
 * number out. Other functions are walked through again for every state in which they are called, which was seconds of CPU
 * at each start. A task or group is passed as its address, a number (kernels before 6.9 take no pointer to one), and read
 * by helpers that cannot fault: dearer than a plain load, so only what is rare takes it.
 */
#define verified_once __attribute__((noinline))

/* Culprits are a word: thread number below, its start time (2^20 ns) above; or one of these kinds. 0 is the idle task. */
#define CULPRIT_GROUP (1u << 28)
#define CULPRIT_IRQ (2u << 28)
#define CULPRIT_SOFTIRQ (3u << 28)

/* Set before the programs are loaded: the verifier knows them, and leaves out what cannot happen. */
const volatile u32 watch_mode = MODE_ALL;
const volatile u32 watch_blames = 1; /* or only how long waits are is asked for */
const volatile u32 watch_throttled = 0; /* whether time held back by a quota is part of a wait's length */
const volatile u32 watch_earlier = 0; /* whether what was waited before the watch began is */
const volatile u32 watch_children = 0; /* whether children of processes may be wanted from their first instant on */

/* Every so manieth call on a CPU is timed. A prime: calls come in patterns, of which each part is to have its turn. */
#define TIMED_EACH 127
/* What takes longer is not ours: an interrupt, or the hypervisor. */
#define TIMED_MOST 10000

struct config {
	u32 on;	   /* nothing is counted while 0 */
	u32 cells; /* what the maps have room for */
	u32 used;  /* cells given out */
};

struct cpu_state {
	u64 active[MAX_CELLS / 8]; /* a byte for each cell: may have waiters here */
	u64 current;		   /* culprit on the CPU */
	u64 irq[IRQ_DEPTH];	   /* interrupts being served, innermost last */
	u64 irq_since;
	u64 lost;
	u32 irq_depth;
	u32 current_cell; /* of the thread on the CPU, NO_CELL for a stranger */
	u32 fresh;	  /* the task on the CPU owes, and culprits does not have it yet */
	u32 switched;	  /* since the watch began */
	u32 tid;	  /* who has the CPU, as far as was seen */
	u32 held;	  /* spots here that are throttled */
	u64 missed;	  /* switches not seen */
	u64 entered;	  /* when the call that is timed began, 0 for one that is not */
	u64 timed;	  /* ns that timed calls took */
	u32 until_timed;  /* calls to the next one */
	u32 pad;
};

struct spot {
	u64 word; /* S << 16 | n */
	u64 last; /* I when the CPU changed hands last */
	u64 throttled_since;
	u64 throttled_clock; /* ns throttled so far, up to the last end of it */
	u64 throttled_by;    /* cgroup whose quota */
	u64 group; /* task group's address, 0 before the first wait */
	u64 queue; /* its run queue's, 0 where it has no quota */
	u64 ran;
	u64 waited;
	u64 throttled;
	u64 slept;
	u64 disk;
	u64 stopped;
	u64 stolen;
	u64 interrupted;
	u64 max_wait;
	u64 waits;
	u64 preempted;
	u64 voluntary;
	u64 migrated;
	u64 is_throttled;
};

struct record {
	u64 since;
	u64 start; /* start_boottime */
	u64 group; /* task group's address */
	u64 waited; /* of the present wait, on CPUs it has left */
	u64 began; /* the present wait, on whichever CPU */
	u64 throttled_at;
	u64 steal_at;
	u32 state;
	u32 cell;
	u32 cpu;
	u32 tgid;
	u32 scope;
	u32 pad;
};

struct blame_key {
	u64 culprit;
	u32 cell;
	u32 pad;
};

struct throttle_key {
	u64 by;
	u32 cell;
	u32 pad;
};

struct who {
	u64 cgroup;
	u32 tgid;
	u32 kthread;
	char comm[TASK_COMM_LEN];
};

struct histogram {
	u32 counts[BUCKETS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct config);
} config SEC(".maps");

/* Waits that began before are not counted by length: they belong to another window. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} window SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu_state);
} cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct spot);
} spots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct record);
} records SEC(".maps");

/* Scopes that are counted apart have a number, in the top byte of words that have other things below. */
#define SCOPE_SHIFT 56
/* A process whose children are wanted, too; one that is wanted as such a child, whom no one has named yet. */
#define WITH_CHILDREN (1ull << 55)
#define CHILD (1ull << 54)
#define start_of(word) ((word) & (CHILD - 1))

/* Processes (value: scope, marks, and start time of the leader in ticks, 0 for any) or cgroups that are wanted. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u64);
	__type(value, u64);
} targets SEC(".maps");

/* Whether a wanted process may have a number with these low bits. An array is read without a call, and nearly all that run are
 * strangers. */
#define MEANT 8192
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MEANT);
	__type(key, u32);
	__type(value, u8);
} meant SEC(".maps");

/*
 * cgroup id to cell, NO_CELL for a stranger. Not the task group's address: of one that is gone another may have it. Those that
 * are gone make room: who finds none is classified at each switch.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, u64);
	__type(value, u32);
} groups SEC(".maps");

/* cgroup id, with the scope, to cell, and back. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CELLS);
	__type(key, u64);
	__type(value, u32);
} cells SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CELLS);
	__type(key, u32);
	__type(value, u64);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct histogram);
} histograms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct blame_key);
	__type(value, u64);
} blame SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct throttle_key);
	__type(value, u64);
} throttles SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, u64);
	__type(value, struct who);
} culprits SEC(".maps");

static always_inline struct config *get_config(void)
{
	u32 zero = 0;
	return bpf_map_lookup_elem(&config, &zero);
}

static always_inline struct cpu_state *get_cpu(u32 cpu)
{
	return bpf_map_lookup_elem(&cpus, &cpu);
}

static always_inline struct spot *get_spot(struct config *cfg, u32 cpu, u32 cell)
{
	u32 index = cpu * cfg->cells + cell;
	return bpf_map_lookup_elem(&spots, &index);
}

/*
 * A call begins, and ends: some are timed, which says what all cost. The clock's own time is in it and stands for what the
 * kernel needs to call a program, which is not: about as much.
 */
static always_inline void call_begins(struct cpu_state *state)
{
	if (--state->until_timed)
		return;
	state->until_timed = TIMED_EACH;
	state->entered = bpf_ktime_get_ns();
}

static always_inline void call_ends(struct cpu_state *state)
{
	/* Asked of memory: the verifier would walk through all between for either answer. */
	u64 entered = state->entered;
	if (!entered)
		return;
	u64 took = bpf_ktime_get_ns() - entered;
	state->entered = 0;
	state->timed += took < TIMED_MOST ? took : TIMED_MOST;
}

/* Time waited so far on a spot, summed over threads, modulo 2^48 ns. */
static always_inline u64 integral(u64 word, u64 now)
{
	return ((word & 0xffff) * now - (word >> 16)) & S_MASK;
}

static always_inline u64 throttled_clock(struct spot *spot, u64 now)
{
	return spot->throttled_clock + (spot->is_throttled ? now - spot->throttled_since : 0);
}

/* A task group's run queue on a CPU; 0 when it cannot be read. */
static always_inline u64 queue_of(u64 group, u32 cpu)
{
	u64 queue = 0;
	struct cfs_rq **queues = read_field(((struct task_group *)group)->cfs_rq);
	if (queues)
		bpf_probe_read_kernel(&queue, sizeof(queue), &queues[cpu]);
	return queue;
}

static always_inline int throttle_count(u64 queue)
{
	return queue ? read_field(((struct cfs_rq *)queue)->throttle_count) : 0;
}

/* Whether a group, or one above it, has run out of quota on a CPU. */
verified_once int is_held_back(u64 group, u32 cpu)
{
	return throttle_count(queue_of(group, cpu)) > 0;
}

/* The cgroup whose quota holds a group back on a CPU: the topmost one with a count has run out itself. */
static always_inline u64 throttler(u64 group, u32 cpu)
{
	u64 top = 0;
	for (int level = 0; level < MAX_LEVELS && group; level++) {
		if (is_held_back(group, cpu))
			top = group;
		group = (u64)read_field(((struct task_group *)group)->parent);
	}
	return top ? id_of(top) : 0;
}

static always_inline void add_throttle(u32 cell, u64 by, u64 ns)
{
	struct throttle_key key = {.by = by, .cell = cell};
	u64 *sum = bpf_map_lookup_elem(&throttles, &key);
	if (sum)
		__sync_fetch_and_add(sum, ns);
	else
		bpf_map_update_elem(&throttles, &key, &ns, BPF_NOEXIST);
}

/* Quota that was there has run out, or the other way round. */
verified_once int quota_changes(struct spot *spot, u32 cpu, u32 cell, u64 now)
{
	if (!spot)
		return 0;
	struct cpu_state *state = get_cpu(cpu);
	if (state)
		__sync_fetch_and_add(&state->held, spot->is_throttled ? -1 : 1);
	if (!spot->is_throttled) {
		spot->is_throttled = 1;
		spot->throttled_since = now;
		spot->throttled_by = throttler(spot->group, cpu);
		return 0;
	}
	u64 sum = integral(spot->word, now);
	u64 grown = (sum - spot->last) & S_MASK;
	spot->last = sum;
	spot->throttled_clock += now - spot->throttled_since;
	spot->is_throttled = 0;
	if (grown && grown < S_MASK / 2)
		add_throttle(cell, spot->throttled_by, grown);
	return 0;
}

/* Takes note of quota that has run out, or was given out, since the last look. */
static always_inline void look_at_quota(struct spot *spot, u32 cpu, u32 cell, u64 now)
{
	if (!spot->group)
		return;
	bool throttled = throttle_count(spot->queue) > 0;
	if (throttled != !!spot->is_throttled)
		quota_changes(spot, cpu, cell, now);
}

/* Owes what was waited on a spot since the last time to a culprit. 1 if it is a new one. */
verified_once int owe(u32 cpu, u32 cell, u64 now, u64 culprit)
{
	struct config *cfg = get_config();
	if (!cfg)
		return 0;
	struct spot *spot = get_spot(cfg, cpu, cell);
	if (!spot)
		return 0;
	/* What was waited until now is owed, or held back, as things were until now. */
	if (spot->is_throttled) {
		look_at_quota(spot, cpu, cell, now);
		return 0;
	}
	u64 word = spot->word;
	u64 sum = integral(word, now);
	u64 grown = (sum - spot->last) & S_MASK;
	/* A waiter added by another CPU whose clock is a little ahead: next time. */
	if (grown > S_MASK / 2)
		return 0;
	spot->last = sum;
	look_at_quota(spot, cpu, cell, now);
	if (!(word & 0xffff)) {
		struct cpu_state *state = get_cpu(cpu);
		if (state && cell < MAX_CELLS) {
			((u8 *)state->active)[cell] = 0;
			if (*(volatile u64 *)&spot->word & 0xffff)
				((u8 *)state->active)[cell] = 1;
		}
	}
	if (!watch_blames || !grown)
		return 0;
	struct blame_key key = {.culprit = culprit, .cell = cell};
	u64 *blamed = bpf_map_lookup_elem(&blame, &key);
	if (blamed) {
		*blamed += grown;
		return 0;
	}
	if (bpf_map_update_elem(&blame, &key, &grown, BPF_NOEXIST)) {
		/* Another CPU may have made the entry meanwhile. */
		blamed = bpf_map_lookup_elem(&blame, &key);
		if (blamed) {
			*blamed += grown;
			return 0;
		}
		struct cpu_state *state = get_cpu(cpu);
		if (state)
			state->lost++;
	}
	return 1;
}

/* Whether any of eight words is set: told without a branch. */
static always_inline bool any_of_block(u64 *word)
{
	return word[0] | word[1] | word[2] | word[3] | word[4] | word[5] | word[6] | word[7];
}

/* The same for a CPU with more cells than a block has. */
verified_once int any_active_beyond(u32 cpu, u32 words)
{
	struct cpu_state *state = get_cpu(cpu);
	if (!state)
		return 0;
	for (u32 block = 1; block < BLOCKS; block++) {
		if (block * 8 >= words)
			return 0;
		if (any_of_block(&state->active[block * 8]))
			return 1;
	}
	return 0;
}

/* Whether a CPU may have waiters. */
static always_inline bool any_active(struct config *cfg, struct cpu_state *state, u32 cpu)
{
	if (any_of_block(state->active))
		return true;
	u32 words = (cfg->used + 7) / 8;
	return words > 8 && any_active_beyond(cpu, words);
}

/* Owes for those of a word's eight cells that may have waiters. */
verified_once int owe_word(u32 cpu, u32 word, u64 now, u64 culprit)
{
	struct cpu_state *state = get_cpu(cpu);
	int fresh = 0;
	if (!state || word >= MAX_CELLS / 8)
		return 0;
	u64 bytes = state->active[word];
	for (u32 i = 0; i < 8; i++)
		if (bytes >> (8 * i) & 0xff)
			fresh |= owe(cpu, word * 8 + i, now, culprit);
	return fresh;
}

/* The same for a block of eight words. */
verified_once int owe_block(u32 cpu, u32 block, u64 now, u64 culprit)
{
	struct cpu_state *state = get_cpu(cpu);
	int fresh = 0;
	if (!state || block >= BLOCKS)
		return 0;
	for (u32 i = 0; i < 8; i++)
		if (state->active[block * 8 + i])
			fresh |= owe_word(cpu, block * 8 + i, now, culprit);
	return fresh;
}

/* The same for all spots of a CPU. Blocks, words and cells in functions of their own are 8 + 8 + 8 turns to verify, in one
 * loop they would be 512. */
verified_once int owe_all(u32 cpu, u64 now, u64 culprit)
{
	struct config *cfg = get_config();
	int fresh = owe_block(cpu, 0, now, culprit);
	if (!cfg)
		return fresh;
	for (u32 block = 1; block < BLOCKS; block++) {
		if (block * 64 >= cfg->used)
			break;
		fresh |= owe_block(cpu, block, now, culprit);
	}
	return fresh;
}

static always_inline u32 group_cell_of(struct config *cfg, u64 id)
{
	u32 *known = bpf_map_lookup_elem(&cells, &id);
	if (known)
		return *known;
	u32 last = cfg->cells - 1;
	for (int try = 0; try < 8; try++) {
		u32 cell = cfg->used;
		if (cell >= last)
			return last; /* all that find no room share the last one */
		if (!bpf_map_update_elem(&slots, &cell, &id, BPF_NOEXIST)) {
			cfg->used = cell + 1;
			if (!bpf_map_update_elem(&cells, &id, &cell, BPF_NOEXIST))
				return cell;
			known = bpf_map_lookup_elem(&cells, &id);
			return known ? *known : last;
		}
		cfg->used = cell + 1;
	}
	return last;
}

verified_once int is_target(u64 group)
{
	u64 id = id_of(group);
	return bpf_map_lookup_elem(&targets, &id) != NULL;
}

/* Whether a group or one above it is wanted. */
static always_inline bool is_below_target(u64 group)
{
	for (int level = 0; level < MAX_LEVELS && group; level++) {
		if (is_target(group))
			return true;
		group = (u64)read_field(((struct task_group *)group)->parent);
	}
	return false;
}

/* The cell of a task's group that is seen for the first time; NO_CELL for a stranger. */
verified_once u32 classify(u64 task)
{
	struct config *cfg = get_config();
	u64 group = (u64)read_field(((struct task_struct___why *)task)->sched_task_group);
	u32 cell = NO_CELL;
	if (!cfg || !group)
		return NO_CELL;
	u64 id = id_of(group);
	if (watch_mode != MODE_GROUPS || is_below_target(group))
		cell = group_cell_of(cfg, id);
	/* Asked for again at each switch, where it tells strangers apart. */
	if (watch_mode == MODE_GROUPS)
		bpf_map_update_elem(&groups, &id, &cell, BPF_ANY);
	return cell;
}

static always_inline u32 read_task_cpu(u64 task)
{
	if (field_exists(((struct task_struct___info *)task)->thread_info.cpu))
		return read_field(((struct task_struct___info *)task)->thread_info.cpu);
	return read_field(((struct task_struct___cpu *)task)->cpu);
}

static always_inline u64 read_stolen_clock(u64 task)
{
	if (!field_exists(((struct rq *)0)->prev_steal_time_rq))
		return 0;
	struct cfs_rq *queue = read_field(((struct task_struct___why *)task)->se.cfs_rq);
	struct rq *rq = read_field(queue->rq);
	return read_field(rq->prev_steal_time_rq);
}

static always_inline void begin_wait(struct config *cfg, struct record *record, u32 cpu, u64 now)
{
	struct spot *spot = get_spot(cfg, cpu, record->cell);
	struct cpu_state *state = get_cpu(cpu);
	if (!spot || !state)
		return;
	/* Who found no room shares a cell: no quota is theirs alone. Sessions share one, too, have none, and their groups end. */
	if (!spot->group && record->cell != cfg->cells - 1) {
		spot->group = record->group;
		spot->queue = id_of(record->group) > 1 ? queue_of(record->group, cpu) : 0;
	}
	look_at_quota(spot, cpu, record->cell, now);
	record->state = STATE_WAIT;
	record->since = now;
	if (!record->waited)
		record->began = now;
	record->cpu = cpu;
	record->throttled_at = throttled_clock(spot, now);
	__sync_fetch_and_add(&spot->word, (now << 16) + 1);
	if (record->cell < MAX_CELLS)
		((u8 *)state->active)[record->cell] = 1;
}

/* Adds up the piece of time that ends now; the caller says what begins. */
static always_inline void end_piece(struct config *cfg, struct record *record, u64 now)
{
	u32 state = record->state;
	struct spot *spot = get_spot(cfg, record->cpu, record->cell);
	if (!spot)
		return;
	u64 piece = now > record->since ? now - record->since : 0;
	if (state == STATE_RUN) {
		spot->ran += piece;
	} else if (state == STATE_WAIT) {
		u64 throttled = throttled_clock(spot, now) - record->throttled_at;
		if (throttled > piece)
			throttled = piece;
		__sync_fetch_and_add(&spot->word, -((now << 16) + 1));
		spot->waited += piece - throttled;
		spot->throttled += throttled;
		record->waited += watch_throttled ? piece : piece - throttled;
	} else if (state == STATE_SLEEP) {
		spot->slept += piece;
	} else if (state == STATE_DISK) {
		spot->disk += piece;
	} else if (state == STATE_STOPPED) {
		spot->stopped += piece;
	}
}

/* Fills in the record of a wanted task whose state is not known yet; 0 for a stranger. */
verified_once int describe(u64 address, u64 now, struct record *record)
{
	struct config *cfg = get_config();
	struct task_struct *task = (void *)address;
	u64 group = (u64)read_field(((struct task_struct___why *)task)->sched_task_group);
	u32 tgid = read_field(task->tgid);
	if (!cfg || !group || !record)
		return 0;
	record->since = now;
	record->start = read_field(task->start_boottime);
	record->group = group;
	if (watch_mode == MODE_PROCESSES) {
		u64 id = tgid;
		u64 *target = bpf_map_lookup_elem(&targets, &id);
		if (!target)
			return 0;
		u64 start = start_of(*target);
		struct task_struct *leader = read_field(((struct task_struct___why *)task)->group_leader);
		/* Another process that got the number of the one meant. Ticks are 10 ms. */
		if (start && read_field(leader->start_boottime) / 10000000 != start)
			return 0;
		record->scope = *target >> SCOPE_SHIFT;
		record->cell = group_cell_of(cfg, id_of(group) | (u64)record->scope << SCOPE_SHIFT);
	} else {
		if (read_field(task->flags) & PF_KTHREAD)
			return 0;
		record->cell = classify(address);
	}
	record->cpu = read_task_cpu(address);
	record->tgid = tgid;
	return record->cell != NO_CELL;
}

static always_inline u64 group_of(struct task_struct *task)
{
	return (u64)read_field(((struct task_struct___why *)task)->sched_task_group);
}

/* A process begins: where its parent is wanted with its children, so is it, unless it is born into another cgroup. */
verified_once int adopt(u64 address)
{
	struct task_struct *task = (void *)address;
	struct task_struct *parent = read_field(task->real_parent);
	struct task_struct *leader = read_field(((struct task_struct___why *)parent)->group_leader);
	u64 tgid = (u32)read_field(task->tgid), above = (u32)read_field(parent->tgid);
	u64 *target = bpf_map_lookup_elem(&targets, &above);
	u32 low = tgid % MEANT;
	u8 yes = 1;
	if (!target || !(*target & WITH_CHILDREN) || (u32)read_field(task->pid) != tgid)
		return 0;
	if (group_of(task) != group_of(parent))
		return 0;
	u64 start = start_of(*target);
	if (start && read_field(leader->start_boottime) / 10000000 != start)
		return 0;
	u64 value = (*target & ~(CHILD - 1)) | CHILD | read_field(task->start_boottime) / 10000000;
	if (!bpf_map_update_elem(&targets, &tgid, &value, BPF_ANY))
		bpf_map_update_elem(&meant, &low, &yes, BPF_ANY);
	return 0;
}

/* A child that no one has named makes room when it ends, or goes to another cgroup, where it may be a stranger. 1 if it was one. */
verified_once int disown(u32 tgid)
{
	u64 id = tgid;
	u64 *target = bpf_map_lookup_elem(&targets, &id);
	if (!target || !(*target & CHILD))
		return 0;
	bpf_map_delete_elem(&targets, &id);
	return 1;
}

static always_inline void lose(void)
{
	struct cpu_state *state = get_cpu(bpf_get_smp_processor_id());
	if (state)
		state->lost++;
}

/* A record for a task that has none, or that is another now or in another group. */
verified_once int renew(u64 task)
{
	u64 now = bpf_ktime_get_ns();
	struct config *cfg = get_config();
	u32 tid = read_field(((struct task_struct *)task)->pid);
	struct record record = {};
	if (!cfg)
		return 0;
	struct record *old = bpf_map_lookup_elem(&records, &tid);
	if (old)
		end_piece(cfg, old, now);
	bool known = describe(task, now, &record);
	if (watch_children && known && old && old->start == record.start && old->group != record.group)
		known = !disown(record.tgid);
	if (!known) {
		if (old)
			bpf_map_delete_elem(&records, &tid);
		return 0;
	}
	if (bpf_map_update_elem(&records, &tid, &record, BPF_ANY)) {
		lose();
		return 0;
	}
	return 1;
}

/* A thread of a child that made room while the thread waited, or slept: what began then goes on for nobody. */
verified_once int drop_record(u32 tid)
{
	struct config *cfg = get_config();
	struct record *record = bpf_map_lookup_elem(&records, &tid);
	if (!cfg || !record)
		return 0;
	end_piece(cfg, record, bpf_ktime_get_ns());
	bpf_map_delete_elem(&records, &tid);
	return 0;
}

/* The task that is a program's argument number n, as a number. */
static always_inline u64 address_in(void *ctx, u32 n)
{
	u64 address = 0;
	/* The compiler is not to use the sum for plain loads, too: the verifier takes them from ctx itself only. */
	asm volatile("" : "+r"(ctx));
	bpf_probe_read_kernel(&address, sizeof(address), ctx + n * sizeof(u64));
	return address;
}

/* The record of a wanted task, which is argument number n; made when missing. */
static always_inline struct record *record_of(struct config *cfg, struct task_struct *task, u64 *ctx, u32 n)
{
	u32 tid = task->pid;
	if (!tid)
		return NULL;
	struct task_group *group = ((struct task_struct___why *)task)->sched_task_group;
	u32 scope = 0;
	if (watch_mode == MODE_PROCESSES) {
		u64 tgid = task->tgid;
		u32 low = tgid % MEANT;
		u8 *may_be = bpf_map_lookup_elem(&meant, &low);
		if (!may_be || !*may_be)
			return NULL;
		u64 *target = bpf_map_lookup_elem(&targets, &tgid);
		if (!target) {
			if (watch_children)
				drop_record(tid);
			return NULL;
		}
		scope = *target >> SCOPE_SHIFT;
	} else if (task->flags & PF_KTHREAD) {
		return NULL;
	} else if (watch_mode == MODE_GROUPS) {
		u64 id = plain_id_of(group);
		u32 *known = bpf_map_lookup_elem(&groups, &id);
		if ((known ? *known : classify(address_in(ctx, n))) == NO_CELL)
			return NULL;
	}
	struct record *record = bpf_map_lookup_elem(&records, &tid);
	if (record && record->group == (u64)group && record->scope == scope && record->start == task->start_boottime)
		return record;
	return renew(address_in(ctx, n)) ? bpf_map_lookup_elem(&records, &tid) : NULL;
}

static always_inline u64 culprit_of(struct task_struct *task, struct record *record)
{
	u32 tid = task->pid;
	if (!watch_blames || !tid)
		return 0;
	if (watch_mode == MODE_ALL && record)
		return CULPRIT_GROUP | record->cell;
	return (task->start_boottime >> 20 << 32) | tid;
}

verified_once int remember(u64 address, u64 culprit)
{
	struct task_struct *task = (void *)address;
	u64 group = (u64)read_field(((struct task_struct___why *)task)->sched_task_group);
	struct who who = {.tgid = read_field(task->tgid), .kthread = !!(read_field(task->flags) & PF_KTHREAD)};
	if (group)
		who.cgroup = id_of(group);
	bpf_probe_read_kernel(who.comm, sizeof(who.comm), __builtin_preserve_access_index(&task->comm));
	bpf_map_update_elem(&culprits, &culprit, &who, BPF_ANY);
	return 0;
}

/* 1 where a number below 2^63 has any of the bits from `bit` on. Without a branch, for the verifier walks through every
 * way of every branch. */
#define reaches(number, bit) ((u32)(((1ull << (bit)) - 1 - (number)) >> 63))

/* Four buckets to an octave, the first of octave 2 being 8. */
static always_inline u32 bucket_of(u64 ns)
{
	u64 rest = ns;
	u32 octave = 0;
	for (u32 step = 32; step; step /= 2) {
		u32 shift = reaches(rest, step) * step;
		rest >>= shift;
		octave += shift;
	}
	if (octave < 2)
		return octave * 4;
	u32 bucket = octave * 4 + (ns >> (octave - 2) & 3);
	return bucket < BUCKETS ? bucket : BUCKETS - 1;
}

/* A wait has ended. */
static always_inline void count_wait(struct spot *spot, struct record *record)
{
	u32 zero = 0, cell = record->cell;
	u64 waited = record->waited;
	spot->waits++;
	if (waited > spot->max_wait)
		spot->max_wait = waited;
	u64 *begin = bpf_map_lookup_elem(&window, &zero);
	if (begin && record->began < *begin)
		return;
	struct histogram *histogram = bpf_map_lookup_elem(&histograms, &cell);
	/* Compared as the 64 bits that are added to the pointer: the verifier of 6.1 learns too little of those from a comparison
	 * of 32, to which the compiler would shorten this one. */
	u64 bucket = bucket_of(waited);
	asm volatile("" : "+r"(bucket));
	if (histogram && bucket < BUCKETS)
		histogram->counts[bucket]++;
}

static always_inline u32 sleep_state(u32 state)
{
	if (state & TASK_STOPPED_OR_TRACED)
		return STATE_STOPPED;
	if (state & TASK_UNINTERRUPTIBLE && !(state & TASK_NOLOAD))
		return STATE_DISK;
	return STATE_SLEEP;
}

/*
 * A switch was not seen (some kernels keep the threads of their host's agent from being traced): the thread that leaves
 * now is not the one that came last. When it came is told by its sched_info, in the clock of the run queue.
 */
verified_once int catch_up(u64 prev, u64 now)
{
	struct config *cfg = get_config();
	u32 cpu = bpf_get_smp_processor_id();
	struct cpu_state *state = get_cpu(cpu);
	if (!cfg || !state)
		return 0;
	state->missed++;
	struct cfs_rq *queue = read_field(((struct task_struct___why *)prev)->se.cfs_rq);
	struct rq *rq = read_field(queue->rq);
	u64 ran = read_field(rq->clock) - read_field(((struct task_struct___why *)prev)->sched_info.last_arrival);
	u64 came = ran < now ? now - ran : now;
	u32 tid = state->tid;
	struct record *lost = bpf_map_lookup_elem(&records, &tid);
	if (lost && lost->state == STATE_RUN && lost->cpu == cpu && lost->since <= came) {
		end_piece(cfg, lost, came);
		/* Or it waits: then it comes back without having been woken. */
		lost->state = STATE_SLEEP;
		lost->since = came;
	}
	tid = read_field(((struct task_struct *)prev)->pid);
	struct record *record = bpf_map_lookup_elem(&records, &tid);
	if (record && record->state != STATE_RUN && record->since <= came) {
		struct spot *spot = get_spot(cfg, cpu, record->cell);
		end_piece(cfg, record, came);
		if (spot && record->state == STATE_WAIT)
			count_wait(spot, record);
		record->waited = 0;
		record->state = STATE_RUN;
		record->since = came;
		record->cpu = cpu;
		record->steal_at = read_stolen_clock(prev);
	}
	return 0;
}

/* A wanted thread leaves the CPU, for good with STATE_NEW, at a reading of the CPU's stolen time. */
verified_once int leaves(struct record *record, u32 cpu, u64 now, u64 stolen_clock, u32 state)
{
	struct config *cfg = get_config();
	if (!cfg || !record)
		return 0;
	struct spot *spot = get_spot(cfg, cpu, record->cell);
	end_piece(cfg, record, now);
	if (spot && record->state == STATE_RUN) {
		u64 stolen = stolen_clock - record->steal_at;
		if (stolen && stolen <= now - record->since) {
			spot->stolen += stolen;
			spot->ran -= stolen;
		}
	}
	record->cpu = cpu;
	record->since = now;
	if (state == STATE_WAIT) {
		begin_wait(cfg, record, cpu, now);
		if (spot && !spot->is_throttled)
			spot->preempted++;
	} else {
		record->state = state;
		if (spot && state != STATE_NEW)
			spot->voluntary++;
	}
	return 0;
}

/* A wanted thread comes to the CPU. */
verified_once int comes(struct record *record, u32 cpu, u64 now, u64 stolen_clock)
{
	struct config *cfg = get_config();
	if (!cfg || !record)
		return 0;
	struct spot *spot = get_spot(cfg, cpu, record->cell);
	u32 was = record->state;
	/* One that ran left without being seen, and nobody known came after it. */
	if (was == STATE_WAIT || was == STATE_NEW || (was != STATE_RUN && !spot)) {
		end_piece(cfg, record, now);
	} else if (was != STATE_RUN && spot) {
		/* Was not woken, so it waited. */
		spot->waited += now - record->since;
		record->waited = now - record->since;
		record->began = record->since;
	}
	if (spot && was != STATE_RUN && was != STATE_NEW)
		count_wait(spot, record);
	record->waited = 0;
	record->state = STATE_RUN;
	record->since = now;
	record->cpu = cpu;
	record->steal_at = stolen_clock;
	return 0;
}

static always_inline void switches(struct config *cfg, struct cpu_state *state, u32 cpu, u64 *ctx)
{
	struct task_struct *prev = (struct task_struct *)ctx[1];
	struct task_struct *next = (struct task_struct *)ctx[2];
	struct record *record = record_of(cfg, prev, ctx, 1);
	struct record *following = record_of(cfg, next, ctx, 2);
	bool active = any_active(cfg, state, cpu);
	if (state->switched && state->tid != (u32)prev->pid)
		catch_up(address_in(ctx, 1), bpf_ktime_get_ns());
	state->switched = 1;
	state->tid = next->pid;
	state->current = culprit_of(next, following);
	/* Told apart one by one: the verifier does not like pointers or-ed together. */
	int nothing = !active && !state->fresh;
	asm volatile("" : "+r"(nothing));
	if (record)
		nothing = 0;
	asm volatile("" : "+r"(nothing));
	if (following)
		nothing = 0;
	asm volatile("" : "+r"(nothing));
	if (nothing) {
		state->current_cell = NO_CELL;
		return;
	}
	u64 now = bpf_ktime_get_ns();
	u64 culprit = culprit_of(prev, record);
	bool fresh = active && owe_all(cpu, now, culprit);
	if ((fresh || state->fresh) && culprit)
		remember(address_in(ctx, 1), culprit);
	state->fresh = 0;
	if (record) {
		u32 kind = ((struct task_struct___why *)prev)->__state;
		u64 clock = stolen_clock(prev);
		if (kind & TASK_DEAD) {
			u32 tid = prev->pid;
			leaves(record, cpu, now, clock, STATE_NEW);
			bpf_map_delete_elem(&records, &tid);
			if (watch_children && tid == (u32)prev->tgid)
				disown(tid);
		} else {
			leaves(record, cpu, now, clock, (bool)ctx[0] || !kind ? STATE_WAIT : sleep_state(kind));
		}
	}
	if (following) {
		comes(following, cpu, now, stolen_clock(next));
		state->current_cell = following->cell;
	} else {
		state->current_cell = NO_CELL;
	}
}

SEC("tp_btf/sched_switch")
int on_switch(u64 *ctx)
{
	struct config *cfg = get_config();
	if (!cfg || !cfg->on)
		return 0;
	u32 cpu = bpf_get_smp_processor_id();
	struct cpu_state *state = get_cpu(cpu);
	if (!state)
		return 0;
	call_begins(state);
	switches(cfg, state, cpu, ctx);
	call_ends(state);
	return 0;
}

/* A wanted thread that is not on a CPU, nor waits for one, is woken. */
verified_once int wakes(struct record *record, u32 cpu, u32 on_cpu)
{
	struct config *cfg = get_config();
	if (!cfg || !record)
		return 0;
	u64 now = bpf_ktime_get_ns();
	end_piece(cfg, record, now);
	if (on_cpu) {
		/* Woke itself before it slept. */
		record->state = STATE_RUN;
		record->since = now;
		return 0;
	}
	begin_wait(cfg, record, cpu, now);
	return 0;
}

static always_inline int woken(struct task_struct *task, u64 *ctx)
{
	struct config *cfg = get_config();
	if (!cfg || !cfg->on)
		return 0;
	struct cpu_state *state = get_cpu(bpf_get_smp_processor_id());
	if (!state)
		return 0;
	call_begins(state);
	struct record *record = record_of(cfg, task, ctx, 0);
	if (record && record->state != STATE_RUN && record->state != STATE_WAIT)
		wakes(record, task_cpu(task), ((struct task_struct___why *)task)->on_cpu);
	call_ends(state);
	return 0;
}

SEC("tp_btf/sched_wakeup")
int on_wakeup(u64 *ctx)
{
	return woken((struct task_struct *)ctx[0], ctx);
}

SEC("tp_btf/sched_wakeup_new")
int on_wakeup_new(u64 *ctx)
{
	if (watch_children)
		adopt(address_in(ctx, 0));
	return woken((struct task_struct *)ctx[0], ctx);
}

/* A wanted thread goes to another CPU. */
verified_once int migrates(struct record *record, u32 to)
{
	struct config *cfg = get_config();
	if (!cfg || !record)
		return 0;
	u64 now = bpf_ktime_get_ns();
	struct spot *spot = get_spot(cfg, to, record->cell);
	if (spot)
		__sync_fetch_and_add(&spot->migrated, 1);
	if (record->state == STATE_WAIT) {
		end_piece(cfg, record, now);
		begin_wait(cfg, record, to, now);
	}
	return 0;
}

SEC("tp_btf/sched_migrate_task")
int on_migrate(u64 *ctx)
{
	struct config *cfg = get_config();
	if (!cfg || !cfg->on)
		return 0;
	struct record *record = record_of(cfg, (struct task_struct *)ctx[0], ctx, 0);
	return record ? migrates(record, (u32)ctx[1]) : 0;
}

static always_inline u64 irq_top(struct cpu_state *state)
{
	u32 depth = state->irq_depth;
	if (depth && depth <= IRQ_DEPTH)
		return state->irq[(depth - 1) & (IRQ_DEPTH - 1)];
	return state->current;
}

static always_inline int irq_begins(u64 culprit)
{
	struct config *cfg = get_config();
	u32 cpu = bpf_get_smp_processor_id();
	struct cpu_state *state = get_cpu(cpu);
	if (!cfg || !cfg->on || !state)
		return 0;
	call_begins(state);
	u32 depth = state->irq_depth;
	bool active = any_active(cfg, state, cpu);
	if (active || (!depth && state->current_cell != NO_CELL)) {
		u64 now = bpf_ktime_get_ns();
		/* The task whose time ends here is remembered when it leaves the CPU. */
		if (active && owe_all(cpu, now, irq_top(state)) && !depth)
			state->fresh = 1;
		if (!depth)
			state->irq_since = now;
	}
	if (depth < IRQ_DEPTH)
		state->irq[depth & (IRQ_DEPTH - 1)] = culprit;
	state->irq_depth = depth + 1;
	call_ends(state);
	return 0;
}

static always_inline int irq_ends(void)
{
	struct config *cfg = get_config();
	u32 cpu = bpf_get_smp_processor_id();
	struct cpu_state *state = get_cpu(cpu);
	if (!cfg || !cfg->on || !state || !state->irq_depth)
		return 0;
	call_begins(state);
	bool active = any_active(cfg, state, cpu);
	bool counts = state->irq_depth == 1 && state->current_cell != NO_CELL;
	int fresh = 0;
	if (active || counts) {
		u64 now = bpf_ktime_get_ns();
		if (active)
			fresh = owe_all(cpu, now, irq_top(state));
		struct spot *spot = counts ? get_spot(cfg, cpu, state->current_cell) : NULL;
		if (spot && now > state->irq_since)
			spot->interrupted += now - state->irq_since;
	}
	state->irq_depth--;
	call_ends(state);
	return fresh;
}

SEC("tp_btf/irq_handler_entry")
int on_irq_entry(u64 *ctx)
{
	return irq_begins(CULPRIT_IRQ | (u32)ctx[0]);
}

SEC("tp_btf/irq_handler_exit")
int on_irq_exit(u64 *ctx)
{
	if (irq_ends()) {
		struct irqaction *action = (struct irqaction *)ctx[1];
		u64 culprit = CULPRIT_IRQ | (u32)ctx[0];
		struct who who = {};
		bpf_probe_read_kernel_str(who.comm, sizeof(who.comm), action->name);
		bpf_map_update_elem(&culprits, &culprit, &who, BPF_ANY);
	}
	return 0;
}

SEC("tp_btf/softirq_entry")
int on_softirq_entry(u64 *ctx)
{
	return irq_begins(CULPRIT_SOFTIRQ | (u32)ctx[0]);
}

SEC("tp_btf/softirq_exit")
int on_softirq_exit(__attribute__((unused)) u64 *ctx)
{
	irq_ends();
	return 0;
}

/* Where the kernel has given out quota, perhaps: that matters where some has run out. */
static always_inline int look_around(void)
{
	struct config *cfg = get_config();
	u32 cpu = bpf_get_smp_processor_id();
	struct cpu_state *state = get_cpu(cpu);
	if (!cfg || !cfg->on || !state || !state->held)
		return 0;
	if (any_active(cfg, state, cpu) && owe_all(cpu, bpf_ktime_get_ns(), irq_top(state)) && !state->irq_depth)
		state->fresh = 1;
	return 0;
}

SEC("tp_btf/hrtimer_expire_exit")
int on_timer(__attribute__((unused)) u64 *ctx)
{
	return look_around();
}

SEC("tp_btf/csd_function_exit")
int on_call(__attribute__((unused)) u64 *ctx)
{
	return look_around();
}

/*
 * What a wait that goes on has lasted, as the kernel's own counters know it (since its thread was moved to this CPU): the
 * length is right then when it ends, though its sums begin with the watch. What a quota holds back now is counted from now
 * on: who can tell how much of it was held back before.
 */
static always_inline void count_earlier(struct record *record, u64 task)
{
	struct config *cfg = get_config();
	struct spot *spot = cfg ? get_spot(cfg, record->cpu, record->cell) : NULL;
	if (!watch_earlier || !spot || spot->is_throttled)
		return;
	struct cfs_rq *queue = read_field(((struct task_struct___why *)task)->se.cfs_rq);
	struct rq *rq = read_field(queue->rq);
	u64 queued = read_field(((struct task_struct___why *)task)->sched_info.last_queued);
	u64 clock = read_field(rq->clock);
	if (!queued || clock <= queued)
		return;
	record->waited = clock - queued;
	record->began -= record->waited;
}

/*
 * Forgets all that was counted, for a watch that begins anew. Nothing may be on meanwhile; lengths of waits are an array a
 * CPU, which only user space can clear.
 */
static long forget_entry(void *map, const void *key, void *value, void *ctx)
{
	bpf_map_delete_elem(map, key);
	return 0;
}

static long forget_spot(void *map, const void *key, struct spot *spot,
			void *ctx)
{
	if (spot)
		__builtin_memset(spot, 0, sizeof(*spot));
	return 0;
}

SEC("iter/task")
int forget(struct bpf_iter__task *ctx)
{
	struct config *cfg = get_config();
	/* Once, after the last task. */
	if (!cfg || cfg->on || ctx->task)
		return 0;
	bpf_for_each_map_elem(&records, forget_entry, NULL, 0);
	bpf_for_each_map_elem(&cells, forget_entry, NULL, 0);
	bpf_for_each_map_elem(&slots, forget_entry, NULL, 0);
	bpf_for_each_map_elem(&groups, forget_entry, NULL, 0);
	bpf_for_each_map_elem(&blame, forget_entry, NULL, 0);
	bpf_for_each_map_elem(&throttles, forget_entry, NULL, 0);
	bpf_for_each_map_elem(&culprits, forget_entry, NULL, 0);
	bpf_for_each_map_elem(&spots, forget_spot, NULL, 0);
	return 0;
}

/* A stranger that has a CPU when the watch begins is to blame from then on, though it was not seen to come. */
static always_inline void find_running(struct task_struct *task, u64 address)
{
	if (!((struct task_struct___why *)task)->on_cpu)
		return;
	struct cpu_state *state = get_cpu(read_task_cpu(address));
	if (!state || state->switched)
		return;
	u64 culprit = culprit_of(task, NULL);
	state->current = culprit;
	/* It may keep the CPU to the end, and so never be seen to leave. */
	if (culprit)
		remember(address, culprit);
}

/*
 * What every wanted task is doing when the watch begins. A record is put in whole and only where there is none: whatever
 * happened to the task meanwhile has made one that is right.
 */
SEC("iter/task")
int seed(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct config *cfg = get_config();
	struct record record = {};
	if (!task || !cfg)
		return 0;
	u64 now = bpf_ktime_get_ns();
	u32 tid = task->pid;
	if (!tid)
		return 0;
	if (!describe(address_in(ctx, 1), now, &record)) {
		find_running(task, address_in(ctx, 1));
		return 0;
	}
	u32 kind = ((struct task_struct___why *)task)->__state;
	if (kind & TASK_DEAD || task->exit_state)
		return 0;
	bool running = ((struct task_struct___why *)task)->on_cpu;
	bool waiting = !running && !kind && ((struct task_struct___why *)task)->on_rq;
	struct cpu_state *state = get_cpu(record.cpu);
	if (running) {
		record.state = STATE_RUN;
		record.steal_at = stolen_clock(task);
	} else if (waiting) {
		begin_wait(cfg, &record, record.cpu, now);
		count_earlier(&record, address_in(ctx, 1));
	} else {
		record.state = sleep_state(kind);
	}
	if (!bpf_map_update_elem(&records, &tid, &record, BPF_NOEXIST)) {
		if (running && state && !state->switched) {
			state->current_cell = record.cell;
			state->current = culprit_of(task, &record);
		}
	} else {
		struct spot *spot = get_spot(cfg, record.cpu, record.cell);
		if (waiting && spot && record.state == STATE_WAIT)
			__sync_fetch_and_add(&spot->word, -((now << 16) + 1));
		if (!bpf_map_lookup_elem(&records, &tid))
			lose();
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
