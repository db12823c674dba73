// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * What every thread has used, and what threads that are gone have used.
 *
 * `tasks` gives one record for every thread that has not been reaped. `on_exit` and `on_free` keep, by cgroup, the sums of
 * those that have. A thread is counted from the moment it is reaped (nobody finds it any more) until it is freed, which
 * is a grace period of RCU later: its counters are final only then, since it runs on for a while after the kernel has
 * announced its exit. In between it is on a list, and each pass of `tasks` brings the sums up to date for the list, so
 * that living and gone together are complete at the end of each pass. Whoever has a record in a pass and is reaped before
 * its end, or freed before the sums are read, is in the sums from the next pass on: never in both.
 */
#include "sched.h"

#define PF_EXITING 0x4
#define EXIT_DEAD 0x10
#define MAX_EXITING 16384
#define MAX_GROUPS 16384

/* Read by user space as it is (src/task.rs). */
struct task_record {
	u64 start_ns;
	u64 ran_ns;
	u64 waited_ns;
	u64 timeslices;
	u64 voluntary;
	u64 involuntary;
	u64 slice_ns;	 /* 0 where the kernel has none */
	u64 cgroup_v2;	 /* 0 where unknown */
	u64 cgroup_cpu;	 /* of the cpu controller, v1 or v2; 0 where unknown */
	u64 set;	 /* address of its css_set, which all threads with the same cgroups in all hierarchies share */
	u32 tgid;
	u32 tid;
	u32 ppid;
	u32 cpu;
	u32 flags;
	u32 policy;
	s32 prio;
	s32 static_prio;
	u32 sched_flags; /* HAS_* below */
	u32 rt_priority;
	char comm[TASK_COMM_LEN];
};

#define HAS_SLICE 1	   /* slice_ns is the kernel's */
#define HAS_CUSTOM_SLICE 2 /* it knows whether the slice is the task's own */
#define CUSTOM_SLICE 4	   /* and it is */
#define RESET_ON_FORK 8

struct counters {
	u64 ran_ns;
	u64 waited_ns;
	u64 timeslices;
};

/* A thread: its task_struct may be another's after it. */
struct identity {
	u64 address;
	u64 start_ns;
};

/* A thread that has announced its exit; what the sums hold of it already. */
struct exiting {
	u64 group;
	u64 pass; /* the last one in which it had a record; 0 if none */
	u64 freed;
	struct counters counted;
	struct counters final; /* once it is freed */
};

/* Sums over the threads of a group (of the cpu controller) that are gone. */
struct exited {
	struct counters sum;
	u64 tasks;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_EXITING);
	__type(key, struct identity);
	__type(value, struct exiting);
} exiting SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_GROUPS);
	__type(key, u64);
	__type(value, struct exited);
} exited SEC(".maps");

/* The pass under way or the last one, by the kernel's number; when it ended; and the last thread id that it has come to. */
static volatile u64 pass;
static volatile u64 pass_ended_ns;
static volatile u32 reached;
#define NOT_YET ~0ULL
#define PASS_IS_OVER ~0U

/* Threads whose sums found no room. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} lost SEC(".maps");

/* 0 when the kernel is without the controller, or the thread is past having cgroups. */
static always_inline u64 cpu_group(struct css_set *set)
{
	if (!enum_value_exists(enum cgroup_subsys_id, cpu_cgrp_id))
		return 0;
	struct cgroup_subsys_state *state = set->subsys[enum_value(enum cgroup_subsys_id, cpu_cgrp_id)];
	return state->cgroup->kn->id;
}

static always_inline void read_counters(struct task_struct *task, struct counters *counters)
{
	counters->ran_ns = read_field(task->se.sum_exec_runtime);
	counters->waited_ns = read_field(task->sched_info.run_delay);
	counters->timeslices = read_field(task->sched_info.pcount);
}

