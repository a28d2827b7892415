//! `bench modes`: every mode of this machine on one corpus in one run, and which one `--mode auto` would take.

use tandem_plan::setting::Id;
use tandem_plan::{Hardware, Mode, Refusal, SettingError, Settings};

use crate::auto_mode::{
    Candidate, CandidateResult, Choice, Contest, Seen, StepRate, TimedRunError, TimedRuns, candidates,
};

/// Modes and how they went.
#[derive(Clone, Debug)]
pub struct ModesReport {
    /// Each of them.
    pub rows: Vec<ModeRow>,
    /// What `--mode auto` would take: its place among the rows.
    pub taken: Option<usize>,
}

/// One mode.
#[derive(Clone, Debug)]
pub struct ModeRow {
    /// Which.
    pub candidate: Candidate,
    /// Whether its limits were hard ones.
    pub is_isolated: bool,
    /// What was seen, or why it cannot be.
    pub seen: Result<Seen, String>,
}

impl ModeRow {
    /// How fast it is.
    pub fn rate(&self) -> Option<StepRate> {
        self.seen.as_ref().ok().map(|seen| seen.rate)
    }
}

impl ModesReport {
    /// The fastest pace.
    pub fn best(&self) -> f64 {
        self.rows.iter().filter_map(ModeRow::rate).map(|rate| rate.steps_per_s).fold(0.0, f64::max)
    }

    /// What hard limits leave of the pace of the same mode without: of row `at`, if it has such limits.
    pub fn of_open(&self, at: usize) -> Option<f64> {
        let row = self.rows.get(at).filter(|row| row.is_isolated)?;
        let is_same = |other: &&ModeRow| !other.is_isolated && other.candidate.is_same_place(&row.candidate);
        let open = self.rows.iter().find(is_same)?.rate()?;
        Some(row.rate()?.steps_per_s / open.steps_per_s)
    }
}

/// The modes of a machine: the CPU, those with cards, and those of them that can have hard limits, with hard limits.
pub fn field(settings: &Settings, hardware: &Hardware) -> Result<Vec<Candidate>, Refusal> {
    let open = settings.without(&[Id::EnableMemoryIsolation, Id::DataGpuMemory, Id::ModelGpuMemory]);
    let field = candidates(&open, hardware)?;
    let mut all: Vec<Candidate> = field.last.into_iter().chain(field.others).collect();
    if !hardware.cards.is_empty() {
        all.extend(candidates(&isolated(settings).map_err(unusable)?, hardware)?.others);
    }
    Ok(all)
}

/// With hard limits: the ones that were given, or those that are found for the cards.
fn isolated(settings: &Settings) -> Result<Settings, SettingError> {
    let mut isolated = settings.with(&[("enable-memory-isolation", "")])?;
    for id in [Id::DataGpuMemory, Id::ModelGpuMemory] {
        if settings.given(id).is_none() {
            isolated = isolated.with(&[(id.setting().flag, "auto")])?;
        }
    }
    // Where the roles run is what the field is about.
    Ok(isolated.without(&[Id::DataGpu, Id::ModelGpu, Id::Gpu, Id::ShareGpu]))
}

fn unusable(error: SettingError) -> Refusal {
    let message = format!("❌ {error}");
    Refusal { kind: tandem_plan::Reason::Usage, message, demands: Vec::new(), suggestions: Vec::new() }
}

/// Times all of them, each once per round; `on_progress` is called as each ends.
pub fn run(
    field: Vec<Candidate>,
    timed_runs: &mut TimedRuns<'_>,
    rounds: usize,
    on_progress: &mut dyn FnMut(&str),
) -> ModesReport {
    let mut all: Vec<(Candidate, Seen)> = Vec::new();
    let mut time = |candidate: &Candidate| {
        let seen = timed_runs.run(candidate).map_err(|error: TimedRunError| error.to_string());
        on_progress(&match &seen {
            Ok(seen) => format!("{}: {:.2} steps/s", candidate.name(), seen.rate.steps_per_s),
            Err(why) => format!("{}: {why}", candidate.name()),
        });
        let seen = seen?;
        all.push((candidate.clone(), seen));
        Ok(seen.rate)
    };
    let entries = Contest { time: &mut time, check: &mut |_| Ok(()), rounds }.compare(field);
    let of_entry = |entry: &CandidateResult| {
        let found = all.iter().find(|(candidate, seen)| {
            *candidate == entry.candidate && Some(seen.rate.steps_per_s) == entry.steps_per_s()
        });
        let seen = found.map(|(_, seen)| *seen).ok_or_else(|| entry.why().unwrap_or_default());
        let is_isolated = entry.candidate.settings.switch(Id::EnableMemoryIsolation);
        ModeRow { candidate: entry.candidate.clone(), is_isolated, seen }
    };
    let rows: Vec<ModeRow> = entries.iter().map(of_entry).collect();
    ModesReport { taken: taken(&rows, &entries), rows }
}

/// What would be taken: of those without hard limits, which nobody gets unasked, and the CPU only where nothing else is.
fn taken(rows: &[ModeRow], entries: &[CandidateResult]) -> Option<usize> {
    let is_in = |row: &ModeRow| !row.is_isolated && row.candidate.mode != Mode::Cpu && row.seen.is_ok();
    let places: Vec<usize> = (0..rows.len()).filter(|at| is_in(&rows[*at])).collect();
    let cpu = || rows.iter().position(|row| row.candidate.mode == Mode::Cpu && row.seen.is_ok());
    let among: Vec<CandidateResult> = places.iter().map(|at| entries[*at].clone()).collect();
    Choice::pick(&among).map(|at| places[at]).or_else(cpu)
}

#[cfg(test)]
mod tests {
    use tandem_device::{Machine, SimSpec};

    use super::*;
    use tandem_launch::inventory::Inventory;

    fn row(candidate: &Candidate, steps_per_s: f64) -> ModeRow {
        let pace = StepRate { steps_per_s, low: steps_per_s, high: steps_per_s, steps: 4 };
        let is_isolated = candidate.settings.switch(Id::EnableMemoryIsolation);
        ModeRow {
            candidate: candidate.clone(),
            is_isolated,
            seen: Ok(Seen { rate: pace, used_bytes: [1, 2], busy: None, num_parameters: 1 }),
        }
    }

    #[test]
    fn hard_limits_are_held_against_the_same_mode_without() {
        let hardware = Inventory::of(Machine::simulated(SimSpec::new(2, 24 << 30))).unwrap().hardware;
        let settings = Settings::new().with(&[("mode", "auto")]).unwrap();
        let field = field(&settings, &hardware).unwrap();
        let names: Vec<String> = field.iter().map(Candidate::name).collect();
        let expected = [
            "cpu",
            "single, GPU 0",
            "shared, GPU 0",
            "dual, GPU 1 to GPU 0",
            "data parallel, GPU 0,1",
            "shared, GPU 0, isolated",
            "dual, GPU 1 to GPU 0, isolated",
            "data parallel, GPU 0,1, isolated",
        ];
        assert_eq!(names, expected);
        let paces = [1.0, 50.0, 40.0, 60.0, 80.0, 38.0, 60.0, 72.0];
        let rows = field.iter().zip(paces).map(|(candidate, pace)| row(candidate, pace)).collect();
        let report = ModesReport { rows, taken: None };
        assert_eq!(report.best(), 80.0);
        let of_open: Vec<Option<f64>> = (0..8).map(|at| report.of_open(at)).collect();
        assert_eq!(of_open, [None, None, None, None, None, Some(0.95), Some(1.0), Some(0.9)]);
    }
}
