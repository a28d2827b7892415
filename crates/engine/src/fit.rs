//! Making a program fit: blocks are computed again rather than remembered, as few of them as will do.

use std::collections::BTreeMap;

use crate::error::EngineError;
use crate::gradient::Recomputed;
use crate::graph::BlockId;
use crate::program::Program;

/// Builds `name` so that it takes at most `limit` bytes while it runs ([`crate::MemoryPlan::peak_bytes`]).
///
/// `build` writes and compiles the program with the given blocks recomputed. None is, if that fits or there is no limit;
/// else the first few of `num_blocks` are: those are remembered longest. The result is the program, and what is recomputed
/// in it. Its numbers are the same bits either way, but in bf16: what is kept between two element-wise functions is rounded,
/// and what is fused is not.
///
/// Cost: one build when nothing need be recomputed, then one per halving of the number of blocks; a refusal has tried every
/// number of them. Fails with [`EngineError::TooLarge`] when none fits: a limit of what it says is needed is enough.
pub fn fit(
    name: &str,
    limit: Option<u64>,
    num_blocks: u32,
    build: impl Fn(&Recomputed) -> Result<Program, EngineError>,
) -> Result<(Program, Recomputed), EngineError> {
    let whole = build(&Recomputed::new())?;
    let Some(limit) = limit.filter(|limit| whole.memory().peak_bytes > *limit) else {
        return Ok((whole, Recomputed::new()));
    };
    let mut search =
        Search { limit, build, found: None, smallest: (whole.memory().peak_bytes, whole), tried: BTreeMap::new() };
    search.halve(num_blocks)?;
    // More recomputation need not mean less memory: a refusal is only true when every number was tried.
    for count in 1..=num_blocks {
        if search.found.is_none() {
            search.fits(count)?;
        }
    }
    match search.found {
        Some((count, program)) => Ok((program, first(count))),
        None => {
            let (needed, program) = search.smallest;
            let (program_name, holders) = (name.to_owned(), program.memory().describe());
            Err(EngineError::TooLarge { program: program_name, needed, limit, holders })
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
    /// The fewest blocks with which the program fits, so far.
    found: Option<(u32, Program)>,
    /// The smallest peak, whether it fits or not.
    smallest: (u64, Program),
    tried: BTreeMap<u32, bool>,
}

impl<B: Fn(&Recomputed) -> Result<Program, EngineError>> Search<B> {
    /// Looks for the fewest blocks, as if each one more took less memory.
    fn halve(&mut self, num_blocks: u32) -> Result<(), EngineError> {
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
