//! Host memory that stands in for device memory: address space is taken at once, pages only when touched.

use memmap2::{MmapMut, MmapOptions};

use crate::driver::HostSpan;

/// What memory holds that nobody has written: every float in it is a NaN, every integer is -1.
pub(crate) const POISON: u8 = 0xFF;

const CHUNK: u64 = 1 << 20;

/// A reservation. Bytes that were never written read as [`POISON`] once `touch` has seen them.
pub(crate) struct HostMemory {
    map: MmapMut,
    /// Where it lies: taken once, as the pointer that work writes through.
    base: u64,
    spoiled: bool,
    /// Chunks that really hold something. The rest is poison that has not been written down yet, so that reserving
    /// sixteen simulated gigabytes costs nothing.
    present: Vec<bool>,
}

impl HostMemory {
    /// Takes address space. `spoiled`: unwritten bytes must read as poison.
    pub(crate) fn reserve(bytes: u64, spoiled: bool) -> std::io::Result<HostMemory> {
        let mut map = MmapOptions::new().len(bytes.max(1) as usize).no_reserve_swap().map_anon()?;
        let base = map.as_mut_ptr().expose_provenance() as u64;
        let chunks = if spoiled { bytes.div_ceil(CHUNK) as usize } else { 0 };
        Ok(HostMemory { map, base, spoiled, present: vec![false; chunks] })
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

    /// Makes `from..to` (addresses) hold poison where nothing was written yet.
    pub(crate) fn touch(&mut self, from: u64, to: u64) {
        if !self.spoiled || from >= to {
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

    /// Spoils what was written in `from..to` (addresses).
    pub(crate) fn spoil(&mut self, from: u64, to: u64) {
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

/// Page-aligned host memory for the devices that need no page locks.
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
    fn unwritten_bytes_are_poison_and_returned_ones_become_it() {
        let mut memory = HostMemory::reserve(3 * CHUNK, true).unwrap();
        let base = memory.base();
        memory.touch(base + CHUNK, base + CHUNK + 8);
        assert_eq!(memory.map[CHUNK as usize], POISON);
        assert_eq!(memory.map[0], 0, "an untouched chunk was committed");
        memory.map[CHUNK as usize] = 7;
        memory.touch(base + CHUNK, base + 2 * CHUNK);
        assert_eq!(memory.map[CHUNK as usize], 7, "touching again destroyed what was written");
        memory.spoil(base + CHUNK, base + CHUNK + 1);
        assert_eq!(memory.map[CHUNK as usize], POISON);
    }
}
