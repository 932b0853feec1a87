//! Neutral values as PostgreSQL's, by the type that a statement expects.

use std::error::Error as StdError;
use std::sync::Arc;

use bytes::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, Kind, ToSql, Type, to_sql_checked};
use uuid::Uuid;

use super::PostgresTransaction;
use crate::error::Result;
use crate::transaction::{Row, Value};

type Converted<T> = std::result::Result<T, Box<dyn StdError + Sync + Send>>;

impl PostgresTransaction {
    /// Runs a statement of a handler, and returns how many rows it changed.
    pub(crate) async fn change(&self, sql: &str, params: &[Value]) -> Result<u64> {
        let connection = self.connection();
        self.answered(async {
            let statement = connection.prepare_cached(sql).await?;
            connection.execute(&statement, &references(params)).await
        })
        .await
    }

    /// Runs a statement of a handler, and returns its rows.
    pub(crate) async fn rows(&self, sql: &str, params: &[Value]) -> Result<Vec<Row>> {
        let connection = self.connection();
        self.answered(async {
            let statement = connection.prepare_cached(sql).await?;
            let columns = statement.columns().iter().map(|column| column.name().to_owned());
            let columns: Arc<[String]> = columns.collect();
            let rows = connection.query(&statement, &references(params)).await?;
            rows.iter().map(|row| row_of(&columns, row)).collect()
        })
        .await
    }
}

pub(super) fn row_of(
    columns: &Arc<[String]>,
    row: &tokio_postgres::Row,
) -> std::result::Result<Row, tokio_postgres::Error> {
    let value = |at| Ok(row.try_get::<_, Option<Value>>(at)?.unwrap_or(Value::Null));
    let values: std::result::Result<Vec<Value>, tokio_postgres::Error> =
        (0..columns.len()).map(value).collect();
    Ok(Row::new(columns, values?))
}

pub(super) fn references(params: &[Value]) -> Vec<&(dyn ToSql + Sync)> {
    params.iter().map(|value| value as &(dyn ToSql + Sync)).collect()
}

impl ToSql for Value {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Converted<IsNull> {
        match (self, ty) {
            (Value::Null, _) => Ok(IsNull::Yes),
            (Value::Bool(value), &Type::BOOL) => value.to_sql(ty, out),
            (Value::Integer(value), &Type::INT8) => value.to_sql(ty, out),
            (Value::Integer(value), &Type::INT4) => i32::try_from(*value)?.to_sql(ty, out),
            (Value::Integer(value), &Type::INT2) => i16::try_from(*value)?.to_sql(ty, out),
            (Value::Real(value), &Type::FLOAT8) => value.to_sql(ty, out),
            #[expect(clippy::cast_precision_loss, reason = "as the server converts it")]
            (Value::Integer(value), &Type::FLOAT8) => (*value as f64).to_sql(ty, out),
            #[expect(clippy::cast_possible_truncation, reason = "as the server converts it")]
            (Value::Real(value), &Type::FLOAT4) => (*value as f32).to_sql(ty, out),
            (Value::Bytes(bytes), &Type::BYTEA) => bytes.to_sql(ty, out),
            (Value::Text(text), &Type::UUID) => text.parse::<Uuid>()?.to_sql(ty, out),
            (Value::Text(text), &Type::JSONB) => {
                // The version of the format.
                out.extend_from_slice(&[1]);
                out.extend_from_slice(text.as_bytes());
                Ok(IsNull::No)
            }
            (Value::Text(text), ty) if is_text(ty) || *ty == Type::JSON => {
                out.extend_from_slice(text.as_bytes());
                Ok(IsNull::No)
            }
            (value, ty) => {
                let hint = "cast the parameter, as in CAST($1 AS bigint), or give another type";
                Err(format!("{value} for a parameter of type {ty}; {hint}").into())
            }
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Value {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Converted<Self> {
        Ok(match *ty {
            Type::BOOL => Value::Bool(bool::from_sql(ty, raw)?),
            Type::INT2 => Value::Integer(i16::from_sql(ty, raw)?.into()),
            Type::INT4 => Value::Integer(i32::from_sql(ty, raw)?.into()),
            Type::INT8 => Value::Integer(i64::from_sql(ty, raw)?),
            Type::FLOAT4 => Value::Real(f32::from_sql(ty, raw)?.into()),
            Type::FLOAT8 => Value::Real(f64::from_sql(ty, raw)?),
            Type::BYTEA => Value::Bytes(raw.to_vec()),
            Type::UUID => Value::Text(Uuid::from_sql(ty, raw)?.to_string()),
            Type::JSON => Value::Text(std::str::from_utf8(raw)?.to_owned()),
            Type::JSONB => Value::Text(std::str::from_utf8(raw.get(1..).unwrap_or_default())?.to_owned()),
            _ if is_text(ty) => Value::Text(std::str::from_utf8(raw)?.to_owned()),
            _ => {
                let hint = "cast it, as in CAST(total AS bigint) or CAST(at AS text)";
                return Err(format!("a column of type {ty} has no neutral value; {hint}").into());
            }
        })
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

fn is_text(ty: &Type) -> bool {
    matches!(*ty, Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::UNKNOWN)
        || matches!(ty.kind(), Kind::Enum(_))
}
