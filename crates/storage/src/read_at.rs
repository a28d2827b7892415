//! Bytes that can be read at any position.

use std::io;

/// Bytes that can be read at any position: a file, an object in a store, a slice of memory.
pub trait ReadAt: Send + Sync {
    /// Its size.
    fn num_bytes(&self) -> u64;

    /// Fills `buffer` from `offset` on. Fails with [`io::ErrorKind::UnexpectedEof`] if it ends earlier.
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

impl ReadAt for [u8] {
    fn num_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).ok();
        let bytes = start.and_then(|start| self.get(start..start.checked_add(buffer.len())?));
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl ReadAt for Vec<u8> {
    fn num_bytes(&self) -> u64 {
        self.as_slice().num_bytes()
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.as_slice().read_exact_at(offset, buffer)
    }
}
