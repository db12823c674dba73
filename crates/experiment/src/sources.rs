//! The sources' tables, compiled in: what is shown next to measured figures.

/// A table as printed by its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceTable {
    /// Name, as a record's `sources` lists it.
    pub name: &'static str,
    /// What it shows, and on what machine.
    pub title: &'static str,
    /// Comma-separated values with a header line; no field contains a comma except quoted ones.
    pub csv: &'static str,
}

/// One line a table: name, title; the file is `data/NAME.csv`.
macro_rules! tables {
    ($($name:literal: $title:literal,)*) => {
        pub const TABLES: &[SourceTable] = &[
            $(SourceTable { name: $name, title: $title, csv: include_str!(concat!("../data/", $name, ".csv")) },)*
        ];
    };
}

tables! {
    "iox_one_container": "one container, 1 to 1155 units, edge router (1158 events/s on one of two CPUs)",
    "iox_20_containers_64_units": "20 containers of 64 units, 20 runs of 10 s each, edge router",
    "iox_20_containers_1155_units": "20 containers of 1155 units, 20 runs of 10 s each, edge router",
    "iox_wait_by_container_count": "mean wait of a run of 10 s by number of containers, edge router",
    "iox_mixed_5_containers": "five containers of mixed units, 20 runs of 10 s, edge router",
    "iox_mixed_6_containers": "six containers of mixed units, 20 runs of 10 s, edge router",
    "iox_mixed_7_containers": "seven containers of mixed units, 20 runs of 10 s, edge router",
    "iox_priority_10_containers": "ten containers of 1, 2, 4 .. 512 units, 20 runs of 10 s, edge router",
    "iox_balance_4_patterns": "five containers, four ranges of units, 1000 runs of 10 s, edge router",
    "cgroup_prime_sieve": "primes in 100010001..100020000, 48 threads, server of 2 x 10 cores with SMT",
    "ec2_build_by_cpu_limit": "a build on a t1.micro by CPU limit (period 1 s)",
    "ec2_build_by_instance": "the same build by type of instance",
    "xadvisor_convergence": "50 processes that want 5 to 25 % on 10 CPUs, 75 % of each, by stage of the advisor",
    "xadvisor_qos": "three tasks on one CPU with promises of 40, 50 and 10 %, without and with the advisor",
}

pub fn table(name: &str) -> Option<&'static SourceTable> {
    TABLES.iter().find(|table| table.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_a_header_and_rows() {
        for table in TABLES {
            assert!(table.csv.lines().count() > 2 && table.csv.contains(','), "{}", table.name);
        }
        assert!(table("iox_one_container").is_some() && table("none").is_none());
    }
}
