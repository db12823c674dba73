//! A table as a Parquet file: typed columns, instants as timestamps, unknown as null.

use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;

use crate::table::{Field, Kind, Table, Value};

/// Nanoseconds of a millisecond.
const MS: u64 = 1_000_000;
/// Definition levels of a list: unknown, empty, with an element.
const EMPTY: i16 = 1;
const ELEMENT: i16 = 2;

impl Kind {
    /// The column of this name in Parquet's own notation of a schema.
    fn column(self, name: &str) -> String {
        match self {
            Self::Text => format!("OPTIONAL BYTE_ARRAY {name} (STRING);"),
            Self::Integer => format!("OPTIONAL INT64 {name};"),
            Self::Number => format!("OPTIONAL DOUBLE {name};"),
            Self::Bool => format!("OPTIONAL BOOLEAN {name};"),
            Self::Instant => format!("OPTIONAL INT64 {name} (TIMESTAMP(MILLIS,true));"),
            Self::List => format!(
                "OPTIONAL GROUP {name} (LIST) {{ REPEATED GROUP list {{ REQUIRED BYTE_ARRAY element (STRING); }} }}"
            ),
        }
    }
}

impl<T> Table<T> {
    /// The bytes of a Parquet file (zstd). `about` says of the whole file what no column does, as its key-value metadata.
    ///
    /// Columns have the names of CSV's. Unknown and absent values are null. Instants are timestamps in milliseconds, UTC.
    pub fn parquet<'a>(
        &self,
        rows: impl IntoIterator<Item = &'a T>,
        about: &[(&str, String)],
    ) -> Result<Vec<u8>, ParquetError>
    where
        T: 'a,
    {
        let rows: Vec<_> = rows.into_iter().collect();
        let columns: Vec<_> = self.fields.iter().map(|field| field.kind.column(field.name)).collect();
        let schema = parse_message_type(&format!("message evenkeel {{ {} }}", columns.join(" ")))?;
        let about = about.iter().map(|(key, value)| KeyValue::new((*key).to_owned(), value.clone()));
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_key_value_metadata(Some(about.collect()))
            .set_created_by(concat!("evenkeel ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let mut file = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties))?;
        let mut group = file.next_row_group()?;
        for field in &self.fields {
            let mut column = group
                .next_column()?
                .ok_or_else(|| ParquetError::General(format!("no column for {}", field.name)))?;
            write(&mut column, field, rows.iter().map(|row| (field.get)(row)))?;
            column.close()?;
        }
        group.close()?;
        file.into_inner()
    }
}

fn write<T>(
    column: &mut SerializedColumnWriter<'_>,
    field: &Field<T>,
    values: impl Iterator<Item = Value>,
) -> Result<(), ParquetError> {
    match field.kind {
        Kind::Text => plain::<ByteArrayType, T>(column, field, values, |value| match value {
            Value::Text(text) => Some(text.into_bytes().into()),
            _ => None,
        }),
        Kind::Integer => plain::<Int64Type, T>(column, field, values, |value| match value {
            Value::Integer(number) => Some(number),
            _ => None,
        }),
        Kind::Number => plain::<DoubleType, T>(column, field, values, |value| match value {
            Value::Number(number) => Some(number),
            _ => None,
        }),
        Kind::Bool => plain::<BoolType, T>(column, field, values, |value| match value {
            Value::Bool(yes) => Some(yes),
            _ => None,
        }),
        Kind::Instant => plain::<Int64Type, T>(column, field, values, |value| match value {
            Value::Instant(ns) => i64::try_from(ns / MS).ok(),
            _ => None,
        }),
        Kind::List => list(column, field, values),
    }
}

fn strange<T>(field: &Field<T>, value: &Value) -> ParquetError {
    ParquetError::General(format!("column {}: {value:?} where {:?} belongs", field.name, field.kind))
}

/// A column with one value a row, or none.
fn plain<D: DataType, T>(
    column: &mut SerializedColumnWriter<'_>,
    field: &Field<T>,
    rows: impl Iterator<Item = Value>,
    pick: impl Fn(Value) -> Option<D::T>,
) -> Result<(), ParquetError> {
    let (mut values, mut known) = (Vec::new(), Vec::new());
    for value in rows {
        let unknown = match &value {
            Value::Unknown | Value::Absent => true,
            Value::Number(number) => !number.is_finite(),
            _ => false,
        };
        if unknown {
            known.push(0);
        } else {
            values.push(pick(value.clone()).ok_or_else(|| strange(field, &value))?);
            known.push(1);
        }
    }
    column.typed::<D>().write_batch(&values, Some(&known), None)?;
    Ok(())
}

/// A column with several words a row.
fn list<T>(
    column: &mut SerializedColumnWriter<'_>,
    field: &Field<T>,
    rows: impl Iterator<Item = Value>,
) -> Result<(), ParquetError> {
    let (mut values, mut known, mut again) = (Vec::<ByteArray>::new(), Vec::new(), Vec::new());
    for value in rows {
        let items = match value {
            Value::Unknown | Value::Absent => {
                known.push(0);
                again.push(0);
                continue;
            }
            Value::List(items) => items,
            value => return Err(strange(field, &value)),
        };
        if items.is_empty() {
            known.push(EMPTY);
            again.push(0);
        }
        for (index, item) in items.into_iter().enumerate() {
            values.push(item.into_bytes().into());
            known.push(ELEMENT);
            again.push(i16::from(index > 0));
        }
    }
    column.typed::<ByteArrayType>().write_batch(&values, Some(&known), Some(&again))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field as Read;

    use super::*;

    struct Row {
        name: Option<&'static str>,
        number: Option<f64>,
        count: Option<i64>,
        kept: Value,
        at_ns: Option<u64>,
        scope: Value,
    }

    fn table() -> Table<Row> {
        Table::new(vec![
            Field::text("name", "NAME", |row: &Row| row.name),
            Field::number("cpu_pct", "CPU %", 1, |row: &Row| row.number).documents_only(),
            Field::integer("waits", "WAITS", |row: &Row| row.count),
            Field::new("kept", "KEPT", |row: &Row| row.kept.clone()).kind(Kind::Bool),
            Field::instant("at", "AT", |row: &Row| row.at_ns),
            Field::new("scope", "SCOPE", |row: &Row| row.scope.clone()).kind(Kind::List),
        ])
    }

    /// Each row as the library reads it, in its own notation.
    fn read(bytes: Vec<u8>) -> Vec<Vec<Read>> {
        let file = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
        let rows = file.get_row_iter(None).unwrap();
        rows.map(|row| row.unwrap().get_column_iter().map(|(_, field)| field.clone()).collect()).collect()
    }

    #[test]
    fn what_is_written_is_read_again_typed_with_unknown_as_null() {
        let list = |items: &[&str]| Value::List(items.iter().map(|&item| item.to_owned()).collect());
        let known = Row {
            name: Some("<img>,\"\n\u{1b}[31m\u{20ac}"),
            number: Some(12.345_678_901),
            count: Some(i64::MAX),
            kept: Value::Bool(false),
            at_ns: Some(1_763_759_045_123_456_789),
            scope: list(&["container:a b", "pod:x/y"]),
        };
        let nothing = |number, kept, scope| Row { name: None, number, count: None, kept, at_ns: None, scope };
        let unknown = nothing(Some(f64::NAN), Value::Unknown, Value::Unknown);
        let empty = nothing(None, Value::Absent, list(&[]));
        let bytes =
            table().parquet(&[known, unknown, empty], &[("schema", "evenkeel.history/v1".into())]).unwrap();
        let rows = read(bytes);
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[0][0], Read::Str("<img>,\"\n\u{1b}[31m\u{20ac}".into()));
        assert_eq!(rows[0][1], Read::Double(12.345_678_901));
        assert_eq!(rows[0][2], Read::Long(i64::MAX));
        assert_eq!(rows[0][3], Read::Bool(false));
        assert_eq!(rows[0][4], Read::TimestampMillis(1_763_759_045_123));
        assert_eq!(rows[0][5].to_string(), "[\"container:a b\", \"pod:x/y\"]");
        assert!(rows[1].iter().all(|field| *field == Read::Null), "{:?}", rows[1]);
        assert!(rows[2][..5].iter().all(|field| *field == Read::Null), "{:?}", rows[2]);
        assert_eq!(rows[2][5].to_string(), "[]");
    }

    #[test]
    fn a_file_without_rows_has_its_columns_and_says_what_it_is() {
        let bytes = table().parquet(&[], &[("of", "container:web".into())]).unwrap();
        let file = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
        let about = file.metadata().file_metadata();
        assert_eq!((about.num_rows(), about.schema_descr().num_columns()), (0, 6));
        let pairs = about.key_value_metadata().unwrap();
        assert!(pairs.iter().any(|pair| pair.key == "of" && pair.value.as_deref() == Some("container:web")));
    }

    #[test]
    fn a_value_of_another_kind_is_an_error_not_a_null() {
        let table = Table::new(vec![Field::new("a", "A", |_: &()| Value::Text("x".into())).kind(Kind::Bool)]);
        assert!(table.parquet(&[()], &[]).unwrap_err().to_string().contains("column a"));
    }
}
