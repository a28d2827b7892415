//! Listening samples: held-out sentences spoken with the checkpoints of a run, while it goes on.
//!
//! On the CPU, by one thread that takes the cores nobody else wants: the training device never waits for a sample and
//! gives no byte for it. What comes in is a checkpoint that is on the disk. What goes out are files in the run's folder
//! `samples/`, and an event for each. Nothing that goes wrong here ends a run.

mod shelf;

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
use tandem_synth::{Aligned, Picture, SpeechOptions, SynthError, Synthesizer, Voice};

use self::shelf::{Shelf, names_of, stem};
use crate::launch::Corpora;

/// Sentences that are spoken.
const SENTENCES: usize = 2;
/// How often the last checkpoint's samples are asked for.
const LOOK: Duration = Duration::from_millis(20);

/// What is spoken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleSentence {
    /// The name of the utterance.
    pub id: String,
    /// What is said in it.
    pub text: String,
    /// Who says it, where the corpus names speakers.
    pub speaker: Option<String>,
    /// How it is said there, where that can be read.
    pub recording: Option<Clip>,
}

impl SampleSentence {
    /// The first two held-out sentences that have a text: the same ones all run long. Fewer where there are fewer. Cost:
    /// two recordings are decoded.
    pub fn held_out(corpora: &Corpora) -> Vec<SampleSentence> {
        let owned = spoken(corpora).take(SENTENCES).map(|sample| SampleSentence {
            id: sample.id.to_owned(),
            text: sample.text.to_owned(),
            speaker: sample.speaker.map(str::to_owned),
            recording: recording_of(&sample),
        });
        owned.collect()
    }
}

/// Held-out sentences that have a text, in the order of the corpus.
pub fn spoken(corpora: &Corpora) -> impl Iterator<Item = Sample<'_>> {
    let (dataset, rows) = &corpora.held_out;
    let samples = rows.iter().filter_map(|index| dataset.get(*index));
    samples.filter(|sample| !sample.text.trim().is_empty())
}

fn recording_of(sample: &Sample<'_>) -> Option<Clip> {
    let mut clip = Clip::default();
    FromFiles.load_into(sample, &mut clip).ok().map(|()| clip)
}

/// What a run sounds like. Dropping it gives up what is being spoken, within milliseconds.
pub struct Listening {
    shelf: Shelf,
    /// With what they are called in names of files.
    sentences: Vec<(String, SampleSentence)>,
    /// The least time from one beginning to the next.
    gap: Duration,
    emitter: Emitter,
    speaking: Option<Speaking>,
    begun: Option<Instant>,
    passed_over: u64,
    /// The last complaint: the same is not told twice.
    complaint: Option<String>,
}

/// A checkpoint that is being spoken.
struct Speaking {
    worker: Worker<Result<(), ListeningError>>,
    stop: Arc<AtomicBool>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Why a checkpoint was not spoken.
#[derive(Debug, thiserror::Error)]
enum ListeningError {
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
    /// Newer checkpoints pushed it out before it was read.
    #[error("the checkpoint is gone")]
    Gone,
}

impl Listening {
    /// Speaks `sentences` into `folder`, which is made when it is needed; a checkpoint every `gap` at most.
    pub fn new(
        folder: impl Into<PathBuf>,
        sentences: Vec<SampleSentence>,
        gap: Duration,
        emitter: &Emitter,
    ) -> Listening {
        let (shelf, emitter) = (Shelf::new(folder.into()), emitter.clone());
        let names = names_of(sentences.iter().map(|sentence| sentence.id.as_str()));
        let sentences = names.into_iter().zip(sentences).collect();
        Listening { shelf, sentences, gap, emitter, speaking: None, begun: None, passed_over: 0, complaint: None }
    }

    /// Where samples lie.
    pub fn folder(&self) -> &Path {
        self.shelf.folder()
    }

    /// How many sentences a checkpoint is spoken with.
    pub fn num_sentences(&self) -> usize {
        self.sentences.len()
    }

    /// Begins to speak a checkpoint, and does not wait. While an earlier one is being spoken, or too soon after it, this
    /// one is passed over and counted.
    ///
    /// Says what went wrong with the one before, if anything did and it was not said already.
    pub fn checkpoint(&mut self, step: u64, path: &Path) -> Option<String> {
        let too_soon = self.begun.is_some_and(|begun| begun.elapsed() < self.gap);
        let busy = self.speaking.as_ref().is_some_and(|speaking| !speaking.worker.is_finished());
        if busy || too_soon || self.sentences.is_empty() {
            self.passed_over += 1;
            return None;
        }
        let before = self.end();
        let begun = self.begin(step, path, Some(1));
        self.complain(before.and(begun))
    }

