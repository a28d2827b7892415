//! The way to all objects: stamps, lists, opening, reading ahead.

use std::fmt;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use tandem_files::open_regular;

use crate::error::StorageError;
use crate::fetch::ObjectFetch;
use crate::location::ObjectLocation;
use crate::object::Object;
use crate::remote::RemoteAccess;
use crate::retry::StorageSettings;
use crate::stamp::ObjectStamp;

/// Entries of a folder, and texts of a pattern, at most.
pub(crate) const MAX_ENTRIES: u64 = 1_000_000;

/// The way to all objects, of this machine and of stores. Clones share threads, connections and credentials.
///
/// Threads and connections are made at the first access to a store: whoever reads only files has none.
#[derive(Clone)]
pub struct Storage {
    shared: Arc<Shared>,
}

struct Shared {
    settings: StorageSettings,
    /// The environment, if it is not that of the process.
    variables: Option<Vec<(String, String)>>,
    remote: OnceLock<Result<RemoteAccess, String>>,
}

impl Storage {
    /// Credentials, regions and endpoints come from the environment of the process.
    pub fn new(settings: StorageSettings) -> Storage {
        Storage { shared: Arc::new(Shared { settings, variables: None, remote: OnceLock::new() }) }
    }

    /// Credentials, regions and endpoints come from `variables`, names and values, in place of the environment.
    pub fn with_variables(settings: StorageSettings, variables: impl IntoIterator<Item = (String, String)>) -> Storage {
        let variables = Some(variables.into_iter().collect());
        Storage { shared: Arc::new(Shared { settings, variables, remote: OnceLock::new() }) }
    }

    /// The objects directly in a folder, sorted by name. Of this machine only regular files and links to them. A store has
    /// no folders: one that is not there is empty.
    ///
    /// One request per 1,000 objects of a store. Over plain http there are no lists.
    pub fn list(&self, folder: &ObjectLocation) -> Result<Vec<(ObjectLocation, ObjectStamp)>, StorageError> {
        let mut found = match folder.path() {
            Some(path) => list_files(path).map_err(|error| error.or_at(folder))?,
            None => {
                let objects = self.remote(folder)?.list(folder, "", MAX_ENTRIES)?.wait()?.objects;
                // An object with the name of the folder stands for the folder itself in some stores.
                let key = folder.url().map_or("", |url| &url.key);
                let objects = objects.iter().filter(|object| object.location.as_ref() != key);
                objects.map(|o| (folder.with_key(o.location.to_string()), ObjectStamp::of_object(o))).collect()
            }
        };
        found.sort_by(|(a, _), (b, _)| a.name().as_bytes().cmp(b.name().as_bytes()));
        Ok(found)
    }

    /// Size, time and ETag of an object. One system call, or one request.
    pub fn stamp(&self, location: &ObjectLocation) -> Result<ObjectStamp, StorageError> {
        match location.path() {
            Some(path) => {
                let stamp = fs::metadata(path).and_then(|metadata| ObjectStamp::of_file(&metadata));
                stamp.map_err(|source| StorageError::local(location, source))
            }
            None => self.remote(location)?.stamp(location)?.wait(),
        }
    }

    /// Opens an object for reading, and checks that it looks as `expected`, if that is known.
    ///
    /// A file is opened and checked now. An object in a store is checked with every read: with a stamp there is no request
    /// here, without one there is one.
    pub fn open(&self, location: &ObjectLocation, expected: Option<&ObjectStamp>) -> Result<Object, StorageError> {
        let Some(path) = location.path() else {
            let stamp = match expected {
                Some(expected) => expected.clone(),
                None => self.stamp(location)?,
            };
            return Ok(Object::remote(self.clone(), location.clone(), stamp));
        };
        let failed = |source| StorageError::local(location, source);
        let file = open_regular(path).map_err(failed)?;
        let stamp = file.metadata().and_then(|metadata| ObjectStamp::of_file(&metadata)).map_err(failed)?;
        if let Some(expected) = expected {
            stamp.check(expected, location)?;
        }
        Ok(Object::local(self.clone(), location.clone(), stamp, file))
    }

