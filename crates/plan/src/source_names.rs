//! Names of data: paths, patterns and URLs. What is printed of them has no password and no signature.

use tandem_storage::redact;

use crate::value::{linux_path, quoted};

/// Names of one setting, at most. A pattern is one name, whatever it stands for.
pub(crate) const MAX_NAMES: usize = 4096;

/// What [`shown_source`] puts in place of a secret.
const HIDDEN: &str = "…";

const HIDDEN_QUERY: &str = "?…";

/// A name as it is printed: a URL without its user and its query, anything else as it is.
pub fn shown_source(name: &str) -> String {
    let Some((scheme, rest)) = name.split_once("://") else { return name.to_owned() };
    // In a bucket, `?` is a wildcard and `#` a letter. Signed queries are `name=value`.
    let end = rest.find(['?', '#']).map_or("", |at| &rest[at..]);
    if has_wildcards(scheme) && !rest.contains('@') && !end.contains('=') {
        return name.to_owned();
    }
    // `redact` reads sentences, in which a space ends a URL. Here the secret would go on behind it.
    let ends_url = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '<' | '>' | '`');
    match rest.contains(ends_url) || may_split_password(rest) {
        true if rest.contains(['@', '?', '#']) => format!("{scheme}://{HIDDEN}"),
        // It keeps the punctuation behind a URL. Here it is part of the query.
        _ => match redact(name).split_once(HIDDEN_QUERY) {
            Some((shown, _)) => format!("{shown}{HIDDEN_QUERY}"),
            None => redact(name),
        },
    }
}

/// A name as an argument: one that begins with a dash would be a flag.
pub(crate) fn source_arg(name: &str) -> String {
    if name.starts_with('-') { format!("./{name}") } else { shown_source(name) }
}

/// Names as a command line takes them: quoted where a shell needs it, with a space between them.
pub(crate) fn typed_sources(names: &[String]) -> String {
    names.iter().map(|name| quoted(&source_arg(name))).collect::<Vec<_>>().join(" ")
}

/// Names in a message: one as it is, several as [`typed_sources`] writes them.
pub(crate) fn sources_text(names: &[String]) -> String {
    match names {
        [name] => shown_source(name),
        names => typed_sources(names),
    }
}

/// Whether `name` can be a path, a pattern or a URL of this system.
pub(crate) fn is_source(name: &str) -> bool {
    !name.is_empty() && !name.contains('\0') && linux_path(name).is_none() && with_placeholders(name).is_none()
}

/// For a URL that [`shown_source`] has shortened: the same with words for what is missing. `None` for any other name.
///
/// Such a name comes from a printed config or command. Without its secret it would be another one.
pub(crate) fn with_placeholders(name: &str) -> Option<String> {
    let (scheme, rest) = name.split_once("://")?;
    let (rest, query) = match rest.strip_suffix(HIDDEN_QUERY) {
        Some(rest) => (rest, "?QUERY"),
        None => (rest, ""),
    };
    let rest = match rest.strip_prefix(HIDDEN) {
        Some("") => "USER:PASSWORD@HOST/NAME".to_owned(),
        Some(rest) => format!("USER:PASSWORD{rest}"),
        None if query.is_empty() => return None,
        None => rest.to_owned(),
    };
    Some(format!("{scheme}://{rest}{query}"))
}

/// Whether a URL may have a password with a `/` or a `?` in it: its host has a colon that is not that of a port, or an `@` follows
/// where none belongs.
fn may_split_password(rest: &str) -> bool {
    let (host, behind) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match host.rsplit_once(':') {
        _ if host.contains('@') => behind.contains('@'),
        Some((_, port)) => behind.contains('@') || !(is_port(port) || host.ends_with(']')),
        None => false,
    }
}

