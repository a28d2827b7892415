//! Fitting a program into a memory limit by gradient checkpointing: the fewest blocks that suffice are recomputed.

use std::collections::BTreeMap;

use crate::error::EngineError;
use crate::gradient::Recomputed;
use crate::graph::BlockId;
use crate::program::Program;

/// Builds `name` so that it takes at most `limit` bytes while it runs ([`crate::MemoryPlan::peak_bytes`]).
///
/// `build` defines and compiles the program with the given blocks recomputed. If the program fits without recomputation, or
/// there is no limit, no block is recomputed; else the first few of `num_blocks` are, because their activations live longest.
/// Returns the program and its recomputed blocks. The results are bit-identical either way in f32; in bf16 they are not,
/// because a saved value between two pointwise functions is rounded and a fused one is not.
///
/// Cost: one build if the program fits at once, else a binary search over the number of blocks; a refusal has tried every
/// number. Fails with [`EngineError::TooLarge`] if none fits; its `needed` is a limit that suffices.
pub fn fit(
    name: &str,
    limit: Option<u64>,
    num_blocks: u32,
    build: impl Fn(&Recomputed) -> Result<Program, EngineError>,
) -> Result<(Program, Recomputed), EngineError> {
    let plain = build(&Recomputed::new())?;
    let Some(limit) = limit.filter(|limit| plain.memory().peak_bytes > *limit) else {
        return Ok((plain, Recomputed::new()));
    };
    let mut search =
        Search { limit, build, found: None, smallest: (plain.memory().peak_bytes, plain), tried: BTreeMap::new() };
    search.bisect(num_blocks)?;
    // More recomputation does not always take less memory, so every number is tried before a refusal.
    for count in 1..=num_blocks {
        if search.found.is_none() {
            search.fits(count)?;
        }
    }
    match search.found {
        Some((count, program)) => Ok((program, first(count))),
        None => {
            let (needed, program) = search.smallest;
            let (program, largest) = (name.to_owned(), program.memory().describe());
            Err(EngineError::TooLarge { program, needed, limit, largest })
        }
    }
}

/// The first `count` blocks.
fn first(count: u32) -> Recomputed {
    (0..count).map(BlockId).collect()
}

struct Search<B> {
    limit: u64,
    build: B,
    /// The fewest blocks with which the program fits so far.
    found: Option<(u32, Program)>,
    /// The smallest peak so far, whether it fits or not.
    smallest: (u64, Program),
    tried: BTreeMap<u32, bool>,
}

impl<B: Fn(&Recomputed) -> Result<Program, EngineError>> Search<B> {
    /// Binary search for the fewest blocks, as if every further block took less memory.
    fn bisect(&mut self, num_blocks: u32) -> Result<(), EngineError> {
        let (mut too_few, mut enough) = (0, num_blocks + 1);
        while enough - too_few > 1 {
            let middle = too_few + (enough - too_few) / 2;
            match self.fits(middle)? {
                true => enough = middle,
                false => too_few = middle,
            }
        }
        Ok(())
    }

    fn fits(&mut self, count: u32) -> Result<bool, EngineError> {
        if let Some(known) = self.tried.get(&count) {
            return Ok(*known);
        }
        let program = (self.build)(&first(count))?;
        let peak = program.memory().peak_bytes;
        let fits = peak <= self.limit;
        self.tried.insert(count, fits);
        if fits && self.found.as_ref().is_none_or(|(fewest, _)| count < *fewest) {
            self.found = Some((count, program));
        } else if peak < self.smallest.0 {
            self.smallest = (peak, program);
        }
        Ok(fits)
    }
}

#[cfg(test)]
mod tests;
