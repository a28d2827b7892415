//! Notices recordings that were replaced while a run was stopped: every recording is hashed when it is decoded, and a
//! resumed run that decodes other samples than before reports it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::hash::Hasher;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tandem_audio::Clip;
use tandem_corpus::Sample;
use tandem_files::read_text;
use twox_hash::XxHash3_64;

use super::recordings::{RecordingFetch, Recordings};
use crate::FeedError;

/// The first line of the file.
const HEADER: &str = "tandem recording hashes 1";
/// The most bytes of the file: a hundred million recordings.
const MAX_BYTES: u64 = 4 << 30;

/// A hash of the decoded samples of each recording of a run.
#[derive(Debug, Default)]
pub struct RecordingHashes {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By the hash of the recording's name.
    hashes: BTreeMap<u64, u64>,
    /// Recordings that differ, and were not reported yet.
    changed: Vec<String>,
    has_unsaved: bool,
}

impl RecordingHashes {
    /// Those of the earlier part of the run, from the file at `path`; none if there is no file. Fails with
    /// [`ErrorKind::InvalidData`] if it is not such a file.
    pub fn load(path: &Path) -> io::Result<RecordingHashes> {
        let hashes = match read_text(path, MAX_BYTES) {
            Ok(text) => parse(&text).ok_or(ErrorKind::InvalidData)?,
            Err(error) if error.kind() == ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        Ok(RecordingHashes { state: Mutex::new(State { hashes, ..State::default() }) })
    }

    /// Writes the file if recordings were added since. `path` always has either the old file or the new one.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let mut state = self.lock();
        if !state.has_unsaved {
            return Ok(());
        }
        let mut text = format!("{HEADER}\n");
        for (name, hash) in &state.hashes {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{name:016x} {hash:016x}");
        }
        let temporary = path.with_file_name(".tmp-recording-hashes");
        fs::write(&temporary, text)?;
        fs::rename(&temporary, path)?;
        state.has_unsaved = false;
        Ok(())
    }

