//! A small file system of its own for a folder, unmounted when dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A file system that is busy for longer is in use by somebody else.
const BUSY_DEADLINE: Duration = Duration::from_secs(30);

/// A mounted tmpfs.
#[derive(Debug)]
pub(crate) struct MountedFolder(PathBuf);

impl MountedFolder {
    /// Mounts a tmpfs with these options, such as `size=40m`, on `folder`. The error is the reason why not.
    pub(crate) fn tmpfs(folder: &Path, options: &str) -> Result<MountedFolder, String> {
        fs::create_dir_all(folder).map_err(|error| error.to_string())?;
        mount(&["-t", "tmpfs", "-o", options, "tmpfs"], folder)?;
        Ok(MountedFolder(folder.to_owned()))
    }

    /// Changes its options, such as `size=400m` or `ro`.
    ///
    /// A file system with a file that is open for writing does not become read-only. Ours are closed, but another thread that
    /// starts a command at this moment may hold a copy of them until its child calls exec: such a refusal is asked again.
    pub(crate) fn remount(&self, options: &str) -> Result<(), String> {
        let started = Instant::now();
        loop {
            match mount(&["-o", &format!("remount,{options}")], &self.0) {
                Err(reason) if reason.contains("busy") && started.elapsed() < BUSY_DEADLINE => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                outcome => return outcome,
            }
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

fn mount(words: &[&str], folder: &Path) -> Result<(), String> {
    let output = Command::new("mount").args(words).arg(folder).output().map_err(|error| format!("mount: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("mount: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

impl Drop for MountedFolder {
    fn drop(&mut self) {
        let unmounted = |words: &[&str]| {
            Command::new("umount").args(words).arg(&self.0).output().is_ok_and(|output| output.status.success())
        };
        // Detached at once if a process still uses it.
        if !unmounted(&[]) {
            unmounted(&["-l"]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mounted_folder_is_limited_and_disappears() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("disk");
        // Only root may mount.
        let Ok(disk) = MountedFolder::tmpfs(&place, "size=64k") else { return };
        assert!(fs::write(disk.path("large"), vec![1; 1 << 20]).is_err());
        disk.remount("size=4m").unwrap();
        fs::write(disk.path("large"), vec![1; 1 << 20]).unwrap();
        drop(disk);
        assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_becomes_read_only_once_its_last_writer_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let Ok(disk) = MountedFolder::tmpfs(&folder.path().join("disk"), "size=64k") else { return };
        let open = fs::File::create(disk.path("open")).unwrap();
        assert!(mount(&["-o", "remount,ro"], &disk.0).unwrap_err().contains("busy"));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| disk.remount("ro"));
            drop(open);
            waiting.join().unwrap().unwrap();
        });
        assert!(fs::write(disk.path("new"), "x").is_err());
    }
}
