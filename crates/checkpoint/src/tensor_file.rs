//! A safetensors file: written in one pass from borrowed bytes, read tensor by tensor into the caller's memory.
//!
//! The format is eight bytes with the length of a JSON header, the header, and the tensors one after another. The crate
//! `safetensors` creates and validates the header. The bytes go through our own writer, because the crate's writer
//! neither computes a checksum nor syncs.

use std::collections::BTreeMap;
use std::fs::File;
use std::hash::Hasher;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Metadata, TensorInfo};
use twox_hash::XxHash3_64;

use crate::disk::unusable;
use crate::error::CheckpointError;
use crate::mismatch::{Mismatch, missing_or_different, unexpected};
use crate::state_file::FileDigest;
use crate::tensor::{Dtype, TensorRef, TensorSpec};
use tandem_files::open_regular;

/// Bytes of the header's length in the file.
const LENGTH_BYTES: u64 = 8;
/// A longer header is invalid: a tensor takes about a hundred bytes of it.
const MAX_HEADER_BYTES: u64 = 64 << 20;
/// The header is padded to a multiple of this, so that tensors are aligned.
const ALIGNMENT: usize = 8;
/// Small tensors are buffered up to this size; larger ones are written directly.
const BUFFER_BYTES: usize = 1 << 20;

/// An open tensor file. It stays readable after the checkpoint is rotated away.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    file: File,
    tensors: BTreeMap<String, StoredTensor>,
}

/// A tensor of a file.
#[derive(Clone, Debug)]
pub(crate) struct StoredTensor {
    pub(crate) dtype: safetensors::Dtype,
    pub(crate) shape: Vec<usize>,
    offset: u64,
    num_bytes: usize,
}

impl TensorFile {
    /// Opens the file and reads its header. The tensors are not compared with a checksum: opening a
    /// [`Checkpoint`](crate::Checkpoint) does that.
    pub fn open(path: &Path) -> Result<TensorFile, CheckpointError> {
        let file = open_regular(path).map_err(unusable("open", path))?;
        let file_bytes = file.metadata().map_err(unusable("read", path))?.len();
        TensorFile::with_header(path, file, file_bytes)
    }

    /// Writes a new file with these tensors and waits until it is on the disk.
    pub fn write(path: &Path, tensors: &[TensorRef<'_>]) -> Result<(), CheckpointError> {
        write(path, tensors).map(|_| ()).map_err(unusable("write", path))
    }

    /// The names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The description of the tensor `name`. `None` if there is none, or if Tandem does not use its element type.
    pub fn spec(&self, name: &str) -> Option<TensorSpec<'_>> {
        let (name, tensor) = self.tensors.get_key_value(name)?;
        Some(TensorSpec { name, dtype: Dtype::from_safetensors(tensor.dtype)?, shape: &tensor.shape })
    }

