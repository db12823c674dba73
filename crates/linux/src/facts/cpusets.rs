//! Groups of the cpuset controller that have CPUs or memory nodes of their own.

use evenkeel_base::CpuSet;
use evenkeel_base::facts::CpusetGroup;

use crate::cgroupfs::{parse_list, parse_number};
use crate::mountinfo::Hierarchy;
use crate::{ReadError, Root};

/// Most groups looked at: a host with more has them made by a program, and the first thousands show how.
pub const MAX_GROUPS: usize = 20_000;

/// Deepest level looked at.
const MAX_DEPTH: usize = 24;

/// Reads every group with `cpuset.cpus` or `cpuset.mems` configured, the root always; parents before children.
/// Groups that vanish meanwhile are left out.
pub fn read(root: &Root, cpuset: &Hierarchy) -> Result<Vec<CpusetGroup>, ReadError> {
    let mut found = Vec::new();
    let mut todo = vec![("/".to_owned(), 0)];
    let mut seen = 0;
    while let Some((path, depth)) = todo.pop() {
        seen += 1;
        if seen > MAX_GROUPS {
            break;
        }
        // `path` is below the mount point already.
        let dir = format!("{}{}", cpuset.mount_point.trim_end_matches('/'), path.trim_end_matches('/'));
        match read_group(root, cpuset.v2, &dir, &path) {
            Ok(Some(group)) => found.push(group),
            Ok(None) => {}
            Err(error) if error.is_gone() && path != "/" => continue,
            Err(error) => return Err(error),
        }
        if depth == MAX_DEPTH {
            continue;
        }
        let full = root.path(&dir);
        let entries = match std::fs::read_dir(&full) {
            Ok(entries) => entries,
            Err(error) if path == "/" => return Err(ReadError::io(full, error)),
            Err(_) => continue,
        };
        let mut children: Vec<String> = entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .map(|name| format!("{}/{name}", path.trim_end_matches('/')))
            .collect();
        // Taken from the end, so the last name first.
        children.sort_unstable_by(|a, b| b.cmp(a));
        todo.extend(children.into_iter().map(|child| (child, depth + 1)));
    }
    Ok(found)
}

fn read_group(root: &Root, v2: bool, dir: &str, path: &str) -> Result<Option<CpusetGroup>, ReadError> {
    let list = |name: &str| -> Result<Option<CpuSet>, ReadError> {
        root.parse_optional(format!("{dir}/{name}"), parse_list)
    };
    let (cpus, mems) = (list("cpuset.cpus")?.unwrap_or_default(), list("cpuset.mems")?.unwrap_or_default());
    if path != "/" && cpus.is_empty() && mems.is_empty() {
        return Ok(None);
    }
    let (effective, effective_mems) = if v2 {
        (list("cpuset.cpus.effective")?, list("cpuset.mems.effective")?)
    } else {
        (list("cpuset.effective_cpus")?, list("cpuset.effective_mems")?)
    };
    let migrate = root.parse_optional(format!("{dir}/cpuset.memory_migrate"), parse_number)?;
    let partition = root.read_optional(format!("{dir}/cpuset.cpus.partition"))?;
    Ok(Some(CpusetGroup {
        path: path.to_owned(),
        cpus,
        effective,
        mems,
        effective_mems,
        memory_migrate: migrate.map(|number| number != 0),
        partition: partition.map(|text| text.trim().to_owned()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_groups_with_something_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let files = [
            ("cg/cpuset.cpus.effective", "0-3\n"),
            ("cg/web/cpuset.cpus", "2-3\n"),
            ("cg/web/cpuset.cpus.effective", "2\n"),
            ("cg/web/cpuset.cpus.partition", "isolated invalid (Cpu list in cpuset.cpus not exclusive)\n"),
            ("cg/plain/cpuset.cpus", "\n"),
            ("cg/plain/deep/cpuset.mems", "1\n"),
        ];
        crate::testing::lay(dir.path(), &files);
        let hierarchy = Hierarchy { mount_point: "/cg".into(), root: "/".into(), v2: true };
        let groups = read(&Root::at(dir.path()), &hierarchy).unwrap();
        let paths: Vec<&str> = groups.iter().map(|group| group.path.as_str()).collect();
        assert_eq!(paths, ["/", "/plain/deep", "/web"]);
        assert_eq!(groups[2].effective.as_ref().unwrap().to_string(), "2");
        assert!(groups[2].partition.as_ref().unwrap().starts_with("isolated invalid"));
        std::fs::write(dir.path().join("cg/web/cpuset.cpus"), "2-\n").unwrap();
        let error = read(&Root::at(dir.path()), &hierarchy).unwrap_err().to_string();
        assert!(error.contains("cg/web/cpuset.cpus:1"), "{error}");
    }
}
