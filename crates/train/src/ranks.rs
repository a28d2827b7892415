//! What the ranks of a data-parallel run share in a step: how much speech it has, before it runs; gradients; losses; and
//! proof that all of them hold the same weights.
//!
//! Every rank trains on its own micro-batches and keeps a whole model. Before a step the ranks add up frames and tokens, so
//! that each scales its losses by those of the whole step. Gradients are added in the order of ranks, then every rank
//! updates its own weights, to the same bits. The host is up to two steps ahead of the device when it waits here for the others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tandem_device::Communicator;
use tandem_engine::{ParameterSpan, Session};
use tandem_feed::Replacements;
use tandem_ranks::{Group, World};

use crate::error::TrainError;
use crate::step_inputs::StepCounts;

/// What a rank asks for before a step. One rank that asks is enough, and all of them do it after the same step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepWishes {
    /// End the run after this step.
    pub stop: bool,
    /// Write a checkpoint after this step.
    pub checkpoint: bool,
}

/// Gradients are summed in pieces of this size: NCCL connects them into one pipeline, and a piece fills it.
const BUCKET_BYTES: u64 = 32 << 20;
/// How often a rank that waits for gradients looks whether the others are still there.
const POLL: Duration = Duration::from_millis(50);

/// The other ranks, as the step loop sees them.
pub struct Ranks {
    group: Arc<Group>,
    /// Sums gradients on the cards; `None` where the host does.
    communicator: Option<Communicator>,
    agreed: StepWishes,
    /// The rank that has no batches for the next step.
    failed: Option<usize>,
    /// How long this rank has waited for the others since the last exchange.
    waited_ns: u64,
    /// How long each rank waited in the step before.
    waits_ns: Vec<u64>,
}

/// A rank's part of the exchange before a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StepNotice {
    step: u64,
    counts: StepCounts,
    wishes: StepWishes,
    /// Whether the rank has no batches for this step.
    failed: bool,
    waited_ns: u64,
}

/// A rank's part of a checkpoint.
#[derive(Serialize, Deserialize)]
struct CheckpointNotice {
    step: u64,
    weights: String,
    replacements: Replacements,
}

impl Ranks {
    /// The ranks of `group`. Their gradients are summed by `communicator`, or else on the host.
    pub fn new(group: Arc<Group>, communicator: Option<Communicator>) -> Ranks {
        Ranks { group, communicator, agreed: StepWishes::default(), failed: None, waited_ns: 0, waits_ns: Vec::new() }
    }

    /// This rank, and how many there are.
    pub fn world(&self) -> World {
        self.group.world()
    }

    /// What all ranks do after the step that was begun last.
    pub(crate) fn agreed(&self) -> StepWishes {
        self.agreed
    }

    /// How long each rank waited for the others in the step before.
    pub(crate) fn waits_ns(&self) -> &[u64] {
        &self.waits_ns
    }

    /// Adds up `counts` over all ranks, and agrees on wishes.
    pub(crate) fn begin_step(
        &mut self,
        step: u64,
        counts: StepCounts,
        wishes: StepWishes,
    ) -> Result<StepCounts, TrainError> {
        self.exchange(StepNotice { step, counts, wishes, failed: false, waited_ns: self.waited_ns })
    }

    /// Tells the others, in place of [`begin_step`](Ranks::begin_step), that this rank has no batches for the step.
    pub(crate) fn fail_step(&mut self, step: u64) -> Result<(), TrainError> {
        let (counts, wishes) = Default::default();
        self.exchange(StepNotice { step, counts, wishes, failed: true, waited_ns: self.waited_ns }).map(drop)
    }

    /// The rank that has no batches for the step that was begun last.
    pub(crate) fn failed(&self) -> Option<usize> {
        self.failed
    }

