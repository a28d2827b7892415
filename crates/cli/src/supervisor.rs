//! The supervisor of a run on one machine: starts one process for each rank, forwards signals, and starts all of them again
//! when one was killed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use rustix::process::{Pid, Signal, kill_process};
use tandem_ranks::{RankEnvironment, Token};

use crate::child_process::THIS_PROGRAM;
use crate::exit::{Exit, FAILED};
use crate::interrupts::{ForwardedSignals, Interrupt};
use crate::ranks::{CHOSEN_GPUS, START_ID, SUPERVISED};
use crate::screen::Screen;

/// How often a run is started again by default.
pub(crate) const MAX_RESTARTS: u32 = 3;
/// How long ranks may take to end after one of them has: they notice within seconds, and close their cards.
const LONGEST_END: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// The ranks to start.
pub(crate) struct Supervisor {
    pub(crate) ranks: u32,
    /// The command line of each, without the program.
    pub(crate) words: Vec<OsString>,
    pub(crate) max_restarts: u32,
    /// The command that starts them.
    pub(crate) command: &'static str,
    /// The GPUs that `--mode auto` chose, if it did.
    pub(crate) gpus: Option<String>,
}

/// How the ranks of one start ended.
struct Ended {
    /// By rank.
    statuses: Vec<ExitStatus>,
    interrupt: Option<Interrupt>,
    /// Which of them the supervisor ended, because another had failed. By rank.
    ended_here: Vec<bool>,
}

impl Supervisor {
    /// Runs all ranks to their end. The exit code is rank 0's, or that of the rank that failed.
    pub(crate) fn run(&self, screen: &Screen) -> Result<ExitCode, Exit> {
        let signals = ForwardedSignals::listen().context("cannot listen for Ctrl-C")?;
        let start_id = random_hex().context("cannot read random numbers")?;
        for restart in 0.. {
            let ended =
                RankProcesses::start(self, restart, &start_id).context("cannot start the ranks")?.wait(&signals)?;
            let Some((rank, signal)) = ended.killed().filter(|_| ended.interrupt.is_none()) else {
                return self.report(ended.exit_code());
            };
            if restart >= self.max_restarts {
                let restarts = if restart == 1 { "restart".to_owned() } else { format!("{restart} restarts") };
                return Err(Exit::Failed(anyhow!(
                    "rank {rank} was killed by signal {signal}, and the run has used its {restarts}. To resume it from \
                     the newest checkpoint, type the same command again{}",
                    self.without_start_flags()
                )));
            }
            let (next, most) = (restart + 1, self.max_restarts);
            screen.warn(&format!(
                "rank {rank} was killed by signal {signal}: starting all ranks again from the newest checkpoint (restart {next} of {most})"
            ));
        }
        unreachable!("restarts are counted")
    }

    /// Ends with this exit code. The rank that failed has printed its error; only the JSON document is left to print.
    fn report(&self, code: u8) -> Result<ExitCode, Exit> {
        let is_json = self.words.iter().any(|word| word == "--json");
        let message = format!("❌ a rank ended with exit code {code}; its messages are on standard error");
        match code {
            1 if is_json => Err(Exit::Failed(anyhow!("{}", message.trim_start_matches("❌ ")))),
            2 if is_json => Err(Exit::Usage(message)),
            _ => Ok(ExitCode::from(code)),
        }
    }

    /// What to leave out of a command line that is typed again: these flags would start the run again from there.
    fn without_start_flags(&self) -> &'static str {
        let starts = |word: &OsString| ["--reset-training", "--resume"].iter().any(|flag| word == flag);
        if self.words.iter().any(starts) { " without --reset-training and --resume" } else { "" }
    }
}

/// The processes of one start. Dropping it ends them.
struct RankProcesses {
    /// By rank.
    children: Vec<Child>,
}

