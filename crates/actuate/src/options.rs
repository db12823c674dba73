//! What an actuator may do.

/// What an actuator may do.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Real-time policies (FIFO, RR) and `cpu.rt_runtime_us` may be set. Tasks found real-time stay untouched.
    pub allow_realtime: bool,
    pub allow_deadline: bool,
    /// BPF schedulers may be started.
    pub allow_scx: bool,
    /// A value that is there already is written all the same, by a plan and by its undo: for a test of whoever decides,
    /// whose settings change nothing and cost what others cost.
    pub rewrite: bool,
}
