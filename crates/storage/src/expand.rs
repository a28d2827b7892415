//! Patterns: one text for many objects.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::braces::Braces;
use crate::error::StorageError;
use crate::glob::{SegmentPattern, has_wildcard};
use crate::location::{ObjectLocation, split_query, split_scheme};
use crate::redact::redact;
use crate::storage::{MAX_ENTRIES, Storage};

/// No pattern is longer, with or without a query.
const MAX_PATTERN_BYTES: usize = 16 << 10;
/// Bytes of all texts that braces stand for.
const MAX_TEXT_BYTES: u64 = 512 << 20;
/// Entries that are looked at for one pattern.
const MAX_VISITED: u64 = 4 * MAX_ENTRIES;

impl Storage {
    /// The objects that a pattern stands for, sorted by the bytes of their paths or URLs, each once.
    ///
    /// - `{000..127}` are numbers with as many digits, `{a..e}` letters, `{train,dev}` alternatives; braces nest.
    /// - `*`, `?` and `[a-z]`, `[!a-z]` match files and objects that are there, within one segment. Names that begin with
    ///   a dot are only matched by a dot. Over plain http there are no wildcards, since there are no lists.
    /// - A path that exists is itself, whatever characters it has. A text without wildcards is itself, and not checked.
    ///
    /// Costs a look into every folder that a wildcard stands for: one request per 1,000 objects of a store. Fails with
    /// [`StorageError::NoMatch`] if nothing matches, and with [`StorageError::TooMany`] before more than 1,000,000
    /// locations are made.
    pub fn expand(&self, pattern: &str) -> Result<Vec<ObjectLocation>, StorageError> {
        if pattern.len() > MAX_PATTERN_BYTES {
            let reason = format!("expected a pattern of at most {MAX_PATTERN_BYTES} bytes, found {}", pattern.len());
            let text = redact(&pattern.chars().take(200).collect::<String>());
            return Err(StorageError::BadLocation { text, reason });
        }
        let scheme = split_scheme(pattern).map(|(scheme, _)| scheme.to_ascii_lowercase());
        let mut walk = Walk { storage: self, pattern, num_visited: 0, found: BTreeMap::new() };
        match scheme.as_deref() {
            None => walk.add_all_files(pattern)?,
            Some("file") => {
                let location = ObjectLocation::parse(pattern)?;
                let path = location.path().and_then(Path::to_str).unwrap_or(pattern);
                walk.add_all_files(path)?;
            }
            Some("http" | "https") => walk.add_all_urls(pattern)?,
            Some(_) => {
                for text in walk.expand_braces(pattern, 0)? {
                    walk.add_objects(&text)?;
                }
            }
        }
        match walk.found.is_empty() {
            true => Err(StorageError::NoMatch { pattern: redact(pattern) }),
            false => Ok(walk.found.into_values().collect()),
        }
    }
}

/// The search for all matches of one pattern.
struct Walk<'a> {
    storage: &'a Storage,
    pattern: &'a str,
    num_visited: u64,
    /// By the text that they are sorted by.
    found: BTreeMap<String, ObjectLocation>,
}

