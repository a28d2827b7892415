//! Fake machines in a folder: with a card, without one, with an old or broken driver.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::command::TandemCommand;

/// A temporary folder, removed when dropped.
pub(crate) struct TempFolder(PathBuf);

impl TempFolder {
    pub(crate) fn new() -> TempFolder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        TempFolder(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    /// A folder that looks like the `/` of a machine with one NVIDIA card.
    pub(crate) fn with_card() -> TempFolder {
        let folder = TempFolder::new();
        folder.file("dev/nvidia0", "");
        folder
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What a fake driver returns.
pub(crate) struct FakeDriver {
    pub(crate) init: i32,
    pub(crate) version: i32,
}

/// The driver's error code for a machine without cards.
const NO_DEVICE: i32 = 100;

impl FakeDriver {
    /// Builds it as `libcuda.so.1` in `folder`.
    pub(crate) fn install(&self, folder: &TempFolder) {
        let source = format!(
            "#[no_mangle] pub extern \"C\" fn cuInit(_: u32) -> i32 {{ {} }}\n\
             #[no_mangle] pub unsafe extern \"C\" fn cuDriverGetVersion(out: *mut i32) -> i32 {{ *out = {}; 0 }}\n",
            self.init, self.version
        );
        let source = folder.file("driver.rs", source);
        let made = Command::new(rustc())
            .args(["--edition", "2021", "--crate-type", "cdylib", "--crate-name", "driver", "-C", "panic=abort", "-o"])
            .arg(folder.path("libcuda.so.1"))
            .arg(&source)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
}

/// The Rust compiler that built the tests.
pub(crate) fn rustc() -> OsString {
    std::env::var_os("RUSTC").unwrap_or_else(|| {
        // The compiler next to cargo, if there is one.
        let beside = Path::new(env!("CARGO")).with_file_name("rustc");
        if beside.exists() { beside.into() } else { "rustc".into() }
    })
}

/// Whether the program would find a driver on this machine.
pub(crate) fn has_driver() -> bool {
    let folders =
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib"];
    folders.iter().any(|folder| Path::new(folder).join("libcuda.so.1").exists())
}

impl TandemCommand {
    /// On a machine without a card. If this machine has a driver, a fake one without cards is found first.
    pub(crate) fn without_gpu(self) -> TandemCommand {
        static NO_CARDS: OnceLock<Option<TempFolder>> = OnceLock::new();
        let no_cards = NO_CARDS.get_or_init(|| {
            has_driver().then(|| {
                let folder = TempFolder::new();
                FakeDriver { init: NO_DEVICE, version: 13000 }.install(&folder);
                folder
            })
        });
        let command = self.env("TANDEM_HARDWARE_ROOT", "/nonexistent");
        match no_cards {
            Some(folder) => command.env("LD_LIBRARY_PATH", folder.path("")),
            None => command,
        }
    }

    /// On the machine in `folder`, where libraries are searched first.
    pub(crate) fn on(self, folder: &TempFolder) -> TandemCommand {
        self.env("TANDEM_HARDWARE_ROOT", folder.path("")).env("LD_LIBRARY_PATH", folder.path(""))
    }
}
