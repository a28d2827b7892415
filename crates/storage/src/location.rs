//! Where an object is: a path of this machine or a URL of a store.

use std::fmt;
use std::path::{Path, PathBuf};

use reqwest::Url;

use crate::error::StorageError;
use crate::redact::redact;

/// Where an object, or a folder of objects, is: a path of this machine or a URL.
///
/// Holding one says nothing about whether it is there. What it prints has no user, no password and no query.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ObjectLocation(Inner);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Inner {
    File(PathBuf),
    Url(ObjectUrl),
}

/// A URL, in parts.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct ObjectUrl {
    pub(crate) scheme: StoreScheme,
    /// A bucket, or a host with its port and, before an `@`, its user and password.
    pub(crate) authority: Box<str>,
    /// Segments between slashes, none of them empty. Percent-encoded over http only.
    pub(crate) key: Box<str>,
    /// Over http only, without its `?`.
    query: Option<Box<str>>,
}

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StoreScheme {
    S3,
    Gs,
    Az,
    Abfs,
    Abfss,
    Http,
    Https,
}

/// No address is longer. Signed ones have some 2,000 bytes.
const MAX_BYTES: usize = 16 << 10;

impl ObjectLocation {
    /// The place that `text` names: a path (`dir/a.tar`, `file:///dir/a.tar`), `s3://bucket/key`, `gs://bucket/key`,
    /// `az://container/key`, `abfss://container@account.dfs.core.windows.net/key`, or `https://host/path?query`.
    ///
    /// Empty and `.` segments of a URL are dropped, `..` goes up as far as the bucket. Asks nobody. Fails with
    /// [`StorageError::BadLocation`].
    pub fn parse(text: &str) -> Result<ObjectLocation, StorageError> {
        let bad = |reason: &str| StorageError::BadLocation { text: redact(text), reason: reason.into() };
        if text.is_empty() {
            return Err(bad("expected a path or a URL, found an empty text"));
        }
        if text.len() > MAX_BYTES || text.contains('\0') {
            return Err(bad("expected a path or a URL of at most 16 KiB without NUL"));
        }
        let Some((scheme, rest)) = split_scheme(text) else { return Ok(ObjectLocation::file(text)) };
        let scheme = scheme.to_ascii_lowercase();
        if scheme == "file" {
            let path = Url::parse(text).ok().and_then(|url| url.to_file_path().ok());
            return path.map(ObjectLocation::file).ok_or_else(|| bad("expected file:///path"));
        }
        let Some(scheme) = StoreScheme::from_name(&scheme) else {
            return Err(bad("expected a path or s3://, gs://, az://, abfss://, http:// or https://"));
        };
        let url = ObjectUrl::parse(scheme, rest).map_err(bad)?;
        Ok(ObjectLocation(Inner::Url(url)))
    }

    /// A path of this machine, whatever characters it has.
    pub fn file(path: impl Into<PathBuf>) -> ObjectLocation {
        ObjectLocation(Inner::File(path.into()))
    }

    /// Whether it is in a store rather than on this machine.
    pub fn is_remote(&self) -> bool {
        matches!(self.0, Inner::Url(_))
    }

    /// The path, if it is on this machine.
    pub fn path(&self) -> Option<&Path> {
        match &self.0 {
            Inner::File(path) => Some(path),
            Inner::Url(_) => None,
        }
    }

    /// Its last segment, without a query. Empty for the root of a bucket, and for a name that is not UTF-8.
    pub fn name(&self) -> &str {
        match &self.0 {
            Inner::File(path) => path.file_name().and_then(|name| name.to_str()).unwrap_or(""),
            Inner::Url(url) => url.key.rsplit('/').next().unwrap_or(""),
        }
    }

