//! A campaign: two workers run cases until the time is over.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::case::{CampaignContext, CaseContext};
use crate::command::{CommandSpec, Deadline, OutOfTime};
use crate::fixtures::{Fixtures, VARIANTS};
use crate::kind::{CaseId, Selection, TestKind};
use crate::report::{CampaignReport, FailedCase};
use crate::schedule::{ShareOfTime, next_kind};
use crate::{
    checkpoints, configs, disks, environments, faults, kills, lists, recordings, run_logs, shards, signals, soak,
    speech, tree,
};

/// The share of the campaign that the soak takes, on one of the workers.
const SOAK_SHARE: f64 = 0.25;
/// Commands use two cores at most, and many wait for a disk.
const WORKERS: usize = 2;
/// Folders of failed cases of one cause that are kept. Each may hold some checkpoints.
const MOST_SAVED: usize = 3;
/// A progress line this often.
const PROGRESS: Duration = Duration::from_secs(15);

/// What the command line asks for.
#[derive(Clone, Debug)]
pub(crate) struct CampaignOptions {
    pub(crate) minutes: f64,
    pub(crate) seed: u64,
    pub(crate) tandem: PathBuf,
    pub(crate) only: Selection,
    pub(crate) keep_going: bool,
    /// Where failed cases are saved.
    pub(crate) failures: PathBuf,
}

/// What the workers share.
struct Board {
    shares: Vec<(TestKind, ShareOfTime)>,
    report: CampaignReport,
    spoken: Instant,
}

/// Runs a campaign to its end.
pub(crate) fn run(options: &CampaignOptions, stop: &AtomicBool, say: &(dyn Fn(&str) + Sync)) -> CampaignReport {
    let started = Instant::now();
    let total = Duration::from_secs_f64(options.minutes * 60.0);
    let deadline = Deadline { at: started + total, stop };
    let mut report = CampaignReport { seed: options.seed, minutes: options.minutes, ..CampaignReport::default() };
    let prepared = prepare(options, &mut report, deadline);
    let mut report = match prepared {
        Ok((scratch, context)) => run_cases(options, report, &context, scratch.path(), say),
        Err(error) => {
            report.errors.push(format!("{error:#}"));
            report
        }
    };
    report.wall = started.elapsed();
    report
}

/// Runs cases on all workers until the time is over.
fn run_cases(
    options: &CampaignOptions,
    report: CampaignReport,
    context: &CampaignContext<'_>,
    scratch: &Path,
    say: &(dyn Fn(&str) + Sync),
) -> CampaignReport {
    say(&format!("seed {}, {}, {} minutes", options.seed, report.version, options.minutes));
    let kinds = TestKind::ALL.into_iter().filter(|kind| options.only.includes(*kind));
    let shares = kinds.map(|kind| (kind, share(kind, context, options.only))).collect();
    let board = Mutex::new(Board { shares, report, spoken: Instant::now() });
    let failed = AtomicBool::new(false);
    thread::scope(|scope| {
        for worker in 0..WORKERS {
            let body = || work(options, context, &board, &failed, scratch, say);
            // A worker that cannot be started leaves its cases to the other.
            let _ = thread::Builder::new().name(format!("worker-{worker}")).spawn_scoped(scope, body);
        }
    });
    board.into_inner().unwrap_or_else(PoisonError::into_inner).report
}

/// A scratch folder with a copy of the program, so that a build meanwhile changes nothing, and the fixtures.
fn prepare<'a>(
    options: &CampaignOptions,
    report: &mut CampaignReport,
    deadline: Deadline<'a>,
) -> anyhow::Result<(tempfile::TempDir, CampaignContext<'a>)> {
    use std::os::unix::fs::PermissionsExt;
    let scratch = tempfile::Builder::new().prefix("tandem-campaign-").tempdir()?;
    // Some cases run as another user.
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755))?;
    let tandem = scratch.path().join("tandem");
    fs::copy(&options.tandem, &tandem)
        .with_context(|| format!("--tandem: cannot read {}", options.tandem.display()))?;
    report.sha256 = tree::file_digest(&tandem)?;
    let version = CommandSpec::new("--version").spawn(&tandem, scratch.path(), deadline)?.wait()?;
    report.version = version.out_text().trim().to_owned();
    let fixtures = Fixtures::create(&tandem, &scratch.path().join("fixtures"), deadline)?;
    fixtures.reference(VARIANTS[0], deadline)?;
    let soak = Duration::from_secs_f64((options.minutes * 60.0 * SOAK_SHARE).max(6.0));
    Ok((scratch, CampaignContext { tandem, seed: options.seed, fixtures, deadline, soak }))
}

fn share(kind: TestKind, context: &CampaignContext<'_>, only: Selection) -> ShareOfTime {
    let one = kind == TestKind::Soak || matches!(only, Selection::Case(_));
    let guess = if kind == TestKind::Soak { context.soak } else { Duration::from_secs(3) };
    ShareOfTime { weight: kind.weight(), used: Duration::ZERO, finished: 0, running: 0, most: one.then_some(1), guess }
}

