//! SQL: statements of the same verbs in both engines, one used statement per section, migrations of tables numbered without holes, the tables of
//! messages named by the log alone.

use std::collections::{BTreeMap, BTreeSet};

use super::Complaint;
use super::tree::Tree;

const STORE: &str = "crates/headwater/src/store";
const ENGINES: [&str; 2] = ["sqlite", "postgres"];
/// Where calls of functions of PostgreSQL's schema are written.
const CALLS: &str = "crates/headwater/src/store/postgres/statements.rs";

/// The files of an engine that name tables of messages: the log; and what defines, shows, grants or checks the tables themselves.
/// `publish_trigger.sql` is how plain SQL appends on SQLite.
const LOG_FILES: [&str; 10] = [
    "log.rs",
    "sql/log.sql",
    "schema/functions/log/messages.sql",
    "schema/functions/log/partitions.sql",
    "schema/tables/",
    "schema/publish_trigger.sql",
    "schema/views.sql",
    "schema/operator_views.sql",
    "schema/roles.sql",
    "sql/doctor.sql",
];

pub(super) fn check(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = check_mirror(tree);
    for engine in ENGINES {
        let folder = format!("{STORE}/{engine}");
        let rust = |(path, _): &(&str, &str)| path.ends_with(".rs");
        let code: String = tree.below(&folder).filter(rust).map(|(_, content)| content).collect();
        for (verb, path, content) in verbs(tree, engine) {
            complaints.extend(check_sections(&path, verb, content, &code));
        }
        complaints.extend(check_log(tree, &folder));
    }
    complaints.extend(check_migrations(tree));
    complaints
}

/// Each verb of an engine, with its file.
fn verbs<'t>(tree: &'t Tree, engine: &str) -> impl Iterator<Item = (&'t str, String, &'t str)> {
    let folder = format!("{STORE}/{engine}/sql");
    let files: Vec<_> = tree.below(&folder).collect();
    files.into_iter().filter_map(move |(inside, content)| {
        inside.strip_suffix(".sql").map(|verb| (verb, format!("{folder}/{inside}"), content))
    })
}

/// Each engine has the verbs of the other: as `sql/<verb>.sql`, or in PostgreSQL as calls of functions whose names begin with the verb.
fn check_mirror(tree: &Tree) -> Vec<Complaint> {
    let [sqlite, postgres] = ENGINES
        .map(|engine| verbs(tree, engine).map(|(verb, path, _)| (verb, path)).collect::<BTreeMap<_, _>>());
    let calls: Vec<_> = tree.get(CALLS).map(calls).unwrap_or_default();
    let mut complaints = Vec::new();
    for (verb, path) in sqlite.iter().filter(|(verb, _)| !postgres.contains_key(*verb)) {
        if !calls.iter().any(|(_, name)| verb_of(name, sqlite.keys()) == Some(verb)) {
            let advice = format!("add `{verb}.sql` to {STORE}/postgres/sql, or a call `{verb}` to {CALLS}");
            complaints.push(Complaint::new(path, 1, "sql-mirror", advice));
        }
    }
    for (verb, path) in postgres.iter().filter(|(verb, _)| !sqlite.contains_key(*verb)) {
        let advice = format!("add `{verb}.sql` to {STORE}/sqlite/sql, or give both the same name");
        complaints.push(Complaint::new(path, 1, "sql-mirror", advice));
    }
    for (line, name) in calls.iter().filter(|(_, name)| verb_of(name, sqlite.keys()).is_none()) {
        let advice = format!("begin `{name}` with its verb, the name of a file in {STORE}/sqlite/sql");
        complaints.push(Complaint::new(CALLS, *line, "sql-mirror", advice));
    }
    complaints
}

/// The lines and names of statements that are written out: `name: "…"`, or `name: (…)` for one that is put together.
fn calls(content: &str) -> Vec<(usize, &str)> {
    let name_of = |line: &'_ str| -> Option<usize> {
        let (name, _) = line.split_once(": \"").or_else(|| line.split_once(": ("))?;
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        is_name.then_some(name.len())
    };
    let lines = content.lines().map(str::trim_start).enumerate();
    lines.filter_map(|(at, line)| name_of(line).map(|length| (at + 1, &line[..length]))).collect()
}

/// The longest verb that a name is or begins with.
fn verb_of<'v, 't: 'v>(name: &str, verbs: impl Iterator<Item = &'v &'t str>) -> Option<&'v &'t str> {
    let is_of =
        |verb: &&&str| name.strip_prefix(**verb).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'));
    verbs.filter(is_of).max_by_key(|verb| verb.len())
}