impl Walk<'_> {
    fn expand_braces(&self, text: &str, query_bytes: usize) -> Result<Vec<String>, StorageError> {
        let braces = Braces::parse(text);
        let (count, bytes) = braces.size();
        if count > MAX_ENTRIES {
            return Err(self.too_many("locations", MAX_ENTRIES));
        }
        if bytes.saturating_add(count.saturating_mul(query_bytes as u64)) > MAX_TEXT_BYTES {
            return Err(self.too_many("bytes of locations", MAX_TEXT_BYTES));
        }
        Ok(braces.expand())
    }

    fn add(&mut self, text: String, location: ObjectLocation) -> Result<(), StorageError> {
        self.found.insert(text, location);
        match self.found.len() as u64 > MAX_ENTRIES {
            true => Err(self.too_many("locations", MAX_ENTRIES)),
            false => Ok(()),
        }
    }

    fn visit(&mut self, num_entries: usize) -> Result<(), StorageError> {
        self.num_visited += num_entries as u64;
        match self.num_visited > MAX_VISITED {
            true => Err(self.too_many("entries of folders", MAX_VISITED)),
            false => Ok(()),
        }
    }

    fn too_many(&self, what: &'static str, limit: u64) -> StorageError {
        StorageError::TooMany { pattern: redact(self.pattern), what, limit }
    }

    fn add_all_urls(&mut self, pattern: &str) -> Result<(), StorageError> {
        // Braces of a query are part of a signature.
        let (text, query) = split_query(pattern);
        if text.contains('*') {
            let reason = "expected no *: plain http has no lists; name each object, or use {000..127}".into();
            return Err(StorageError::Unsupported { location: redact(pattern), reason });
        }
        for text in self.expand_braces(text, query.map_or(0, str::len))? {
            let text = query.map_or(text.clone(), |query| format!("{text}?{query}"));
            let location = ObjectLocation::parse(&text)?;
            self.add(location.to_string(), location)?;
        }
        Ok(())
    }

    /// Objects of a store.
    fn add_objects(&mut self, text: &str) -> Result<(), StorageError> {
        let location = ObjectLocation::parse(text)?;
        let Some(url) = location.url() else { return Ok(()) };
        if !has_wildcard(&url.key) {
            return self.add(location.to_string(), location);
        }
        let mut folders = vec![location.with_key(String::new())];
        let mut segments = url.key.split('/').peekable();
        while let Some(segment) = segments.next() {
            let (pattern, is_last) = (SegmentPattern::parse(segment), segments.peek().is_none());
            let mut next = Vec::new();
            for folder in &folders {
                // Only what follows a wildcard has to be looked for.
                match pattern.literal() {
                    Some(name) if !is_last => next.push(folder.join(&name)),
                    _ => next.extend(self.matches_in(folder, &pattern, is_last)?),
                }
            }
            folders = next;
        }
        for found in folders {
            self.add(found.to_string(), found)?;
        }
        Ok(())
    }

    /// Objects, or folders of objects, directly in `folder`.
    fn matches_in(
        &mut self,
        folder: &ObjectLocation,
        pattern: &SegmentPattern,
        objects: bool,
    ) -> Result<Vec<ObjectLocation>, StorageError> {
        let page = self.storage.remote(folder)?.list(folder, &pattern.prefix(), MAX_VISITED)?.wait()?;
        self.visit(page.objects.len() + page.common_prefixes.len())?;
        let keys: Vec<String> = match objects {
            true => page.objects.iter().map(|object| object.location.to_string()).collect(),
            false => page.common_prefixes.iter().map(ToString::to_string).collect(),
        };
        let name = |key: &str| key.rsplit('/').next().unwrap_or("").to_owned();
        Ok(keys.into_iter().filter(|key| pattern.matches(&name(key))).map(|key| folder.with_key(key)).collect())
    }

    fn add_all_files(&mut self, pattern: &str) -> Result<(), StorageError> {
        // Before the braces: they may be part of a name.
        if exists(Path::new(pattern)) {
            return self.add(pattern.to_owned(), ObjectLocation::file(pattern));
        }
        for text in self.expand_braces(pattern, 0)? {
            let location = ObjectLocation::parse(&text)?;
            match has_wildcard(&text) && !exists(Path::new(&text)) {
                true => self.add_files(&text)?,
                false => self.add(text, location)?,
            }
        }
        Ok(())
    }

    /// Files of this machine.
    fn add_files(&mut self, text: &str) -> Result<(), StorageError> {
        let mut paths = vec![PathBuf::from(if text.starts_with('/') { "/" } else { "" })];
        let mut segments = text.split('/').filter(|segment| !segment.is_empty()).peekable();
        while let Some(segment) = segments.next() {
            let (pattern, is_last) = (SegmentPattern::parse(segment), segments.peek().is_none());
            let mut next = Vec::new();
            for path in &paths {
                match pattern.literal() {
                    Some(name) => next.push(path.join(name)),
                    None => next.extend(self.matches_on_disk(path, &pattern)?),
                }
            }
            paths = next;
            if is_last {
                paths.retain(|path| path.is_file());
            }
        }
        for path in paths {
            self.add(path.to_string_lossy().into_owned(), ObjectLocation::file(path))?;
        }
        Ok(())
    }

    fn matches_on_disk(&mut self, folder: &Path, pattern: &SegmentPattern) -> Result<Vec<PathBuf>, StorageError> {
        let place = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let failed = |source| StorageError::local(place.display(), source);
        let entries = match fs::read_dir(place) {
            Ok(entries) => entries,
            // A folder with a wildcard before it may be a file.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(Vec::new());
            }
            Err(error) => return Err(failed(error)),
        };
        let mut found = Vec::new();
        for entry in entries {
            self.visit(1)?;
            let name = entry.map_err(failed)?.file_name();
            if name.to_str().is_some_and(|name| pattern.matches(name)) {
                found.push(folder.join(name));
            }
        }
        Ok(found)
    }
}

