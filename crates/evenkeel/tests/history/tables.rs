//! Tables of the history as Parquet.

use std::path::Path;

use super::{S, evenkeel, ok, recorded};

/// Rows of a Parquet file as its library reads them, and what the file says of itself.
fn parquet(state: &Path, args: &[&str]) -> (Vec<parquet::record::Row>, Vec<(String, String)>) {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    let file = state.join("table.parquet");
    let said = ok(state, &[&["history"], args, &["--parquet", file.to_str().unwrap()]].concat());
    assert_eq!(said.trim(), file.to_str().unwrap());
    let reader = SerializedFileReader::new(std::fs::File::open(&file).unwrap()).unwrap();
    let about = reader.metadata().file_metadata().key_value_metadata().unwrap();
    let about = about.iter().map(|pair| (pair.key.clone(), pair.value.clone().unwrap_or_default())).collect();
    (reader.get_row_iter(None).unwrap().map(Result::unwrap).collect(), about)
}

#[test]
fn each_table_is_written_as_parquet_with_types_and_nulls() {
    use parquet::record::Field;
    let state = tempfile::tempdir().unwrap();
    let start = recorded(state.path());
    let cell = |row: &parquet::record::Row, name: &str| -> Field {
        row.get_column_iter()
            .find(|(column, _)| *column == name)
            .unwrap_or_else(|| panic!("{name}"))
            .1
            .clone()
    };
    let ms = (start / 1_000_000) as i64;
    let (runs, _) = parquet(state.path(), &[]);
    assert_eq!(cell(&runs[0], "run"), Field::Long(1));
    assert_eq!(cell(&runs[0], "started"), Field::TimestampMillis(ms));
    assert_eq!(cell(&runs[0], "scope").to_string(), "[\"container:cache\"]");
    assert_eq!(cell(&runs[0], "seconds"), Field::Null, "it has not ended");
    let (stages, about) = parquet(state.path(), &["--run", "last"]);
    assert_eq!((stages.len(), cell(&stages[1], "kept")), (2, Field::Bool(true)));
    assert_eq!(
        (cell(&stages[0], "kept"), cell(&stages[0], "started")),
        (Field::Null, Field::TimestampMillis(ms))
    );
    assert!(about.contains(&("run".to_owned(), "1".to_owned())), "{about:?}");
    let (changes, _) = parquet(state.path(), &["--run", "1", "--changes"]);
    assert_eq!((cell(&changes[0], "tgid"), cell(&changes[0], "group")), (Field::Long(20), Field::Null));
    assert_eq!(cell(&changes[0], "at"), Field::TimestampMillis(((start + 20 * S) / 1_000_000) as i64));
    let (processes, about) = parquet(state.path(), &["--since", "10m"]);
    assert_eq!((processes.len(), cell(&processes[0], "comm")), (2, Field::Str("make".into())));
    assert!(matches!(cell(&processes[0], "cpu_pct"), Field::Double(pct) if (pct - 40.0).abs() < 1e-6));
    assert_eq!(cell(&processes[0], "voluntary_per_s"), Field::Null, "not counted is not zero");
    assert!(about.contains(&("schema".to_owned(), "evenkeel.history/v1".to_owned())), "{about:?}");
    for by in ["thread", "container", "pod", "cgroup", "cpu"] {
        let csv = ok(state.path(), &["history", "--since", "10m", "--by", by, "-o", "csv"]);
        let (rows, _) = parquet(state.path(), &["--since", "10m", "--by", by]);
        assert_eq!(rows.len() + 1, csv.lines().count(), "{by}");
    }
    let (minutes, about) = parquet(state.path(), &["--of", "container:cache", "--since", "1h"]);
    assert!(
        minutes.len() >= 60 && about.contains(&("of".to_owned(), "container:cache".to_owned())),
        "{about:?}"
    );
    assert_eq!(
        (cell(&minutes[0], "cpu_pct"), cell(&minutes[0], "covered_s")),
        (Field::Null, Field::Double(0.0))
    );
    assert!(
        minutes
            .iter()
            .any(|row| matches!(cell(row, "cpu_pct"), Field::Double(pct) if (pct - 25.0).abs() < 1e-6))
    );
    // Nothing in that time is a table without rows; no history is none, and no file.
    assert!(parquet(state.path(), &["--since", "1s"]).0.is_empty());
    let empty = tempfile::tempdir().unwrap();
    let file = empty.path().join("none.parquet");
    evenkeel(empty.path(), &["history", "--parquet", file.to_str().unwrap()]).with(2);
    assert!(!file.exists());
    evenkeel(state.path(), &["history", "--parquet", "/no/such/dir/x.parquet"]).with(3);
}