impl RankProcesses {
    fn start(supervisor: &Supervisor, restart: u32, start_id: &str) -> io::Result<RankProcesses> {
        // Bound here, so that no other process can take the port before rank 0 listens.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let token = Token::new(random_hex()?).map_err(io::Error::other)?;
        let mut processes = RankProcesses { children: Vec::new() };
        let mut socket = Some(Stdio::from(OwnedFd::from(listener)));
        for rank in 0..supervisor.ranks {
            let mut command = Command::new(THIS_PROGRAM);
            command.arg0("tandem").args(&supervisor.words);
            let environment = RankEnvironment::local(rank, supervisor.ranks, port, restart, Some(token.clone()));
            command.envs(environment.variables()).env(SUPERVISED, supervisor.command).env(START_ID, start_id);
            command.envs(supervisor.gpus.iter().map(|gpus| (CHOSEN_GPUS, gpus)));
            // A group of its own: Ctrl-C in a terminal reaches the supervisor alone, which forwards it once.
            command.process_group(0).stdin(socket.take().unwrap_or_else(Stdio::null));
            processes.children.push(command.spawn()?);
        }
        Ok(processes)
    }

    /// Waits for all of them. Forwards signals; ends those that outlive another for too long.
    fn wait(mut self, signals: &ForwardedSignals) -> Result<Ended, Exit> {
        let mut interrupt = None;
        let mut first_end: Option<Instant> = None;
        let mut ended_here = vec![false; self.children.len()];
        loop {
            let statuses = self.statuses().context("cannot wait for the ranks")?;
            if statuses.iter().all(Option::is_some) {
                return Ok(Ended { statuses: statuses.into_iter().flatten().collect(), interrupt, ended_here });
            }
            // Every one of them: the second Ctrl-C ends ranks at once.
            if let Some(signal) = signals.take() {
                self.send(&statuses, signal_of(signal));
                interrupt = Some(signal);
            }
            // A run that stops on request takes as long as its checkpoint.
            if interrupt.is_none() && statuses.iter().flatten().any(|status| !status.success()) {
                let since = *first_end.get_or_insert_with(Instant::now);
                if since.elapsed() > LONGEST_END {
                    ended_here.iter_mut().zip(&statuses).for_each(|(ended, status)| *ended |= status.is_none());
                    self.send(&statuses, Signal::KILL);
                }
            }
            thread::sleep(POLL);
        }
    }

    /// How each has ended, as far as it has.
    fn statuses(&mut self) -> io::Result<Vec<Option<ExitStatus>>> {
        self.children.iter_mut().map(Child::try_wait).collect()
    }

    /// Sends a signal to those that still run.
    fn send(&self, statuses: &[Option<ExitStatus>], signal: Signal) {
        for (child, _) in self.children.iter().zip(statuses).filter(|(_, status)| status.is_none()) {
            // One that has just ended needs none.
            let _ = Pid::from_raw(child.id() as i32).map(|pid| kill_process(pid, signal));
        }
    }
}

impl Drop for RankProcesses {
    fn drop(&mut self) {
        for child in &mut self.children {
            if let Ok(None) = child.try_wait() {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

impl Ended {
    /// The first rank that somebody else's signal has ended, and the signal.
    fn killed(&self) -> Option<(usize, i32)> {
        let others =
            self.statuses.iter().zip(&self.ended_here).enumerate().filter(|(_, (_, ended_here))| !**ended_here);
        others.map(|(rank, (status, _))| (rank, status)).find_map(|(rank, status)| Some((rank, status.signal()?)))
    }

    /// The exit code of the first rank that failed; of those that stopped on request, if none did; else 0.
    fn exit_code(&self) -> u8 {
        let code = |status: &ExitStatus| match (status.code(), status.signal()) {
            (Some(code), _) => code as u8,
            (None, Some(signal)) => 128 + signal as u8,
            (None, None) => FAILED,
        };
        let codes: Vec<u8> = self.statuses.iter().map(code).filter(|code| *code != 0).collect();
        codes.iter().find(|code| **code < 128).or(codes.first()).copied().unwrap_or(0)
    }
}

fn signal_of(interrupt: Interrupt) -> Signal {
    match interrupt {
        Interrupt::CtrlC => Signal::INT,
        Interrupt::Terminated => Signal::TERM,
        Interrupt::HungUp => Signal::HUP,
    }
}

/// 128 random bits. As a token: other users of the machine cannot join the run.
fn random_hex() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The command line of this process, without the program.
pub(crate) fn own_words() -> Vec<OsString> {
    std::env::args_os().skip(1).collect()
}

/// Whether a command can be run by several ranks.
pub(crate) fn is_rank_command(word: &OsStr) -> bool {
    word == "train"
}
