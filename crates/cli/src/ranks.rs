//! The part of this process in a training run: all of it, one rank of several, or the supervisor of the ranks.

use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Signal, set_parent_process_death_signal};
use tandem_checkpoint::{Checkpoint, Fingerprint, RANKS};
use tandem_device::{Communicator, DeviceKind};
use tandem_launch::inventory::Inventory;
use tandem_plan::setting::Id;
use tandem_plan::{Plan, Settings, num_ranks};
use tandem_ranks::{Group, JoinOptions, RankEnvironment, RankError, World};

use crate::args::PlanArgs;
use crate::child_process::THIS_PROGRAM;
use crate::exit::Exit;
use crate::supervisor::own_words;
use crate::train::exit_of;

/// Set by the supervisor for its ranks: the command that started it.
pub(crate) const SUPERVISED: &str = "TANDEM_SUPERVISED";
/// Its value for `tandem launch`.
pub(crate) const BY_LAUNCH: &str = "launch";
/// Set by the supervisor if `--mode auto` chose the GPUs: its ranks do not measure again.
pub(crate) const CHOSEN_GPUS: &str = "TANDEM_CHOSEN_GPUS";
/// Set by the supervisor: the same for all restarts of a run.
pub(crate) const START_ID: &str = "TANDEM_START_ID";
/// The file that notes it.
const STARTED: &str = "started";
/// For tests on a machine with one GPU: ranks may share it (`--gpus 0,0`). NCCL takes them for ranks on different machines.
const SHARE_CARDS: &str = "TANDEM_RANKS_SHARE_GPU";

/// How long ranks wait for each other before the first step. Rank 0 measures a large corpus for hours, and heartbeats show that
/// it is alive.
const LONGEST_PREPARATION: Duration = Duration::from_secs(7 * 24 * 3600);

/// How this process takes part in a run.
pub(crate) enum RunPart {
    /// It is the only one.
    Alone,
    /// It is one of several ranks.
    Rank(Arc<Group>),
    /// It starts this many ranks and waits for them.
    Supervisor(u32),
}

/// The arguments of this process as one of several: with the GPUs that `--mode auto` chose in its supervisor, and, when a
/// launcher starts it again, without the flags that would throw away what the run has done since.
pub(crate) fn arguments_of_rank(args: &PlanArgs) -> Result<PlanArgs, Exit> {
    let mut settings = args.settings.clone();
    if let Ok(gpus) = std::env::var(CHOSEN_GPUS) {
        settings = settings.without(&[Id::Mode]).with_measured(&[("gpus", gpus)])?;
    }
    if environment()?.is_some_and(|environment| environment.restart > 0) {
        settings = continued(&settings);
    }
    Ok(PlanArgs { settings, ..args.clone() })
}

/// The settings of a run that continues after a restart. `--reset-training` and `--resume` are left out once this start of the run
/// has done them, and not before.
fn continued(settings: &Settings) -> Settings {
    let folder = PathBuf::from(settings.text(Id::CheckpointDir).unwrap_or_default());
    let done = std::fs::read_to_string(folder.join(RANKS).join(STARTED)).ok();
    match done.is_some() && done == std::env::var(START_ID).ok() {
        true => settings.without(&[Id::ResetTraining, Id::Resume]),
        false => settings.clone(),
    }
}

/// Notes in the run folder that `--reset-training` and `--resume` are done: a restart must not repeat them.
pub(crate) fn note_start(run: &Path) {
    let Ok(id) = std::env::var(START_ID) else { return };
    let folder = run.join(RANKS);
    // Without the note a restart does what was typed again, and loses nothing: an earlier run is moved aside, not removed.
    let _ = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(folder.join(STARTED), id));
}

/// The part of this process, by its environment and by `--gpus`. A rank has joined the others when this returns.
pub(crate) fn part(args: &PlanArgs, inventory: &Inventory) -> Result<RunPart, Exit> {
    // One rank alone is a run like any other.
    let Some(environment) = environment()?.filter(|environment| environment.world.size > 1) else {
        let count = num_ranks(&args.settings, &inventory.hardware);
        return Ok(match count.map_err(|refusal| Exit::Refused(Box::new(refusal)))? {
            1 => RunPart::Alone,
            count => RunPart::Supervisor(count),
        });
    };
    if inventory.hardware.kind == DeviceKind::Cuda {
        restart_with_nccl_variables(&environment)?;
    }
    let is_supervised = std::env::var_os(SUPERVISED).is_some();
    if is_supervised {
        // A supervisor that was killed cannot stop its ranks any more.
        set_parent_process_death_signal(Some(Signal::TERM)).context("cannot follow the supervisor")?;
    }
    let listener = (is_supervised && environment.world.rank == 0).then(inherited_listener).transpose();
    let listener = listener.context("cannot use the socket of the supervisor")?;
    let options = JoinOptions { collective_timeout: LONGEST_PREPARATION, listener, ..JoinOptions::default() };
    let version = version().context("cannot read this program")?;
    Group::join(&environment, &version, options).map(|group| RunPart::Rank(Arc::new(group))).map_err(exit_of_ranks)
}

