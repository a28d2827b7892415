//! TensorBoard event files: scalars of every step, and the samples as pictures and sound.
//!
//! A file is one TFRecord frame after another (`frame`), each a protobuf `RunEvent` (`proto`). One file per start of a
//! run; TensorBoard reads all files of a folder as one run, in the order of their names.

mod crc32c;
mod frame;
mod proto;
mod sample;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use tandem_events::{Record, RunEvent};

use self::frame::frame_into;
use self::proto::{ProtoMessage, ProtoSummary};
use crate::export::{ExportError, Exporter};
use crate::spool::Spool;

/// How many bytes wait for the file at most. A sample, which is longer, is taken alone.
const CAP_BYTES: usize = 64 << 10;

/// The least time that one point of `steps_per_s`, `stall` and `ranks/wait_ms` covers: long and short batches are not jitter.
const PACE_NS: u64 = 1_000_000_000;

/// Writes a TensorBoard event file. Costs some microseconds and about 170 bytes a step; samples as much as their files.
pub struct TensorBoard<W = File> {
    spool: Spool<W>,
    /// The folder that paths of samples are in.
    run_folder: PathBuf,
    began_s: f64,
    /// The last step seen. Before the first, there is no step to place a figure at.
    step: Option<u64>,
    /// Figures that arrived before the first step.
    early: BTreeMap<String, f32>,
    pace: Pace,
    frame: Vec<u8>,
}

/// Steps since the last point of `steps_per_s`, `stall` and `ranks/wait_ms`.
#[derive(Default)]
struct Pace {
    steps: u64,
    wall_ns: u64,
    wait_ns: u64,
    ranks: RankPace,
}

/// Waits of the ranks since the last point.
#[derive(Default)]
struct RankPace {
    steps: u64,
    /// By rank, summed over the steps. Empty with one rank.
    waited_ns: Vec<u64>,
}

impl RankPace {
    fn add(&mut self, waited_ns: &[u64]) {
        if self.waited_ns.len() != waited_ns.len() {
            *self = RankPace { steps: 0, waited_ns: vec![0; waited_ns.len()] };
        }
        self.steps += 1;
        self.waited_ns.iter_mut().zip(waited_ns).for_each(|(sum, ns)| *sum = sum.saturating_add(*ns));
    }

    /// The mean wait of each rank.
    fn scalars(&self) -> impl Iterator<Item = (String, f32)> {
        let mean_ms = |ns: &u64| *ns as f64 / 1e6 / self.steps as f64;
        self.waited_ns.iter().map(mean_ms).enumerate().map(|(rank, ms)| (format!("ranks/wait_ms/{rank}"), ms as f32))
    }
}

impl TensorBoard {
    /// Makes a new event file in `folder`, which is made too. `run_folder` is the one that paths in the log are in;
    /// `began` is when the log's clock began: now, or [`log_began`](crate::log_began) of a finished log.
    pub fn create(
        folder: impl AsRef<Path>,
        run_folder: impl Into<PathBuf>,
        began: SystemTime,
    ) -> Result<Self, ExportError> {
        let folder = folder.as_ref();
        let created = fs::create_dir_all(folder).and_then(|()| new_file(folder, began));
        let what = "a TensorBoard file";
        let file = created.map_err(|source| ExportError::Create { what, path: folder.to_owned(), source })?;
        Ok(Self::new(file, run_folder.into(), began))
    }
}

impl<W: Write> TensorBoard<W> {
    fn new(out: W, run_folder: PathBuf, began: SystemTime) -> Self {
        let began_s = began.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let (spool, frame, pace) = (Spool::new(out, CAP_BYTES), Vec::new(), Pace::default());
        let mut new = Self { spool, run_folder, began_s, step: None, early: BTreeMap::new(), pace, frame };
        // An empty spool takes anything.
        let _ = new.write(&proto::version_event(began_s));
        new
    }

    fn write(&mut self, event: &ProtoMessage) -> io::Result<()> {
        self.frame.clear();
        frame_into(event.bytes(), &mut self.frame);
        self.spool.push_or_flush(&self.frame)
    }

    fn summary(&mut self, t_ns: u64, step: u64, summary: &ProtoSummary) -> io::Result<()> {
        match summary.is_empty() {
            true => Ok(()),
            false => self.write(&proto::summary_event(self.wall_s(t_ns), step, summary)),
        }
    }

    fn scalars(&mut self, t_ns: u64, step: u64, scalars: &[(String, f32)]) -> io::Result<()> {
        let mut summary = ProtoSummary::default();
        scalars.iter().for_each(|(tag, value)| summary.scalar(tag, *value));
        self.summary(t_ns, step, &summary)
    }

