//! Counts how often the files of a folder are opened, by anyone.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// A watch over one folder.
pub(super) struct FileOpens(OwnedFd);

impl FileOpens {
    pub(super) fn watch(folder: &Path) -> FileOpens {
        let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&watch, folder, WatchFlags::OPEN).unwrap();
        FileOpens(watch)
    }

    /// Opens since the watch began, by file name.
    pub(super) fn counts(self) -> BTreeMap<String, u32> {
        let mut counts = BTreeMap::new();
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(self.0, &mut buffer);
        loop {
            match events.next() {
                Ok(event) => {
                    assert!(!event.events().contains(ReadFlags::QUEUE_OVERFLOW), "some opens were not counted");
                    let Some(name) = event.file_name() else { continue };
                    *counts.entry(name.to_str().unwrap().to_owned()).or_default() += 1;
                }
                Err(Errno::AGAIN) => return counts,
                Err(error) => panic!("{error}"),
            }
        }
    }
}