    /// Id and file of each recording that was found to differ since the last call.
    pub fn take_changed(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().changed)
    }

    /// `inner`, with every recording hashed and compared.
    pub fn wrap(self: &Arc<RecordingHashes>, inner: Arc<dyn Recordings>) -> Arc<dyn Recordings> {
        Arc::new(Hashed { inner, hashes: Arc::clone(self) })
    }

    fn compare(&self, sample: &Sample<'_>, hash: u64) {
        let mut state = self.lock();
        let earlier = state.hashes.insert(name_of(sample), hash);
        state.has_unsaved |= earlier != Some(hash);
        if earlier.is_some_and(|earlier| earlier != hash) {
            state.changed.push(format!("{}: {}", sample.id, sample.audio.show()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn parse(text: &str) -> Option<BTreeMap<u64, u64>> {
    let mut lines = text.lines();
    lines.next().filter(|line| *line == HEADER)?;
    let pair = |line: &str| {
        let (name, hash) = line.split_once(' ')?;
        Some((u64::from_str_radix(name, 16).ok()?, u64::from_str_radix(hash, 16).ok()?))
    };
    lines.map(pair).collect()
}

/// Rows may be parts of one file: the part belongs to the name. Shards may have members of the same name: the shard and the
/// place in it do as well.
fn name_of(sample: &Sample<'_>) -> u64 {
    let mut hasher = XxHash3_64::with_seed(0);
    hasher.write(sample.audio.key.as_bytes());
    if let Some(piece) = sample.audio.piece {
        // No key has this byte: the name of a member is no longer that of a file.
        hasher.write_u8(0);
        hasher.write(piece.shard.location().to_string().as_bytes());
        hasher.write_u64(piece.address.position);
        hasher.write_u64(piece.address.extent.into());
    }
    if let Some(range) = sample.audio.range {
        hasher.write_u64(range.offset_s.to_bits());
        hasher.write_u64(range.duration_s.unwrap_or(-1.0).to_bits());
    }
    hasher.finish()
}

/// Costs about 0.1 ms per minute of audio.
fn hash_of(clip: &Clip) -> u64 {
    XxHash3_64::oneshot_with_seed(clip.rate_hz.into(), bytemuck::cast_slice(&clip.samples))
}

/// Recordings whose samples are hashed.
struct Hashed {
    inner: Arc<dyn Recordings>,
    hashes: Arc<RecordingHashes>,
}

impl Recordings for Hashed {
    fn load_into(&self, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
        self.inner.load_into(sample, clip)?;
        self.hashes.compare(sample, hash_of(clip));
        Ok(())
    }

    fn fetch(&self, sample: &Sample<'_>) -> Result<Option<Box<dyn RecordingFetch>>, FeedError> {
        let hashed =
            |fetch| -> Box<dyn RecordingFetch> { Box::new(HashedFetch { fetch, hashes: Arc::clone(&self.hashes) }) };
        Ok(self.inner.fetch(sample)?.map(hashed))
    }
}

/// A fetched recording whose samples are hashed.
struct HashedFetch {
    fetch: Box<dyn RecordingFetch>,
    hashes: Arc<RecordingHashes>,
}

impl RecordingFetch for HashedFetch {
    fn num_bytes(&self) -> u64 {
        self.fetch.num_bytes()
    }

    fn start(&mut self) {
        self.fetch.start();
    }

    fn load_into(self: Box<Self>, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
        self.fetch.load_into(sample, clip)?;
        self.hashes.compare(sample, hash_of(clip));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tandem_corpus::{AudioRange, Locator, Store, Subset};

    use super::*;

    /// A recording with the samples of this moment.
    struct Constant(i16);

    impl Recordings for Constant {
        fn load_into(&self, _: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
            *clip = Clip { samples: vec![self.0; 100], rate_hz: 22_050 };
            Ok(())
        }

        fn fetch(&self, _: &Sample<'_>) -> Result<Option<Box<dyn RecordingFetch>>, FeedError> {
            Ok(Some(Box::new(ConstantFetch { recording: Constant(self.0), is_started: false })))
        }
    }

    struct ConstantFetch {
        recording: Constant,
        is_started: bool,
    }

    impl RecordingFetch for ConstantFetch {
        fn num_bytes(&self) -> u64 {
            200
        }

        fn start(&mut self) {
            self.is_started = true;
        }

        fn load_into(self: Box<Self>, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
            assert!(self.is_started);
            self.recording.load_into(sample, clip)
        }
    }

    fn sample<'a>(store: &'a Store, id: &'a str, range: Option<AudioRange>) -> Sample<'a> {
        Sample {
            id,
            text: "t",
            speaker: None,
            lang: None,
            audio: Locator { store, key: "wavs/a.wav", piece: None, range },
            duration_s: None,
            part: Subset::Train,
            file: Path::new("metadata.csv"),
            line: 1,
        }
    }

    /// Loads a recording, every second one as one that was fetched.
    fn load(hashes: &Arc<RecordingHashes>, id: &str, range: Option<AudioRange>, value: i16) {
        let (store, recordings) = (Store::Files { root: "corpus".into() }, hashes.wrap(Arc::new(Constant(value))));
        let sample = sample(&store, id, range);
        match value % 2 {
            0 => {
                let mut fetch = recordings.fetch(&sample).unwrap().unwrap();
                assert_eq!(fetch.num_bytes(), 200);
                fetch.start();
                fetch.load_into(&sample, &mut Clip::default()).unwrap();
            }
            _ => recordings.load_into(&sample, &mut Clip::default()).unwrap(),
        }
    }

    #[test]
    fn names_of_files_are_those_of_earlier_versions() {
        let store = Store::Files { root: "corpus".into() };
        assert_eq!(name_of(&sample(&store, "a", None)), XxHash3_64::oneshot(b"wavs/a.wav"));
        let range = Some(AudioRange { offset_s: 1.5, duration_s: None });
        let bytes = [&b"wavs/a.wav"[..], &1.5_f64.to_bits().to_le_bytes(), &(-1.0_f64).to_bits().to_le_bytes()];
        assert_eq!(name_of(&sample(&store, "a", range)), XxHash3_64::oneshot(&bytes.concat()));
    }

    #[test]
    fn a_replaced_recording_is_reported_once_by_its_name_also_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hashes.txt");
        let second = Some(AudioRange { offset_s: 1.0, duration_s: None });
        let third = Some(AudioRange { offset_s: 2.0, duration_s: None });
        let first_part = Arc::new(RecordingHashes::load(&path).unwrap());
        load(&first_part, "a", None, 1);
        load(&first_part, "b", second, 2);
        load(&first_part, "c", third, 4);
        load(&first_part, "a", None, 1);
        assert_eq!(first_part.take_changed(), [""; 0]);
        first_part.save(&path).unwrap();

        let resumed = Arc::new(RecordingHashes::load(&path).unwrap());
        load(&resumed, "a", None, 1);
        load(&resumed, "b", second, 3);
        load(&resumed, "b", second, 3);
        assert_eq!(resumed.take_changed(), ["b: corpus/wavs/a.wav"]);
        assert_eq!(resumed.take_changed(), [""; 0]);
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hashes.txt");
        for text in ["", "something else\n", "tandem recording hashes 1\n0123 xyz\n", "tandem recording hashes 1\n0123"]
        {
            fs::write(&path, text).unwrap();
            assert_eq!(RecordingHashes::load(&path).unwrap_err().kind(), ErrorKind::InvalidData, "{text:?}");
        }
    }
}