    /// Figures that belong to no step are put at the last one. A resumed run must not put them at step 0: TensorBoard
    /// takes a step that goes back for a run that was done again, and forgets what came after.
    fn figures(&mut self, t_ns: u64, figures: Vec<(String, f32)>) -> io::Result<()> {
        match self.step {
            Some(step) => self.scalars(t_ns, step, &figures),
            None => {
                self.early.extend(figures);
                Ok(())
            }
        }
    }

    /// The first step of a start voids what an earlier start wrote of it and of later ones.
    fn reached(&mut self, t_ns: u64, step: u64) -> io::Result<()> {
        if self.step.replace(step).is_some() {
            return Ok(());
        }
        self.write(&proto::start_event(self.wall_s(t_ns), step))?;
        let early: Vec<_> = std::mem::take(&mut self.early).into_iter().collect();
        self.scalars(t_ns, step, &early)
    }

    fn paced(&mut self, t_ns: u64, least_ns: u64) -> io::Result<()> {
        let (Some(step), true) = (self.step, self.pace.wall_ns >= least_ns) else { return Ok(()) };
        let Pace { steps, wall_ns, wait_ns, ranks } = std::mem::take(&mut self.pace);
        let per_s = steps as f64 * 1e9 / wall_ns as f64;
        let stall = wait_ns as f64 / wall_ns as f64;
        let mut scalars = vec![("steps_per_s".into(), per_s as f32), ("stall".into(), stall as f32)];
        scalars.extend(ranks.scalars());
        self.scalars(t_ns, step, &scalars)
    }

    fn wall_s(&self, t_ns: u64) -> f64 {
        self.began_s + t_ns as f64 * 1e-9
    }
}

impl<W: Write + Send> Exporter for TensorBoard<W> {
    fn name(&self) -> &'static str {
        "TensorBoard"
    }

    fn take(&mut self, record: &Record) -> io::Result<()> {
        let t_ns = record.t_ns;
        match &record.event {
            RunEvent::Step { step, wall_ns, wait_ns } => {
                self.reached(t_ns, *step)?;
                self.pace.steps += 1;
                self.pace.wall_ns = self.pace.wall_ns.saturating_add(*wall_ns);
                self.pace.wait_ns = self.pace.wait_ns.saturating_add(*wait_ns);
                self.paced(t_ns, PACE_NS)
            }
            RunEvent::RankWaits { waited_ns, .. } => {
                self.pace.ranks.add(waited_ns);
                Ok(())
            }
            RunEvent::StepMetrics { step, losses, gradient_norm, lr, .. } => {
                self.reached(t_ns, *step)?;
                let mut scalars = named("loss", losses);
                scalars.extend([("gradient_norm".into(), number(*gradient_norm)), ("lr".into(), *lr as f32)]);
                self.scalars(t_ns, *step, &scalars)
            }
            RunEvent::Validation { step, metrics, .. } => self.scalars(t_ns, *step, &named("validation", metrics)),
            RunEvent::Memory { role, used_bytes, limit_bytes, peak_bytes, .. } => {
                let parts = [("", used_bytes), ("_limit", limit_bytes), ("_peak", peak_bytes)];
                self.figures(t_ns, parts.map(|(what, &bytes)| (format!("memory/{role}{what}_mb"), mb(bytes))).into())
            }
            RunEvent::ProcessMemory { card, bytes, .. } => {
                self.figures(t_ns, vec![(format!("memory/process_card{card}_mb"), mb(*bytes))])
            }
            RunEvent::SampleWritten { step, path, .. } => {
                let summary = sample::sample_summary(&self.run_folder.join(path))?;
                self.summary(t_ns, *step, &summary)
            }
            RunEvent::RunEnded { .. } => self.paced(t_ns, 1),
            _ => Ok(()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.spool.flush(|_| ())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.flush()
    }
}

/// A file of a name that no other has. TensorBoard looks for `tfevents` in it, and sorts by the time behind that.
fn new_file(folder: &Path, began: SystemTime) -> io::Result<File> {
    let seconds = began.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let process = std::process::id();
    for number in 0.. {
        let path = folder.join(format!("events.out.tfevents.{seconds:010}.tandem.{process}.{number}"));
        match OpenOptions::new().write(true).create_new(true).open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            opened => return opened,
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

fn named(group: &str, metrics: &BTreeMap<String, Option<f64>>) -> Vec<(String, f32)> {
    metrics.iter().map(|(name, value)| (format!("{group}/{name}"), number(*value))).collect()
}

/// What is no number is shown as what it is.
fn number(value: Option<f64>) -> f32 {
    value.map_or(f32::NAN, |value| value as f32)
}

fn mb(bytes: u64) -> f32 {
    (bytes as f64 / f64::from(1 << 20)) as f32
}

#[cfg(test)]
mod tests;
