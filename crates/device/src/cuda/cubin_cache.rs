//! The cubin cache: compiled kernels on disk.
//!
//! A cubin runs on the card with the rights of this process, so it is only loaded from a folder and a file that no other
//! user can change, and only if its header has the SHA-256 of the key (source, options, compiler, driver) and of the
//! payload. Any other file (truncated, damaged, for another key) is ignored and overwritten. Where there is no such folder
//! only compile time is lost.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest as _, Sha256};
use tandem_files::{create_private_folder, is_protected, open_private};

const MAGIC: &[u8; 8] = b"TANDEMK2";
const HEADER_BYTES: usize = 8 + 32 + 8 + 32;
/// The largest cubin that is read. Ours have some 100 KB.
const MAX_BYTES: u64 = 64 << 20;

/// A SHA-256.
type Digest = [u8; 32];

/// Everything that affects the cubin of a source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<'a> {
    /// Name of the source: part of the cache file's name, for readability.
    pub(crate) file: &'a str,
    /// Its complete text, prelude included.
    pub(crate) text: &'a str,
    /// Compiler options other than the architecture.
    pub(crate) options: &'a [&'a str],
    /// Architecture, e.g. `sm_90`.
    pub(crate) arch: &'a str,
    /// Version of the compiler.
    pub(crate) nvrtc: &'a str,
    /// Version of the driver.
    pub(crate) driver: &'a str,
}

impl Key<'_> {
    fn hash(&self) -> Digest {
        let mut hash = Sha256::new();
        let parts = [self.file, self.text, self.arch, self.nvrtc, self.driver];
        for part in parts.iter().chain(self.options) {
            // Lengths are hashed too, so that no two lists of parts give the same bytes.
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        hash.finalize().into()
    }

    fn file_name(&self) -> String {
        let stem: String = self.file.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let hash: String = self.hash().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        format!("{stem}-{}-{hash}.cubin", self.arch)
    }
}

/// The folder of compiled kernels of this user, and whether it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelCache {
    /// Nothing says where it should be: neither `TANDEM_CACHE_DIR` nor `HOME` is set.
    Nowhere,
    /// It is used, or will be created.
    Used(PathBuf),
    /// Others could put machine code there, so that kernels are compiled at every start.
    Unsafe(PathBuf),
}

impl KernelCache {
    /// That of this process. Creates nothing.
    pub fn find() -> KernelCache {
        match folder(|name| std::env::var_os(name)) {
            None => KernelCache::Nowhere,
            Some(folder) if folder.exists() && !is_protected(&folder) => KernelCache::Unsafe(folder),
            Some(folder) => KernelCache::Used(folder),
        }
    }
}

/// A folder of compiled kernels, or none.
#[derive(Clone, Debug)]
pub(crate) struct CubinCache {
    folder: Option<PathBuf>,
}

impl CubinCache {
    /// In `TANDEM_CACHE_DIR`, else under the user's cache folder.
    pub(crate) fn from_env() -> CubinCache {
        CubinCache { folder: folder(|name| std::env::var_os(name)) }
    }

    #[cfg(test)]
    pub(crate) fn at(folder: Option<PathBuf>) -> CubinCache {
        CubinCache { folder }
    }

    /// The cubin for `key`: from disk if there is an intact one, otherwise from `compile`.
    pub(crate) fn get_or<E>(&self, key: &Key<'_>, compile: impl FnOnce() -> Result<Vec<u8>, E>) -> Result<Vec<u8>, E> {
        let usable =
            self.folder.as_ref().filter(|folder| create_private_folder(folder).is_ok() && is_protected(folder));
        let Some(folder) = usable else { return compile() };
        let path = folder.join(key.file_name());
        if let Some(cubin) = read(&path).ok().and_then(|bytes| payload(&bytes, key.hash())) {
            return Ok(cubin);
        }
        let cubin = compile()?;
        // An error is ignored: the cubin is in memory, and the next run compiles it again.
        let _ = write(folder, &path, key.hash(), &cubin);
        Ok(cubin)
    }
}

fn folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // The XDG specification says that a relative path must be ignored.
    let cache =
        || set("XDG_CACHE_HOME").filter(|path| path.is_absolute()).or_else(|| Some(set("HOME")?.join(".cache")));
    set("TANDEM_CACHE_DIR").or_else(|| Some(cache()?.join("tandem/kernels")))
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_private(path)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn payload(bytes: &[u8], key: Digest) -> Option<Vec<u8>> {
    let (header, payload) = bytes.split_at_checked(HEADER_BYTES)?;
    (header == make_header(key, payload)).then(|| payload.to_vec())
}

fn make_header(key: Digest, payload: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..40].copy_from_slice(&key);
    header[40..48].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    header[48..].copy_from_slice(&Sha256::digest(payload));
    header
}

