//! Audio samples: validation sentences synthesised with the checkpoints of a run while it trains.
//!
//! One thread of low priority does it on the CPU: the training device never waits for a sample and spends no byte on it.
//! Input: a checkpoint on disk. Output: files in the run's folder `samples/`, and an event for each. No failure here ends
//! a run.

mod sample_folder;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tandem_audio::{AudioError, Clip, wav};
use tandem_corpus::Sample;
use tandem_device::{DeviceError, Machine};
use tandem_events::{Emitter, RunEvent};
use tandem_feed::{FromFiles, Recordings};
use tandem_pipeline::{StopFlag, Worker, WorkerError};
use tandem_synth::{AlignedRecording, SpectrogramImage, SpeechOptions, SynthError, Synthesizer, Voice};

use self::sample_folder::{SampleFolder, names_of, stem};
use crate::launch::{Corpora, ValidationUtterances};

/// Sentences per checkpoint.
const SENTENCES: usize = 2;
/// How often `finish` polls the worker.
const LOOK: Duration = Duration::from_millis(20);

/// A validation sentence to synthesise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleSentence {
    /// The id of the utterance.
    pub id: String,
    /// Its text.
    pub text: String,
    /// The tag of its language in the model; `None`: by the script of the text.
    pub lang: Option<String>,
    /// Its speaker, if the corpus names speakers.
    pub speaker: Option<String>,
    /// Its recording, if it can be decoded.
    pub recording: Option<Clip>,
}

impl SampleSentence {
    /// The first two validation sentences with a text, the same for the whole run; fewer if there are fewer. Cost: decodes two
    /// recordings.
    pub fn from_validation(corpora: &Corpora) -> Vec<SampleSentence> {
        let owned = spoken(corpora).take(SENTENCES).map(|sample| SampleSentence {
            id: sample.id.to_owned(),
            text: sample.text.to_owned(),
            lang: language_of(&sample, corpora),
            speaker: sample.speaker.map(str::to_owned),
            recording: recording_of(&sample),
        });
        owned.collect()
    }
}

/// Validation sentences with a text, in the order of the corpus.
pub fn spoken(corpora: &Corpora) -> impl Iterator<Item = Sample<'_>> {
    let ValidationUtterances { dataset, rows } = &corpora.validation;
    let samples = rows.iter().filter_map(|index| dataset.get(*index));
    samples.filter(|sample| !sample.text.trim().is_empty())
}

/// The tag of the language that a sample is read in.
fn language_of(sample: &Sample<'_>, corpora: &Corpora) -> Option<String> {
    let tokenizer = corpora.train.tokenizer()?;
    let rules = tokenizer.languages().get(tokenizer.language_of(sample) as usize)?;
    Some(rules.tag.clone())
}

fn recording_of(sample: &Sample<'_>) -> Option<Clip> {
    let mut clip = Clip::default();
    FromFiles.load_into(sample, &mut clip).ok().map(|()| clip)
}

/// Synthesises samples of a run's checkpoints. Dropping it cancels the job in flight within milliseconds.
pub struct SampleWriter {
    folder: SampleFolder,
    /// With their names in file names.
    sentences: Vec<(String, SampleSentence)>,
    /// Least time between the starts of two jobs.
    gap: Duration,
    emitter: Emitter,
    in_flight: Option<InFlight>,
    begun: Option<Instant>,
    skipped: u64,
    /// The last error: the same one is not reported twice.
    complaint: Option<String>,
}

/// The job in flight.
struct InFlight {
    worker: Worker<Result<(), SampleError>>,
    stop: Arc<AtomicBool>,
}

