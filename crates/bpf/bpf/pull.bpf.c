// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Work that waits for a CPU while another one next to it has nothing to do.
 *
 * The fair class looks for an idle CPU when a task wakes, but not for long, and not at all in a small cache domain that is
 * three quarters busy (SIS_UTIL, kernel/sched/fair.c: select_idle_cpu); a CPU that goes idle looks for waiting work only
 * where that paid off lately (sched_balance_newidle). Work then waits until a tick notices. Here it is seen at once: each
 * case is offered to user space, which moves the task.
 *
 * CPUs that share a cache are a domain: a word with a bit for each that is idle. Each CPU remembers a few of the tasks that
 * wait there; only tasks in `tasks` count. Locks: the run queue's lock is held in sched_switch and in sched_wakeup (of the
 * CPU woken on), so a CPU's memory has one writer at a time; readers elsewhere may see it a moment old, and what is offered
 * is looked at again before it is moved.
 *
 * Tasks may have a role besides. When one that is SERVED wakes on a CPU that one of the BACKGROUND holds, the latter is offered,
 * whether a CPU is idle or not; at no other time.
 */
#include "sched.h"

#define DOMAIN_CPUS 64
#define REMEMBERED 8
#define NO_DOMAIN 0xffffffff
#define NO_CPU 0xffffffff
/* Somebody who can be moved is by then. One whose cgroup has run out of quota cannot run anywhere, and whoever is woken to move
 * it makes a CPU go idle once more. */
#define PATIENCE 10000000ull
/* Between two offers of who holds one CPU: each interrupts whoever runs there and where it goes. */
#define PACE 1000000ull
#define NS_A_TICK 10000000 /* as /proc shows it: USER_HZ is 100 */

/* Values of `role`. */
#define MOVED_WHEN_WAITING 0
#define BACKGROUND 1
#define SERVED 2

struct cpu {
	u64 cleared; /* when whoever held it was offered last, ns */
	u32 running; /* thread number */
	u32 pad;
	u32 domain; /* NO_DOMAIN: not one to move work from or to */
	u32 bit;
	u32 waiting[REMEMBERED]; /* thread numbers, some of them no longer true */
};

struct domain {
	u64 idle;
	u32 count;
	u32 pad;
	u32 cpus[DOMAIN_CPUS]; /* by bit */
};

struct task {
	u64 start; /* clock ticks since boot: a later thread with the same number is not meant */
	u64 since; /* it waits, ns; */
	u64 offered; /* ns */
	u32 cpu;   /* there: number + 1, or 0 */
	u32 ran;   /* where it ran last: number + 1, or 0 */
	u32 role;
	u32 pad;
};

struct offer {
	u32 tid;
	u32 from;
	u32 to;
	u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct domain);
} domains SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, struct task);
} tasks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} offers SEC(".maps");

static void *(*bpf_ringbuf_reserve)(void *map, u64 size, u64 flags) = (void *)131;
static void (*bpf_ringbuf_submit)(void *data, u64 flags) = (void *)132;

static always_inline struct task *get_task(u32 tid)
{
	return bpf_map_lookup_elem(&tasks, &tid);
}

/* NULL for a CPU that is in none. */
static always_inline struct domain *domain_of(struct cpu *cpu)
{
	return cpu && cpu->domain != NO_DOMAIN ? bpf_map_lookup_elem(&domains, &cpu->domain) : NULL;
}

static always_inline bool may_offer(struct task *task, u64 now)
{
	return !task->offered || now - task->offered > PATIENCE;
}

static always_inline void offer(u32 tid, u32 from, u32 to)
{
	struct offer *offer = bpf_ringbuf_reserve(&offers, sizeof(*offer), 0);
	if (!offer)
		return;
	offer->tid = tid;
	offer->from = from;
	offer->to = to;
	offer->pad = 0;
	bpf_ringbuf_submit(offer, 0);
}

/* Functions with loops are functions of their own: the verifier then looks at each once. 6.1's gives up otherwise. */

__attribute__((noinline)) int remember(u32 number, u32 tid)
{
	struct cpu *cpu = bpf_map_lookup_elem(&cpus, &number);
	if (!cpu)
		return 0;
	for (u32 i = 0; i < REMEMBERED; i++) {
		u32 other = cpu->waiting[i];
		if (other == tid)
			return 0;
		struct task *task = other ? get_task(other) : NULL;
		if (!task || task->cpu != number + 1) {
			cpu->waiting[i] = tid;
			return 0;
		}
	}
	return 0;
}

