//! A timeline for Perfetto and `chrome://tracing`: steps, stages of the feed, links and memory on one axis.
//!
//! The file is a JSON array with one event per line. Every line but the first begins with its comma, so that a
//! truncated file is valid again once `]` follows its last complete line; both viewers accept it without that.
//!
//! Device work is placed by the device's clock. Host work is reported when it has *ended*, with its duration, and sometimes
//! late. Such a slice therefore begins its duration before its record, or at the end of the previous slice of its track,
//! whichever is later: durations are right, slices of one track never overlap, and a track is late by no more than its
//! latest record. Steps and stages of logs without device times are placed the same way.
//!
//! Simulated cards run on virtual time, not the host's: compare device tracks only with each other there.

mod tracks;

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value, json};
use tandem_events::{Record, Role, RunEvent, TimeSpan};

use self::tracks::{TraceTracks, TrackGroup, TrackPosition};
use crate::export::{ExportError, Exporter};
use crate::spool::Spool;

/// How many bytes wait for the file at most.
const CAP_BYTES: usize = 64 << 10;

/// Where a trace ends before its run does: viewers that run in a browser take no more. A million steps.
const LARGEST_BYTES: u64 = 1 << 30;

/// Writes a trace. Costs some microseconds and up to 1100 bytes a step.
pub struct Trace<W = File> {
    spool: Spool<W>,
    tracks: TraceTracks,
    /// What is added to a time of the devices to have it on the log's clock.
    from_devices_ns: Option<i64>,
    /// Device time of the step whose record comes next.
    working: Option<(u64, TimeSpan)>,
    written_bytes: u64,
    largest_bytes: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No event yet: the next one needs no comma.
    Empty,
    Open,
    /// The array is closed; what comes now is not shown.
    Closed,
}

impl Trace {
    /// Makes the file at `path`, whose folder exists. A file of that name is replaced.
    pub fn create(path: impl AsRef<Path>) -> Result<Self, ExportError> {
        let path = path.as_ref();
        let create = |source| ExportError::Create { what: "the trace", path: path.to_owned(), source };
        Ok(Self::new(File::create(path).map_err(create)?, LARGEST_BYTES))
    }
}

impl<W: Write> Trace<W> {
    fn new(out: W, largest_bytes: u64) -> Self {
        let mut spool = Spool::new(out, CAP_BYTES);
        // An empty spool takes anything.
        spool.push(b"[\n");
        let (tracks, written_bytes) = (TraceTracks::default(), 2);
        Self { spool, tracks, from_devices_ns: None, working: None, written_bytes, largest_bytes, state: State::Empty }
    }

    /// Work of `ns` that was reported at `t_ns`. Returns where it begins.
    fn slice(
        &mut self,
        group: TrackGroup,
        track: &str,
        name: &str,
        [t_ns, ns]: [u64; 2],
        args: Value,
    ) -> io::Result<TrackPosition> {
        let place = self.tracks.place(group, track, t_ns, ns);
        self.name_tracks()?;
        self.slice_at(place, name, ns, args)?;
        Ok(place)
    }

