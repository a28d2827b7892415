//! The cubin cache: compiled kernels on disk.
//!
//! A file is used only if its header contains the hash of the key, and the payload's length and checksum match. Any other
//! file (truncated, damaged, for another key) is ignored and overwritten. If the folder cannot be written, only compile
//! time is lost.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const MAGIC: &[u8; 8] = b"TANDEMK1";
const HEADER_BYTES: usize = 8 + 16 + 8 + 16;

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
    fn hash(&self) -> u128 {
        let mut hash = Fnv::new();
        let parts = [self.file, self.text, self.arch, self.nvrtc, self.driver];
        for part in parts.iter().chain(self.options) {
            // Lengths are hashed too, so that no two lists of parts give the same bytes.
            hash.add(&(part.len() as u64).to_le_bytes());
            hash.add(part.as_bytes());
        }
        hash.0
    }

    fn file_name(&self) -> String {
        let stem: String = self.file.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        format!("{stem}-{}-{:032x}.cubin", self.arch, self.hash())
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
        let Some(folder) = &self.folder else { return compile() };
        let path = folder.join(key.file_name());
        if let Some(cubin) = fs::read(&path).ok().and_then(|bytes| payload(&bytes, key.hash())) {
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

fn payload(bytes: &[u8], key: u128) -> Option<Vec<u8>> {
    let (header, payload) = bytes.split_at_checked(HEADER_BYTES)?;
    (header == make_header(key, payload)).then(|| payload.to_vec())
}

fn make_header(key: u128, payload: &[u8]) -> [u8; HEADER_BYTES] {
    let mut sum = Fnv::new();
    sum.add(payload);
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..24].copy_from_slice(&key.to_le_bytes());
    header[24..32].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    header[32..].copy_from_slice(&sum.0.to_le_bytes());
    header
}

/// Writes a temporary file and renames it, so that another process sees the complete file or none.
fn write(folder: &Path, path: &Path, key: u128, payload: &[u8]) -> std::io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    fs::create_dir_all(folder)?;
    let unique = NEXT.fetch_add(1, Ordering::Relaxed);
    let temporary = folder.join(format!(".{}-{unique}-{key:032x}.tmp", std::process::id()));
    let bytes = [&make_header(key, payload), payload].concat();
    let written = fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// 128-bit FNV-1a. Unlike the standard library's hasher its definition is fixed, so that files stay valid after an update
/// of the Rust compiler. It protects against accidents, not against an attacker with write access to the folder.
struct Fnv(u128);

impl Fnv {
    fn new() -> Fnv {
        Fnv(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

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

    #[test]
    fn the_hash_matches_the_published_test_vector() {
        let mut hash = Fnv::new();
        hash.add(b"foobar");
        assert_eq!(hash.0, 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
    }
}
