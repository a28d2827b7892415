//! Output files that are complete or not there at all.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Writes `bytes` to `path`, replacing a file there. A full disk leaves what was there before.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        // A pipe or a device: a rename would replace it.
        return fs::write(path, bytes);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".tmp-").permissions(usual_rights()).tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// The permissions of any new file; the umask applies.
pub(crate) fn usual_rights() -> fs::Permissions {
    fs::Permissions::from_mode(0o666)
}