    /// Speaks the last checkpoint with every core, now that the run is over, and waits for it. One that is still being
    /// spoken is given up, and so is this one when `given_up` says so: it is asked all the time.
    ///
    /// Says what went wrong, if anything did.
    pub fn finish(mut self, step: u64, path: &Path, given_up: &mut dyn FnMut() -> bool) -> Option<String> {
        if self.sentences.is_empty() {
            return None;
        }
        self.give_up();
        let begun = self.begin(step, path, None);
        let pause = StopFlag::new();
        while self.speaking.as_ref().is_some_and(|speaking| !speaking.worker.is_finished()) {
            if given_up() {
                return None;
            }
            pause.wait_timeout(LOOK);
        }
        let came = begun.and(self.end());
        if self.passed_over > 0 {
            let why = "another was being spoken, or had been a moment before";
            let text = format!("checkpoints that were not spoken: {} ({why})", self.passed_over);
            self.emitter.emit(RunEvent::Note { text });
        }
        self.complain(came)
    }

    /// With `threads` it steps behind everybody else; without, it is all there is to do.
    fn begin(&mut self, step: u64, path: &Path, threads: Option<usize>) -> Result<(), ListeningError> {
        let stop = Arc::new(AtomicBool::new(false));
        let job = Job {
            step,
            checkpoint: path.to_owned(),
            shelf: self.shelf.clone(),
            sentences: self.sentences.clone(),
            emitter: self.emitter.clone(),
            threads,
            stop: stop.clone(),
        };
        let body = move |_: &StopFlag| job.run();
        let worker = match threads {
            Some(_) => Worker::spawn_behind("samples", body),
            None => Worker::spawn("samples", body),
        }?;
        self.begun = Some(Instant::now());
        self.speaking = Some(Speaking { worker, stop });
        Ok(())
    }

    /// What became of the one that was spoken last, and has ended.
    fn end(&mut self) -> Result<(), ListeningError> {
        let Some(speaking) = self.speaking.take() else { return Ok(()) };
        match speaking.worker.join()? {
            Err(ListeningError::Gone) => {
                self.passed_over += 1;
                Ok(())
            }
            other => other,
        }
    }

    /// Ends what is being spoken, and waits for that.
    fn give_up(&mut self) {
        if let Some(Speaking { worker, stop }) = self.speaking.take() {
            stop.store(true, Ordering::Relaxed);
            drop(worker);
        }
    }

    fn complain(&mut self, came: Result<(), ListeningError>) -> Option<String> {
        let complaint = came.err().map(|error| error.to_string());
        let is_new = complaint.is_some() && complaint != self.complaint;
        self.complaint = complaint;
        self.complaint.clone().filter(|_| is_new)
    }
}

/// One checkpoint, and everything needed to speak it.
struct Job {
    step: u64,
    checkpoint: PathBuf,
    shelf: Shelf,
    sentences: Vec<(String, SampleSentence)>,
    emitter: Emitter,
    /// None for as many as there are cores.
    threads: Option<usize>,
    stop: Arc<AtomicBool>,
}

impl Job {
    /// Speaks every sentence, also after one that failed; the first failure is told.
    fn run(&self) -> Result<(), ListeningError> {
        let machine = Machine::cpu();
        if let Some(threads) = self.threads {
            machine.set_compute_threads(threads);
        }
        let opened = Synthesizer::open(&self.checkpoint, machine.open(0)?);
        let mut synthesizer = match opened {
            Err(_) if !self.checkpoint.exists() => return Err(ListeningError::Gone),
            opened => opened?,
        };
        synthesizer.stop_when(self.stop.clone());
        let mut first = Ok(());
        for (name, sentence) in &self.sentences {
            match self.speak(name, sentence, &mut synthesizer) {
                Err(ListeningError::Synth(SynthError::Stopped)) => return first,
                came => first = first.and(came),
            }
        }
        first.and(self.shelf.clear_up(self.step))
    }