/// Whether `?` stands for any letter in the URLs of a scheme, as it does in paths.
fn has_wildcards(scheme: &str) -> bool {
    ["file", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"].contains(&scheme.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

        #[test]
        fn no_part_of_a_password_or_a_query_is_shown(
            scheme in "https?|s3|gs|az",
            before in "\\PC{0,6}",
            after in "[\\PC\\s]{0,6}",
            path in "[a-z/*]{0,6}",
            query in "[\\PC\\s]{0,6}",
        ) {
            let name = format!("{scheme}://anna:{before}SECRET{after}@host/{path}?sig={query}SECRET{after}");
            prop_assert!(!shown_source(&name).contains("SECRET"), "{}", shown_source(&name));
            // What is printed is refused, or is the same name.
            let shown = shown_source(&name);
            prop_assert!(shown == name || !is_source(&shown), "{shown}");
        }

        #[test]
        fn a_name_without_secrets_is_shown_as_it_is(name in "(s3://|gs://|file:///)?[a-z/*?{}. -]{1,20}") {
            prop_assert_eq!(shown_source(&name), name);
        }
    }

    #[test]
    fn what_is_shown_has_no_password_and_no_signature() {
        let check = |name: &str, expected: &str| assert_eq!(shown_source(name), expected);
        check("data/*.parquet", "data/*.parquet");
        check("my voice?.tar", "my voice?.tar");
        check("s3://bucket/shard-{000..127}.tar", "s3://bucket/shard-{000..127}.tar");
        check("s3://bucket/shard-?.tar", "s3://bucket/shard-?.tar");
        check("s3://bucket/lang=en/a#1 b-?.tar", "s3://bucket/lang=en/a#1 b-?.tar");
        check("gs://bucket/my voice.tar", "gs://bucket/my voice.tar");
        check("s3://key:secret@bucket/a?.tar", "s3://…@bucket/a?…");
        check("s3://bucket/a.tar?X-Amz-Signature=secret", "s3://bucket/a.tar?…");
        check("https://user:secret@host/a.tar?X-Amz-Signature=secret", "https://…@host/a.tar?…");
        check("https://host/a.tar?secret", "https://host/a.tar?…");
        check("https://user:sec ret@host/a.tar", "https://…");
        check("https://host/a.tar?k=sec ret", "https://…");
        check("https://user:secret?@host/a.tar", "https://…");
        check("https://user:secret/@host/a.tar", "https://…");
        check("https://user:@/secret@host/a.tar", "https://…");
        check("http://host:9000/a.tar", "http://host:9000/a.tar");
        check("http://[::1]/a.tar", "http://[::1]/a.tar");
        check(" https://user:secret@host/a.tar", " https://…@host/a.tar");
        check("file:///data/a b.tar", "file:///data/a b.tar");
    }

    #[test]
    fn a_shortened_name_is_no_source_and_says_what_is_missing() {
        for (name, placeholders) in [
            ("https://user:secret@host/a.tar?sig=secret", "https://USER:PASSWORD@host/a.tar?QUERY"),
            ("https://host/a.tar?sig=secret", "https://host/a.tar?QUERY"),
            ("https://user:secret@host/a.tar", "https://USER:PASSWORD@host/a.tar"),
            ("https://user:sec ret@host/a.tar", "https://USER:PASSWORD@HOST/NAME"),
        ] {
            assert!(is_source(name), "{name}");
            assert!(!is_source(&shown_source(name)), "{name}");
            assert_eq!(with_placeholders(&shown_source(name)).as_deref(), Some(placeholders));
        }
        for name in ["a…b", "data/…", "https://host/…", "s3://bucket/a?.tar", "?…"] {
            assert!(is_source(name), "{name}");
        }
    }

    #[test]
    fn names_can_be_typed_again() {
        let typed = |names: &[&str]| typed_sources(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(typed(&["-a.tar", "my voice", "{0..9}.tar"]), "./-a.tar 'my voice' '{0..9}.tar'");
        assert_eq!(typed(&[]), "");
    }

    #[test]
    fn a_url_is_no_windows_path() {
        for name in ["s3://b/k", "c://b/k", "file:///d/a", "https://h/a", r"s3://b/C:\x"] {
            assert!(is_source(name), "{name}");
        }
        for name in ["", "a\0b", r"C:\voice", r"d:\x"] {
            assert!(!is_source(name), "{name:?}");
        }
    }
}