/// `-- name: …` begins a section: one statement, of a name of its own, that the engine's code uses as `verb.name`.
fn check_sections(path: &str, verb: &str, content: &str, code: &str) -> Vec<Complaint> {
    let complain = |line, advice: String| Complaint::new(path, line, "one-statement", advice);
    let lines: Vec<&str> = content.lines().collect();
    let name_of = |line: &str| line.strip_prefix("-- name: ").map(str::to_owned);
    let starts: Vec<usize> = (0..lines.len()).filter(|at| name_of(lines[*at]).is_some()).collect();
    if starts.first() != Some(&0) {
        return vec![complain(1, "begin with `-- name: …`, the name of the first statement".to_owned())];
    }
    let mut complaints = Vec::new();
    let mut names = BTreeSet::new();
    for (at, start) in starts.iter().enumerate() {
        let end = starts.get(at + 1).copied().unwrap_or(lines.len());
        let name = name_of(lines[*start]).unwrap_or_default();
        match statement_lines(&lines[*start..end].join("\n")).as_slice() {
            [_] => {}
            [] => {
                complaints.push(complain(start + 1, "write the statement, or remove the section".to_owned()));
            }
            [_, second, ..] => {
                complaints.push(complain(start + second, "give this second statement a section".to_owned()));
            }
        }
        let used = if name == verb { format!("({verb})") } else { format!("{verb}.{name}") };
        let in_list = name == verb && code.contains(&format!(": {verb},"));
        if !code.contains(&used) && !in_list {
            complaints.push(complain(start + 1, format!("use `{used}`, or remove the section")));
        }
        if !names.insert(name.clone()) {
            complaints.push(complain(start + 1, format!("name it otherwise: {name} is taken")));
        }
    }
    complaints
}

/// Files outside the log that name a table of messages. Tests may: they check what the engine stored.
fn check_log(tree: &Tree, folder: &str) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (path, content) in tree.below(folder) {
        if LOG_FILES.iter().any(|file| path.starts_with(file)) || path.starts_with("tests") {
            continue;
        }
        for (at, _) in content.lines().enumerate().filter(|(_, line)| names_messages(line)) {
            let advice =
                "messages are read and written by the log's files: call what is there, or add it".to_owned();
            complaints.push(Complaint::new(&format!("{folder}/{path}"), at + 1, "log-room", advice));
        }
    }
    complaints
}

/// Whether code names `headwater_message`, or `message` and its partitions (`message_shared`, `message_t7`) in a namespace.
fn names_messages(line: &str) -> bool {
    let code = line.trim_start();
    let named = |table: &str| {
        code.match_indices(table).any(|(at, _)| {
            let rest = code[at + table.len()..].trim_start_matches(|c: char| c.is_ascii_digit());
            !rest.starts_with(|c: char| c.is_alphabetic() || c == '_')
        })
    };
    !code.starts_with("--")
        && !code.starts_with("//")
        && ["headwater_message", "{schema}.message", "message_shared", "message_t"].into_iter().any(named)
}

/// Migration folders each count 2, 3, … by their files' leading digits (`0002_colour.sql`): version 1 is the first `tables/`.
fn check_migrations(tree: &Tree) -> Vec<Complaint> {
    let mut folders: BTreeMap<&str, Vec<(Option<u32>, &str)>> = BTreeMap::new();
    for (path, _) in tree.with_extension("sql") {
        let Some((folder, name)) = path.rsplit_once('/') else { continue };
        if folder.rsplit('/').next() == Some("migrations") {
            folders.entry(folder).or_default().push((number_of(name), path));
        }
    }
    folders.into_values().flat_map(check_numbers).collect()
}

fn check_numbers(mut files: Vec<(Option<u32>, &str)>) -> Vec<Complaint> {
    files.sort_unstable();
    let complain = |path, advice: String| Complaint::new(path, 1, "migration-number", advice);
    let mut complaints = Vec::new();
    let mut taken = BTreeSet::new();
    for (number, path) in files {
        let Some(number) = number else {
            complaints.push(complain(path, "begin the name with the migration's number".to_owned()));
            continue;
        };
        let expected = taken.last().map_or(2, |last: &u32| last + 1);
        if !taken.insert(number) {
            complaints.push(complain(path, format!("number {number} is taken; take the next free one")));
        } else if number != expected {
            complaints.push(complain(path, format!("number {expected} is missing before {number}")));
        }
    }
    complaints
}