    /// Bytes of an object that looks as `expected`, to be read. Makes no request: [`ObjectFetch::start`] and
    /// [`ObjectFetch::wait`] do. Never fails here: [`ObjectFetch::wait`] does.
    ///
    /// From a store, bytes are read in the background. A file is read by the thread that waits.
    pub fn fetch(&self, location: &ObjectLocation, range: Range<u64>, expected: &ObjectStamp) -> ObjectFetch {
        ObjectFetch::new(self, location, range, expected)
    }

    /// Threads and connections, made at the first call.
    pub(crate) fn remote(&self, location: &ObjectLocation) -> Result<&RemoteAccess, StorageError> {
        let Shared { settings, variables, remote } = &*self.shared;
        let remote = remote.get_or_init(|| {
            let variables = variables.clone().unwrap_or_else(environment);
            RemoteAccess::start(*settings, variables)
        });
        remote.as_ref().map_err(|last| {
            let (location, last) = (location.to_string(), last.clone());
            StorageError::Unreachable { location, attempts: 0, last }
        })
    }
}

impl Default for Storage {
    fn default() -> Storage {
        Storage::new(StorageSettings::default())
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connected = self.shared.remote.get().is_some();
        f.debug_struct("Storage").field("settings", &self.shared.settings).field("connected", &connected).finish()
    }
}

/// Variables whose names and values are text.
fn environment() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Why a folder could not be listed.
enum ListError {
    Io(io::Error),
    TooMany,
}

impl From<io::Error> for ListError {
    fn from(error: io::Error) -> ListError {
        ListError::Io(error)
    }
}

impl ListError {
    fn or_at(self, folder: &ObjectLocation) -> StorageError {
        match self {
            ListError::Io(source) => StorageError::local(folder, source),
            ListError::TooMany => {
                let (pattern, what) = (folder.to_string(), "entries of a folder");
                StorageError::TooMany { pattern, what, limit: MAX_ENTRIES }
            }
        }
    }
}

fn list_files(folder: &Path) -> Result<Vec<(ObjectLocation, ObjectStamp)>, ListError> {
    let mut found = Vec::new();
    for (count, entry) in fs::read_dir(folder)?.enumerate() {
        if count as u64 >= MAX_ENTRIES {
            return Err(ListError::TooMany);
        }
        let path = entry?.path();
        // A link may lead nowhere, and a file may go while the folder is read.
        if let Ok(stamp) = fs::metadata(&path).and_then(|metadata| ObjectStamp::of_file(&metadata)) {
            found.push((ObjectLocation::file(path), stamp));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_alone_start_no_thread() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("b"), "two").unwrap();
        fs::write(dir.path().join("a"), "one1").unwrap();
        fs::create_dir(dir.path().join("folder")).unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("dangling")).unwrap();
        let storage = Storage::default();
        let listed = storage.list(&ObjectLocation::file(dir.path())).unwrap();
        let names: Vec<_> = listed.iter().map(|(location, stamp)| (location.name(), stamp.num_bytes)).collect();
        assert_eq!(names, [("a", 4), ("b", 3)]);
        let stamp = storage.stamp(&listed[0].0).unwrap();
        assert_eq!(stamp, listed[0].1);
        assert_eq!(storage.fetch(&listed[0].0, 1..3, &stamp).wait().unwrap(), "ne");
        assert!(storage.shared.remote.get().is_none());
    }

    #[test]
    fn secrets_of_the_environment_are_not_shown() {
        let variables = [("AWS_SECRET_ACCESS_KEY".to_owned(), "secret".to_owned())];
        let shown = format!("{:?}", Storage::with_variables(StorageSettings::default(), variables));
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[test]
    fn a_folder_is_no_object() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Storage::default();
        let folder = ObjectLocation::file(dir.path());
        assert!(matches!(storage.stamp(&folder), Err(StorageError::Io { .. })));
        assert!(matches!(storage.open(&folder, None), Err(StorageError::Io { .. })));
        assert!(matches!(storage.list(&folder.join("x")), Err(StorageError::Missing { .. })));
    }
}