/// Runs cases until no kind has one that fits.
fn work(
    options: &CampaignOptions,
    context: &CampaignContext<'_>,
    board: &Mutex<Board>,
    failed: &AtomicBool,
    scratch: &Path,
    say: &(dyn Fn(&str) + Sync),
) {
    loop {
        if failed.load(Ordering::Relaxed) && !options.keep_going {
            return;
        }
        let Some(id) = take_case(options, context, board) else { return };
        let folder = scratch.join(format!("{}-{}", id.kind.name(), id.number));
        let started = Instant::now();
        let mut case = match CaseContext::new(context, id, folder.clone()) {
            Ok(case) => case,
            Err(error) => {
                lock(board).report.errors.push(format!("{id}: {error:#}"));
                return;
            }
        };
        // A mistake in the campaign is reported with the case that shows it.
        let result = catch_unwind(AssertUnwindSafe(|| body(id.kind)(&mut case)));
        let is_out_of_time = matches!(&result, Ok(Err(error)) if error.is::<OutOfTime>());
        match result {
            Ok(Ok(())) => {}
            Ok(Err(_)) if is_out_of_time => {}
            Ok(Err(error)) => case.fail(format!("the campaign cannot go on: {error:#}")),
            Err(_) => case.fail("the campaign itself panicked"),
        }
        let failure = (!case.failures.is_empty()).then(|| save(options, &case, board));
        let mut board = lock(board);
        let totals = board.report.kinds.entry(id.kind).or_default();
        totals.add(&case.counts);
        totals.wall += started.elapsed();
        totals.cases += u64::from(!is_out_of_time);
        totals.unfinished += u64::from(is_out_of_time);
        totals.failures += u64::from(failure.is_some());
        if let Some((_, share)) = board.shares.iter_mut().find(|(kind, _)| *kind == id.kind) {
            share.running -= 1;
            share.finished += 1;
            share.used += started.elapsed();
        }
        if let Some(failure) = failure {
            failed.store(true, Ordering::Relaxed);
            let signature = failure.signature();
            // One line for each cause.
            if board.report.failures.iter().all(|other| other.signature() != signature) {
                say(&format!("❌ {id}: {}", failure.first_reason()));
            }
            board.report.failures.push(failure);
        }
        if board.spoken.elapsed() > PROGRESS {
            board.spoken = Instant::now();
            say(&progress(&board.report, context.deadline.left()));
        }
        drop(board);
        let _ = fs::remove_dir_all(&folder);
    }
}

/// The next case, by the shares of time.
fn take_case(options: &CampaignOptions, context: &CampaignContext<'_>, board: &Mutex<Board>) -> Option<CaseId> {
    let mut board = lock(board);
    let shares: Vec<ShareOfTime> = board.shares.iter().map(|(_, share)| share.clone()).collect();
    let at = next_kind(&shares, context.deadline.left())?;
    let (kind, share) = &mut board.shares[at];
    let number = match options.only {
        Selection::Case(case) => case.number,
        _ => share.finished + share.running,
    };
    share.running += 1;
    Some(CaseId { kind: *kind, number })
}

fn body(kind: TestKind) -> fn(&mut CaseContext<'_>) -> anyhow::Result<()> {
    match kind {
        TestKind::Recordings => recordings::run,
        TestKind::Lists => lists::run,
        TestKind::Shards => shards::run,
        TestKind::Configs => configs::run,
        TestKind::RunLogs => run_logs::run,
        TestKind::Checkpoints => checkpoints::run,
        TestKind::Speech => speech::run,
        TestKind::Kills => kills::run,
        TestKind::Signals => signals::run,
        TestKind::Disks => disks::run,
        TestKind::Environments => environments::run,
        TestKind::Faults => faults::run,
        TestKind::Soak => soak::run,
    }
}

/// Keeps the folder of a failed case: its inputs, its commands and their output.
fn save(options: &CampaignOptions, case: &CaseContext<'_>, board: &Mutex<Board>) -> FailedCase {
    let id = case.id;
    let mut failure = FailedCase { id, reasons: case.failures.clone(), folder: None };
    let original = options.tandem.display().to_string();
    let copied = case.campaign.tandem.display().to_string();
    failure.reasons.iter_mut().for_each(|reason| *reason = reason.replace(&copied, &original));
    let full = of_the_same_cause(&failure, board) >= MOST_SAVED;
    let folder =
        options.failures.join(format!("seed-{}", options.seed)).join(format!("{}-{}", id.kind.name(), id.number));
    let _ = fs::remove_dir_all(&folder);
    let saved = !full
        && fs::create_dir_all(folder.parent().unwrap_or(&options.failures)).is_ok()
        && (fs::rename(case.folder(), &folder).is_ok() || tree::copy(case.folder(), &folder).is_ok());
    let transcript = format!(
        "# The commands of {id}, in order. They run inside this folder:\n# cd {}\n{}",
        folder.display(),
        case.transcript.replace(&copied, &original)
    );
    if saved && fs::write(folder.join("commands.txt"), transcript).is_ok() {
        failure.folder = Some(folder);
    }
    failure
}

/// How many failures there are of the same cause.
fn of_the_same_cause(failure: &FailedCase, board: &Mutex<Board>) -> usize {
    let signature = failure.signature();
    lock(board).report.failures.iter().filter(|other| other.signature() == signature).count()
}

fn progress(report: &CampaignReport, left: Duration) -> String {
    let cases: u64 = report.kinds.values().map(|totals| totals.cases).sum();
    let inputs: u64 = report.kinds.values().map(|totals| totals.counts.inputs).sum();
    format!("{} s left: {cases} cases, {inputs} inputs, {} failures", left.as_secs(), report.failures.len())
}

fn lock(board: &Mutex<Board>) -> std::sync::MutexGuard<'_, Board> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}