    /// Its folder, with the same query: a signed prefix signs what is in it too. A root is its own parent.
    pub fn parent(&self) -> ObjectLocation {
        match &self.0 {
            Inner::File(path) => match path.parent() {
                Some(parent) if parent.as_os_str().is_empty() => ObjectLocation::file("."),
                Some(parent) => ObjectLocation::file(parent),
                None => self.clone(),
            },
            Inner::Url(url) => {
                let key = url.key.rsplit_once('/').map_or("", |(folder, _)| folder);
                self.with_key(key.into())
            }
        }
    }

    /// `relative` as seen from this folder. An absolute path or a URL replaces it.
    ///
    /// In a store, `..` never leads out of the bucket or host. Over http, characters that a path cannot have are
    /// percent-encoded, `%2F` stays as it is, and the query is this one's. A URL that [`ObjectLocation::parse`] refuses
    /// counts as a name.
    pub fn join(&self, relative: &str) -> ObjectLocation {
        let absolute = relative.starts_with('/') || split_scheme(relative).is_some();
        if absolute && let Ok(location) = ObjectLocation::parse(relative) {
            return location;
        }
        match &self.0 {
            Inner::File(path) => ObjectLocation::file(path.join(relative)),
            Inner::Url(url) => {
                let relative = if url.scheme.is_http() { encoded(relative) } else { relative.to_owned() };
                self.with_key(segments(url.key.split('/').chain(relative.split('/'))))
            }
        }
    }

    /// Its name in caches: an absolute path with links resolved, or the URL without user, password and query.
    ///
    /// One system call per segment of a path; none for a URL.
    pub fn identity(&self) -> String {
        match &self.0 {
            Inner::Url(_) => self.to_string(),
            Inner::File(path) => {
                let path = path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.clone());
                match path.to_str() {
                    Some(text) => text.to_owned(),
                    None => path.as_os_str().as_encoded_bytes().escape_ascii().to_string(),
                }
            }
        }
    }

    pub(crate) fn url(&self) -> Option<&ObjectUrl> {
        match &self.0 {
            Inner::Url(url) => Some(url),
            Inner::File(_) => None,
        }
    }

    /// Another key of the same bucket or host. Meaningless on this machine, where it changes nothing.
    pub(crate) fn with_key(&self, key: String) -> ObjectLocation {
        let mut location = self.clone();
        if let Inner::Url(url) = &mut location.0 {
            url.key = key.into();
        }
        location
    }
}

impl fmt::Display for ObjectLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Inner::File(path) => path.display().fmt(f),
            Inner::Url(url) => write!(f, "{}://{}/{}", url.scheme.name(), url.shown_authority(), url.key),
        }
    }
}

impl fmt::Debug for ObjectLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectLocation({self})")
    }
}

impl ObjectUrl {
    fn parse(scheme: StoreScheme, rest: &str) -> Result<ObjectUrl, &'static str> {
        if rest.contains(|c: char| c.is_control()) {
            return Err("expected a URL without control characters");
        }
        let (rest, query) = match scheme.is_http() {
            true => split_query(rest),
            false => (rest, None),
        };
        let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.is_empty() {
            return Err("expected a bucket or a host after ://");
        }
        let takes_user = !matches!(scheme, StoreScheme::S3 | StoreScheme::Gs | StoreScheme::Az);
        if !takes_user && authority.contains(['@', ':']) {
            return Err("expected a bucket after ://; credentials come from the environment");
        }
        let key = segments(key.split('/'));
        let key = if scheme.is_http() { encoded(&key) } else { key };
        let url = ObjectUrl { scheme, authority: authority.into(), key: key.into(), query: query.map(Into::into) };
        if scheme.is_http() && Url::parse(&url.with_secrets()).is_err() {
            return Err("expected https://host/path");
        }
        Ok(url)
    }

    /// The whole URL, with user, password and query: for requests only, never for messages.
    pub(crate) fn with_secrets(&self) -> String {
        let query = self.query.as_ref().map_or(String::new(), |query| format!("?{query}"));
        format!("{}://{}/{}{query}", self.scheme.name(), self.authority, self.key)
    }

    /// Whether a query signs the requests.
    pub(crate) fn has_query(&self) -> bool {
        self.query.is_some()
    }

    fn shown_authority(&self) -> &str {
        let (user, host) = self.authority.rsplit_once('@').unwrap_or(("", &self.authority));
        let is_container = matches!(self.scheme, StoreScheme::Abfs | StoreScheme::Abfss) && !user.contains(':');
        if is_container { &self.authority } else { host }
    }
}

