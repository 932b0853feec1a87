//! Positions in a topic, as requests name them.

use headwater::{Offset, Start};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::problem::Problem;

/// A position: an offset as a number, or `start`, `end`, `last:N`, `offset:N` or a time (RFC 3339) as a text.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(example = "2026-03-02T09:00:00Z")]
pub(crate) enum Position {
    /// An offset.
    Offset(i64),
    /// `start` and `beginning`, `end` and `now`, `last:N`, `offset:N`, or a time.
    Text(String),
}

impl Position {
    /// The same for the library; `field` is named if it is none.
    pub(crate) fn start(&self, field: &str) -> Result<Start, Problem> {
        let offset = |offset: i64| match offset {
            1.. => Ok(Start::Offset(Offset(offset))),
            _ => Err(Problem::invalid(field, "offsets begin at 1; send start for the first message")),
        };
        let text = match self {
            Position::Offset(number) => return offset(*number),
            Position::Text(text) => text.as_str(),
        };
        if let Ok(number) = text.strip_prefix("offset:").unwrap_or(text).parse() {
            return offset(number);
        }
        match (text, text.strip_prefix("last:").and_then(|count| count.parse().ok())) {
            ("start" | "beginning", _) => Ok(Start::Beginning),
            ("end" | "now", _) => Ok(Start::Now),
            (_, Some(count)) => Ok(Start::BeginningBounded(count)),
            _ => text.parse().map(Start::Timestamp).map_err(|_| {
                let rule = "is not start, end, last:N, an offset or a time such as 2026-03-02T09:00:00Z";
                Problem::invalid(field, format!("{text:?} {rule}"))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_a_number_a_word_or_a_time() {
        let read = |json: &str| {
            serde_json::from_str::<Position>(json).expect("a position").start("to").map_err(|problem| {
                assert_eq!(problem.field(), Some("to"), "{json}");
                problem.detail().to_owned()
            })
        };
        let noon = Start::Timestamp("2026-01-31T12:00:00Z".parse().expect("a time"));
        for (json, start) in [
            ("7", Start::Offset(Offset(7))),
            (r#""7""#, Start::Offset(Offset(7))),
            (r#""offset:7""#, Start::Offset(Offset(7))),
            (r#""start""#, Start::Beginning),
            (r#""beginning""#, Start::Beginning),
            (r#""end""#, Start::Now),
            (r#""now""#, Start::Now),
            (r#""last:5""#, Start::BeginningBounded(5)),
            (r#""2026-01-31T13:00:00+01:00""#, noon),
        ] {
            assert_eq!(read(json), Ok(start), "{json}");
        }
        for wrong in ["0", "-1", r#""0""#, r#""last:x""#, r#""yesterday""#, r#""""#] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
