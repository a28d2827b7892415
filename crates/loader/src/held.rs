//! Which batches the program still holds, to say so when the loader waits for one of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The batches that are in use. Clones share the list.
#[derive(Clone, Default)]
pub(crate) struct HeldBatches {
    list: Arc<Mutex<BTreeMap<u64, HeldBatch>>>,
}

/// A batch in use.
#[derive(Clone, Debug)]
pub(crate) struct HeldBatch {
    pub(crate) epoch: u64,
    pub(crate) index: u64,
    /// The tensors that were handed out.
    pub(crate) tensors: Vec<&'static str>,
}

/// Names of batches in a message.
const MAX_NAMED: usize = 4;

impl HeldBatches {
    fn list(&self) -> MutexGuard<'_, BTreeMap<u64, HeldBatch>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, sequence: u64, batch: HeldBatch) {
        self.list().insert(sequence, batch);
    }

    pub(crate) fn remove(&self, sequence: u64) {
        self.list().remove(&sequence);
    }

    pub(crate) fn handed_out(&self, sequence: u64, tensor: &'static str) {
        if let Some(batch) = self.list().get_mut(&sequence)
            && !batch.tensors.contains(&tensor)
        {
            batch.tensors.push(tensor);
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.list().len()
    }

    /// What a loader waits for that has no slot left, oldest first.
    pub(crate) fn message(&self, slots: usize) -> String {
        let list = self.list();
        let named = list.values().take(MAX_NAMED).map(|batch| {
            let HeldBatch { epoch, index, tensors } = batch;
            let tensors = if tensors.is_empty() { String::new() } else { format!(" ({})", tensors.join(", ")) };
            format!("epoch {epoch}, batch {index}{tensors}")
        });
        let named: Vec<String> = named.collect();
        let more = list.len().saturating_sub(MAX_NAMED);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        format!(
            "the feed waits because every slot is in use: {} of {slots} are held by this program: {}{more}. Drop their \
             tensors, copy what you keep, or open the feed with a larger `held`",
            list.len(),
            named.join("; ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_named_by_their_place_and_their_tensors() {
        let held = HeldBatches::default();
        for index in 0..6 {
            held.add(index, HeldBatch { epoch: 2, index, tensors: Vec::new() });
        }
        held.handed_out(0, "mel");
        held.handed_out(0, "mel");
        held.handed_out(0, "text");
        let message = held.message(6);
        assert!(message.contains("6 of 6 are held"), "{message}");
        assert!(message.contains("epoch 2, batch 0 (mel, text); epoch 2, batch 1;"), "{message}");
        assert!(message.contains("; and 2 more."), "{message}");
        held.remove(0);
        assert_eq!(held.count(), 5);
    }
}