impl StoreScheme {
    fn from_name(name: &str) -> Option<StoreScheme> {
        Some(match name {
            "s3" | "s3a" => StoreScheme::S3,
            "gs" | "gcs" => StoreScheme::Gs,
            "az" | "azure" => StoreScheme::Az,
            "abfs" => StoreScheme::Abfs,
            "abfss" => StoreScheme::Abfss,
            "http" => StoreScheme::Http,
            "https" => StoreScheme::Https,
            _ => return None,
        })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            StoreScheme::S3 => "s3",
            StoreScheme::Gs => "gs",
            StoreScheme::Az => "az",
            StoreScheme::Abfs => "abfs",
            StoreScheme::Abfss => "abfss",
            StoreScheme::Http => "http",
            StoreScheme::Https => "https",
        }
    }

    /// Plain http: no buckets and no lists.
    pub(crate) fn is_http(self) -> bool {
        matches!(self, StoreScheme::Http | StoreScheme::Https)
    }

    /// The environment variables with credentials.
    pub(crate) fn variables(self) -> &'static str {
        match self {
            StoreScheme::S3 => "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_REGION",
            StoreScheme::Gs => "GOOGLE_APPLICATION_CREDENTIALS",
            StoreScheme::Az | StoreScheme::Abfs | StoreScheme::Abfss => {
                "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY and AZURE_STORAGE_SAS_TOKEN"
            }
            StoreScheme::Http | StoreScheme::Https => {
                "none: they are in the URL (user:password@host, or a signed query)"
            }
        }
    }
}

/// Scheme and rest of a URL. A path that only contains `://` somewhere is none.
pub(crate) fn split_scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once("://")?;
    let starts = scheme.starts_with(|c: char| c.is_ascii_alphabetic());
    let is_scheme = starts && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    is_scheme.then_some((scheme, rest))
}

/// A URL before its `?`, and its query. The fragment is for browsers.
pub(crate) fn split_query(text: &str) -> (&str, Option<&str>) {
    let text = text.split('#').next().unwrap_or(text);
    match text.split_once('?') {
        Some((text, query)) => (text, Some(query)),
        None => (text, None),
    }
}

/// A key from segments, with `.` and `..` resolved; there is nothing above its beginning.
fn segments<'a>(all: impl Iterator<Item = &'a str>) -> String {
    let mut key: Vec<&str> = Vec::new();
    for segment in all {
        match segment {
            "" | "." => {}
            ".." => drop(key.pop()),
            segment => key.push(segment),
        }
    }
    key.join("/")
}