/// Writes a temporary file and renames it, so that another process sees the complete file or none.
fn write(folder: &Path, path: &Path, key: Digest, payload: &[u8]) -> std::io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let unique = NEXT.fetch_add(1, Ordering::Relaxed);
    let temporary = folder.join(format!(".{}-{unique}.tmp", std::process::id()));
    let bytes = [&make_header(key, payload), payload].concat();
    let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary);
    let written = new.and_then(|mut file| file.write_all(&bytes)).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const KEY: Key<'static> = Key {
        file: "mel.cu",
        text: "text",
        options: &["--std=c++17"],
        arch: "sm_90",
        nvrtc: "13.0",
        driver: "580.1 (CUDA 13.0)",
    };

    /// A cache in a temporary folder, with a count of compilations.
    struct TestCache {
        folder: PathBuf,
        compiled: Cell<u32>,
    }

    impl TestCache {
        fn new(name: &str) -> TestCache {
            let folder = std::env::temp_dir().join(format!("tandem-cubin-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&folder);
            TestCache { folder, compiled: Cell::new(0) }
        }

        fn get(&self, key: &Key<'_>) -> Vec<u8> {
            let cache = CubinCache::at(Some(self.folder.clone()));
            let compile = || {
                self.compiled.set(self.compiled.get() + 1);
                Ok::<_, ()>(b"machine code".to_vec())
            };
            cache.get_or(key, compile).unwrap()
        }

        fn file(&self) -> PathBuf {
            self.folder.join(KEY.file_name())
        }
    }

    impl Drop for TestCache {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }

    #[test]
    fn a_source_is_compiled_once_and_then_read_from_disk() {
        let cache = TestCache::new("once");
        for _ in 0..3 {
            assert_eq!(cache.get(&KEY), b"machine code");
        }
        assert_eq!(cache.compiled.get(), 1);
        let names: Vec<_> = fs::read_dir(&cache.folder).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, [cache.file().file_name().unwrap()], "nothing else is left in the folder");
    }

    #[test]
    fn every_part_of_the_key_affects_the_hash() {
        let cache = TestCache::new("key");
        let other = [
            KEY,
            Key { text: "texu", ..KEY },
            Key { options: &["--std=c++20"], ..KEY },
            Key { options: &["--std", "=c++17"], ..KEY },
            Key { arch: "sm_80", ..KEY },
            Key { nvrtc: "12.9", ..KEY },
            Key { driver: "581.0 (CUDA 13.0)", ..KEY },
        ];
        for (i, key) in other.iter().enumerate() {
            cache.get(key);
            assert_eq!(cache.compiled.get(), i as u32 + 1, "{key:?}");
        }
    }

    #[test]
    fn a_damaged_file_is_compiled_again_and_replaced() {
        type Damage = fn(&mut Vec<u8>);
        let damages: [(&str, Damage); 7] = [
            ("emptied", |bytes| bytes.clear()),
            ("cut in the header", |bytes| bytes.truncate(20)),
            ("cut in the payload", |bytes| bytes.truncate(bytes.len() - 1)),
            ("longer", |bytes| bytes.push(0)),
            ("payload flipped", |bytes| *bytes.last_mut().unwrap() ^= 1),
            ("other magic", |bytes| bytes[7] = b'0'),
            ("other key", |bytes| bytes[8] ^= 1),
        ];
        let cache = TestCache::new("damage");
        cache.get(&KEY);
        for (i, (name, damage)) in damages.iter().enumerate() {
            let mut bytes = fs::read(cache.file()).unwrap();
            damage(&mut bytes);
            fs::write(cache.file(), bytes).unwrap();
            assert_eq!(cache.get(&KEY), b"machine code", "{name}");
            assert_eq!(cache.get(&KEY), b"machine code", "{name}");
            assert_eq!(cache.compiled.get(), i as u32 + 2, "{name}: compiled once more, then read");
        }
    }

    #[test]
    fn what_another_user_can_write_is_never_loaded() {
        let cache = TestCache::new("foreign");
        cache.get(&KEY);
        let set_mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        set_mode(&cache.file(), 0o666);
        cache.get(&KEY);
        assert_eq!(cache.compiled.get(), 2, "a file that anybody can change");
        set_mode(&cache.folder, 0o777);
        cache.get(&KEY);
        assert_eq!(cache.compiled.get(), 3, "a folder that anybody can change");
        set_mode(&cache.folder, 0o700);
        cache.get(&KEY);
        assert_eq!(cache.compiled.get(), 3);
        let original = cache.folder.join("original");
        fs::rename(cache.file(), &original).unwrap();
        std::os::unix::fs::symlink(&original, cache.file()).unwrap();
        cache.get(&KEY);
        assert_eq!(cache.compiled.get(), 4, "a link");
    }

    #[test]
    fn a_folder_that_cannot_be_created_costs_only_time() {
        let cache = TestCache::new("blocked");
        fs::write(&cache.folder, "a file where the folder should be").unwrap();
        assert_eq!(cache.get(&KEY), b"machine code");
        assert_eq!(cache.get(&KEY), b"machine code");
        assert_eq!(cache.compiled.get(), 2);
        fs::remove_file(&cache.folder).unwrap();
    }

    #[test]
    fn a_failed_compilation_leaves_nothing_behind() {
        let cache = TestCache::new("failed");
        let cubins = CubinCache::at(Some(cache.folder.clone()));
        assert_eq!(cubins.get_or(&KEY, || Err::<Vec<u8>, _>("syntax")), Err("syntax"));
        assert!(!cache.file().exists());
    }

    #[test]
    fn the_folder_is_the_first_that_is_set() {
        let check = |set: &[(&str, &str)], expected: Option<&str>| {
            let found = folder(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()));
            assert_eq!(found, expected.map(PathBuf::from), "{set:?}");
        };
        let all = [("TANDEM_CACHE_DIR", "/t"), ("XDG_CACHE_HOME", "/x"), ("HOME", "/h")];
        check(&all, Some("/t"));
        check(&all[1..], Some("/x/tandem/kernels"));
        check(&all[2..], Some("/h/.cache/tandem/kernels"));
        check(&[("XDG_CACHE_HOME", "relative"), ("HOME", "/h")], Some("/h/.cache/tandem/kernels"));
        check(&[], None);
    }
}