    fn speak(
        &self,
        name: &str,
        sentence: &SampleSentence,
        synthesizer: &mut Synthesizer,
    ) -> Result<(), ListeningError> {
        let begun = Instant::now();
        let voice = voice_of(sentence, synthesizer)?;
        let spoken = synthesizer.speak(&sentence.text, &voice, &SpeechOptions::default())?;
        let (stem, frames_hz) = (stem(self.step, name), synthesizer.frames_hz());
        let mut sound = Vec::new();
        wav::write(&spoken.clip, &mut sound)?;
        // Pictures first: whoever sees the sound finds all of it.
        let recording = sentence.recording.as_ref();
        let aligned = recording.map(|clip| synthesizer.align(&sentence.text, clip, &voice)).transpose()?.flatten();
        if let Some(Aligned { spectrum, durations }) = aligned {
            self.draw(&format!("{stem}-alignment.png"), &Picture::of(&spectrum, &durations, frames_hz))?;
        }
        self.draw(&format!("{stem}.png"), &Picture::of(&spoken.spectrum, &spoken.durations, frames_hz))?;
        let path = self.shelf.put(&format!("{stem}.wav"), &sound)?;
        let (seconds, ns) = (spoken.clip.seconds(), begun.elapsed().as_nanos() as u64);
        self.emitter.emit(RunEvent::SampleWritten { step: self.step, path, seconds, ns });
        Ok(())
    }

    fn draw(&self, name: &str, picture: &Picture) -> Result<(), ListeningError> {
        let mut file = Vec::new();
        let drawn = picture.write_png(&mut file);
        drawn.map_err(|source| ListeningError::NotWritten { source, path: name.into() })?;
        self.shelf.put(name, &file).map(drop)
    }
}

/// The sentence's own speaker; whom the run never heard the checkpoint's first voice stands in for.
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

    fn listening(dir: &Path, gap: Duration) -> (Listening, Arc<EventBuffer>) {
        let heard = Arc::new(EventBuffer::default());
        let sentence = SampleSentence { id: "a".to_owned(), text: "hello".to_owned(), speaker: None, recording: None };
        (Listening::new(dir.join("samples"), vec![sentence], gap, &Emitter::to(heard.clone())), heard)
    }

    #[test]
    fn checkpoints_that_come_too_soon_or_are_gone_are_counted_and_no_failure() {
        let dir = tempfile::tempdir().unwrap();
        for gap in [Duration::ZERO, Duration::MAX] {
            let (mut listening, heard) = listening(dir.path(), gap);
            for step in 1..=5 {
                assert_eq!(listening.checkpoint(step, &dir.path().join("gone")), None);
            }
            let complaint = listening.finish(6, dir.path(), &mut || false);
            assert!(complaint.is_some(), "an empty folder is no checkpoint");
            // The last one that was begun is given up at the end, and does not count.
            let notes = heard.0.lock().unwrap();
            assert!(notes.len() == 1 && notes[0].starts_with("checkpoints that were not spoken: 4 ("), "{notes:?}");
        }
    }

    #[test]
    fn the_same_complaint_is_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let (mut listening, _) = listening(dir.path(), Duration::ZERO);
        let mut told = Vec::new();
        // Each checkpoint tells what became of the one before.
        for step in 1..=3 {
            told.extend(listening.checkpoint(step, dir.path()));
            while listening.speaking.as_ref().is_some_and(|speaking| !speaking.worker.is_finished()) {
                std::thread::yield_now();
            }
        }
        told.extend(listening.finish(4, dir.path(), &mut || false));
        assert!(told.len() == 1 && told[0].contains("model.json"), "{told:?}");
    }

    #[test]
    fn who_gives_up_does_not_wait() {
        let dir = tempfile::tempdir().unwrap();
        let (listening, heard) = listening(dir.path(), Duration::ZERO);
        let mut asked = 0;
        let complaint = listening.finish(1, dir.path(), &mut || {
            asked += 1;
            true
        });
        assert!(asked <= 1, "asked once, unless it was over already");
        assert!(complaint.is_none() == (asked == 1) && heard.0.lock().unwrap().is_empty());
    }

    #[test]
    fn without_sentences_nothing_is_spoken() {
        let dir = tempfile::tempdir().unwrap();
        let mut silent = Listening::new(dir.path().join("samples"), Vec::new(), Duration::ZERO, &Emitter::none());
        assert_eq!((silent.checkpoint(1, dir.path()), silent.num_sentences()), (None, 0));
        assert_eq!(silent.finish(1, dir.path(), &mut || false), None);
        assert!(!dir.path().join("samples").exists());
    }
}