/// `text` as a path of a URL. What is encoded already stays.
fn encoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let is_escape = |at: usize| bytes.get(at + 1..at + 3).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit));
    let mut out = String::with_capacity(text.len());
    for (at, byte) in bytes.iter().enumerate() {
        let is_plain = byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/".contains(byte);
        match is_plain || (*byte == b'%' && is_escape(at)) {
            true => out.push(char::from(*byte)),
            false => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> ObjectLocation {
        ObjectLocation::parse(text).unwrap()
    }

    #[test]
    fn a_text_is_a_path_or_a_url() {
        let check = |text: &str, shown: &str, name: &str, parent: &str| {
            let location = parse(text);
            assert_eq!(location.to_string(), shown);
            assert_eq!(location.name(), name, "{text}");
            assert_eq!(location.parent().to_string(), parent, "{text}");
        };
        check("a.tar", "a.tar", "a.tar", ".");
        check("/d/a.tar", "/d/a.tar", "a.tar", "/d");
        check("/", "/", "", "/");
        check("file:///d/a%20b", "/d/a b", "a b", "/d");
        check("a:b/c://d", "a:b/c://d", "d", "a:b/c:");
        check("s3://b/d//./a.tar", "s3://b/d/a.tar", "a.tar", "s3://b/d");
        check("S3A://b", "s3://b/", "", "s3://b/");
        check("gcs://b/50%?[1].tar", "gs://b/50%?[1].tar", "50%?[1].tar", "gs://b/");
        check(
            "abfss://box@acc.dfs.core.windows.net/k",
            "abfss://box@acc.dfs.core.windows.net/k",
            "k",
            "abfss://box@acc.dfs.core.windows.net/",
        );
        check("https://u:p@h:1/d/a b.tar?sig=x#y", "https://h:1/d/a%20b.tar", "a%20b.tar", "https://h:1/d");
        for text in
            ["", "a\0b", "s3://", "s3:///key", "hf://x/y", "s3://key:secret@b/k", "https://h:x/", "http://a\nb/"]
        {
            let error = ObjectLocation::parse(text).unwrap_err();
            assert!(matches!(error, StorageError::BadLocation { .. }), "{text}: {error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn secrets_are_sent_and_never_shown() {
        let location = parse("https://u:p@h/d/a?sig=x");
        assert_eq!(location.url().unwrap().with_secrets(), "https://u:p@h/d/a?sig=x");
        assert_eq!(location.parent().join("b").url().unwrap().with_secrets(), "https://u:p@h/d/b?sig=x");
        assert_eq!(
            (format!("{location:?}").as_str(), location.identity().as_str()),
            ("ObjectLocation(https://h/d/a)", "https://h/d/a")
        );
    }

    #[test]
    fn a_relative_name_stays_in_its_bucket_and_an_absolute_one_replaces_it() {
        let check = |base: &str, relative: &str, joined: &str| assert_eq!(parse(base).join(relative), parse(joined));
        check("s3://b/d", "a/b.wav", "s3://b/d/a/b.wav");
        check("s3://b/d", "../../../x", "s3://b/x");
        check("s3://b", "a?b", "s3://b/a?b");
        check("https://h/d?q", "100% a?.wav", "https://h/d/100%25%20a%3F.wav?q");
        check("https://h/d", "a%20b", "https://h/d/a%20b");
        check("s3://b/d", "/x/y", "/x/y");
        check("d", "gs://b/k", "gs://b/k");
        check("d", "a.wav", "d/a.wav");
        assert_eq!(ObjectLocation::file("d").join("hf://x"), ObjectLocation::file("d/hf://x"));
    }

    #[test]
    fn the_identity_of_a_file_follows_links() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        std::os::unix::fs::symlink(&file, dir.path().join("link")).unwrap();
        let of = |path: PathBuf| ObjectLocation::file(path).identity();
        assert_eq!(of(dir.path().join("link")), of(file));
        assert!(of("missing".into()).starts_with('/'));
    }

    proptest! {
        #[test]
        fn no_text_panics_and_no_join_leaves_the_bucket(text in ".{0,40}", relative in "([a./%é ]|\\.\\.|://){0,10}") {
            let _ = ObjectLocation::parse(&text);
            let _ = ObjectLocation::parse(&format!("https://{text}"));
            for base in ["s3://bucket/d", "https://host/d"] {
                let joined = parse(base).join(&relative);
                let (root, _) = base.rsplit_once('/').unwrap();
                let replaced = relative.starts_with('/');
                prop_assert!(replaced || joined.to_string().starts_with(root), "{joined}");
                prop_assert!(replaced || joined.to_string().split('/').all(|segment| segment != ".."), "{joined}");
            }
        }
    }
}
