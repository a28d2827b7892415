//! Recordings and corpora for tests: the demo corpus, copies of it, and wav files of every format.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tandem_audio::{Clip, wav};

use crate::command::TandemCommand;
use crate::machine::TempFolder;

/// Demo corpora are named by this and the process that generated them, because two runs of the tests may overlap.
const DEMO_PREFIX: &str = "demo-corpus-";

/// Removes demo corpora of processes that have ended.
fn remove_left_over(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(DEMO_PREFIX));
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The demo corpus, generated once for all tests, which must not change it.
pub(crate) fn demo() -> &'static Path {
    static DEMO: OnceLock<PathBuf> = OnceLock::new();
    DEMO.get_or_init(|| {
        // Not a `TempFolder`, because a static is never dropped. The next run of the tests removes it.
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        remove_left_over(folder);
        let path = folder.join(format!("{DEMO_PREFIX}{}", std::process::id()));
        let ran = TandemCommand::new("corpus demo --minutes 1 -o").arg(&path).run();
        assert_eq!(ran.code, 0, "{ran:?}");
        path
    })
}

/// A copy of the demo corpus, and the lines of its metadata.
pub(crate) fn copy_of_demo() -> (TempFolder, Vec<String>) {
    let folder = TempFolder::new();
    for entry in fs::read_dir(demo().join("wavs")).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        folder.file(&format!("wavs/{name}"), fs::read(entry.path()).unwrap());
    }
    let metadata = fs::read_to_string(demo().join("metadata.csv")).unwrap();
    folder.file("metadata.csv", &metadata);
    (folder, metadata.lines().map(str::to_owned).collect())
}

/// A tone at a third of full scale.
pub(crate) fn tone(rate_hz: u32, seconds: f64) -> Clip {
    let num_samples = (f64::from(rate_hz) * seconds) as u32;
    let value = |i: u32| (f64::from(i) * 900.0 / f64::from(rate_hz)).sin() * 11_000.0;
    Clip { samples: (0..num_samples).map(|i| value(i) as i16).collect(), rate_hz }
}

/// `clip` as a 16-bit wav file.
pub(crate) fn wav_of(clip: &Clip) -> Vec<u8> {
    let mut file = Vec::new();
    wav::write(clip, &mut file).unwrap();
    file
}

/// Eight recordings of 0.2 s: hundreds of steps of the smallest model take seconds.
pub(crate) fn eight_tones() -> TempFolder {
    let folder = TempFolder::new();
    let ids: Vec<String> = (0..8).map(|number| format!("s{number}")).collect();
    ids.iter().for_each(|id| drop(folder.file(&format!("wavs/{id}.wav"), wav_of(&tone(22_050, 0.2)))));
    let lines: Vec<String> = ids.iter().map(|id| format!("{id}|ab|ab")).collect();
    folder.file("metadata.csv", lines.join("\n"));
    folder
}
