//! Which recordings the folders of a corpus hold: every folder listed once, instead of four questions per row.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use tandem_storage::{ObjectLocation, Storage};

use crate::locator::{EXTENSIONS, without_extension};

/// File names by folder, listed when first asked for.
pub(crate) struct AudioFolder {
    root: ObjectLocation,
    storage: Storage,
    /// The folder of the recordings in `root`: `wavs/`.
    prefix: String,
    listings: HashMap<String, Listing>,
}

struct Listing {
    names: HashSet<Box<str>>,
    error: Option<String>,
}

impl AudioFolder {
    /// Of the recordings in the folder `prefix` (`wavs/`) of `root`.
    pub(crate) fn new(root: &Path, prefix: &str) -> Self {
        Self::stored(ObjectLocation::file(root), prefix, Storage::default())
    }

    /// The same for a folder of an object store.
    pub(crate) fn stored(root: ObjectLocation, prefix: &str, storage: Storage) -> Self {
        Self { root, storage, prefix: prefix.to_owned(), listings: HashMap::new() }
    }

    /// The key of the recording of `id`: in the folder of the recordings, or where the id says when it names folders
    /// itself.
    ///
    /// An ending in the id is tried as it stands; when there is no such file, it counts for nothing.
    pub(crate) fn find(&mut self, id: &str) -> Option<String> {
        let prefix = self.prefix.clone();
        self.find_under(&prefix, id).or_else(|| self.find_under("", id))
    }

    /// Where recordings are looked for.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Why nothing could be found there, when the reason lies with the folder.
    pub(crate) fn trouble(&mut self) -> Option<&str> {
        let prefix = self.prefix.clone();
        self.listing(&prefix).error.as_deref()
    }

    /// The names of all recordings in `folder` (`wav48/p225/`), sorted.
    pub(crate) fn names(&mut self, folder: &str) -> Vec<String> {
        let mut names: Vec<String> = self.listing(folder).names.iter().map(|name| name.to_string()).collect();
        names.sort_unstable();
        names
    }

    /// The key of the recording of `id` in the folder `prefix`.
    pub(crate) fn find_under(&mut self, prefix: &str, id: &str) -> Option<String> {
        let (folder, name) =
            id.rsplit_once('/').map_or((String::new(), id), |(folder, name)| (format!("{folder}/"), name));
        let folder = format!("{prefix}{folder}");
        let names = &self.listing(&folder).names;
        if names.is_empty() {
            return None;
        }
        let stem = without_extension(name);
        let given = (stem.len() < name.len()).then_some(name).filter(|name| names.contains(*name));
        let file = given
            .map(str::to_owned)
            .or_else(|| with_any_extension(names, name))
            .or_else(|| if stem.len() < name.len() { with_any_extension(names, stem) } else { None })?;
        Some(folder + &file)
    }

    fn listing(&mut self, folder: &str) -> &Listing {
        // Looked up twice, because `entry` would want an owned name for every row.
        if !self.listings.contains_key(folder) {
            let listing = match self.root.path() {
                Some(root) => Listing::read(&root.join(folder)),
                None => Listing::fetch(&self.storage, &self.root.join(folder)),
            };
            self.listings.insert(folder.to_owned(), listing);
        }
        &self.listings[folder]
    }
}

impl Listing {
    fn read(folder: &Path) -> Listing {
        let mut names = HashSet::new();
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) => return Listing { names, error: Some(error.to_string()) },
        };
        // An entry that cannot be read is a file that will be missed, and reported by the row that wants it.
        for entry in entries.flatten() {
            if let Some(name) = entry.file_name().to_str()
                && without_extension(name).len() < name.len()
            {
                names.insert(name.into());
            }
        }
        Listing { names, error: None }
    }

    fn fetch(storage: &Storage, folder: &ObjectLocation) -> Listing {
        match storage.list(folder) {
            Ok(found) => {
                let names = found.iter().map(|(location, _)| location.name());
                let names = names.filter(|name| without_extension(name).len() < name.len()).map(Into::into).collect();
                Listing { names, error: None }
            }
            Err(error) => Listing { names: HashSet::new(), error: Some(error.to_string()) },
        }
    }
}

fn with_any_extension(names: &HashSet<Box<str>>, stem: &str) -> Option<String> {
    let mut name = String::with_capacity(stem.len() + 5);
    let spellings = EXTENSIONS.iter().flat_map(|extension| [(extension, false), (extension, true)]);
    spellings.into_iter().find_map(|(extension, upper)| {
        name.clear();
        name.push_str(stem);
        name.push('.');
        name.push_str(extension);
        if upper {
            name[stem.len()..].make_ascii_uppercase();
        }
        names.contains(name.as_str()).then(|| name.clone())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::CorpusFolder;

    #[test]
    fn recordings_are_found_where_people_put_them() {
        let folder = CorpusFolder::new("audio_folder");
        for name in ["a.wav", "b.flac", "b.ogg", "c.MP3", "d.e.ogg", "p1/x.wav", "note.txt"] {
            folder.write(&format!("wavs/{name}"), "");
        }
        folder.write("clips/y.ogg", "");
        let mut audio = AudioFolder::new(folder.path(), "wavs/");
        let mut check = |id: &str, key: Option<&str>| assert_eq!(audio.find(id).as_deref(), key, "{id}");
        check("a", Some("wavs/a.wav"));
        check("a.wav", Some("wavs/a.wav"));
        check("a.flac", Some("wavs/a.wav"));
        check("b", Some("wavs/b.flac"));
        check("b.ogg", Some("wavs/b.ogg"));
        check("c", Some("wavs/c.MP3"));
        check("d.e", Some("wavs/d.e.ogg"));
        check("d", None);
        check("note", None);
        check("p1/x", Some("wavs/p1/x.wav"));
        check("wavs/a", Some("wavs/a.wav"));
        check("wavs/p1/x.wav", Some("wavs/p1/x.wav"));
        check("clips/y", Some("clips/y.ogg"));
        check("", None);
        check("/", None);
        check("a/", None);
        check("\0", None);
    }
}