/* Who has waited longest on one CPU and was not offered just now. */
__attribute__((noinline)) u32 oldest(u32 number, u64 now)
{
	struct cpu *cpu = bpf_map_lookup_elem(&cpus, &number);
	u64 before = now;
	u32 found = 0;
	if (!cpu)
		return 0;
	for (u32 i = 0; i < REMEMBERED; i++) {
		struct task *task = cpu->waiting[i] ? get_task(cpu->waiting[i]) : NULL;
		if (task && task->cpu == number + 1 && task->since < before && may_offer(task, now)) {
			found = cpu->waiting[i];
			before = task->since;
		}
	}
	return found;
}

static always_inline bool is_meant(struct task *task, struct task_struct *p)
{
	return task && task->start == p->start_boottime / NS_A_TICK;
}

static always_inline void begins_to_wait(u32 number, u32 tid, struct task *task)
{
	task->since = bpf_ktime_get_ns();
	task->cpu = number + 1;
	if (task->role != MOVED_WHEN_WAITING)
		return;
	task->offered = 0;
	remember(number, tid);
}

/* A CPU has nothing to do: somebody waits next to it? */
__attribute__((noinline)) int look_around(u32 number, u32 here)
{
	struct domain *domain = bpf_map_lookup_elem(&domains, &number);
	u64 now = bpf_ktime_get_ns();
	if (!domain)
		return 0;
	for (u32 i = 0; i < DOMAIN_CPUS; i++) {
		if (i >= domain->count)
			return 0;
		u32 there = domain->cpus[i];
		if (there == here || domain->idle >> i & 1)
			continue;
		u32 tid = oldest(there, now);
		struct task *task = tid ? get_task(tid) : NULL;
		if (task) {
			task->offered = now;
			offer(tid, there, here);
			return 0;
		}
	}
	return 0;
}

/* An idle CPU of a domain, or NO_CPU. */
__attribute__((noinline)) u32 idle_one(u32 number)
{
	struct domain *domain = bpf_map_lookup_elem(&domains, &number);
	if (!domain)
		return NO_CPU;
	u64 idle = domain->idle;
	for (u32 i = 0; i < DOMAIN_CPUS; i++) {
		if (i >= domain->count)
			break;
		if (idle >> i & 1)
			return domain->cpus[i];
	}
	return NO_CPU;
}

SEC("tp_btf/sched_switch")
int on_switch(u64 *ctx)
{
	struct task_struct *prev = (void *)ctx[1], *next = (void *)ctx[2];
	u32 here = bpf_get_smp_processor_id();
	struct cpu *cpu = bpf_map_lookup_elem(&cpus, &here);
	struct domain *domain = domain_of(cpu);
	if (!domain)
		return 0;
	u32 coming = next->pid, going = prev->pid;
	u64 bit = 1ull << (cpu->bit & 63);
	struct task *task = coming ? get_task(coming) : NULL;
	if (task) {
		task->cpu = 0;
		task->ran = here + 1;
	}
	cpu->running = coming;
	task = going ? get_task(going) : NULL;
	if (is_meant(task, prev) && !((struct task_struct___why *)prev)->__state)
		begins_to_wait(here, going, task);
	if (!coming) {
		__sync_fetch_and_or(&domain->idle, bit);
		look_around(cpu->domain, here);
	} else if (!going) {
		__sync_fetch_and_and(&domain->idle, ~bit);
	}
	return 0;
}

/* Someone served queues behind whoever holds the CPU. */
static always_inline void make_way(struct cpu *cpu, u32 here)
{
	u64 now = bpf_ktime_get_ns();
	u32 tid = cpu->running;
	struct task *task = tid ? get_task(tid) : NULL;
	if (!task || task->role != BACKGROUND || !may_offer(task, now) || now - cpu->cleared < PACE)
		return;
	task->offered = now;
	cpu->cleared = now;
	offer(tid, here, idle_one(cpu->domain));
}

static always_inline int woken(struct task_struct *p)
{
	u32 tid = p->pid;
	struct task *task = get_task(tid);
	if (!is_meant(task, p))
		return 0;
	u32 here = task_cpu(p);
	struct cpu *cpu = bpf_map_lookup_elem(&cpus, &here);
	struct domain *domain = domain_of(cpu);
	if (!domain)
		return 0;
	if (task->role == SERVED) {
		make_way(cpu, here);
		return 0;
	}
	begins_to_wait(here, tid, task);
	if (task->role == BACKGROUND)
		return 0;
	u64 idle = domain->idle;
	if (!idle || idle >> (cpu->bit & 63) & 1)
		return 0;
	u32 to = idle_one(cpu->domain);
	if (to != NO_CPU) {
		task->offered = task->since;
		offer(tid, here, to);
	}
	return 0;
}

SEC("tp_btf/sched_wakeup")
int on_wakeup(u64 *ctx)
{
	return woken((void *)ctx[0]);
}

SEC("tp_btf/sched_wakeup_new")
int on_wakeup_new(u64 *ctx)
{
	return woken((void *)ctx[0]);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
