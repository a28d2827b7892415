//! Checks of two cards in child processes of this program. A check that crashes, faults or hangs fails alone: the next ones
//! run in a new process.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tandem_bench::pair::PairCheck;
use tandem_device::transfer::Measured;
use tandem_device::{DeviceError, DeviceKind, Machine, Route};
use tandem_launch::inventory::Inventory;
use tandem_launch::route_proof::{RouteProof, RouteProver};

use crate::args::PlanArgs;
use crate::check_pair::{self, CheckLine};
use crate::child_process::{ChildOutput, ChildProcess};
use crate::ranks;

/// Routes of simulated cards are proven in child processes, too, if it is set. A number is the deadline in seconds.
const PROVE_IN_CHILD: &str = "TANDEM_PROVE_IN_CHILD";
/// The longest for one check, and for a process to open its cards. The driver of many cards takes seconds to start.
const DEADLINE: Duration = Duration::from_secs(30);

/// Runs checks in child processes.
#[derive(Clone)]
pub(crate) struct PairChecks {
    /// The value of `--sim`.
    sim: Option<String>,
    deadline: Duration,
}

/// Why a process got no further.
struct Failure {
    reason: String,
    /// It had started a check.
    has_started: bool,
}

/// Surveys the machine for a command. Routes between real cards are proven in child processes.
pub(crate) fn survey(args: &PlanArgs) -> Result<Inventory, DeviceError> {
    let mut inventory = Inventory::survey(args.sim.clone())?;
    inventory.hardware.ranks_share_cards = ranks::share_cards();
    let is_real = inventory.hardware.kind == DeviceKind::Cuda;
    match is_real || std::env::var_os(PROVE_IN_CHILD).is_some() {
        true => Ok(inventory.with_prover(Arc::new(PairChecks::of(args)))),
        false => Ok(inventory),
    }
}

impl PairChecks {
    pub(crate) fn of(args: &PlanArgs) -> PairChecks {
        let given = std::env::var(PROVE_IN_CHILD).ok().and_then(|text| text.parse().ok());
        PairChecks { sim: args.sim_text.clone(), deadline: given.map_or(DEADLINE, Duration::from_secs) }
    }

    /// Runs each of `checks` from the first card of `proof` to the second, and returns its figures, or why it has none, in
    /// the same order.
    pub(crate) fn run(
        &self,
        machine: &Machine,
        proof: &RouteProof,
        checks: &[PairCheck],
    ) -> Vec<Result<Value, String>> {
        let mut waiting: VecDeque<PairCheck> = checks.iter().copied().collect();
        let mut results = Vec::with_capacity(checks.len());
        while !waiting.is_empty() {
            if let Err(Failure { reason, has_started }) = self.run_in_one(machine, proof, &mut waiting, &mut results) {
                // A process that reached no check would reach none in a second attempt.
                let failed = if has_started { 1 } else { waiting.len() };
                results.extend(waiting.drain(..failed).map(|_| Err(reason.clone())));
            }
        }
        results
    }

    /// Runs checks in one process, as far as it gets. The failure is that of the first check that still waits.
    fn run_in_one(
        &self,
        machine: &Machine,
        proof: &RouteProof,
        waiting: &mut VecDeque<PairCheck>,
        results: &mut Vec<Result<Value, String>>,
    ) -> Result<(), Failure> {
        let mut has_started = false;
        let failure = |has_started, reason| Failure { reason, has_started };
        let broken = |error: io::Error| failure(false, format!("cannot start the child process: {error}"));
        let mut child = ChildProcess::start(self.words(machine, proof, waiting)).map_err(broken)?;
        while !waiting.is_empty() {
            match child.next(self.deadline).map_err(broken)? {
                ChildOutput::Line(line) => match check_pair::parse_line(&line) {
                    Some(CheckLine::Started) => has_started = true,
                    Some(CheckLine::Ended { result, is_last }) => {
                        waiting.pop_front();
                        results.push(result);
                        if is_last {
                            // It cannot use its cards any more, and may hang while it closes them.
                            return Ok(());
                        }
                    }
                    None => {}
                },
                ChildOutput::Ended(how) => {
                    return Err(failure(has_started, format!("the child process that tried it ended with {how}")));
                }
                ChildOutput::Nothing => {
                    let seconds = self.deadline.as_secs();
                    let reason =
                        format!("the child process that tried it did not answer within {seconds} s and was killed");
                    return Err(failure(has_started, reason));
                }
            }
        }
        child.finish();
        Ok(())
    }

    fn words(&self, machine: &Machine, proof: &RouteProof, checks: &VecDeque<PairCheck>) -> Vec<String> {
        let uuid = |card: usize| machine.cards()[card].uuid.as_str();
        let mut words = vec![check_pair::NAME.to_owned()];
        let numbers = [proof.batch_bytes.to_string(), proof.slots.to_string()];
        let flags = [("--from", uuid(proof.from)), ("--to", uuid(proof.to))];
        let flags = flags.into_iter().chain([("--bytes", numbers[0].as_str()), ("--slots", &numbers[1])]);
        for (flag, value) in flags.chain(self.sim.as_deref().map(|spec| ("--sim", spec))) {
            words.extend([flag.to_owned(), value.to_owned()]);
        }
        words.extend(checks.iter().map(|check| check.name().to_owned()));
        words
    }
}

impl RouteProver for PairChecks {
    fn prove(&self, machine: &Machine, proof: &RouteProof, routes: &[Route]) -> Vec<Result<Measured, String>> {
        let checks: Vec<PairCheck> = routes.iter().copied().map(PairCheck::Route).collect();
        let measured = |figures: Value| {
            let (bytes, ns) = (figures["bytes"].as_u64(), figures["ns"].as_u64());
            bytes.zip(ns).map(|(bytes, ns)| Measured { bytes, ns }).ok_or_else(|| format!("it answered {figures}"))
        };
        self.run(machine, proof, &checks).into_iter().map(|result| result.and_then(measured)).collect()
    }
}

#[cfg(test)]
mod tests {
    use tandem_device::SimSpec;

    use super::*;

    #[test]
    fn a_process_that_reaches_no_check_is_started_once() {
        // The program of a unit test does not know the command.
        let checks = PairChecks { sim: Some("2x24GiB".to_owned()), deadline: Duration::from_secs(60) };
        let machine = Machine::simulated(SimSpec::new(2, 24 << 30));
        let proof = RouteProof { from: 0, to: 1, batch_bytes: 4096, slots: 1 };
        let results = checks.run(&machine, &proof, &PairCheck::ALL);
        let first = results[0].clone().unwrap_err();
        assert!(first.starts_with("the child process that tried it ended with exit code "), "{first}");
        assert!(results.len() == PairCheck::ALL.len() && results.iter().all(|result| *result == Err(first.clone())));
    }
}