fn number_of(name: &str) -> Option<u32> {
    let name = name.strip_prefix(['V', 'v']).unwrap_or(name);
    let digits = name.len() - name.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    name[..digits].parse().ok()
}

/// The line on which each statement begins. Comments are not statements; semicolons in quotes end none.
fn statement_lines(text: &str) -> Vec<usize> {
    let mut starts = Vec::new();
    let mut inside = false;
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let length = token_length(rest);
        let is_blank = next.is_whitespace() || rest.starts_with("--") || rest.starts_with("/*");
        if next == ';' {
            inside = false;
        } else if !inside && !is_blank {
            inside = true;
            starts.push(text[..text.len() - rest.len()].matches('\n').count() + 1);
        }
        rest = &rest[length..];
    }
    starts
}

/// How many bytes the comment, quotation or single character at the start takes.
fn token_length(text: &str) -> usize {
    let up_to = |opening: usize, end: &str| match text[opening..].find(end) {
        Some(at) => opening + at + end.len(),
        None => text.len(),
    };
    if text.starts_with("--") {
        return up_to(2, "\n");
    }
    if text.starts_with("/*") {
        return up_to(2, "*/");
    }
    match text.chars().next() {
        // A doubled quote inside ends one quotation and begins the next: the same in the end.
        Some('\'') => up_to(1, "'"),
        Some('"') => up_to(1, "\""),
        Some('$') => match dollar_tag(text) {
            Some(tag) => up_to(tag.len(), tag),
            None => 1,
        },
        Some(other) => other.len_utf8(),
        None => 0,
    }
}

/// `$$` or `$name$`, but not a parameter such as `$1`.
fn dollar_tag(text: &str) -> Option<&str> {
    let name = text[1..].split('$').next()?;
    let is_name = name.chars().all(|c| c.is_alphanumeric() || c == '_');
    let is_closed = text[1 + name.len()..].starts_with('$');
    (is_name && is_closed && !name.starts_with(|c: char| c.is_ascii_digit())).then(|| &text[..name.len() + 2])
}

#[cfg(test)]
mod tests {
    use super::super::complaints;
    use super::super::tests::{clean_tree, fired};
    use super::*;

    fn path(rest: &str) -> String {
        format!("{STORE}/{rest}")
    }

    #[test]
    fn verb_of_one_engine_must_be_the_others_too() {
        for [here, there] in [ENGINES, [ENGINES[1], ENGINES[0]]] {
            let settle = path(&format!("{here}/sql/settle.sql"));
            let mut tree = clean_tree();
            tree.insert(&settle, "-- name: settle\nSELECT 1;\n");
            tree.insert(
                &path(&format!("{here}/settle.rs")),
                "//! Settling.\nconst A: &str = sql!(settle);\n",
            );
            let fired: Vec<_> = complaints(&tree).into_iter().map(|c| (c.path, c.line, c.rule)).collect();
            assert_eq!(fired, [(settle, 1, "sql-mirror")]);
            tree.insert(&path(&format!("{there}/sql/settle.sql")), "-- name: ack\nSELECT 1;\n");
            tree.insert(
                &path(&format!("{there}/settle.rs")),
                "//! Settling.\nconst A: &str = sql!(settle.ack);\n",
            );
            assert_eq!(complaints(&tree), []);
        }
    }

    #[test]
    fn call_of_a_function_is_a_statement_of_the_verb_its_name_begins_with() {
        let listed = |calls: &str| {
            let files = "publish: publish, due: claim.due, next: claim.next,";
            format!("//! Statements.\nstatements! {{\n    {files}\n{calls}}}\n")
        };
        let mut tree = clean_tree();
        tree.insert(&path("sqlite/sql/take_over.sql"), "-- name: take_over\nSELECT 1;\n");
        tree.insert(&path("sqlite/take_over.rs"), "//! Owners.\nconst A: &str = sql!(take_over);\n");
        let mut fired = |calls: &str| -> Vec<_> {
            tree.insert(CALLS, &listed(calls));
            complaints(&tree).into_iter().map(|c| (c.path, c.line, c.rule)).collect()
        };
        let missing = || (path("sqlite/sql/take_over.sql"), 1, "sql-mirror");
        assert_eq!(fired("    take_over: \"SELECT 1\",\n"), []);
        assert_eq!(fired("    take_over_end: \"SELECT 1,\n        2\",\n"), []);
        assert_eq!(fired("    take_over_watch: (owners!(\"watch\")),\n"), []);
        assert_eq!(fired("    // take_over: no call.\n"), [missing()]);
        let unknown = |line| (CALLS.to_owned(), line, "sql-mirror");
        assert_eq!(
            fired("    take_overs: \"SELECT 1\",\n"),
            [unknown(4), missing()],
            "a verb is matched whole"
        );
        assert_eq!(fired("    take_over: \"SELECT 1\",\n    seek: \"SELECT 1\",\n"), [unknown(5)]);
    }

