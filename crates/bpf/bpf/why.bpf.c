// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Where a target's time goes, and who ran on the CPU meanwhile. */
#include "kernel.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";