/// Whether ranks may share a GPU.
pub(crate) fn share_cards() -> bool {
    std::env::var_os(SHARE_CARDS).is_some()
}

/// Starts this process again, in place, with the variables that NCCL needs, unless they are set: a process with threads must not
/// change its own environment.
fn restart_with_nccl_variables(environment: &RankEnvironment) -> Result<(), Exit> {
    // On one machine the ranks meet at its own address, which others cannot reach.
    let local = environment.is_loopback_only().then_some(("NCCL_SOCKET_IFNAME", "lo"));
    let host = share_cards().then(|| ("NCCL_HOSTID", format!("tandem-{}", environment.world.rank)));
    let needed = Communicator::required_environment().iter().copied().chain(local);
    let needed = needed.map(|(name, value)| (name, value.to_owned())).chain(host);
    let missing: Vec<_> = needed.filter(|(name, _)| std::env::var_os(name).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let error = Command::new(THIS_PROGRAM).arg0("tandem").args(own_words()).envs(missing).exec();
    Err(Exit::Failed(anyhow::Error::new(error).context("cannot start this program again with the variables of NCCL")))
}

/// What the launcher says about this process; `None` if it is not one of several.
pub(crate) fn environment() -> Result<Option<RankEnvironment>, Exit> {
    let read = RankEnvironment::read(|name| std::env::var(name).ok());
    read.map_err(|error| Exit::Usage(format!("❌ {error}")))
}

/// The command of a run like this one: `tandem train`, or `tandem launch` as it was typed.
pub(crate) fn train_command(world: World) -> String {
    match std::env::var_os(SUPERVISED).is_some_and(|by| by == BY_LAUNCH) {
        true => format!("tandem launch -n {} train", world.size),
        false => "tandem train".to_owned(),
    }
}

/// Whether another process prints the result of this one: a supervisor, or rank 0.
pub(crate) fn is_one_of_several() -> bool {
    std::env::var_os(SUPERVISED).is_some() || other_rank().is_some()
}

/// The number of this process if it is not rank 0, for the prefix of its lines.
pub(crate) fn other_rank() -> Option<u32> {
    let world = environment().ok().flatten()?.world;
    (world.size > 1 && world.rank > 0).then_some(world.rank)
}

/// The supervisor binds the socket before it starts anything, and hands it over as standard input, as inetd does.
fn inherited_listener() -> io::Result<TcpListener> {
    let listener = TcpListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    // Another kind of file has no address.
    listener.local_addr().map(|_| listener)
}

/// The version and a hash of the program: ranks of different builds need not compute the same bits.
fn version() -> io::Result<String> {
    let mut fingerprint = Fingerprint::new();
    fingerprint.take_bytes(&std::fs::read(THIS_PROGRAM)?);
    Ok(format!("{} ({})", env!("CARGO_PKG_VERSION"), fingerprint.hex()))
}

/// Wrong usage (exit code 2) or a failure (exit code 1).
pub(crate) fn exit_of_ranks(error: RankError) -> Exit {
    match error {
        RankError::Refused { .. } | RankError::Different { .. } => Exit::Usage(format!("❌ {error}")),
        error => Exit::Failed(error.into()),
    }
}

/// Rank 0 does `work` first, the others after it: it generates and measures what they then read.
pub(crate) fn first_rank_first<T>(group: Option<&Group>, work: impl FnOnce() -> Result<T, Exit>) -> Result<T, Exit> {
    let Some(group) = group else { return work() };
    if group.world().rank > 0 {
        group.barrier("preparation").map_err(exit_of_ranks)?;
        return work();
    }
    let done = work()?;
    group.barrier("preparation").map_err(exit_of_ranks)?;
    Ok(done)
}

/// The checkpoint that rank 0 resumes from, on every rank.
pub(crate) fn same_checkpoint(group: &Group, own: Option<Checkpoint>) -> Result<Option<Checkpoint>, Exit> {
    let mine = own.as_ref().map(|checkpoint| std::path::absolute(&checkpoint.path)).transpose();
    let mine = mine.context("cannot find the checkpoint")?.map(PathBuf::into_os_string);
    let mine = mine.map(std::os::unix::ffi::OsStringExt::into_vec).unwrap_or_default();
    let path = group.broadcast("checkpoint to resume from", mine).map_err(exit_of_ranks)?;
    if group.world().rank == 0 || path.is_empty() {
        return Ok(own);
    }
    let path = PathBuf::from(<std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(path));
    let shared = "the run folder must be on a disk that all ranks can read";
    Checkpoint::open(path).map(Some).map_err(|error| exit_of(shared, error))
}

/// What the ranks of a run do, in one line.
pub(crate) fn describe(plan: &Plan) -> Option<String> {
    let World { size, .. } = plan.world;
    let (all, own) = (plan.grad_accum, plan.local_micro_batches());
    let how = if plan.simulated || plan.model.card.is_none() { "over TCP" } else { "by NCCL" };
    let each = if own == 1 { "one".to_owned() } else { own.to_string() };
    (size > 1).then(|| {
        format!("   Data parallel: {size} ranks, {all} micro-batches a step, {each} on each rank; gradients are summed {how}")
    })
}