    fn exchange(&mut self, mine: StepNotice) -> Result<StepCounts, TrainError> {
        let step = mine.step;
        self.waited_ns = 0;
        let mine = mine.to_bytes();
        let notices = self.timed(|group| Ok(group.all_gather("the next step", &mine)?))?;
        let notices: Vec<StepNotice> = notices.iter().map(|bytes| StepNotice::read(bytes)).collect::<Result<_, _>>()?;
        if let Some((rank, other)) = notices.iter().enumerate().find(|(_, notice)| notice.step != step) {
            let (own, found) = (self.world().rank, other.step);
            return Err(TrainError::RanksDiffer {
                rank,
                detail: format!("it is at step {found}, rank {own} at {step}"),
            });
        }
        self.agreed = StepWishes {
            stop: notices.iter().any(|notice| notice.wishes.stop),
            checkpoint: notices.iter().any(|notice| notice.wishes.checkpoint),
        };
        self.failed = notices.iter().position(|notice| notice.failed);
        self.waits_ns = notices.iter().map(|notice| notice.waited_ns).collect();
        Ok(notices.iter().fold(StepCounts::default(), |sum, notice| sum.plus(notice.counts)))
    }

    /// Replaces the gradients by their sum over all ranks: queued on the device, or on the host, which waits for the device.
    pub(crate) fn reduce_gradients(&mut self, session: &Session) -> Result<(), TrainError> {
        if let Some(communicator) = &self.communicator {
            let gradients = session.span_view(ParameterSpan::Gradients);
            return Ok(communicator.all_reduce(session.stream(), gradients, BUCKET_BYTES)?);
        }
        let mut gradients: Vec<f32> = session.read_span(ParameterSpan::Gradients)?;
        self.timed(|group| Ok(group.all_reduce("the sum of gradients", &mut gradients)?))?;
        Ok(session.write_span(ParameterSpan::Gradients, &gradients)?)
    }

    /// Replaces the loss sums of this rank's batches by those of the whole step.
    pub(crate) fn reduce_losses(&mut self, sums: &mut [f32]) -> Result<(), TrainError> {
        self.timed(|group| Ok(group.all_reduce("the losses of a step", sums)?))
    }

    /// Checks that all ranks are at `step` with the same `weights`, and gathers the replacements of all of them.
    pub(crate) fn meet_at_checkpoint(
        &mut self,
        step: u64,
        weights: String,
        replacements: Replacements,
    ) -> Result<Replacements, TrainError> {
        let mine = CheckpointNotice { step, weights, replacements };
        let bytes = serde_json::to_vec(&mine).map_err(|error| unreadable(&error))?;
        let all = self.timed(|group| Ok(group.all_gather("the checkpoint", &bytes)?))?;
        let read = |bytes: &Vec<u8>| serde_json::from_slice(bytes).map_err(|error| unreadable(&error));
        let notices: Vec<CheckpointNotice> = all.iter().map(read).collect::<Result<_, _>>()?;
        let states: Vec<(u64, &str)> = notices.iter().map(|notice| (notice.step, notice.weights.as_str())).collect();
        match odd_one_out(&states) {
            Some(rank) => {
                let detail = format!("its weights after step {step} differ from those of the other ranks");
                Err(TrainError::RanksDiffer { rank, detail })
            }
            None => {
                let all = notices.iter().flat_map(|notice| notice.replacements.iter());
                Ok(Replacements::from(all.collect::<Vec<_>>()))
            }
        }
    }

