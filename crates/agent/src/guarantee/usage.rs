//! What a promised scope used, by its cgroups: processes that end between two observations are counted there and nowhere else.

use crate::governor::place::Counted;

/// The cgroups that hold the tasks of one promise and no others.
#[derive(Debug, Default)]
pub(super) struct Usage {
    paths: Vec<String>,
    groups: Vec<Counted>,
    last_ns: Option<u64>,
}

impl Usage {
    pub fn follow(&mut self, paths: Vec<String>, counted: impl Fn(&str) -> Counted) {
        if self.paths != paths {
            self.groups = paths.iter().map(|path| counted(path)).collect();
            (self.paths, self.last_ns) = (paths, None);
        }
    }

    /// CPU time used since the last reading, seconds; `None` where it is not counted, or was not at the last one.
    pub fn read(&mut self) -> Option<f64> {
        let now_ns =
            self.groups.iter().map(Counted::cpu_ns).sum::<Option<u64>>().filter(|_| !self.groups.is_empty());
        let before_ns = std::mem::replace(&mut self.last_ns, now_ns);
        Some(now_ns?.checked_sub(before_ns?)? as f64 / 1e9)
    }
}