/// Whether there is anything with this name.
fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a pattern below a folder stands for, below that folder.
    fn expand(folder: &Path, pattern: &str) -> Result<String, StorageError> {
        let found = Storage::default().expand(&format!("{}/{pattern}", folder.display()))?;
        let names =
            found.iter().map(|location| location.path().unwrap().strip_prefix(folder).unwrap().display().to_string());
        Ok(names.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn patterns_find_files_and_braces_stand_for_themselves() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "a-10.tar",
            "a-9.tar",
            "b-1.tar",
            ".hidden.tar",
            "x/1/s.tar",
            "x/2/s.tar",
            "x/2/t.tar",
            "{1..3}.tar",
            "c[1].tar",
        ] {
            fs::create_dir_all(dir.path().join(name).parent().unwrap()).unwrap();
            fs::write(dir.path().join(name), "").unwrap();
        }
        fs::create_dir(dir.path().join("folder.tar")).unwrap();
        let check =
            |pattern: &str, expected: &str| assert_eq!(expand(dir.path(), pattern).unwrap(), expected, "{pattern}");
        check("[ab]-*.tar", "a-10.tar a-9.tar b-1.tar");
        check("*.tar", "a-10.tar a-9.tar b-1.tar c[1].tar {1..3}.tar");
        check("x/*/s.tar", "x/1/s.tar x/2/s.tar");
        check("x/?/*", "x/1/s.tar x/2/s.tar x/2/t.tar");
        check("{x/*/t,b*,a-9,a-9}.tar", "a-9.tar b-1.tar x/2/t.tar");
        check("missing-{08..10}", "missing-08 missing-09 missing-10");
        check("{1..3}.tar", "{1..3}.tar");
        check("{1..2}.tar", "1.tar 2.tar");
        check("c[1].tar", "c[1].tar");
        check("folder.tar", "folder.tar");
        for pattern in ["*.wav", "nowhere/*", "a-9.tar/*", "folder*"] {
            let error = expand(dir.path(), pattern).unwrap_err();
            assert!(matches!(error, StorageError::NoMatch { .. }), "{pattern}: {error}");
        }
    }

    #[test]
    fn a_pattern_never_stands_for_more_than_a_million() {
        let storage = Storage::default();
        for pattern in ["s3://b/{0..99999999999}", "{0..999}{0..999}{0..1}", "https://h/{1..9999999}?q"] {
            assert!(matches!(storage.expand(pattern), Err(StorageError::TooMany { .. })), "{pattern}");
        }
        let long = format!("{}{{0..999999}}", "x".repeat(4000));
        assert!(matches!(storage.expand(&long), Err(StorageError::TooMany { .. })));
        assert!(matches!(storage.expand(&"{".repeat(20_000)), Err(StorageError::BadLocation { .. })));
    }

    #[test]
    fn urls_expand_without_a_request_and_keep_their_query() {
        let storage = Storage::default();
        let found = storage.expand("https://u:p@h/{b,a}.tar?sig={1,2}").unwrap();
        let urls: Vec<_> = found.iter().map(|location| location.url().unwrap().with_secrets()).collect();
        assert_eq!(urls, ["https://u:p@h/a.tar?sig={1,2}", "https://u:p@h/b.tar?sig={1,2}"]);
        assert_eq!(storage.expand("s3://b/{0..1}/k").unwrap().len(), 2);
        let error = storage.expand("https://h/*.tar?sig=secret").unwrap_err();
        assert!(matches!(error, StorageError::Unsupported { .. }) && !error.to_string().contains("secret"), "{error}");
    }

    proptest! {
        #[test]
        fn no_pattern_panics_and_none_stands_for_nothing(text in "([{},*?\\[\\]./a0é]|\\.\\.|https://|file://){0,14}") {
            for start in ["/nonexistent/", "https://h/", "file:///nonexistent/", ""] {
                if let Ok(found) = Storage::default().expand(&format!("{start}{text}")) {
                    prop_assert!(!found.is_empty());
                }
            }
        }
    }
}