    /// Waits until `is_there`, while the others are alive. A plain wait would be for ever if another rank has died, because
    /// the device waits for its gradients.
    pub(crate) fn wait_for(&self, is_there: impl Fn(Duration) -> Result<bool, TrainError>) -> Result<(), TrainError> {
        let Some(communicator) = &self.communicator else { return Ok(()) };
        let waiting = Instant::now();
        while !is_there(POLL)? {
            let lost = self.group.failure().map(TrainError::from);
            let failed = lost.or_else(|| communicator.check().err().map(TrainError::from)).or_else(|| {
                let seconds = waiting.elapsed().as_secs();
                (waiting.elapsed() > self.group.collective_timeout())
                    .then_some(TrainError::GradientsMissing { seconds })
            });
            if let Some(error) = failed {
                communicator.abort();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Connects the communicators of all ranks by a first sum, so that the memory they take is there before it is measured. The
    /// gradients are still zero.
    pub(crate) fn connect(&mut self, session: &Session) -> Result<(), TrainError> {
        if self.communicator.is_none() {
            return Ok(());
        }
        self.reduce_gradients(session)?;
        let summed = session.stream().device().event()?;
        session.stream().record(&summed)?;
        self.wait_for(|longest| Ok(summed.synchronize_within(longest)?))
    }

    /// Waits until all ranks have ended their work: a rank that ended earlier would look to a launcher as if it had failed, and
    /// rank 0 may still be writing.
    pub(crate) fn meet_at_end(&mut self) -> Result<(), TrainError> {
        self.timed(|group| Ok(group.barrier("the end of the run")?))
    }

    fn timed<T>(&mut self, collective: impl FnOnce(&Group) -> Result<T, TrainError>) -> Result<T, TrainError> {
        let waiting = Instant::now();
        let outcome = collective(&self.group);
        self.waited_ns += waiting.elapsed().as_nanos() as u64;
        outcome
    }
}

/// The first value that is not the most common one; of equally common ones, rank 0's counts as right.
fn odd_one_out<T: PartialEq>(values: &[T]) -> Option<usize> {
    let count = |value: &T| values.iter().filter(|other| *other == value).count();
    let usual = values.iter().rev().max_by_key(|value| count(value))?;
    values.iter().position(|value| value != usual)
}

fn unreadable(error: &serde_json::Error) -> TrainError {
    TrainError::RankNotice(error.to_string())
}

impl StepNotice {
    const WORDS: usize = 7;

    fn to_bytes(self) -> Vec<u8> {
        let StepNotice { step, counts: StepCounts { frames, tokens }, wishes, failed, waited_ns } = self;
        let flags = [wishes.stop, wishes.checkpoint, failed].map(u64::from);
        let words = [step, frames, tokens, flags[0], flags[1], flags[2], waited_ns];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn read(bytes: &[u8]) -> Result<StepNotice, TrainError> {
        let words: Vec<u64> = bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect();
        let [step, frames, tokens, stop, checkpoint, failed, waited_ns] = words[..] else {
            let (found, expected) = (bytes.len(), 8 * StepNotice::WORDS);
            return Err(TrainError::RankNotice(format!("{found} bytes before a step, expected {expected}")));
        };
        let wishes = StepWishes { stop: stop != 0, checkpoint: checkpoint != 0 };
        Ok(StepNotice { step, counts: StepCounts { frames, tokens }, wishes, failed: failed != 0, waited_ns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_reads_back_as_written_and_another_length_is_an_error() {
        let wishes = StepWishes { stop: true, checkpoint: false };
        let counts = StepCounts { frames: 100, tokens: 9 };
        let notice = StepNotice { step: 7, counts, wishes, failed: true, waited_ns: 5 };
        let bytes = notice.to_bytes();
        assert_eq!(bytes.len(), 8 * StepNotice::WORDS);
        assert_eq!(StepNotice::read(&bytes).unwrap(), notice);
        for length in [0, 8, 48, 64] {
            assert!(StepNotice::read(&vec![0; length]).is_err(), "{length}");
        }
    }

    #[test]
    fn the_rank_that_differs_from_most_is_named() {
        let check = |values: &[u32], expected| assert_eq!(odd_one_out(values), expected, "{values:?}");
        check(&[], None);
        check(&[5], None);
        check(&[5, 5, 5], None);
        check(&[5, 5, 6], Some(2));
        check(&[6, 5, 5], Some(0));
        check(&[5, 6], Some(1));
        check(&[5, 6, 5, 6], Some(1));
    }
}
