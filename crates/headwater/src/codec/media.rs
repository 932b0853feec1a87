//! Maps a content type to a codec.

use crate::message::Message;

/// The format of a payload by its message's content type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Media {
    /// `application/json`, `text/json` and everything that ends in `+json`.
    Json,
    /// `application/protobuf` and its older names.
    Protobuf,
    /// Some other format.
    Other,
    /// No content type, or `application/octet-stream`, which names no format.
    Unsaid,
}

impl Media {
    pub(super) fn of(message: &Message) -> Self {
        message.content_type.as_deref().map_or(Media::Unsaid, Media::named)
    }

    /// Ignores parameters and case: RFC 9110, section 8.3.1.
    fn named(content_type: &str) -> Self {
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        let is = |name: &str| essence.eq_ignore_ascii_case(name);
        let suffix = essence.rsplit_once('+').map(|(_, suffix)| suffix);
        if is("application/json")
            || is("text/json")
            || suffix.is_some_and(|suffix| suffix.eq_ignore_ascii_case("json"))
        {
            Media::Json
        } else if is("application/protobuf")
            || is("application/x-protobuf")
            || is("application/vnd.google.protobuf")
            || is("application/x-google-protobuf")
        {
            Media::Protobuf
        } else if essence.is_empty() || is("application/octet-stream") {
            Media::Unsaid
        } else {
            Media::Other
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_type_names_codec_whatever_its_case_and_parameters() {
        for (content_type, media) in [
            ("application/json", Media::Json),
            ("Application/JSON; charset=utf-8", Media::Json),
            ("text/json", Media::Json),
            ("application/vnd.shop.order+json;v=2", Media::Json),
            ("application/protobuf", Media::Protobuf),
            ("application/x-protobuf; messageType=a.B", Media::Protobuf),
            ("text/plain", Media::Other),
            ("application/jsonl", Media::Other),
            ("application/octet-stream", Media::Unsaid),
            (" ", Media::Unsaid),
        ] {
            assert_eq!(Media::named(content_type), media, "{content_type}");
        }
    }
}
