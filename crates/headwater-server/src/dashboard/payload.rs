//! Payloads as people read them: JSON indented, text as it is, anything else as hexadecimal digits. Never as HTML.

use std::fmt::Write;

use maud::{Markup, html};
use serde::de::IgnoredAny;

use super::format;

/// Characters of a preview.
const PREVIEW_CHARACTERS: usize = 160;
/// Bytes that are shown of a payload in a list, and on a page of its own.
pub(crate) const SHOWN_IN_LIST: usize = 4 * 1024;
pub(crate) const SHOWN_ALONE: usize = 256 * 1024;
/// Bytes of something that is neither text nor JSON.
const HEX_BYTES: usize = 1_024;

/// One line of a payload.
pub(crate) fn preview(payload: &[u8]) -> String {
    let part = &payload[..payload.len().min(4 * PREVIEW_CHARACTERS)];
    let text = match std::str::from_utf8(part) {
        Ok(text) => text,
        // Cut in the middle of a character.
        Err(error) if error.valid_up_to() + 4 > part.len() && part.len() < payload.len() => {
            std::str::from_utf8(&part[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return format!("{} of binary data", format::bytes(payload.len() as u64)),
    };
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format::cut(&line, PREVIEW_CHARACTERS)
}

/// A payload, or at most so many bytes of it.
pub(crate) fn shown(payload: &[u8], bytes_max: usize) -> Markup {
    let bytes = format::bytes(payload.len() as u64);
    let (kind, text, is_cut) = read(payload, bytes_max);
    html! {
        div.payload-head { span { (kind) ", " (bytes) @if is_cut { ", only the beginning is shown" } } }
        pre.payload tabindex="0" { (text) }
    }
}

/// In place of a payload, for callers who may not read.
pub(crate) fn hidden() -> Markup {
    html! { p.payload.is-hidden { "Hidden: your token does not have the scope “read” for this topic." } }
}

/// What it is, its text, and whether that is not all of it.
fn read(payload: &[u8], bytes_max: usize) -> (&'static str, String, bool) {
    if payload.is_empty() {
        return ("Empty", String::new(), false);
    }
    let part = &payload[..payload.len().min(bytes_max)];
    let is_cut = part.len() < payload.len();
    if !is_cut && serde_json::from_slice::<IgnoredAny>(payload).is_ok() {
        return ("JSON", indented(&String::from_utf8_lossy(payload)), false);
    }
    match std::str::from_utf8(part) {
        Ok(text) => ("Text", text.to_owned(), is_cut),
        Err(error) if is_cut && error.valid_up_to() + 4 > part.len() => {
            ("Text", String::from_utf8_lossy(&part[..error.valid_up_to()]).into_owned(), true)
        }
        Err(_) => ("Binary", hexadecimal(&part[..part.len().min(HEX_BYTES)]), payload.len() > HEX_BYTES),
    }
}

/// JSON with line breaks and indentation. Only space between tokens changes: numbers and escapes stay as they were sent.
pub(crate) fn indented(json: &str) -> String {
    let mut text = String::with_capacity(json.len() * 2);
    let (mut depth, mut in_string, mut is_escaped) = (0_usize, false, false);
    let mut tokens = json.chars().peekable();
    while let Some(c) = tokens.next() {
        if in_string {
            text.push(c);
            in_string = is_escaped || c != '"';
            is_escaped = !is_escaped && c == '\\';
            continue;
        }
        match c {
            ' ' | '\n' | '\r' | '\t' => {}
            '"' => {
                in_string = true;
                text.push(c);
            }
            '{' | '[' => {
                text.push(c);
                while tokens.next_if(char::is_ascii_whitespace).is_some() {}
                match tokens.next_if(|next| matches!(next, '}' | ']')) {
                    Some(end) => text.push(end),
                    None => {
                        depth += 1;
                        line(&mut text, depth);
                    }
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut text, depth);
                text.push(c);
            }
            ',' => {
                text.push(c);
                line(&mut text, depth);
            }
            ':' => text.push_str(": "),
            other => text.push(other),
        }
    }
    text
}

fn line(text: &mut String, depth: usize) {
    text.push('\n');
    for _ in 0..depth.min(40) {
        text.push_str("  ");
    }
}

/// Sixteen bytes a line: the position, the bytes, and what of them is a character.
fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (at, line) in bytes.chunks(16).enumerate() {
        write!(text, "{:06x} ", at * 16).unwrap_or_default();
        for byte in line {
            write!(text, " {byte:02x}").unwrap_or_default();
        }
        text.extend(std::iter::repeat_n(' ', (16 - line.len()) * 3 + 2));
        text.extend(line.iter().map(|byte| if byte.is_ascii_graphic() { char::from(*byte) } else { '.' }));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_indented_and_nothing_else_of_it_changes() {
        let json = r#"{"a":[1.50,12345678901234567890,{}],"b":"x, \"{y}\" \\","c":[]}"#;
        let expected = "{\n  \"a\": [\n    1.50,\n    12345678901234567890,\n    {}\n  ],\n  \"b\": \"x, \\\"{y}\\\" \\\\\",\n  \"c\": []\n}";
        assert_eq!(indented(json), expected);
        assert_eq!(indented(expected), expected, "indented already");
    }

    #[test]
    fn every_payload_is_shown_as_text() {
        for (payload, says) in [
            (&b"<script>alert(1)</script>"[..], "&lt;script&gt;"),
            (br#"{"html":"<img onerror=x>"}"#, "&lt;img onerror=x&gt;"),
            (b"\xff\xfe\x00<b>", "ff fe 00 3c 62 3e"),
            (b"", "Empty"),
        ] {
            let markup = shown(payload, SHOWN_ALONE).into_string();
            assert!(
                markup.contains(says) && !markup.contains("<script>") && !markup.contains("<img"),
                "{markup}"
            );
        }
        assert_eq!(preview(b"a\nb\x1b[31m"), "a b [31m");
        assert_eq!(preview(b"\xff\xfe"), "2 B of binary data");
    }

    #[test]
    fn large_payloads_are_cut_between_characters() {
        let payload = "ü".repeat(10_000);
        let (kind, text, is_cut) = read(payload.as_bytes(), 4_095);
        assert_eq!((kind, text.chars().count(), is_cut), ("Text", 2_047, true));
        assert!(preview(payload.as_bytes()).ends_with('…'));
        let json = format!("[{}1]", "1,".repeat(10_000));
        assert_eq!(read(json.as_bytes(), 4_096).0, "Text", "half of it is no JSON");
    }
}