    #[test]
    fn section_has_one_statement_that_is_used() {
        let claim = path("sqlite/sql/claim.sql");
        let rule = |line| (claim.clone(), line, "one-statement");
        let two = "-- name: claim\n-- One; and more.\nSELECT 1; -- one\n\nSELECT 2;\n";
        assert_eq!(fired(&claim, two), [rule(5)]);
        assert_eq!(fired(&claim, "-- name: claim\n-- Nothing.\n"), [rule(1)]);
        assert_eq!(fired(&claim, "-- Claim.\nSELECT 1;\n"), [rule(1)]);
        let more = "-- name: claim\nSELECT 1;\n\n-- name: other\nSELECT 2;\n";
        assert_eq!(fired(&claim, more), [rule(4)], "no code uses it");
        assert_eq!(fired(&claim, "-- name: claim\nSELECT 1;\n\n-- name: claim\nSELECT 2;\n"), [rule(4)]);
    }

    #[test]
    fn tables_of_messages_are_named_by_the_log_alone() {
        let (claims, rust) = (path("postgres/schema/functions/claim.sql"), path("sqlite/claim.rs"));
        let code = "//! Claims.\nconst A: [&str; 2] = [sql!(claim), sql!(publish)];\n";
        for line in [
            "FROM {schema}.message m",
            "'{schema}.message'::regclass",
            "JOIN {schema}.message_shared m",
            "v_table := 'message_t' || p_topic_id;",
            "SELECT count(*) FROM {schema}.message_t7",
        ] {
            let rule = (claims.clone(), 2, "log-room");
            assert_eq!(fired(&claims, &format!("-- Claims.\n{line}\n")), [rule], "{line}");
        }
        let named = format!("{code}const B: &str = \"DELETE FROM headwater_message\";\n");
        assert_eq!(fired(&rust, &named), [(rust.clone(), 3, "log-room")]);
        for line in [
            "SELECT m.message_type, m.message_offset FROM {schema}.messages(1) m",
            "-- as {schema}.message has it",
            "SELECT * FROM {schema}.message_status",
        ] {
            assert_eq!(fired(&claims, &format!("-- Claims.\n{line}\n")), [], "{line}");
        }
        assert_eq!(fired(&path("sqlite/tests/a.rs"), "//! A.\nconst A: &str = \"headwater_message\";\n"), []);
        assert_eq!(fired(&path("sqlite/log.rs"), "//! A.\nconst A: &str = \"headwater_message\";\n"), []);
    }

    #[test]
    fn semicolons_inside_quotes_and_comments_end_nothing() {
        let one = [
            "-- a;\nSELECT 1; -- b;\n/* c; */\n",
            "SELECT 'it''s; fine', \"a;b\" FROM t;",
            "DO $body$ BEGIN; $1; $$ ; $$ END $body$;",
            "SELECT $1, $2 /* ; */",
            "SELECT 'ä;ö';",
        ];
        for text in one {
            assert_eq!(statement_lines(text).len(), 1, "{text}");
        }
        assert_eq!(statement_lines("SELECT $1;\nSELECT $2;"), [1, 2]);
        assert_eq!(statement_lines("SELECT 'unclosed;"), [1]);
    }

    #[test]
    fn migrations_count_without_holes() {
        let text = "-- More.\nSELECT 1;\n";
        let rule = |path: &str| (path.to_owned(), 1, "migration-number");
        assert_eq!(fired(&path("sqlite/schema/migrations/0003_c.sql"), text), []);
        let hole = path("sqlite/schema/migrations/0004_d.sql");
        assert_eq!(fired(&hole, text), [rule(&hole)]);
        let taken = path("sqlite/schema/migrations/0002_zebra.sql");
        assert_eq!(fired(&taken, text), [rule(&taken)]);
        let unnumbered = path("sqlite/schema/migrations/more.sql");
        assert_eq!(fired(&unnumbered, text), [rule(&unnumbered)]);
        let first = path("postgres/schema/migrations/0001_base.sql");
        assert_eq!(fired(&first, text), [rule(&first)]);
    }
}
