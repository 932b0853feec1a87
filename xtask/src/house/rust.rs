//! Rust source, read as far as counting needs it: code apart from prose, functions, traits, re-exports, test modules.

use std::ops::Range;

/// A source twice, each with spaces in place of what belongs to the other; lines and offsets stay.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// Without comments and the content of strings.
    pub(super) code: Vec<u8>,
    /// Comments and the content of strings alone.
    pub(crate) prose: String,
}

impl Source {
    pub(crate) fn read(text: &str) -> Self {
        let bytes = text.as_bytes();
        let (mut code, mut prose) = (bytes.to_vec(), blank(bytes));
        let mut at = 0;
        while at < bytes.len() {
            let Some(range) = prose_at(bytes, at) else {
                at += char_literal_at(bytes, at).unwrap_or(1);
                continue;
            };
            prose[range.clone()].copy_from_slice(&bytes[range.clone()]);
            code[range.clone()].copy_from_slice(&blank(&bytes[range.clone()]));
            // The closing quote, where there is one, does not open another string.
            at = range.end + usize::from(bytes.get(range.end) == Some(&b'"'));
        }
        // Cut at the borders of whole characters, as every delimiter is ASCII.
        Source { code, prose: String::from_utf8(prose).unwrap_or_default() }
    }

    /// Where functions with a body are, each from its `fn` to its closing brace.
    pub(super) fn functions(&self) -> Vec<Range<usize>> {
        let found = words(&self.code, b"fn").filter(|at| !is_type(&self.code, *at));
        found.filter_map(|at| Some(at..body(&self.code, at)?.end)).collect()
    }

    /// How many methods a trait of this name has; `None` if it is not declared here.
    pub(super) fn methods(&self, name: &str) -> Option<usize> {
        let declared = words(&self.code, b"trait").find(|at| {
            let after = self.code[at + 5..].trim_ascii_start();
            let end = after.iter().position(|byte| !is_word(*byte)).unwrap_or(after.len());
            &after[..end] == name.as_bytes()
        })?;
        let body = body(&self.code, declared)?;
        let inner = &self.code[body.start + 1..body.end];
        let depth_at = |at: usize| {
            inner[..at].iter().fold(0_i32, |depth, byte| match byte {
                b'{' => depth + 1,
                b'}' => depth - 1,
                _ => depth,
            })
        };
        Some(words(inner, b"fn").filter(|at| !is_type(inner, *at) && depth_at(*at) == 0).count())
    }

    /// Names that `pub use` passes on, without whole crates.
    pub(super) fn exports(&self) -> usize {
        let uses = words(&self.code, b"use").filter(|at| {
            let before = self.code[..*at].trim_ascii_end();
            before.ends_with(b"pub") && before.len() + 1 == *at
        });
        uses.map(|at| {
            let end = self.code[at..].iter().position(|byte| *byte == b';').map_or(at, |length| at + length);
            let list = &self.code[at..end];
            let ends = list.iter().enumerate().filter(|(_, byte)| matches!(byte, b',' | b'}'));
            // A name ends at a comma or a closing brace, unless the brace follows a comma or another brace.
            let in_braces = ends.filter(|(at, _)| {
                list[..*at].trim_ascii_end().last().is_some_and(|byte| is_word(*byte) || *byte == b'*')
            });
            let is_crate = !list.contains(&b':');
            in_braces.count().max(usize::from(!list.contains(&b'{') && !is_crate))
        })
        .sum()
    }

    /// Where modules for tests alone are, from their attribute to their closing brace.
    pub(super) fn test_modules(&self) -> Vec<Range<usize>> {
        const ATTRIBUTE: &[u8] = b"#[cfg(test)]";
        let found = (0..self.code.len()).filter(|at| self.code[*at..].starts_with(ATTRIBUTE));
        found
            .filter_map(|at| {
                let item = at + ATTRIBUTE.len();
                let is_module = self.code[item..].trim_ascii_start().starts_with(b"mod ");
                is_module.then(|| body(&self.code, item).map(|body| at..body.end))?
            })
            .collect()
    }
}

/// How many lines a range of a text touches.
pub(super) fn lines_of(text: &[u8], range: &Range<usize>) -> usize {
    text[range.clone()].iter().filter(|byte| **byte == b'\n').count() + 1
}

fn blank(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| if *byte == b'\n' { b'\n' } else { b' ' }).collect()
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Where a whole word occurs.
fn words<'c>(code: &'c [u8], word: &'static [u8]) -> impl Iterator<Item = usize> + 'c {
    code.windows(word.len()).enumerate().filter_map(move |(at, window)| {
        let before = at.checked_sub(1).is_some_and(|before| is_word(code[before]));
        let after = code.get(at + word.len()).is_some_and(|byte| is_word(*byte));
        (window == word && !before && !after).then_some(at)
    })
}

/// `fn(u8)` is a type, `fn name` an item.
fn is_type(code: &[u8], at: usize) -> bool {
    code[at + 2..].trim_ascii_start().first() == Some(&b'(')
}

