/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What a BPF program needs apart from the kernel's types: fixed-width integers, sections, map definitions, the helpers
 * used (numbers are the kernel's ABI, include/uapi/linux/bpf.h) and CO-RE's questions. Written out here so that clang is
 * the only thing to install.
 */
#ifndef EVENKEEL_HELPERS_H
#define EVENKEEL_HELPERS_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed int s32;
typedef signed long long s64;
typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)

#define SEC(name) __attribute__((section(name), used))
#define always_inline inline __attribute__((always_inline))

/* Maps are described by BTF: struct { __uint(type, ..); __type(key, ..); .. } name SEC(".maps"); */
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name

#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_PERCPU_HASH 5
#define BPF_MAP_TYPE_PERCPU_ARRAY 6
#define BPF_MAP_TYPE_LRU_HASH 9
#define BPF_MAP_TYPE_RINGBUF 27
#define BPF_ANY 0
#define BPF_NOEXIST 1
#define BPF_F_NO_PREALLOC 1

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static u64 (*bpf_ktime_get_boot_ns)(void) = (void *)125; /* since 5.8 */
static u32 (*bpf_get_smp_processor_id)(void) = (void *)8;
static long (*bpf_probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static long (*bpf_seq_write)(void *seq, const void *data, u32 len) = (void *)127;
static u64 (*bpf_get_current_task)(void) = (void *)35;
static long (*bpf_for_each_map_elem)(void *map, void *callback, void *context, u64 flags) = (void *)164;

/* Loads and stores before it stay before those after it. */
#define barrier() asm volatile("" ::: "memory")

/* CO-RE. Structures declared in kernel.h are matched by name with the running kernel's. */
#define field_exists(field) __builtin_preserve_field_info(field, 2)
#define field_size(field) __builtin_preserve_field_info(field, 1)
#define type_exists(type) __builtin_preserve_type_info(*(typeof(type) *)0, 0)
#define enum_value_exists(type, value) __builtin_preserve_enum_value(*(typeof(type) *)value, 0)
#define enum_value(type, value) __builtin_preserve_enum_value(*(typeof(type) *)value, 1)

/* A bit field, unsigned, at most eight bytes that hold it. */
#define read_bits(type, pointer, field)                                                                                     \
	({                                                                                                                  \
		u64 bits_ = 0;                                                                                              \
		type *in_ = (void *)(pointer);                                                                              \
		bpf_probe_read_kernel(&bits_, __builtin_preserve_field_info(in_->field, 1),                                 \
				      (void *)in_ + __builtin_preserve_field_info(in_->field, 0));                          \
		bits_ <<= __builtin_preserve_field_info(in_->field, 4);                                                     \
		bits_ >> __builtin_preserve_field_info(in_->field, 5);                                                      \
	})

/* Reads a member of which the verifier does not know that its structure is alive: through a helper that cannot fault.
 * Gives 0 for what cannot be read. */
#define read_field(field)                                                                                                   \
	({                                                                                                                  \
		typeof(field) value_ = 0;                                                                                   \
		bpf_probe_read_kernel(&value_, sizeof(value_), __builtin_preserve_access_index(&(field)));                  \
		value_;                                                                                                     \
	})

#endif
