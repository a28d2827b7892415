//! Reading: regular files only, and no more than expected.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// A file has more bytes than anything that belongs there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge {
    /// Its size.
    pub bytes: u64,
    /// The most that is read.
    pub max_bytes: u64,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooLarge { bytes, max_bytes } = self;
        write!(f, "expected at most {max_bytes} bytes, found {bytes}")
    }
}

impl std::error::Error for TooLarge {}

/// Opens the file at `path` for reading; links are followed. Never waits: a FIFO, a device, a socket and a folder are
/// errors.
pub fn open_regular(path: impl AsRef<Path>) -> io::Result<File> {
    // Without O_NONBLOCK, opening a FIFO waits until somebody writes to it. Regular files ignore the flag.
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    check_regular(&file)?;
    Ok(file)
}

/// [`open_regular`]; fails with [`TooLarge`] if the file has more than `max_bytes`.
pub fn open_bounded(path: impl AsRef<Path>, max_bytes: u64) -> io::Result<File> {
    let file = open_regular(path)?;
    check_size(file.metadata()?.len(), max_bytes)?;
    Ok(file)
}

/// The bytes of the file at `path`. Fails with [`TooLarge`] before anything is allocated if there are more than
/// `max_bytes`.
pub fn read_bounded(path: impl AsRef<Path>, max_bytes: u64) -> io::Result<Vec<u8>> {
    let file = open_bounded(path, max_bytes)?;
    let mut bytes = Vec::with_capacity(usize::try_from(file.metadata()?.len()).unwrap_or(0));
    // A file that grows while it is read, or whose file system reports no size, is bounded too.
    file.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    check_size(bytes.len() as u64, max_bytes)?;
    Ok(bytes)
}

fn check_size(bytes: u64, max_bytes: u64) -> io::Result<()> {
    match bytes <= max_bytes {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::FileTooLarge, TooLarge { bytes, max_bytes })),
    }
}

/// [`read_bounded`] as text. Fails with [`io::ErrorKind::InvalidData`] if it is not UTF-8.
pub fn read_text(path: impl AsRef<Path>, max_bytes: u64) -> io::Result<String> {
    let bytes = read_bounded(path, max_bytes)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
}

pub(crate) fn check_regular(file: &File) -> io::Result<()> {
    let kind = file.metadata()?.file_type();
    if kind.is_file() {
        return Ok(());
    }
    Err(match kind.is_dir() {
        true => io::ErrorKind::IsADirectory.into(),
        false => io::Error::other("not a regular file"),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_nothing_waits() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let link = dir.path().join("link");
        fs::write(dir.path().join("file"), "text").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        assert_eq!(read_text(&link, 10).unwrap(), "text");
        for path in [fifo.as_path(), Path::new("/dev/zero"), Path::new("/dev/null"), dir.path()] {
            assert!(open_regular(path).is_err() && read_bounded(path, 10).is_err(), "{}", path.display());
        }
    }

    #[test]
    fn a_file_over_its_bound_is_refused_before_it_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse");
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let error = read_bounded(&path, 1 << 20).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert!(error.to_string().contains("expected at most 1048576 bytes, found 1099511627776"), "{error}");
        // Files of /proc report no size.
        assert!(read_bounded("/proc/self/maps", 10).is_err());
        assert!(!read_bounded("/proc/self/status", 1 << 20).unwrap().is_empty());
        fs::write(&path, [0xFF]).unwrap();
        assert_eq!(read_text(&path, 1).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
