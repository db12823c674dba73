/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The scheduler's structures as why.bpf.c uses them; like kernel.h, only names count. `___why` is ignored by CO-RE: it
 * tells these from the shorter declarations in kernel.h.
 */
#ifndef EVENKEEL_SCHED_H
#define EVENKEEL_SCHED_H

#include "kernel.h"

/* include/linux/sched.h; stable for as long as 5.15. */
#define TASK_UNINTERRUPTIBLE 0x2
#define TASK_STOPPED_OR_TRACED 0xc
#define TASK_DEAD 0x80
#define TASK_NOLOAD 0x400
#define PF_KTHREAD 0x00200000

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct rq {
	int cpu;
	u64 clock;
	u64 prev_steal_time_rq; /* ns stolen so far, with CONFIG_PARAVIRT_TIME_ACCOUNTING */
};

struct cfs_rq {
	struct rq *rq;
	int throttle_count; /* levels at or above that have run out of quota on this CPU; CONFIG_CFS_BANDWIDTH */
};

struct task_group {
	struct cgroup_subsys_state css;
	struct cfs_rq **cfs_rq;
	struct task_group *parent;
};

struct sched_info___why {
	unsigned long long last_arrival; /* when it came to a CPU, by rq->clock */
	unsigned long long last_queued;	 /* when the wait that goes on began, by rq->clock; 0: none does */
};

struct sched_entity___why {
	struct cfs_rq *cfs_rq;
};

struct task_struct___why {
	unsigned int __state;
	/* int before Linux 7.x, a byte since: only members without a sign are read in whatever size the kernel has. */
	unsigned int on_cpu;
	unsigned int on_rq;
	struct sched_entity___why se;
	struct sched_info___why sched_info;
	struct task_group *sched_task_group;
	struct task_struct *group_leader;
};

struct irqaction {
	const char *name;
};

#pragma clang attribute pop

static long (*bpf_probe_read_kernel_str)(void *to, u32 size, const void *from) = (void *)115;

/* The CPU that a task is on, or whose queue it is in. */
static always_inline u32 task_cpu(struct task_struct *task)
{
	if (field_exists(((struct task_struct___info *)task)->thread_info.cpu))
		return ((struct task_struct___info *)task)->thread_info.cpu;
	return ((struct task_struct___cpu *)task)->cpu;
}

/* Time stolen from this CPU so far, as the scheduler has taken note of it. */
static always_inline u64 stolen_clock(struct task_struct *task)
{
	if (!field_exists(((struct rq *)0)->prev_steal_time_rq))
		return 0;
	return ((struct task_struct___why *)task)->se.cfs_rq->rq->prev_steal_time_rq;
}

/* A task group's number in the file system of cgroups; 1, the root's, for one of a session (autogroup), which is no cgroup. */
static always_inline u64 id_of(u64 group)
{
	struct cgroup *cgroup = read_field(((struct task_group *)group)->css.cgroup);
	if (!cgroup)
		return 1;
	struct kernfs_node *node = read_field(cgroup->kn);
	return node ? read_field(node->id) : 0;
}

/* The same of a group whose structure the verifier knows to be alive. */
static always_inline u64 plain_id_of(struct task_group *group)
{
	struct cgroup *cgroup = group->css.cgroup;
	return cgroup ? cgroup->kn->id : 1;
}

#endif
