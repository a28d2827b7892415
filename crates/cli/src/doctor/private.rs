//! Removes user names and home folders from a report.

use std::path::Path;

use serde_json::Value;

/// Parent folders of home folders.
const HOMES: [&str; 2] = ["/home/", "/Users/"];

/// What to hide.
pub(super) struct Private {
    home: Option<String>,
    user: Option<String>,
}

impl Private {
    pub(super) fn from_env() -> Private {
        let set = |name: &str| std::env::var(name).ok();
        Private::of(set("HOME"), set("USER").or_else(|| set("LOGNAME")))
    }

    fn of(home: Option<String>, user: Option<String>) -> Private {
        // A home of `/`, as in some containers, names nobody.
        let home = home.map(|home| home.trim_end_matches('/').to_owned()).filter(|home| home.len() > 1);
        let named =
            home.as_deref().and_then(|home| Path::new(home).file_name()).map(|n| n.to_string_lossy().into_owned());
        Private { home, user: user.or(named).filter(|user| !user.is_empty()) }
    }

    /// Replaces every home folder by `~`, and the user's name in other paths by `user`.
    pub(super) fn hide(&self, text: &str) -> String {
        let mut hidden = text.to_owned();
        if let Some(home) = &self.home {
            hidden = replace_path(&hidden, home, "~");
        }
        for homes in HOMES {
            hidden = hide_names_under(&hidden, homes);
        }
        match &self.user {
            Some(user) => replace_path(&hidden, &format!("/{user}"), "/user"),
            None => hidden,
        }
    }

    /// The same for every string of a JSON document.
    pub(super) fn hide_in(&self, document: Value) -> Value {
        match document {
            Value::String(text) => Value::String(self.hide(&text)),
            Value::Array(list) => list.into_iter().map(|value| self.hide_in(value)).collect(),
            Value::Object(map) => map.into_iter().map(|(key, value)| (self.hide(&key), self.hide_in(value))).collect(),
            other => other,
        }
    }
}

/// Replaces `path` where it ends at the end of a name.
fn replace_path(text: &str, path: &str, by: &str) -> String {
    let mut replaced = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(path) {
        let after = &rest[at + path.len()..];
        let is_complete = !after.starts_with(is_name_char);
        replaced += &rest[..at];
        replaced += if is_complete { by } else { path };
        rest = after;
    }
    replaced + rest
}

/// Replaces `homes` and the name that follows it by `~`.
fn hide_names_under(text: &str, homes: &str) -> String {
    let mut parts = text.split(homes);
    let mut hidden = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c| !is_name_char(c)).unwrap_or(part.len());
        hidden += if end == 0 { homes } else { "~" };
        hidden += &part[end..];
    }
    hidden
}

fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || "-_.@".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let private = Private::of(Some("/srv/people/ada/".into()), Some("ada".into()));
        assert_eq!(private.hide(text), expected);
    }

    #[test]
    fn homes_and_names_are_hidden_and_nothing_else() {
        check("/srv/people/ada/voice/run.jsonl", "~/voice/run.jsonl");
        check("in /srv/people/ada, and /srv/people/adam", "in ~, and /srv/people/adam");
        check("/home/grace/data:/home/ada", "~/data:~");
        check("/data/ada/wavs, adaptive, /data/adamant", "/data/user/wavs, adaptive, /data/adamant");
        check("\"/home/grace\"", "\"~\"");
        check("/home/ is a folder", "/home/ is a folder");
    }

    #[test]
    fn other_paths_are_unchanged() {
        let text = "/opt/cuda/lib64 in /usr/lib";
        assert_eq!(Private::of(None, None).hide(text), text);
        assert_eq!(Private::of(Some("/".into()), None).hide(text), text);
        assert_eq!(Private::of(Some("/root".into()), None).hide("/root/x and /rooted"), "~/x and /rooted");
    }

    #[test]
    fn every_string_of_a_document_is_hidden() {
        let private = Private::of(Some("/root".into()), None);
        let document = serde_json::json!({ "a": ["/root/x", 1], "b": { "c": "/home/eve" } });
        assert_eq!(private.hide_in(document), serde_json::json!({ "a": ["~/x", 1], "b": { "c": "~" } }));
    }
}
