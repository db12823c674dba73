// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * A flight recorder: what the scheduler did lately, event by event, in rings that user space maps and reads when somebody asks.
 *
 * Each CPU writes a ring of its own, of 16 bytes an event. Who left a CPU is not written: it is whom the switch before brought.
 * Nor are names: those of the living are found elsewhere, and who ends leaves them in a ring of the ended.
 *
 * Locks: interrupts are off in sched_switch, sched_wakeup and sched_migrate_task, so a CPU's ring has one writer at a time. A
 * thread may be preempted in sched_process_exit, so places among the ended are taken by an atomic add.
 */
#include "sched.h"

#define BPF_F_MMAPABLE 1024

enum kind { KIND_SWITCH = 1, KIND_WAKEUP, KIND_MIGRATE, KIND_STOLEN, KIND_BIRTH };
/* What becomes of whoever leaves a CPU. */
enum left { LEFT_RUNNABLE, LEFT_ASLEEP, LEFT_BLOCKED, LEFT_STOPPED, LEFT_ENDED };

/* In `what`, above the kind. */
#define PRIORITY_SHIFT 16
#define HELD (1u << 31) /* runnable, but a quota is used up */

/* Events of a ring: a power of two. Set before the programs are loaded. */
const volatile u32 ring_size = 1024;
const volatile u32 ended_size = 1024;

struct event {
	u64 when; /* CLOCK_MONOTONIC, ns */
	u32 tid;  /* a switch: who comes */
	u32 what; /* kind; a switch: left << 8 and priority << 16 of who comes; else the CPU << 8 */
};

struct head {
	u64 written;
	u64 stolen; /* as at the last switch, ns */
	u64 pad[6]; /* no other CPU's in this cache line */
};

struct ended {
	u64 when;
	u64 cgroup; /* inode number of its directory */
	u32 tid;
	u32 tgid;
	char comm[TASK_COMM_LEN];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct event);
} events SEC(".maps");

/* One for the ended, and one for each CPU after it. CPUs that have none are not recorded. */
#define HEAD_ENDED 0
#define HEAD_CPU(cpu) ((cpu) + 1)
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct head);
} heads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct ended);
} all_ended SEC(".maps");

static always_inline struct head *get_head(u32 number)
{
	return bpf_map_lookup_elem(&heads, &number);
}

static always_inline void write(struct head *head, u32 cpu, u64 now, u32 tid, u32 what)
{
	u32 index = cpu * ring_size + ((u32)head->written & (ring_size - 1));
	struct event *event = bpf_map_lookup_elem(&events, &index);
	if (!event)
		return;
	event->when = now;
	event->tid = tid;
	event->what = what;
	barrier();
	head->written++;
}

/* Whether the quota of its cgroup, or of one above, is used up on its CPU. */
static always_inline bool is_held(struct task_struct *task)
{
	if (!field_exists(((struct cfs_rq *)0)->throttle_count))
		return false;
	return ((struct task_struct___why *)task)->se.cfs_rq->throttle_count > 0;
}

static always_inline u32 left_how(u32 state, bool preempted)
{
	if (state & TASK_DEAD)
		return LEFT_ENDED;
	if (preempted || !state)
		return LEFT_RUNNABLE;
	if (state & TASK_STOPPED_OR_TRACED)
		return LEFT_STOPPED;
	return state & TASK_UNINTERRUPTIBLE && !(state & TASK_NOLOAD) ? LEFT_BLOCKED : LEFT_ASLEEP;
}

SEC("tp_btf/sched_switch")
int on_switch(u64 *ctx)
{
	struct task_struct *prev = (struct task_struct *)ctx[1];
	struct task_struct *next = (struct task_struct *)ctx[2];
	u32 cpu = bpf_get_smp_processor_id();
	struct head *head = get_head(HEAD_CPU(cpu));
	if (!head)
		return 0;
	u64 now = bpf_ktime_get_ns();
	u64 stolen = stolen_clock(next);
	if (head->written && stolen > head->stolen) {
		u64 grown = stolen - head->stolen;
		write(head, cpu, now, grown > 0xffffffff ? 0xffffffff : grown, KIND_STOLEN | cpu << 8);
	}
	head->stolen = stolen;
	u32 left = left_how(((struct task_struct___why *)prev)->__state, ctx[0]);
	u32 what = KIND_SWITCH | left << 8 | (next->prio & 0xff) << PRIORITY_SHIFT;
	if (left == LEFT_RUNNABLE && prev->pid && is_held(prev))
		what |= HELD;
	write(head, cpu, now, next->pid, what);
	return 0;
}

static always_inline int wakes(struct task_struct *task, u32 kind)
{
	u32 there = task_cpu(task);
	u32 cpu = bpf_get_smp_processor_id();
	struct head *head = get_head(HEAD_CPU(cpu));
	if (!head)
		return 0;
	write(head, cpu, bpf_ktime_get_ns(), task->pid, kind | (there & 0xffff) << 8 | (is_held(task) ? HELD : 0));
	return 0;
}

SEC("tp_btf/sched_wakeup")
int on_wakeup(u64 *ctx)
{
	return wakes((struct task_struct *)ctx[0], KIND_WAKEUP);
}

SEC("tp_btf/sched_wakeup_new")
int on_wakeup_new(u64 *ctx)
{
	return wakes((struct task_struct *)ctx[0], KIND_BIRTH);
}

SEC("tp_btf/sched_migrate_task")
int on_migrate(u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	u32 cpu = bpf_get_smp_processor_id();
	struct head *head = get_head(HEAD_CPU(cpu));
	if (head)
		write(head, cpu, bpf_ktime_get_ns(), task->pid, KIND_MIGRATE | ((u32)ctx[1] & 0xffff) << 8);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int on_exit(u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	struct head *head = get_head(HEAD_ENDED);
	if (!head)
		return 0;
	u32 index = (u32)__sync_fetch_and_add(&head->written, 1) & (ended_size - 1);
	struct ended *ended = bpf_map_lookup_elem(&all_ended, &index);
	if (!ended)
		return 0;
	ended->cgroup = plain_id_of(((struct task_struct___why *)task)->sched_task_group);
	ended->tid = task->pid;
	ended->tgid = task->tgid;
	bpf_probe_read_kernel(ended->comm, sizeof(ended->comm), task->comm);
	barrier();
	ended->when = bpf_ktime_get_ns();
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