impl Drop for SampleWriter {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Why a checkpoint has no samples.
#[derive(Debug, thiserror::Error)]
enum SampleError {
    #[error(transparent)]
    Synth(#[from] SynthError),
    #[error(transparent)]
    Audio(#[from] AudioError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Worker(#[from] WorkerError),
    #[error("could not write ({source}): {}", path.display())]
    NotWritten { source: std::io::Error, path: PathBuf },
    /// Rotation removed it before it was read.
    #[error("the checkpoint was removed")]
    Gone,
}

impl SampleWriter {
    /// Writes samples of `sentences` into `folder`, which is created on first use; at most one checkpoint per `gap`.
    pub fn new(
        folder: impl Into<PathBuf>,
        sentences: Vec<SampleSentence>,
        gap: Duration,
        emitter: &Emitter,
    ) -> SampleWriter {
        let (folder, emitter) = (SampleFolder::new(folder.into()), emitter.clone());
        let names = names_of(sentences.iter().map(|sentence| sentence.id.as_str()));
        let sentences = names.into_iter().zip(sentences).collect();
        SampleWriter { folder, sentences, gap, emitter, in_flight: None, begun: None, skipped: 0, complaint: None }
    }

    /// The folder of the samples.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Sentences per checkpoint.
    pub fn num_sentences(&self) -> usize {
        self.sentences.len()
    }

    /// Starts a job for a checkpoint and returns at once. While an earlier job is in flight, or too soon after it, this
    /// checkpoint is skipped and counted.
    ///
    /// Returns the error of the previous job, if it is a new one.
    pub fn checkpoint(&mut self, step: u64, path: &Path) -> Option<String> {
        let too_soon = self.begun.is_some_and(|begun| begun.elapsed() < self.gap);
        let busy = self.in_flight.as_ref().is_some_and(|in_flight| !in_flight.worker.is_finished());
        if busy || too_soon || self.sentences.is_empty() {
            self.skipped += 1;
            return None;
        }
        let before = self.end();
        let begun = self.begin(step, path, Some(1));
        self.complain(before.and(begun))
    }

    /// Synthesises the last checkpoint with every core once the run is over, and waits for it. Cancels a job in flight, and
    /// this one too when `given_up`, which is polled, returns true.
    ///
    /// Returns the error, if it is a new one.
    pub fn finish(mut self, step: u64, path: &Path, given_up: &mut dyn FnMut() -> bool) -> Option<String> {
        if self.sentences.is_empty() {
            return None;
        }
        self.give_up();
        let begun = self.begin(step, path, None);
        let pause = StopFlag::new();
        while self.in_flight.as_ref().is_some_and(|in_flight| !in_flight.worker.is_finished()) {
            if given_up() {
                return None;
            }
            pause.wait_timeout(LOOK);
        }
        let came = begun.and(self.end());
        if self.skipped > 0 {
            let why = "another job was running, or had just run";
            let text = format!("checkpoints without samples: {} ({why})", self.skipped);
            self.emitter.emit(RunEvent::Note { text });
        }
        self.complain(came)
    }

    /// With `threads` the job runs at low priority; without, it uses every core.
    fn begin(&mut self, step: u64, path: &Path, threads: Option<usize>) -> Result<(), SampleError> {
        let stop = Arc::new(AtomicBool::new(false));
        let job = Job {
            step,
            checkpoint: path.to_owned(),
            folder: self.folder.clone(),
            sentences: self.sentences.clone(),
            emitter: self.emitter.clone(),
            threads,
            stop: stop.clone(),
        };
        let body = move |_: &StopFlag| job.run();
        let worker = match threads {
            Some(_) => Worker::spawn_background("samples", body),
            None => Worker::spawn("samples", body),
        }?;
        self.begun = Some(Instant::now());
        self.in_flight = Some(InFlight { worker, stop });
        Ok(())
    }

    /// Joins the finished job.
    fn end(&mut self) -> Result<(), SampleError> {
        let Some(in_flight) = self.in_flight.take() else { return Ok(()) };
        match in_flight.worker.join()? {
            Err(SampleError::Gone) => {
                self.skipped += 1;
                Ok(())
            }
            other => other,
        }
    }

    /// Cancels the job in flight and waits for it.
    fn give_up(&mut self) {
        if let Some(InFlight { worker, stop }) = self.in_flight.take() {
            stop.store(true, Ordering::Relaxed);
            drop(worker);
        }
    }

    fn complain(&mut self, came: Result<(), SampleError>) -> Option<String> {
        let complaint = came.err().map(|error| error.to_string());
        let is_new = complaint.is_some() && complaint != self.complaint;
        self.complaint = complaint;
        self.complaint.clone().filter(|_| is_new)
    }
}

/// One checkpoint, and everything its samples need.
struct Job {
    step: u64,
    checkpoint: PathBuf,
    folder: SampleFolder,
    sentences: Vec<(String, SampleSentence)>,
    emitter: Emitter,
    /// `None`: one per core.
    threads: Option<usize>,
    stop: Arc<AtomicBool>,
}

impl Job {
    /// Synthesises every sentence, even after one that failed; returns the first error.
    fn run(&self) -> Result<(), SampleError> {
        let machine = Machine::cpu();
        if let Some(threads) = self.threads {
            machine.set_compute_threads(threads);
        }
        let opened = Synthesizer::open(&self.checkpoint, machine.open(0)?);
        let mut synthesizer = match opened {
            Err(_) if !self.checkpoint.exists() => return Err(SampleError::Gone),
            opened => opened?,
        };
        synthesizer.stop_when(self.stop.clone());
        let mut first = Ok(());
        for (name, sentence) in &self.sentences {
            match self.speak(name, sentence, &mut synthesizer) {
                Err(SampleError::Synth(SynthError::Stopped)) => return first,
                came => first = first.and(came),
            }
        }
        first.and(self.folder.clear_up(self.step))
    }

    fn speak(&self, name: &str, sentence: &SampleSentence, synthesizer: &mut Synthesizer) -> Result<(), SampleError> {
        let begun = Instant::now();
        let voice = voice_of(sentence, synthesizer)?;
        let text = synthesizer.tokenize(&sentence.text, sentence.lang.as_deref())?;
        let spoken = synthesizer.synthesize(&text, &voice, &SpeechOptions::default())?;
        let (stem, frames_hz) = (stem(self.step, name), synthesizer.frames_hz());
        let mut sound = Vec::new();
        wav::write(&spoken.clip, &mut sound)?;
        // Images first: once the audio exists, the sample is complete.
        let recording = sentence.recording.as_ref();
        let aligned = recording.map(|clip| synthesizer.align(&text, clip, &voice)).transpose()?.flatten();
        if let Some(AlignedRecording { spectrogram, durations }) = aligned {
            self.draw(&format!("{stem}-alignment.png"), &SpectrogramImage::of(&spectrogram, &durations, frames_hz))?;
        }
        self.draw(&format!("{stem}.png"), &SpectrogramImage::of(&spoken.spectrogram, &spoken.durations, frames_hz))?;
        let path = self.folder.put(&format!("{stem}.wav"), &sound)?;
        let (seconds, ns) = (spoken.clip.seconds(), begun.elapsed().as_nanos() as u64);
        self.emitter.emit(RunEvent::SampleWritten { step: self.step, path, seconds, ns });
        Ok(())
    }

    fn draw(&self, name: &str, picture: &SpectrogramImage) -> Result<(), SampleError> {
        let mut file = Vec::new();
        let drawn = picture.write_png(&mut file);
        drawn.map_err(|source| SampleError::NotWritten { source, path: name.into() })?;
        self.folder.put(name, &file).map(drop)
    }
}

/// The voice of the sentence's speaker; for a speaker who is not in the training set, the checkpoint's first voice.
fn voice_of(sentence: &SampleSentence, synthesizer: &Synthesizer) -> Result<Voice, SynthError> {
    let own = sentence.speaker.as_deref().and_then(|speaker| synthesizer.voice(Some(speaker)).ok());
    own.map_or_else(|| synthesizer.voice(None), Ok)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tandem_events::Sink;

    use super::*;

    #[derive(Default)]
    struct EventBuffer(Mutex<Vec<String>>);

    impl Sink for EventBuffer {
        fn emit(&self, event: RunEvent) {
            if let RunEvent::Note { text } = event {
                self.0.lock().unwrap().push(text);
            }
        }
    }

    fn listening(dir: &Path, gap: Duration) -> (SampleWriter, Arc<EventBuffer>) {
        let events = Arc::new(EventBuffer::default());
        let sentence =
            SampleSentence { id: "a".into(), text: "hello".into(), lang: None, speaker: None, recording: None };
        (SampleWriter::new(dir.join("samples"), vec![sentence], gap, &Emitter::to(events.clone())), events)
    }

    #[test]
    fn checkpoints_that_come_too_soon_or_are_gone_are_counted_and_no_failure() {
        let dir = tempfile::tempdir().unwrap();
        for gap in [Duration::ZERO, Duration::MAX] {
            let (mut listening, events) = listening(dir.path(), gap);
            for step in 1..=5 {
                assert_eq!(listening.checkpoint(step, &dir.path().join("gone")), None);
            }
            let complaint = listening.finish(6, dir.path(), &mut || false);
            assert!(complaint.is_some(), "an empty folder is no checkpoint");
            // The last one that was begun is given up at the end, and does not count.
            let notes = events.0.lock().unwrap();
            assert!(notes.len() == 1 && notes[0].starts_with("checkpoints without samples: 4 ("), "{notes:?}");
        }
    }

    #[test]
    fn the_same_error_is_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let (mut listening, _) = listening(dir.path(), Duration::ZERO);
        let mut reported = Vec::new();
        // Each checkpoint tells what became of the one before.
        for step in 1..=3 {
            reported.extend(listening.checkpoint(step, dir.path()));
            while listening.in_flight.as_ref().is_some_and(|in_flight| !in_flight.worker.is_finished()) {
                std::thread::yield_now();
            }
        }
        reported.extend(listening.finish(4, dir.path(), &mut || false));
        assert!(reported.len() == 1 && reported[0].contains("model.json"), "{reported:?}");
    }

    #[test]
    fn who_gives_up_does_not_wait() {
        let dir = tempfile::tempdir().unwrap();
        let (listening, events) = listening(dir.path(), Duration::ZERO);
        let mut asked = 0;
        let complaint = listening.finish(1, dir.path(), &mut || {
            asked += 1;
            true
        });
        assert!(asked <= 1, "asked once, unless it was over already");
        assert!(complaint.is_none() == (asked == 1) && events.0.lock().unwrap().is_empty());
    }

    #[test]
    fn without_sentences_nothing_is_spoken() {
        let dir = tempfile::tempdir().unwrap();
        let mut silent = SampleWriter::new(dir.path().join("samples"), Vec::new(), Duration::ZERO, &Emitter::none());
        assert_eq!((silent.checkpoint(1, dir.path()), silent.num_sentences()), (None, 0));
        assert_eq!(silent.finish(1, dir.path(), &mut || false), None);
        assert!(!dir.path().join("samples").exists());
    }
}
