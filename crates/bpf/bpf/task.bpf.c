// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* One record for every thread of the host, by the task iterator. */
#include "kernel.h"

struct task_record {
	u64 ran_ns;
};

SEC("iter/task")
int tasks(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	if (!task)
		return 0;
	struct task_record record = {.ran_ns = task->se.sum_exec_runtime};
	bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
