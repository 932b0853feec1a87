//! `~` and `${VAR}` in texts of a configuration.

use super::document::Lookup;

/// Replaces each `${VAR}`; what a variable holds is not expanded again. An undefined one is refused.
pub(super) fn expand(text: &str, lookup: Lookup<'_>) -> Result<String, String> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, variable) = (&rest[..at], &rest[at + 2..]);
        let Some(end) = variable.find('}') else {
            return Err(format!("{text:?} has ${{ without }}; expected ${{VARIABLE}}"));
        };
        let name = &variable[..end];
        let value = lookup(name).ok_or_else(|| {
            format!("environment variable {name} is not defined; define it, or write the value itself")
        })?;
        expanded.push_str(before);
        expanded.push_str(&value);
        rest = &variable[end + 1..];
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// The same, and replaces a `~` that begins the path, also behind a scheme: `sqlite:~/runs.db`.
pub(super) fn expand_path(text: &str, lookup: Lookup<'_>) -> Result<String, String> {
    // Searched before variables are replaced: a directory may really be called `~`.
    let (scheme, path) = match text.split_once(':') {
        Some((scheme, path)) if !scheme.contains(['/', '~', '$']) => (format!("{scheme}:"), path),
        _ => (String::new(), text),
    };
    let Some(rest) = path.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/')) else {
        return expand(text, lookup);
    };
    let home = lookup("HOME").ok_or("~ needs the environment variable HOME, which is not defined")?;
    Ok(format!("{scheme}{home}{}", expand(rest, lookup)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(name: &str) -> Option<String> {
        match name {
            "HOME" => Some("/users/ann".into()),
            "RUN" => Some("${HOME}".into()),
            _ => None,
        }
    }

    #[test]
    fn variables_are_replaced_once() {
        assert_eq!(expand("a/${RUN}/b$c", &variable).unwrap(), "a/${HOME}/b$c");
        assert_eq!(expand("~/x", &variable).unwrap(), "~/x", "no path");
        assert!(expand("${NONE}", &variable).unwrap_err().contains("NONE is not defined"));
        assert!(expand("${NONE", &variable).unwrap_err().contains("expected ${VARIABLE}"));
    }

    #[test]
    fn home_is_found_where_a_path_begins() {
        assert_eq!(expand_path("~/x", &variable).unwrap(), "/users/ann/x");
        assert_eq!(expand_path("~", &variable).unwrap(), "/users/ann");
        assert_eq!(expand_path("sqlite:~/${HOME}", &variable).unwrap(), "sqlite:/users/ann//users/ann");
        assert_eq!(expand_path("a/~/x", &variable).unwrap(), "a/~/x");
        assert_eq!(expand_path("~ann/x", &variable).unwrap(), "~ann/x");
        assert_eq!(expand_path("postgres://a@b/c", &variable).unwrap(), "postgres://a@b/c");
        assert!(expand_path("~/x", &|_| None).unwrap_err().contains("HOME"));
    }
}
