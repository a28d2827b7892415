//! Texts without secrets: a URL can carry a password before its host and a signature in its query.

/// `text` with every URL in it cut to scheme, host and path: what stands before the `@` of its host, its query and its
/// fragment become `…`.
///
/// Meant for messages of libraries, which quote the URL of a request as it was sent. The container of
/// `abfss://container@account/key` is no secret and stays.
pub fn redact(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = (&rest[..at + 3], &rest[at + 3..]);
        out.push_str(before);
        let url = &after[..after.find(ends_url).unwrap_or(after.len())];
        let keeps_user = before.ends_with("abfs://") || before.ends_with("abfss://");
        push_redacted(&mut out, url, keeps_user);
        rest = &after[url.len()..];
    }
    out.push_str(rest);
    out
}

/// Where a URL in a sentence ends. Characters that a URL may hold are part of it, so that no signature is cut in two.
fn ends_url(c: char) -> bool {
    c.is_whitespace() || c.is_control() || matches!(c, '"' | '<' | '>' | '`')
}

fn push_redacted(out: &mut String, url: &str, keeps_user: bool) {
    let hidden = url.find(['?', '#']).unwrap_or(url.len());
    let shown = &url[..hidden];
    let host_end = shown.find('/').unwrap_or(shown.len());
    // A password may hold anything, even an `@` or, in a text that is no URL, a `/`.
    let user_end = shown[..host_end].rfind('@').or_else(|| shown.rfind('@').filter(|at| shown[..*at].contains(':')));
    let user_end = user_end.filter(|at| !keeps_user || shown[..*at].contains(':'));
    match user_end {
        Some(at) => {
            out.push('…');
            out.push_str(&shown[at..]);
        }
        None => out.push_str(shown),
    }
    if hidden < url.len() {
        out.push_str("?…");
        // Punctuation of the sentence, not of the URL.
        let tail = url.len() - url.trim_end_matches([')', ']', ',', ';', ':', '.', '\'']).len();
        out.push_str(&url[url.len() - tail..]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn user_and_query_of_every_url_are_hidden() {
        let check = |text, expected: &str| assert_eq!(redact(text), expected);
        check("no address", "no address");
        check("https://host/a.tar", "https://host/a.tar");
        check("https://user:pass@host/a?X-Amz-Signature=abc", "https://…@host/a?…");
        check("https://user:p@ss@host/a", "https://…@host/a");
        check("https://u:p/w@host/a", "https://…@host/a");
        check("GET http://h/a?sig=1 failed, then http://h/b?sig=2", "GET http://h/a?… failed, then http://h/b?…");
        check("error (http://h/a?sig=1): 503", "error (http://h/a?…): 503");
        check("url \"https://h/p?q=secret\" x", "url \"https://h/p?…\" x");
        check("https://h#token=secret", "https://h?…");
        check("abfss://box@account.dfs.core.windows.net/k", "abfss://box@account.dfs.core.windows.net/k");
        check("abfss://box:secret@account/k", "abfss://…@account/k");
        check("s3://bucket/mail@home", "s3://bucket/mail@home");
        check("://?", "://?…");
    }

    proptest! {
        #[test]
        fn no_secret_is_left_and_nothing_panics(before in ".{0,20}", user in "[a-z0-9:]{1,8}", after in "[ \"<][^?#]{0,20}") {
            let text = format!("{before} https://{user}:SECRET@host/x?k=SECRET{after}");
            let shown = redact(&text);
            prop_assert!(!shown.contains("SECRET"), "{shown}");
            prop_assert!(shown.contains("host/x?…"), "{shown}");
        }

        #[test]
        fn any_text_is_redacted_once(text in "([a-z]{0,3}(://)?[@?#/:é ]{0,2}){0,8}") {
            let once = redact(&text);
            prop_assert_eq!(redact(&once), once);
        }
    }
}