    fn slice_at(&mut self, place: TrackPosition, name: &str, ns: u64, args: Value) -> io::Result<()> {
        let TrackPosition { group, track, begin_ns } = place;
        let (ts, dur) = (Micros(begin_ns), Micros(ns));
        let head = format!(r#""ph":"X","pid":{},"tid":{track},"ts":{ts},"dur":{dur}"#, group as u32);
        self.event(&head, name, args)
    }

    /// A moment.
    fn instant(&mut self, group: TrackGroup, track: &str, name: &str, t_ns: u64, args: Value) -> io::Result<()> {
        let TrackPosition { track, begin_ns, .. } = self.tracks.place(group, track, t_ns, 0);
        self.name_tracks()?;
        let head = format!(r#""ph":"i","s":"t","pid":{},"tid":{track},"ts":{}"#, group as u32, Micros(begin_ns));
        self.event(&head, name, args)
    }

    /// A figure from this moment on.
    fn counter(&mut self, group: TrackGroup, name: &str, t_ns: u64, bytes: u64) -> io::Result<()> {
        let begin_ns = self.tracks.count(group, name, t_ns);
        let head = format!(r#""ph":"C","pid":{},"ts":{}"#, group as u32, Micros(begin_ns));
        self.event(&head, name, json!({ "MB": bytes as f64 / f64::from(1 << 20) }))
    }

    /// Writes the names of new tracks.
    fn name_tracks(&mut self) -> io::Result<()> {
        while let Some((group, track, name)) = self.tracks.next_new() {
            let (of, head) = match track {
                None => ("process_name", format!(r#""ph":"M","pid":{}"#, group as u32)),
                Some(track) => ("thread_name", format!(r#""ph":"M","pid":{},"tid":{track}"#, group as u32)),
            };
            self.event(&head, of, json!({ "name": name }))?;
        }
        Ok(())
    }

    fn event(&mut self, head: &str, name: &str, args: Value) -> io::Result<()> {
        let comma = match self.state {
            State::Empty => "",
            State::Open => ",",
            State::Closed => return Ok(()),
        };
        // Through JSON's own rules: names of stages and routes are arbitrary text.
        let line = format!("{comma}{{{head},\"name\":{},\"args\":{args}}}\n", Value::from(name));
        if self.written_bytes + line.len() as u64 > self.largest_bytes {
            self.close()?;
            let message = format!("the trace is full ({} MB) and closed; training continues", self.largest_bytes >> 20);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        self.spool.push_or_flush(line.as_bytes())?;
        self.state = State::Open;
        self.written_bytes += line.len() as u64;
        Ok(())
    }

    fn close(&mut self) -> io::Result<()> {
        if self.state != State::Closed {
            self.spool.push_or_flush(b"]\n")?;
            self.state = State::Closed;
        }
        self.spool.flush(|_| ())
    }

    /// A stretch of a device's time on the log's clock, where it is known how to get there.
    fn on_log(&self, span: TimeSpan) -> Option<TimeSpan> {
        let began_ns = span.began_ns.saturating_add_signed(self.from_devices_ns?);
        Some(TimeSpan { began_ns, ns: span.ns })
    }

    fn step(&mut self, t_ns: u64, [step, wall_ns, wait_ns]: [u64; 3]) -> io::Result<()> {
        let work = self.working.take().filter(|(working, _)| *working == step).and_then(|(_, work)| self.on_log(work));
        let t_ns = work.map_or(t_ns, |work| work.ended_ns());
        let whole = self.slice(TrackGroup::Model, "steps", "step", [t_ns, wall_ns], json!({ "step": step }))?;
        // Without a device's clock the wait comes first; with it, right before the work, which is the last of the step.
        let work_ns = work.map_or(0, |work| work.ns.min(wall_ns));
        let wait_ns = wait_ns.min(wall_ns - work_ns);
        let before_ns = work.map_or(0, |_| wall_ns - work_ns - wait_ns);
        let parts = [("waiting for a batch", before_ns, wait_ns), ("work", before_ns + wait_ns, work_ns)];
        for (name, from_ns, ns) in parts.into_iter().filter(|(.., ns)| *ns > 0) {
            let place = TrackPosition { begin_ns: whole.begin_ns + from_ns, ..whole };
            self.slice_at(place, name, ns, json!({ "step": step }))?;
        }
        Ok(())
    }

    fn stage(&mut self, stage: &str, [t_ns, ns]: [u64; 2], spans: &[TimeSpan], args: Value) -> io::Result<()> {
        let group = if stage == "transfer" { TrackGroup::Links } else { TrackGroup::Data };
        let spans: Option<Vec<TimeSpan>> = spans.iter().map(|span| self.on_log(*span)).collect();
        if let Some(spans) = spans.filter(|spans| !spans.is_empty()) {
            // Over the host the legs of two batches overlap: each leg has its track.
            let is_bounce = spans.len() > 1;
            for (leg, span) in spans.into_iter().enumerate() {
                let track = match (is_bounce, leg) {
                    (false, _) => stage.to_owned(),
                    (true, 0) => format!("{stage} to the host"),
                    (true, _) => format!("{stage} from the host"),
                };
                self.slice(group, &track, stage, [span.ended_ns(), span.ns], args.clone())?;
            }
            return Ok(());
        }
        match stage {
            // Several batches are loaded at once: each is put where there is room.
            "load" => {
                let track = self.tracks.free_lane(TrackGroup::Data, stage, t_ns.saturating_sub(ns));
                self.slice(TrackGroup::Data, &track, stage, [t_ns, ns], args)
            }
            _ => self.slice(group, stage, stage, [t_ns, ns], args),
        }
        .map(drop)
    }
}

impl<W: Write + Send> Exporter for Trace<W> {
    fn name(&self) -> &'static str {
        "trace"
    }

    fn take(&mut self, record: &Record) -> io::Result<()> {
        let t_ns = record.t_ns;
        match &record.event {
            RunEvent::RunStarted { command, version, .. } => {
                let args = json!({ "command": command, "version": version });
                self.instant(TrackGroup::Host, "run", "run started", t_ns, args)
            }
            RunEvent::ArenaReserved { role, card, limit_bytes, .. } => {
                let group = group_of(*role);
                self.tracks.rename(group, format!("{role} role, card {card}, limit {} MB", limit_bytes >> 20));
                self.name_tracks()
            }
            RunEvent::Memory { role, used_bytes, .. } => {
                self.counter(group_of(*role), &format!("memory of the {role} role"), t_ns, *used_bytes)
            }
            RunEvent::ProcessMemory { card, bytes, .. } => {
                self.counter(TrackGroup::Host, &format!("memory of the process on card {card}"), t_ns, *bytes)
            }
            RunEvent::Transfer { route, from, to, bytes, ns } => {
                let track = format!("{route} {from} to {to}");
                self.slice(TrackGroup::Links, &track, "transfer", [t_ns, *ns], json!({ "bytes": bytes })).map(drop)
            }
            RunEvent::Step { step, wall_ns, wait_ns } => self.step(t_ns, [*step, *wall_ns, *wait_ns]),
            RunEvent::DeviceClock { now_ns, .. } => {
                self.from_devices_ns = Some(t_ns.wrapping_sub(*now_ns).cast_signed());
                Ok(())
            }
            RunEvent::StepWork { step, busy_ns, began_ns, .. } => {
                self.working = began_ns.map(|began_ns| (*step, TimeSpan { began_ns, ns: *busy_ns }));
                Ok(())
            }
            RunEvent::Stage { stage, batch, ns, busy_ns, wait_ns, spans } => {
                let (busy_ms, waited_ms) = (millis(*busy_ns), millis(*wait_ns));
                let args = json!({ "batch": batch, "busy_ms": busy_ms, "next_stage_waited_ms": waited_ms });
                self.stage(stage, [t_ns, *ns], spans, args)
            }
            RunEvent::Validation { step, metrics, .. } => {
                let args = json!({ "step": step, "metrics": metrics });
                self.instant(TrackGroup::Model, "validations", "validation", t_ns, args)
            }
            RunEvent::Checkpoint { step, bytes, ns } => {
                let args = json!({ "step": step, "bytes": bytes });
                self.slice(TrackGroup::Model, "checkpoints", "checkpoint", [t_ns, *ns], args).map(drop)
            }
            RunEvent::SampleWritten { step, path, ns, .. } => {
                let args = json!({ "step": step, "path": path });
                self.slice(TrackGroup::Host, "samples", "sample", [t_ns, *ns], args).map(drop)
            }
            RunEvent::Note { text } => self.instant(TrackGroup::Host, "notes", "note", t_ns, json!({ "text": text })),
            RunEvent::RunEnded { exit_code, reason } => {
                let args = json!({ "exit_code": exit_code, "reason": reason });
                self.instant(TrackGroup::Host, "run", "run ended", t_ns, args)
            }
            _ => Ok(()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.spool.flush(|_| ())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.close()
    }
}

fn group_of(role: Role) -> TrackGroup {
    match role {
        Role::Data => TrackGroup::Data,
        Role::Model => TrackGroup::Model,
    }
}

fn millis(ns: u64) -> f64 {
    ns as f64 * 1e-6
}

/// The format counts in microseconds; all nanoseconds are kept.
struct Micros(u64);

impl std::fmt::Display for Micros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

#[cfg(test)]
mod tests;
