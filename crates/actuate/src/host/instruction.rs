//! Instructions of a BPF program, as few as the classifier of [`super::shape`] takes.

// `include/uapi/linux/bpf_common.h` and `bpf.h`: an instruction's class, what it does, and where its second operand is.
const LD: u8 = 0x00;
const ALU: u8 = 0x04;
const JMP: u8 = 0x05;
const ALU64: u8 = 0x07;
const DW: u8 = 0x18;
const JNE: u8 = 0x50;
const CALL: u8 = 0x80;
const EXIT: u8 = 0x90;
const MOV: u8 = 0xb0;
const IMMEDIATE: u8 = 0x00;
const REGISTER: u8 = 0x08;

/// A register: 0 holds what a call or the program answers, 1 to 5 arguments, 6 to 9 what survives a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Register(u8);

pub(super) const R0: Register = Register(0);
pub(super) const R1: Register = Register(1);
pub(super) const R2: Register = Register(2);
pub(super) const R6: Register = Register(6);

/// One instruction (`struct bpf_insn`, native byte order of the fields).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

const NONE: Instruction = Instruction { code: 0, registers: 0, offset: 0, immediate: 0 };

/// A bit field: on little-endian machines (x86-64, arm64) the target register is the low half.
const fn registers(to: Register, from: Register) -> u8 {
    to.0 | from.0 << 4
}

/// `to = from`
pub(super) const fn copy(to: Register, from: Register) -> Instruction {
    Instruction { code: ALU64 | MOV | REGISTER, registers: registers(to, from), ..NONE }
}

/// `to = value`, the sign extended to 64 bits.
pub(super) const fn set(to: Register, value: i32) -> Instruction {
    Instruction { code: ALU64 | MOV | IMMEDIATE, registers: to.0, immediate: value, ..NONE }
}

/// The low half of `to` becomes `value`, the high half 0.
pub(super) const fn set_low(to: Register, value: i32) -> Instruction {
    Instruction { code: ALU | MOV | IMMEDIATE, registers: to.0, immediate: value, ..NONE }
}

/// `to = value`, of 64 bits, which takes two slots.
pub(super) const fn set_wide(to: Register, value: u64) -> [Instruction; 2] {
    let first = Instruction { code: LD | DW | IMMEDIATE, registers: to.0, immediate: value as i32, ..NONE };
    [first, Instruction { immediate: (value >> 32) as i32, ..NONE }]
}

/// Calls a helper of the kernel by its number.
pub(super) const fn call(helper: i32) -> Instruction {
    Instruction { code: JMP | CALL, immediate: helper, ..NONE }
}

/// Jumps over so many instructions unless the two are equal.
pub(super) const fn skip_unless_equal(one: Register, other: Register, count: i16) -> Instruction {
    Instruction { code: JMP | JNE | REGISTER, registers: registers(one, other), offset: count, ..NONE }
}

/// Ends the program; its answer is in `R0`.
pub(super) const fn exit() -> Instruction {
    Instruction { code: JMP | EXIT, ..NONE }
}

#[cfg(test)]
impl Instruction {
    /// As they lie in memory.
    pub(super) fn bytes(&self) -> [u8; 8] {
        let ([a, b], [c, d, e, f]) = (self.offset.to_ne_bytes(), self.immediate.to_ne_bytes());
        [self.code, self.registers, a, b, c, d, e, f]
    }
}
