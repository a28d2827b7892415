//! Host memory used as device memory: address space is reserved at once, pages are committed when first touched.

use memmap2::{MmapMut, MmapOptions};

use crate::driver::HostSpan;

/// The byte that unwritten memory is filled with: floats read as NaN, signed integers as -1.
pub(crate) const POISON: u8 = 0xFF;

const CHUNK: u64 = 1 << 20;

/// A reservation. Unwritten bytes read as [`POISON`] after `touch`.
pub(crate) struct HostMemory {
    map: MmapMut,
    /// Its address, exposed once: work writes through this pointer.
    base: u64,
    poisoned: bool,
    /// Chunks that were filled. Poison is written lazily, so that reserving sixteen simulated gigabytes costs nothing.
    present: Vec<bool>,
}

impl HostMemory {
    /// Reserves address space. With `poisoned`, unwritten bytes read as poison.
    pub(crate) fn reserve(bytes: u64, poisoned: bool) -> std::io::Result<HostMemory> {
        let mut map = MmapOptions::new().len(bytes.max(1) as usize).no_reserve_swap().map_anon()?;
        let base = map.as_mut_ptr().expose_provenance() as u64;
        let chunks = if poisoned { bytes.div_ceil(CHUNK) as usize } else { 0 };
        Ok(HostMemory { map, base, poisoned, present: vec![false; chunks] })
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.map.len() as u64
    }

    pub(crate) fn holds(&self, from: u64, to: u64) -> bool {
        from >= self.base() && to <= self.base() + self.bytes()
    }

    /// Fills the chunks of `from..to` (addresses) with poison if they were never touched.
    pub(crate) fn touch(&mut self, from: u64, to: u64) {
        if !self.poisoned || from >= to {
            return;
        }
        let base = self.base();
        for chunk in (from - base) / CHUNK..(to - base).div_ceil(CHUNK) {
            if !std::mem::replace(&mut self.present[chunk as usize], true) {
                let end = ((chunk + 1) * CHUNK).min(self.map.len() as u64);
                self.map[(chunk * CHUNK) as usize..end as usize].fill(POISON);
            }
        }
    }

    /// Overwrites `from..to` (addresses) with poison.
    pub(crate) fn poison(&mut self, from: u64, to: u64) {
        let base = self.base();
        for chunk in (from - base) / CHUNK..(to - base).div_ceil(CHUNK) {
            if self.present.get(chunk as usize).copied().unwrap_or(false) {
                let start = (chunk * CHUNK).max(from - base) as usize;
                let end = ((chunk + 1) * CHUNK).min(to - base) as usize;
                self.map[start..end].fill(POISON);
            }
        }
    }
}

/// Page-aligned host memory, for devices that do not need it pinned.
pub(crate) fn alloc_span(bytes: u64) -> Option<HostSpan> {
    let layout = span_layout(bytes)?;
    // SAFETY: the layout has a size of at least one.
    let ptr = unsafe { std::alloc::alloc_zeroed(layout) };
    (!ptr.is_null()).then_some(HostSpan { ptr, bytes })
}

/// # Safety
/// `span` must come from [`alloc_span`] and not be used again.
pub(crate) unsafe fn free_span(span: HostSpan) {
    if let Some(layout) = span_layout(span.bytes) {
        // SAFETY: allocated with this layout, by this function's contract.
        unsafe { std::alloc::dealloc(span.ptr, layout) };
    }
}

fn span_layout(bytes: u64) -> Option<std::alloc::Layout> {
    std::alloc::Layout::from_size_align(usize::try_from(bytes.max(1)).ok()?, 4096).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwritten_and_freed_bytes_are_poison() {
        let mut memory = HostMemory::reserve(3 * CHUNK, true).unwrap();
        let base = memory.base();
        memory.touch(base + CHUNK, base + CHUNK + 8);
        assert_eq!(memory.map[CHUNK as usize], POISON);
        assert_eq!(memory.map[0], 0, "an untouched chunk was committed");
        memory.map[CHUNK as usize] = 7;
        memory.touch(base + CHUNK, base + 2 * CHUNK);
        assert_eq!(memory.map[CHUNK as usize], 7, "touching again destroyed what was written");
        memory.poison(base + CHUNK, base + CHUNK + 1);
        assert_eq!(memory.map[CHUNK as usize], POISON);
    }
}
