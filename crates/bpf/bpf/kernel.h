/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The kernel's structures, as far as they are used: only names and types of members count, their places are looked up in
 * the running kernel's BTF when a program is loaded (CO-RE). Members that came, went or were renamed between 5.15 and
 * today are asked for with field_exists(); a structure whose member was renamed is declared a second time with a suffix
 * after three underscores, which CO-RE ignores.
 */
#ifndef EVENKEEL_KERNEL_H
#define EVENKEEL_KERNEL_H

#include "helpers.h"

#define TASK_COMM_LEN 16

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kernfs_node {
	u64 id; /* of a cgroup: its directory's inode number */
};

struct cgroup {
	struct kernfs_node *kn;
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
};

enum cgroup_subsys_id {
	cpuset_cgrp_id = 100, /* values are the running kernel's, by enum_value() */
	cpu_cgrp_id,
	cpuacct_cgrp_id,
};

struct css_set {
	struct cgroup_subsys_state *subsys[16]; /* by enum cgroup_subsys_id */
	struct cgroup *dfl_cgrp;		/* v2's */
};

struct sched_entity {
	u64 sum_exec_runtime; /* ns on a CPU */
	u64 slice;	      /* ns; since 6.6 */
};

/* Since 6.12 a slice may be the task's own. */
struct sched_entity___custom {
	unsigned char custom_slice;
};

struct sched_info {
	unsigned long pcount;	      /* times it was given a CPU */
	unsigned long long run_delay; /* ns runnable but not running in waits that have ended, throttled time included */
	unsigned long long last_queued; /* when the wait that goes on began, by rq->clock; 0: none does */
};

struct task_struct {
	u32 flags;
	int prio;
	int static_prio;
	u32 policy;
	int exit_state;
	int pid;
	int tgid;
	u64 start_boottime; /* ns; what /proc/PID/stat shows in ticks */
	unsigned long nvcsw;
	unsigned long nivcsw;
	char comm[TASK_COMM_LEN];
	struct sched_entity se;
	struct sched_info sched_info;
	struct task_struct *real_parent;
	struct css_set *cgroups;
	u32 rt_priority;
	unsigned sched_reset_on_fork : 1;
};

struct task_struct___custom {
	struct sched_entity___custom se;
};

/* The CPU a task ran on last: in thread_info since 5.16, before that in task_struct itself. */
struct thread_info___cpu {
	u32 cpu;
};
struct task_struct___info {
	struct thread_info___cpu thread_info;
};
struct task_struct___cpu {
	u32 cpu;
};

#pragma clang attribute pop

/* What a program of type iter/task is given. Part of the ABI, not relocated. */
struct bpf_iter_meta {
	void *seq;
	u64 session_id;
	u64 seq_num;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

#endif