/* Adds what is not yet in the sums; `tasks` is 1 when the thread itself is not, either. */
static always_inline void count(u64 group, const struct counters *now, const struct counters *counted, u64 tasks)
{
	struct exited *sums = bpf_map_lookup_elem(&exited, &group);
	if (!sums) {
		struct exited none = {};
		bpf_map_update_elem(&exited, &group, &none, BPF_NOEXIST);
		sums = bpf_map_lookup_elem(&exited, &group);
	}
	if (!sums) {
		u32 zero = 0;
		u64 *number = bpf_map_lookup_elem(&lost, &zero);
		if (number && tasks)
			__sync_fetch_and_add(number, 1);
		return;
	}
	__sync_fetch_and_add(&sums->sum.ran_ns, now->ran_ns - counted->ran_ns);
	__sync_fetch_and_add(&sums->sum.waited_ns, now->waited_ns - counted->waited_ns);
	__sync_fetch_and_add(&sums->sum.timeslices, now->timeslices - counted->timeslices);
	if (tasks)
		__sync_fetch_and_add(&sums->tasks, 1);
}

/* The program's part of a pass that is done once, at its end. */
static long count_reaped(void *map, const struct identity *key, struct exiting *entry, void *unused)
{
	/*
	 * Read once: an entry that is taken out meanwhile may come back as that of another thread, with its key. What this one was is
	 * held against what is there in the end.
	 */
	const volatile struct identity *of = key;
	struct identity identity = {.address = of->address, .start_ns = of->start_ns};
	u64 group = entry->group;
	struct counters counted = entry->counted;
	barrier();
	if (*(volatile u64 *)&entry->pass == pass)
		return 0;
	if (*(volatile u64 *)&entry->freed) {
		/* Nobody else takes it out any more. */
		barrier();
		struct counters final = entry->final;
		if (!bpf_map_delete_elem(&exiting, &identity))
			count(group, &final, &counted, 1);
		return 0;
	}
	struct task_struct *task = (struct task_struct *)identity.address;
	if (read_field(task->exit_state) != EXIT_DEAD)
		return 0;
	struct counters now;
	read_counters(task, &now);
	barrier();
	/*
	 * Freed meanwhile, what was read may be anything: on_free takes the entry out before the memory goes, and has
	 * counted the thread, or says so in the entry. The next thread may get the same memory, and its entry the place of this one.
	 * It may also have been told of just now.
	 */
	if (bpf_map_lookup_elem(&exiting, &identity) != entry || *(volatile u64 *)&entry->freed ||
	    *(volatile u64 *)&entry->pass == pass)
		return 0;
	/* At once: what on_free counts from here on is the rest. */
	entry->counted = now;
	count(group, &now, &counted, 0);
	return 0;
}

static always_inline struct exiting *entry_of(struct task_struct *task)
{
	struct identity key = {.address = (u64)task, .start_ns = task->start_boottime};
	return bpf_map_lookup_elem(&exiting, &key);
}

SEC("tp_btf/sched_process_exit")
int on_exit(u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	struct identity key = {.address = (u64)task, .start_ns = task->start_boottime};
	struct exiting new = {.group = cpu_group(task->cgroups)};
	/* Without room it is counted as a whole when it is freed. */
	bpf_map_update_elem(&exiting, &key, &new, BPF_ANY);
	/* In this order: a pass that does not find the entry yet has come to the thread already. */
	u64 now = pass;
	barrier();
	if (reached >= (u32)task->pid && key.start_ns < pass_ended_ns) {
		struct exiting *entry = entry_of(task);
		if (entry && entry->pass < now)
			entry->pass = now;
	}
	return 0;
}

SEC("tp_btf/sched_process_free")
int on_free(u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	struct identity key = {.address = (u64)task, .start_ns = task->start_boottime};
	struct counters now;
	read_counters(task, &now);
	struct exiting *entry = bpf_map_lookup_elem(&exiting, &key);
	if (entry && entry->pass && entry->pass == pass) {
		/* The sums of that pass may still be read. */
		entry->final = now;
		barrier();
		*(volatile u64 *)&entry->freed = 1;
	} else if (entry) {
		count(entry->group, &now, &entry->counted, 1);
		bpf_map_delete_elem(&exiting, &key);
	} else {
		struct counters none = {};
		count(cpu_group(task->cgroups), &now, &none, 1);
	}
	return 0;
}