    /// Succeeds if the file holds exactly these tensors. Fails with [`CheckpointError::WrongTensors`], which has every
    /// difference.
    pub fn expect(&self, specs: &[TensorSpec<'_>]) -> Result<(), CheckpointError> {
        let mut mismatches = missing_or_different(specs, &self.tensors);
        mismatches.extend(unexpected(specs, &self.tensors));
        self.no_mismatch(mismatches)
    }

    /// Like [`TensorFile::expect`], but the file may hold other tensors, too.
    pub fn expect_at_least(&self, specs: &[TensorSpec<'_>]) -> Result<(), CheckpointError> {
        self.no_mismatch(missing_or_different(specs, &self.tensors))
    }

    /// Fills `out`, which has the tensor's length, with its bytes. Cost: reading them.
    pub fn read_into(&self, name: &str, out: &mut [u8]) -> Result<(), CheckpointError> {
        let tensor = self.tensor(name)?;
        assert_eq!(out.len(), tensor.num_bytes, "the buffer for `{name}` does not have the tensor's length");
        self.file.read_exact_at(out, tensor.offset).map_err(unusable("read", &self.path))
    }

    /// The tensor's bytes, in newly allocated memory.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, CheckpointError> {
        let mut bytes = vec![0; self.tensor(name)?.num_bytes];
        self.read_into(name, &mut bytes)?;
        Ok(bytes)
    }

    /// Opens the file and compares its length and checksum with `digest`. Cost: reading all of it once, through a
    /// 1 MiB buffer.
    pub(crate) fn open_verified(path: &Path, digest: &FileDigest) -> Result<TensorFile, CheckpointError> {
        let file = open_verified(path, digest)?;
        TensorFile::with_header(path, file, digest.bytes)
    }

    fn with_header(path: &Path, file: File, file_bytes: u64) -> Result<TensorFile, CheckpointError> {
        let damaged = |reason| CheckpointError::Damaged { reason, path: path.to_owned() };
        let tensors = read_header(&file, file_bytes).map_err(unusable("read", path))?.map_err(damaged)?;
        Ok(TensorFile { path: path.to_owned(), file, tensors })
    }

    fn no_mismatch(&self, mismatches: Vec<Mismatch>) -> Result<(), CheckpointError> {
        if mismatches.is_empty() {
            return Ok(());
        }
        Err(CheckpointError::WrongTensors { mismatches, path: self.path.clone() })
    }

    fn tensor(&self, name: &str) -> Result<&StoredTensor, CheckpointError> {
        let missing = || CheckpointError::NoSuchTensor { name: name.to_owned(), path: self.path.clone() };
        self.tensors.get(name).ok_or_else(missing)
    }
}

/// The exact size of a file with these tensors.
pub fn tensor_file_bytes(specs: &[TensorSpec<'_>]) -> u64 {
    let header = header(specs);
    let tensors: u64 = specs.iter().map(|spec| spec.num_bytes() as u64).sum();
    LENGTH_BYTES + header.len() as u64 + tensors
}

/// Writes the file, waits until it is on the disk, and returns its digest.
pub(crate) fn write(path: &Path, tensors: &[TensorRef<'_>]) -> io::Result<FileDigest> {
    let mut out = HashingWriter::new(BufWriter::with_capacity(BUFFER_BYTES, File::create_new(path)?));
    write_into(&mut out, tensors)?;
    let (file, digest) = out.finish();
    file.into_inner()?.sync_all()?;
    Ok(digest)
}

/// Opens a file and compares its length and checksum with those it was written with.
pub(crate) fn open_verified(path: &Path, digest: &FileDigest) -> Result<File, CheckpointError> {
    let damaged = |reason| CheckpointError::Damaged { reason, path: path.to_owned() };
    let mut file = match open_regular(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(damaged("the file is missing".into())),
        opened => opened.map_err(unusable("open", path))?,
    };
    let found = file.metadata().map_err(unusable("read", path))?.len();
    if found != digest.bytes {
        return Err(damaged(format!("expected {} bytes, found {found}", digest.bytes)));
    }
    let mut hashed = HashingWriter::new(io::sink());
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(num_bytes) => hashed.add(&buffer[..num_bytes]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(unusable("read", path)(error)),
        }
    }
    let found = hashed.finish().1;
    if found != *digest {
        return Err(damaged(format!("expected checksum {}, found {}", digest.xxh3, found.xxh3)));
    }
    Ok(file)
}

fn write_into(out: &mut impl Write, tensors: &[TensorRef<'_>]) -> io::Result<()> {
    let mut tensors = tensors.to_vec();
    for tensor in &tensors {
        let (spec, len) = (tensor.spec(), tensor.bytes.len());
        assert_eq!(spec.num_bytes(), len, "`{}`: {} {:?} and {len} bytes", spec.name, spec.dtype, spec.shape);
    }
    let header = header(&tensors.iter().map(TensorRef::spec).collect::<Vec<_>>());
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    tensors.sort_by(|a, b| order(&a.spec(), &b.spec()));
    for tensor in tensors {
        out.write_all(tensor.bytes)?;
    }
    Ok(())
}

/// Large elements first, so that all are aligned; then by name, so that equal tensors make equal files.
fn order(a: &TensorSpec<'_>, b: &TensorSpec<'_>) -> std::cmp::Ordering {
    (b.dtype.num_bytes(), a.name).cmp(&(a.dtype.num_bytes(), b.name))
}

fn header(specs: &[TensorSpec<'_>]) -> Vec<u8> {
    let mut specs = specs.to_vec();
    specs.sort_by(order);
    let mut end = 0;
    let mut infos = Vec::with_capacity(specs.len());
    for spec in &specs {
        let start = end;
        end += spec.num_bytes();
        let info =
            TensorInfo { dtype: spec.dtype.to_safetensors(), shape: spec.shape.to_vec(), data_offsets: (start, end) };
        infos.push((spec.name.to_owned(), info));
    }
    let names: std::collections::HashSet<_> = specs.iter().map(|spec| spec.name).collect();
    assert_eq!(names.len(), specs.len(), "tensor names are unique in a file");
    assert!(!names.contains("__metadata__"), "the format reserves that name");
    let header = Metadata::new(None, infos).map(|metadata| serde_json::to_vec(&metadata));
    let Ok(Ok(mut header)) = header else {
        unreachable!("offsets without gaps and valid strings always have a header")
    };
    header.resize(header.len().next_multiple_of(ALIGNMENT), b' ');
    header
}

/// The outer error is an I/O error, the inner one says what is wrong with the header.
fn read_header(file: &File, file_bytes: u64) -> io::Result<Result<BTreeMap<String, StoredTensor>, String>> {
    if file_bytes < LENGTH_BYTES {
        return Ok(Err(format!("not a safetensors file: expected a header, found {file_bytes} bytes")));
    }
    let mut length = [0; LENGTH_BYTES as usize];
    file.read_exact_at(&mut length, 0)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES.min(file_bytes - LENGTH_BYTES) {
        return Ok(Err(format!("not a safetensors file: a header of {length} bytes in a file of {file_bytes}")));
    }
    let mut header = vec![0; length as usize];
    file.read_exact_at(&mut header, LENGTH_BYTES)?;
    Ok(parse_header(&header, file_bytes))
}

fn parse_header(header: &[u8], file_bytes: u64) -> Result<BTreeMap<String, StoredTensor>, String> {
    let metadata: Metadata =
        serde_json::from_slice(header).map_err(|error| format!("the tensor header is damaged ({error})"))?;
    let data_offset = LENGTH_BYTES + header.len() as u64;
    let expected = data_offset.saturating_add(metadata.data_len() as u64);
    if expected != file_bytes {
        return Err(format!("the header describes {expected} bytes, found {file_bytes}"));
    }
    let stored = |name: String| {
        let info = metadata.info(&name)?.clone();
        let (start, end) = info.data_offsets;
        let offset = data_offset + start as u64;
        Some((name, StoredTensor { dtype: info.dtype, shape: info.shape, offset, num_bytes: end - start }))
    };
    Ok(metadata.offset_keys().into_iter().filter_map(stored).collect())
}

/// Computes the digest of the bytes that pass through.
struct HashingWriter<W> {
    inner: W,
    hasher: XxHash3_64,
    bytes: u64,
}

impl<W> HashingWriter<W> {
    fn new(inner: W) -> HashingWriter<W> {
        HashingWriter { inner, hasher: XxHash3_64::with_seed(0), bytes: 0 }
    }

    fn add(&mut self, bytes: &[u8]) {
        self.hasher.write(bytes);
        self.bytes += bytes.len() as u64;
    }

    fn finish(self) -> (W, FileDigest) {
        (self.inner, FileDigest { bytes: self.bytes, xxh3: format!("{:016x}", self.hasher.finish()) })
    }
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.add(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests;
