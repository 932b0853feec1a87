//! Values, parameters and rows that are the same on both databases.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};

/// A value of a column or a parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// NULL.
    Null,
    /// A boolean; 0 or 1 on SQLite.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// A floating-point number.
    Real(f64),
    /// Text; on PostgreSQL also a parameter of type `uuid`, `json`, `jsonb` or of an enum.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("NULL"),
            Value::Bool(value) => write!(f, "boolean {value}"),
            Value::Integer(value) => write!(f, "integer {value}"),
            Value::Real(value) => write!(f, "real {value}"),
            // Neither text nor bytes: they may be long, or secret.
            Value::Text(text) => write!(f, "text of {} bytes", text.len()),
            Value::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
        }
    }
}

macro_rules! values {
    ($($type:ty => $variant:ident: $convert:expr;)*) => {
        $(impl From<$type> for Value {
            fn from(value: $type) -> Self {
                let convert: fn($type) -> _ = $convert;
                Value::$variant(convert(value))
            }
        })*
    };
}

values! {
    bool => Bool: |value| value;
    i8 => Integer: i64::from;
    i16 => Integer: i64::from;
    i32 => Integer: i64::from;
    i64 => Integer: |value| value;
    u8 => Integer: i64::from;
    u16 => Integer: i64::from;
    u32 => Integer: i64::from;
    f32 => Real: f64::from;
    f64 => Real: |value| value;
    String => Text: |value| value;
    &str => Text: str::to_owned;
    &String => Text: String::clone;
    Vec<u8> => Bytes: |value| value;
    &[u8] => Bytes: <[u8]>::to_vec;
    bytes::Bytes => Bytes: |value| value.to_vec();
    uuid::Uuid => Text: |value| value.to_string();
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Value::Null, Into::into)
    }
}

/// The parameters of a statement: `()`, a tuple of up to eight values, or any number of [`Value`]s.
pub trait IntoParams {
    /// As values, `$1` first.
    fn into_params(self) -> Vec<Value>;
}

impl IntoParams for () {
    fn into_params(self) -> Vec<Value> {
        Vec::new()
    }
}

impl IntoParams for Vec<Value> {
    fn into_params(self) -> Vec<Value> {
        self
    }
}

impl IntoParams for &[Value] {
    fn into_params(self) -> Vec<Value> {
        self.to_vec()
    }
}

impl<const N: usize> IntoParams for [Value; N] {
    fn into_params(self) -> Vec<Value> {
        self.into()
    }
}

macro_rules! tuples {
    ($(($($name:ident)+))*) => {
        $(impl<$($name: Into<Value>),+> IntoParams for ($($name,)+) {
            #[allow(non_snake_case, reason = "named as their types")]
            fn into_params(self) -> Vec<Value> {
                let ($($name,)+) = self;
                vec![$($name.into()),+]
            }
        })*
    };
}

tuples! {
    (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) (A B C D E F G H)
}

/// A row of a query.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    columns: Arc<[String]>,
    values: Vec<Value>,
}

impl Row {
    pub(crate) fn new(columns: &Arc<[String]>, values: Vec<Value>) -> Self {
        assert_eq!(columns.len(), values.len(), "a value for each column");
        Row { columns: Arc::clone(columns), values }
    }

    /// The value of a column, by its name or by its number from 0.
    pub fn get<T: FromValue>(&self, column: impl Column) -> Result<T> {
        let at = column.find(&self.columns)?;
        T::from_value(&self.values[at]).ok_or_else(|| {
            let (name, value, wanted) = (&self.columns[at], &self.values[at], std::any::type_name::<T>());
            let option = if *value == Value::Null { "; read an Option" } else { "" };
            Error::invalid("column", format!("{name} is {value}, not a {wanted}{option}"))
        })
    }

    /// The names of its columns.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }
}

/// A column of a row: its name, or its number from 0.
pub trait Column {
    /// Its number.
    fn find(self, columns: &[String]) -> Result<usize>;
}

impl Column for usize {
    fn find(self, columns: &[String]) -> Result<usize> {
        if self < columns.len() {
            return Ok(self);
        }
        Err(Error::invalid("column", format!("the row has {} columns, and no number {self}", columns.len())))
    }
}

impl Column for &str {
    fn find(self, columns: &[String]) -> Result<usize> {
        columns.iter().position(|column| column == self).ok_or_else(|| {
            Error::invalid("column", format!("the row has no column {self}; it has {}", columns.join(", ")))
        })
    }
}

/// A type that a column can be read as.
pub trait FromValue: Sized {
    /// `None` if the value is of another type, or does not fit.
    fn from_value(value: &Value) -> Option<Self>;
}

impl FromValue for Value {
    fn from_value(value: &Value) -> Option<Self> {
        Some(value.clone())
    }
}

impl<T: FromValue> FromValue for Option<T> {
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Null => Some(None),
            value => T::from_value(value).map(Some),
        }
    }
}

impl FromValue for bool {
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Bool(value) => Some(*value),
            // SQLite has no booleans.
            Value::Integer(0) => Some(false),
            Value::Integer(1) => Some(true),
            _ => None,
        }
    }
}

impl FromValue for f64 {
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Real(value) => Some(*value),
            #[expect(clippy::cast_precision_loss, reason = "as both databases convert it")]
            Value::Integer(value) => Some(*value as f64),
            _ => None,
        }
    }
}

impl FromValue for String {
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Text(text) = value { Some(text.clone()) } else { None }
    }
}

impl FromValue for Vec<u8> {
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Bytes(bytes) = value { Some(bytes.clone()) } else { None }
    }
}

impl FromValue for uuid::Uuid {
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Text(text) = value { text.parse().ok() } else { None }
    }
}

macro_rules! integers {
    ($($type:ty)*) => {
        $(impl FromValue for $type {
            fn from_value(value: &Value) -> Option<Self> {
                if let Value::Integer(value) = value { (*value).try_into().ok() } else { None }
            }
        })*
    };
}

integers! { i8 i16 i32 i64 u8 u16 u32 u64 }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_by_name_and_number_and_says_what_is_wrong() {
        let columns: Arc<[String]> = ["id".to_owned(), "note".to_owned()].into();
        let row = Row::new(&columns, (7, None::<String>).into_params());
        assert_eq!((row.get::<i64>("id").unwrap(), row.get::<u8>(0).unwrap()), (7, 7));
        assert_eq!(row.get::<Option<String>>("note").unwrap(), None);
        let said = |error: Result<String>| error.unwrap_err().to_string();
        assert_eq!(
            said(row.get("note")),
            "invalid column: note is NULL, not a alloc::string::String; read an Option"
        );
        assert_eq!(said(row.get(0)), "invalid column: id is integer 7, not a alloc::string::String");
        assert_eq!(said(row.get("x")), "invalid column: the row has no column x; it has id, note");
        assert_eq!(said(row.get(2)), "invalid column: the row has 2 columns, and no number 2");
    }

    #[test]
    fn values_that_do_not_fit_are_refused_and_not_cut() {
        let row = |value: Value| Row::new(&["v".to_owned()].into(), vec![value]);
        assert!(row(Value::Integer(300)).get::<u8>("v").is_err());
        assert!(row(Value::Integer(-1)).get::<u64>("v").is_err());
        assert!(row(Value::Integer(2)).get::<bool>("v").is_err());
        assert!(row(Value::Text("7".into())).get::<i64>("v").is_err(), "text is no number");
        assert_eq!(
            row(Value::Integer(1)).get::<bool>("v").unwrap(),
            row(Value::Bool(true)).get::<bool>("v").unwrap()
        );
    }
}