static always_inline u32 last_cpu(struct task_struct *task)
{
	struct task_struct___info *with_info = (void *)task;
	struct task_struct___cpu *with_cpu = (void *)task;
	if (field_exists(with_info->thread_info.cpu))
		return read_field(with_info->thread_info.cpu);
	if (field_exists(with_cpu->cpu))
		return read_field(with_cpu->cpu);
	return ~0U;
}

/*
 * Time runnable but not running, the wait that goes on included: the kernel adds a wait when it ends, and a thread that
 * starves would seem not to wait at all.
 */
static always_inline u64 waited_so_far(struct task_struct *task)
{
	u64 queued = task->sched_info.last_queued;
	barrier();
	u64 waited = task->sched_info.run_delay;
	barrier();
	if (!queued)
		return waited;
	/* A wait that has ended meanwhile must not count twice. */
	if (task->sched_info.last_queued != queued) {
		barrier();
		return task->sched_info.run_delay;
	}
	struct cfs_rq *queue = read_field(((struct task_struct___why *)task)->se.cfs_rq);
	struct rq *rq = read_field(queue->rq);
	u64 now = read_field(rq->clock);
	return now > queued ? waited + (now - queued) : waited;
}

/* A thread that was marked as one that has a record in this pass has none. */
static always_inline void has_no_record(struct task_struct *task, u64 session)
{
	struct exiting *entry = entry_of(task);
	if (entry && entry->pass == session)
		entry->pass = 0;
}

SEC("iter/task")
int tasks(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	if (!task) {
		bpf_for_each_map_elem(&exiting, count_reaped, NULL, 0);
		pass_ended_ns = bpf_ktime_get_boot_ns();
		barrier();
		reached = PASS_IS_OVER;
		return 0;
	}
	u64 session = ctx->meta->session_id;
	if (pass != session) {
		/* In this order: who exits meanwhile belongs to the pass before. */
		reached = 0;
		barrier();
		pass_ended_ns = NOT_YET;
		pass = session;
	} else if (reached == PASS_IS_OVER) {
		/* Born since the sums were made: the kernel looks once more where the last read began. */
		return 0;
	}
	reached = task->pid;
	barrier();
	/* Being reaped: in the sums from now on. */
	if (task->exit_state == EXIT_DEAD) {
		has_no_record(task, session);
		return 0;
	}
	if (task->flags & PF_EXITING) {
		struct exiting *entry = entry_of(task);
		if (entry)
			entry->pass = session;
	}
	struct task_record record = {};
	record.start_ns = task->start_boottime;
	record.ran_ns = task->se.sum_exec_runtime;
	record.waited_ns = waited_so_far(task);
	record.timeslices = task->sched_info.pcount;
	record.voluntary = task->nvcsw;
	record.involuntary = task->nivcsw;
	record.tgid = task->tgid;
	record.tid = task->pid;
	record.ppid = task->real_parent->tgid;
	record.cpu = last_cpu(task);
	record.flags = task->flags;
	record.policy = task->policy;
	record.prio = task->prio;
	record.static_prio = task->static_prio;
	record.rt_priority = task->rt_priority;
	if (read_bits(struct task_struct, task, sched_reset_on_fork))
		record.sched_flags |= RESET_ON_FORK;
	if (field_exists(task->se.slice)) {
		record.slice_ns = task->se.slice;
		record.sched_flags |= HAS_SLICE;
	}
	struct task_struct___custom *custom = (void *)task;
	if (field_exists(custom->se.custom_slice)) {
		record.sched_flags |= HAS_CUSTOM_SLICE;
		if (read_field(custom->se.custom_slice))
			record.sched_flags |= CUSTOM_SLICE;
	}
	/* Byte by byte: a helper that copies costs more than all other fields together. */
	for (int at = 0; at < TASK_COMM_LEN; at++)
		record.comm[at] = task->comm[at];
	struct css_set *set = task->cgroups;
	record.cgroup_v2 = set->dfl_cgrp->kn->id;
	record.cgroup_cpu = cpu_group(set);
	/* As it is: the verifier lets no program reckon with a pointer. */
	record.set = (u64)set;
	if (bpf_seq_write(ctx->meta->seq, &record, sizeof(record))) {
		/* No room: it comes again with the next read, if it is still there. */
		reached = task->pid - 1;
		barrier();
		has_no_record(task, session);
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