/// The braces that follow, unless a semicolon ends the item first. A semicolon in `[u8; 3]` does not.
fn body(code: &[u8], from: usize) -> Option<Range<usize>> {
    let (mut depth, mut brackets, mut start) = (0_u32, 0_i32, None);
    for (at, byte) in code.iter().enumerate().skip(from) {
        match byte {
            b'[' => brackets += 1,
            b']' => brackets -= 1,
            b';' if depth == 0 && brackets == 0 => return None,
            b'{' => {
                start.get_or_insert(at);
                depth += 1;
            }
            b'}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(start?..at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

/// A comment, or the content of a string, that begins here.
fn prose_at(bytes: &[u8], at: usize) -> Option<Range<usize>> {
    let rest = &bytes[at..];
    let find = |needle: &[u8], from: usize| {
        let found = rest[from..].windows(needle.len()).position(|window| window == needle);
        found.map_or(rest.len(), |position| from + position)
    };
    if rest.starts_with(b"//") {
        return Some(at..at + find(b"\n", 2));
    }
    if rest.starts_with(b"/*") {
        return Some(at..at + (find(b"*/", 2) + 2).min(rest.len()));
    }
    if rest[0] == b'"' {
        let mut end = 1;
        while end < rest.len() && rest[end] != b'"' {
            end += if rest[end] == b'\\' { 2 } else { 1 };
        }
        return Some(at + 1..at + end.min(rest.len()));
    }
    let hashes = rest.strip_prefix(b"r")?.iter().take_while(|byte| **byte == b'#').count();
    let is_middle = at > 0 && is_word(bytes[at - 1]) && bytes[at - 1] != b'b';
    if hashes == 0 || rest.get(hashes + 1) != Some(&b'"') || is_middle {
        return None;
    }
    let close = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
    Some(at + hashes + 2..at + find(&close, hashes + 2))
}

/// The length of a character in quotes that begins here: `'"'` opens no string, and `'a` is a lifetime.
fn char_literal_at(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = bytes[at..].strip_prefix(b"'")?;
    let escape = usize::from(rest.first() == Some(&b'\\'));
    // The character itself may be a quote; it has at most four bytes, an escape at most ten.
    let longest = if escape == 1 { 11 } else { 4 };
    let end = rest.iter().take(longest + 1).skip(escape + 1).position(|byte| *byte == b'\'')?;
    let is_one =
        escape == 1 || std::str::from_utf8(&rest[..end + 1]).is_ok_and(|text| text.chars().count() == 1);
    is_one.then_some(end + escape + 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        String::from_utf8(Source::read(text).code).unwrap()
    }

    #[test]
    fn prose_is_comments_and_strings() {
        let source =
            Source::read("let a = \"one // two\"; // three\n/* four\n */ b('\"', 'x', '\\'') \"five\"");
        let prose: Vec<&str> = source.prose.split_whitespace().collect();
        assert_eq!(prose, ["one", "//", "two", "//", "three", "/*", "four", "*/", "five"]);
        assert_eq!(source.prose.lines().count(), 3);
        assert!(code("a(\"x \\\" y\", b)").ends_with(", b)"));
        assert!(code("a(r#\"x \" {\"#, b)").ends_with(", b)") && !code("a(r#\"x \" {\"#, b)").contains('{'));
        assert_eq!(code("fn a<'a>(b: &'a str) {}"), "fn a<'a>(b: &'a str) {}");
        assert_eq!(code("x('ä', '\\u{1F600}') // y").trim_end(), "x('ä', '\\u{1F600}')");
    }

    #[test]
    fn functions_have_a_body() {
        let text = "fn a() {\n    b();\n}\ntrait T { fn c(x: [u8; 2]); fn d() {} }\ntype F = fn(u8) -> u8; // fn e() {}\n";
        let source = Source::read(text);
        let lines: Vec<_> = source.functions().iter().map(|range| lines_of(text.as_bytes(), range)).collect();
        assert_eq!(lines, [3, 1]);
    }

    #[test]
    fn methods_of_a_trait_are_its_own() {
        let text = "pub trait Store: Sync {\n fn a(&self);\n async fn b() { fn inner() {} }\n}\ntrait Stores { fn c(); }";
        let source = Source::read(text);
        assert_eq!(
            (source.methods("Store"), source.methods("Stores"), source.methods("Sto")),
            (Some(2), Some(1), None)
        );
    }

    #[test]
    fn every_name_of_a_use_counts_once() {
        let exports = |text| Source::read(text).exports();
        assert_eq!(exports("pub use a::B;\nuse c::D;\npub(crate) use e::F;\npub use g;"), 1);
        assert_eq!(exports("pub use a::{\n    B, c::{D, E}, F as G,\n};"), 4);
    }

    #[test]
    fn test_modules_end_with_their_brace() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n#[cfg(test)]\nmod more;\n#[cfg(test)]\nfn c() {}\n";
        let modules = Source::read(text).test_modules();
        assert_eq!(modules.iter().map(|range| lines_of(text.as_bytes(), range)).collect::<Vec<_>>(), [4]);
    }
}
